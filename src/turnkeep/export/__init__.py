"""Rollouts on their way in from other tools, and out to trainers."""
