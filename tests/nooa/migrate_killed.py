"""Kill a migration at many instants: `python migrate_killed.py FOLDER SEED`, a JSON line with what was found.

Each try is a forked child that kills itself with SIGKILL before its n-th call of a C function that may touch the file
system or SQLite, or that is killed from outside after a while. The parent then looks at what is there.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrate_files import golden, rows

from turnkeep.nooa.migrate import To, migrate

_TOUCHING = ("sqlite3", "posix", "io", "_io", "fcntl", "builtins")
_METHODS = ("execute", "backup", "close", "fetchall", "open", "link", "replace", "unlink", "flock", "fsync", "write")
_INSTANTS, _LAST, _LATER = 14, 8, 4


def main() -> int:
    """Try both directions."""
    folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    archived, store = golden(folder / "old"), folder / "rollouts.db"
    migrate(archived, "reference", str(store), keep_backup=False)
    referenced = Path(shutil.copy(archived, folder / "referenced.db"))
    migrate(archived, "archive", str(store), keep_backup=False)
    found = {
        "reference": tries(folder / "r", archived, "reference", rows(referenced), None, chance),
        "archive": tries(folder / "a", referenced, "archive", rows(archived), store, chance),
    }
    print(json.dumps(found))
    return 0


def tries(
    folder: Path, original: Path, to: To, wanted: dict[str, Any], store: Path | None, chance: random.Random
) -> dict[str, Any]:
    """Kill at counted instants over the whole run and at moments in between; how often which file was found."""
    before = rows(original)
    counted, seconds = _whole_run(folder / "whole", original, to, store)
    last = range(counted - _LAST, counted + 1)  # the replacing itself
    instants = [*chance.sample(range(1, counted - _LAST), _INSTANTS), *last]
    found: Counter[str] = Counter()
    for n in instants:
        found[_try(folder / f"n{n}", original, to, store, before, wanted, lambda pid: None, n)] += 1
    for n in range(_LATER):
        moment = seconds * chance.random()
        found[_try(folder / f"t{n}", original, to, store, before, wanted, _killer(moment), None)] += 1
    return {**found, "instants": counted}


def _killer(seconds: float) -> Callable[[int], None]:
    def kill(pid: int) -> None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    return kill


def _whole_run(folder: Path, original: Path, to: To, store: Path | None) -> tuple[int, float]:
    path, url = _prepare(folder, original, store)
    begun = time.monotonic()
    migrate(path, to, url)
    seconds = time.monotonic() - begun
    path, url = _prepare(folder.with_name("counted"), original, store)
    calls = _count(lambda: migrate(path, to, url), None)
    return calls, seconds


def _prepare(folder: Path, original: Path, store: Path | None) -> tuple[Path, str]:
    folder.mkdir(parents=True)
    return Path(shutil.copy(original, folder / "nooa.db")), str(store or folder / "rollouts.db")


def _count(work: Callable[[], Any], kill_at: int | None) -> int:
    """How many calls `work` makes of C functions that may touch a file; dies before the one of number `kill_at`."""
    calls = 0

    def watch(_frame: Any, event: str, called: Any) -> None:
        nonlocal calls
        if event == "c_call" and called.__name__ in _METHODS:
            owner = called.__module__ or type(getattr(called, "__self__", None)).__module__
            if owner in _TOUCHING:
                calls += 1
                if calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _try(
    folder: Path,
    original: Path,
    to: To,
    store: Path | None,
    before: dict[str, Any],
    wanted: dict[str, Any],
    kill: Callable[[int], None],
    n: int | None,
) -> str:
    path, url = _prepare(folder, original, store)
    pid = os.fork()
    if not pid:
        try:
            _count(lambda: migrate(path, to, url), n if n is not None else -1)
        finally:
            os._exit(0)
    kill(pid)
    os.waitpid(pid, 0)
    there = rows(path)
    backup = path.with_name("nooa.db.bak")
    if there == wanted:
        what = "converted" if rows(backup) == before else "converted, and the backup is not the old file"
    else:
        what = "original" if there == before else "neither"
        migrate(path, to, url)
        if rows(path) != wanted or rows(backup) != before:
            what += ", and the next migration failed"
    if path.with_name("nooa.db.migrating").exists():
        what += ", and a copy was left when all was done"
    return what


if __name__ == "__main__":
    sys.exit(main())
