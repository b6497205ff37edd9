"""Turns, scope, agreement, projection, gaps, structured output. Pure: no I/O."""
