"""Suites that another backend or adapter can run: they need pytest and hypothesis."""
