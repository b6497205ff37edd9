"""The SQLite schema as an append-only list: the position of a step is the version it leads to."""

from turnkeep.store.base import KINDS

APPLICATION_ID = 0x74_6B_70_31
"""`tkp1`, in the file header: marks the database as a turnkeep store."""

_NUMBERED = """
CREATE TABLE {kind} (
    rollout INTEGER NOT NULL REFERENCES rollouts (key),
    number INTEGER NOT NULL,
    document BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) WITHOUT ROWID
"""

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE rollouts (
            key INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            epoch INTEGER NOT NULL,
            writer TEXT NOT NULL,
            state BLOB NOT NULL,
            digest BLOB NOT NULL
        )
        """,
        *(_NUMBERED.format(kind=kind) for kind in KINDS),
        "CREATE TABLE blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL)",
    ),
)
"""Step n takes a store from version n to version n + 1. A released step never changes."""

VERSION = len(STEPS)
