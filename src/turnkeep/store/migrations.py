"""The SQLite schema as an append-only list: the position of a step is the version it leads to."""

APPLICATION_ID = 0x74_6B_70_31
"""`tkp1`, in the file header: marks the database as a turnkeep store."""

CODES = {"calls": 0, "turns": 1, "tools": 2, "failures": 3, "states": 4, "origins": 5}
"""How version 2 writes the kind of a row down; a rollout's state is a row of its own kind."""
STATE_NUMBER = (1 << 63) - 1
"""The number of the state's row: it stands behind all others, beside the newest, so that a commit changes one page."""

_NUMBERED = """
CREATE TABLE {kind} (
    rollout INTEGER NOT NULL REFERENCES rollouts (key),
    number INTEGER NOT NULL,
    document BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) WITHOUT ROWID
"""

_ROLLOUTS = """
CREATE TABLE rollouts (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL,
    writer TEXT NOT NULL
)
"""
_RECORDS = """
CREATE TABLE records (
    rollout INTEGER NOT NULL REFERENCES rollouts (key),
    number INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    document BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (rollout, number, kind)
) WITHOUT ROWID
"""
_BLOBS = "CREATE TABLE blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL)"

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
        *(_NUMBERED.format(kind=kind) for kind in ("calls", "turns", "tools", "failures")),
        _BLOBS,
    ),
    (
        "ALTER TABLE rollouts RENAME TO rollouts_1",
        _ROLLOUTS,
        "INSERT INTO rollouts SELECT key, id, epoch, writer FROM rollouts_1 ORDER BY key",
        _RECORDS,
        "INSERT INTO records SELECT rollout, number, 0, document, digest FROM calls",
        "INSERT INTO records SELECT rollout, number, 1, document, digest FROM turns",
        "INSERT INTO records SELECT rollout, number, 2, document, digest FROM tools",
        "INSERT INTO records SELECT rollout, number, 3, document, digest FROM failures",
        "INSERT INTO records SELECT key, 9223372036854775807, 4, state, digest FROM rollouts_1",
        *(f"DROP TABLE {table}" for table in ("calls", "turns", "tools", "failures", "rollouts_1")),
    ),
)
"""Step n takes a store from version n to version n + 1. A released step never changes."""

VERSION = len(STEPS)

NEW = (_ROLLOUTS, _RECORDS, _BLOBS)
"""What makes a new file of VERSION: the tables that all steps together leave."""
