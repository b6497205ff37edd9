"""Items on the wire: exact JSON, item kinds, training arrays. Pure: no I/O, no history."""
