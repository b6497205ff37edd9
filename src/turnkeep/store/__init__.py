"""Where turns live. Stores see keys and bytes, never an item."""
