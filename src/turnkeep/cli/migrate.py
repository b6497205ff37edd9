"""`turnkeep migrate nooa`."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnkeep.cli.output import console, file_to_read, print_json, watched

if TYPE_CHECKING:
    from turnkeep.nooa.migrate import Migrated, To


def migrate_nooa(
    path: Path, to: "To", store: str, rollout: str | None, *, dry_run: bool, keep_backup: bool, as_json: bool
) -> None:
    """Convert a NOOA storage or snapshot, and print what was done."""
    from turnkeep.nooa.migrate import migrate

    done = migrate(
        file_to_read(path),
        to,
        store,
        rollout=rollout,
        dry_run=dry_run,
        keep_backup=keep_backup,
        watch=_quiet if as_json else _bar,
    )
    if as_json:
        print_json(asdict(done))
    else:
        _print(done, store)


def _quiet(events: Iterable[Any], _step: str, _total: int) -> Iterable[Any]:
    return events


def _bar(events: Iterable[Any], step: str, total: int) -> Iterable[Any]:
    return watched(events, total, step, quiet=False)


def _print(done: "Migrated", store: str) -> None:
    from rich.markup import escape

    out = console()
    kept = "in the store" if done.to == "reference" else "in the events"
    if not done.converted:
        out.print(f"{escape(done.file)}: nothing to do, all {done.turns} turns are {kept} already")
        return
    verb = "would move" if done.dry_run else "moved"
    to = f"to {escape(store)}" if done.to == "reference" else "into the events"
    new = f", {done.added} of them new there" if done.to == "reference" else ""
    out.print(f"{escape(done.file)}: {verb} {done.converted} of {done.turns} turns {to}{new}")
    if done.dry_run:
        out.print("checked and left as it is")
        return
    out.print(f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after; every turn compared")
    if done.backup is not None:
        out.print(f"the old file is {escape(done.backup)}")
