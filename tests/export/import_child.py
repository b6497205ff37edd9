"""A child that imports a rollout file, saying the line of each row once it is in.

Given `before` or `after` and a number, it kills itself there: at its commit of that number, counted from 1.
"""

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from turnkeep.export.gym_import import import_gym
from turnkeep.store.base import Row
from turnkeep.store.sqlite import SqliteStore, SqliteWriter


def die_at(when: str, number: int) -> None:
    """Let the process kill itself before or after a commit."""
    commit, counted = SqliteWriter.commit, 0

    def dying(
        self: SqliteWriter, state: bytes, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None
    ) -> None:
        nonlocal counted
        counted += 1
        if (counted, when) == (number, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, state, rows, blobs)
        if (counted, when) == (number, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    SqliteWriter.commit = dying  # type: ignore[method-assign]


def main(path: str, file: str, when: str = "never", number: str = "0") -> None:
    """Import until done or killed."""
    die_at(when, int(number))
    with SqliteStore(path) as store:
        for result in import_gym(Path(file), store):
            assert result.error is None, str(result.error)
            print(result.line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
