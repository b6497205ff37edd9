"""Rollouts to look at: the page of one, the list of a store, what is live in it, and where two of them differ."""
