"""`turnkeep prune`."""

import sys
from datetime import UTC, datetime
from typing import NamedTuple

from turnkeep.cli.output import console, print_json, printable
from turnkeep.cli.several import without_deleted
from turnkeep.errors import ConfigurationError
from turnkeep.rollout.references import named_blobs
from turnkeep.rollout.state import read_state
from turnkeep.store.base import Deleted, Store
from turnkeep.store.open import open_store


class Choice(NamedTuple):
    """Which rollouts to delete: those begun before a moment, or all but the newest so many."""

    before: datetime | None
    keep: int | None


def read_choice(before: str | None, keep: int | None) -> Choice:
    """The choice that the options make. Raises ConfigurationError."""
    if (before is None) == (keep is None):
        raise ConfigurationError("say either --before DATE or --keep N")
    if before is None:
        return Choice(None, keep)
    try:
        moment = datetime.fromisoformat(before)
    except ValueError:
        raise ConfigurationError(f"{before!r} is no date like 2026-01-31 or 2026-01-31T12:00", field="before") from None
    return Choice(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC), None)


def choose(store: Store, choice: Choice) -> list[str]:
    """The rollouts to delete, in the order in which they began, which the store knows whatever its clocks said.

    Raises CorruptRecord where it is to be told by date, and one does not say when it began.
    """
    rollouts, before = store.rollouts(), choice.before
    if before is None:
        return rollouts[: max(0, len(rollouts) - (choice.keep or 0))]

    def began_before(names: list[str]) -> list[str]:
        begun = {name: datetime.fromisoformat(read_state(store.state(name)).begun) for name in names}
        return [name for name in names if begun[name] < before]

    return without_deleted(began_before, rollouts, store, every=True)


def prune_store(url: str, choice: Choice, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete the chosen rollouts, or say which they are, and print what was done."""
    with open_store(url, create=False) as store:
        chosen = choose(store, choice)
        if dry_run:
            _print_chosen(chosen, as_json=as_json)
            return
        if chosen and not yes:
            _confirm(chosen, as_json=as_json)
        deleted = without_deleted(lambda names: store.delete(names, named_blobs), chosen, store, every=True)
    if as_json:
        print_json(deleted._asdict())
    else:
        _print_deleted(deleted)


def _confirm(chosen: list[str], *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise ConfigurationError("deleting rollouts needs --yes where nobody can be asked", field="yes")
    import typer

    _print_chosen(chosen, as_json=False)
    typer.confirm("Delete them for ever?", abort=True)


def _print_chosen(chosen: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"rollouts": chosen, "dry_run": True})
        return
    from rich.markup import escape

    out = console()
    for rollout in chosen:
        out.print(escape(printable(rollout)))
    out.print(f"{len(chosen)} rollouts")


def _print_deleted(deleted: Deleted) -> None:
    from rich.markup import escape

    out = console()
    out.print(f"{len(deleted.rollouts)} rollouts and {deleted.blobs} blobs deleted, {deleted.size:,} bytes")
    for rollout in deleted.busy:
        out.print(f"[yellow]left, it is being written[/]: {escape(printable(rollout))}")
    if deleted.rollouts:
        out.print("the file uses the room again; `turnkeep compact` gives it back to the disk")
