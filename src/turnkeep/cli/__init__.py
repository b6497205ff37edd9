"""The `turnkeep` command: one module per command, imported when it is called."""
