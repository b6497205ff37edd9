"""Rollouts: policy calls, budget, evidence, failures, gradability, re-run from evidence."""
