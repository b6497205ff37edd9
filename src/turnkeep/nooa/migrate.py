"""A NOOA storage goes from archives in its events to references into turnkeep's store, and back: all or nothing.

Everything is checked before anything is replaced: that each archive is the turn that its mark names, that each
reference resolves, and that the converted copy holds the same events with the same turns. docs/references.md tells what
the two ways of keeping turns promise.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnkeep.errors import ConfigurationError, CorruptRecord, StoreError, TurnkeepError
from turnkeep.history.turn import Turn
from turnkeep.nooa.archives import read_archive, write_archive
from turnkeep.nooa.marks import ARCHIVE, MARK
from turnkeep.nooa.references import References
from turnkeep.nooa.stored import Event, EventFile, is_unfinished, open_events, replace_file
from turnkeep.rollout.record import Rollout
from turnkeep.store.base import Store
from turnkeep.store.open import open_store

type To = Literal["reference", "archive"]
type Watch = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Passes a step's events on, given what the step does and how many there are: for a progress bar."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did, or with `dry_run` would do."""

    file: str
    kind: str
    to: To
    dry_run: bool
    events: int
    turns: int
    converted: int
    """Turns that were kept the other way."""
    added: int
    """Turns that the store did not have."""
    bytes_before: int
    bytes_after: int | None
    backup: str | None


@dataclass(slots=True)
class Group:
    """The events of one turn."""

    digest: str
    rollout: str
    places: list[tuple[str, str]] = field(default_factory=list)
    """Tag and kind of each event whose mark names the turn, in order."""
    archived: list[str] = field(default_factory=list)
    """The tags of those that hold it whole."""


def migrate(
    path: Path,
    to: To,
    store: str,
    *,
    rollout: str | None = None,
    dry_run: bool = False,
    keep_backup: bool = True,
    watch: Watch = lambda events, _step, _total: events,
) -> Migrated:
    """Convert a NOOA SQLite storage, or a snapshot made by `save_snapshot`, so that it keeps its turns the other way.

    `to="reference"` puts each archived turn that the store lacks into it, under the rollout that the event's mark names
    or under `rollout`, and leaves the reference; `to="archive"` takes each referenced turn from there and embeds it.
    The old file stays as `NAME.bak`. Raises StoreError where the file is in use, MissingTurn, which names rollout and
    digest, CorruptRecord, ConfigurationError; the file is then what it was.
    """
    if to not in ("reference", "archive"):
        raise ConfigurationError(f"a storage goes to reference or to archive, not to {to!r}", field="to")
    if store == "memory:":
        raise ConfigurationError("a store in memory is gone at the end: give a file")
    backup = path.resolve().with_name(path.resolve().name + ".bak") if keep_backup else None
    if backup is not None and backup.exists() and not is_unfinished(path, backup):
        raise ConfigurationError(f"{backup} is there from before: move it away, or keep none (--no-backup)")
    create = to == "reference" and not dry_run
    url = "memory:" if dry_run and to == "reference" and _is_new(store) else store
    with open_events(path) as file:
        groups = _survey(file, watch, "checking")
        with open_store(url, create=create) as opened:
            plan = _plan(groups, References(opened), to, rollout)
            told = _told(file, groups, plan, dry_run=dry_run)
            if dry_run or not plan.changes:
                return told(bytes_after=None, backup=None)
            _add_missing(file, opened, plan, watch)
            target = file.path.with_name(file.path.name + ".migrating")
            try:
                _write_copy(file, target, plan, References(opened), watch)
                with open_store(store, create=False) as again:
                    _compare(file, target, groups, plan, References(again), watch)
                file.let_go()
                replace_file(file.path, target, backup)
            finally:
                target.unlink(missing_ok=True)
    return told(bytes_after=path.stat().st_size, backup=None if backup is None else str(backup))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to become of each turn, by its key."""

    to: To
    rollouts: Mapping[str, str]
    """Where the turn is, or is to be, in the store."""
    changes: frozenset[str]
    """The turns that are kept the other way."""
    holders: Mapping[str, frozenset[str]]
    """The tags of the events that are to hold an archive."""
    missing: Mapping[tuple[str, str], str]
    """Rollout and digest of each turn that the store lacks, and the tag of an event that holds it."""


def _survey(file: EventFile, watch: Watch, step: str) -> dict[str, Group]:
    """The turns in a file by key, each archive read and held against the digest that its mark names."""
    groups: dict[str, Group] = {}
    for tag, members in watch(file.events(), step, file.count()):
        name = f"{file.path.name}: event {tag}"
        if "parts" in members and "replay_scope" in members:
            raise StoreError(f"{name} is a turn itself, as NOOA's newer runtime keeps it: there is no archive to move")
        metadata = members.get("metadata") or {}
        mark, archive = metadata.get(MARK), metadata.get(ARCHIVE)
        if mark is None and archive is None:
            continue
        if not isinstance(mark, dict) or not all(isinstance(mark.get(each), str) for each in ("key", "kind")):
            raise CorruptRecord(f"{name} has an archive and no mark, or a mark that is none")
        if "turn" not in mark:
            if archive is not None:
                raise CorruptRecord(f"{name} has an archive, and its mark names no turn")
            continue
        group = groups.setdefault(mark["key"], Group(mark["turn"], mark.get("rollout", "")))
        if (group.digest, group.rollout) != (mark["turn"], mark.get("rollout", "")):
            raise CorruptRecord(f"{name} names another turn than the events that belong to it")
        group.places.append((tag, mark["kind"]))
        if archive is not None:
            _turn_of(members, name)
            group.archived.append(tag)
    return groups


def _turn_of(members: Event, name: str) -> Turn:
    """The turn that an event holds, exactly the one that its mark names. Raises CorruptRecord, ArchiveError."""
    mark = members["metadata"][MARK]
    try:
        turn = read_archive(members["metadata"][ARCHIVE])
    except TurnkeepError as error:
        error.message, error.rollout = f"{name}: {error.message}", mark.get("rollout")
        raise
    if turn.digest != mark["turn"]:
        raise CorruptRecord(f"{name}: its archive is not the turn {mark['turn']}", rollout=mark.get("rollout"))
    return turn


def _plan(groups: Mapping[str, Group], references: References, to: To, rollout: str | None) -> _Plan:
    """What has to be done. Raises MissingTurn for the first reference that resolves nowhere."""
    rollouts: dict[str, str] = {}
    holders: dict[str, frozenset[str]] = {}
    missing: dict[tuple[str, str], str] = {}
    for key, group in groups.items():
        moves = bool(group.archived) == (to == "reference")
        place = rollouts[key] = rollout if rollout is not None and moves else group.rollout
        if not place and (moves or not group.archived):
            raise CorruptRecord(f"event {group.places[0][0]} names no rollout: give one", rollout=rollout)
        if not group.archived:
            turn = references.turn(place, group.digest)
            holders[key] = _holders(group, turn)
        elif moves and references.find(place, group.digest) is None:
            missing.setdefault((place, group.digest), group.archived[0])
    for place in {place for place, _ in missing}:
        view = references.view(place)
        if view is not None and view.failure is not None:
            why = "its last attempt failed, which a new turn would hide: name another with --rollout"
            raise StoreError(f"the rollout lacks turns, and {why}", rollout=place)
    changes = frozenset(key for key, group in groups.items() if bool(group.archived) == (to == "reference"))
    return _Plan(to, rollouts, changes, {key: holders[key] for key in changes & holders.keys()}, missing)


def _holders(group: Group, turn: Turn) -> frozenset[str]:
    """The events that would hold the archive if the turn had come with `embed="archive"` (see `events._house`)."""
    replaced = bool(turn.tool_calls) and any(kind != "text" for _, kind in group.places)
    found: list[str] = []
    for tag, kind in group.places:
        if kind == "text" and replaced:
            continue
        found.append(tag)
        if kind != "text":
            break
    return frozenset(found)


def _add_missing(file: EventFile, store: Store, plan: _Plan, watch: Watch) -> None:
    """Put the turns that the store lacks into it. Each is durable when it is there; a turn too many does no harm."""
    if not plan.missing:
        return
    for place in dict.fromkeys(place for place, _ in plan.missing):
        tags = {tag for (rollout, _), tag in plan.missing.items() if rollout == place}
        with Rollout.open(store, place) as rollout:
            for tag, members in watch(file.events(), f"storing in {place}", file.count()):
                if tag in tags:
                    rollout.add_turn(_turn_of(members, f"event {tag}"))


def _write_copy(file: EventFile, target: Path, plan: _Plan, references: References, watch: Watch) -> None:
    steps = iter(watch(range(file.count()), "converting", file.count()))

    def change(tag: str, members: Event) -> Event | None:
        next(steps, None)
        mark = (members.get("metadata") or {}).get(MARK)
        if mark is None or "turn" not in mark or mark["key"] not in plan.changes:
            return None
        metadata = {name: value for name, value in members["metadata"].items() if name != ARCHIVE}
        rollout = plan.rollouts[mark["key"]]
        metadata[MARK] = {**mark, "rollout": rollout}
        if tag in plan.holders.get(mark["key"], ()):
            metadata[ARCHIVE] = write_archive(references.turn(rollout, mark["turn"]))
        return {**members, "metadata": metadata}

    file.copy(change, target)
    for _ in steps:  # lets a progress bar end
        pass


def _compare(
    file: EventFile, target: Path, groups: Mapping[str, Group], plan: _Plan, references: References, watch: Watch
) -> None:
    """Read the copy back: the same events, but for archives and rollouts; the same turns, each there and exact.

    Raises CorruptRecord. Archives are read again, and references are resolved in a store that was opened anew.
    """
    with open_events(target, locked=False) as copy:
        if copy.count() != file.count() or copy.rest() != file.rest():
            raise CorruptRecord(f"{target} is not the file that was copied")
        for (tag, old), (other, new) in zip(file.events(), copy.events(), strict=True):
            if tag != other or _less(old) != _less(new):
                raise CorruptRecord(f"{target}: event {tag} is not the event that was copied")
        found = _survey(copy, watch, "comparing")
    if [*found] != [*groups]:
        raise CorruptRecord(f"{target} does not hold the turns that were copied")
    for key, group in found.items():
        before = groups[key]
        archived = key in plan.holders or (key not in plan.changes and bool(before.archived))
        if (group.digest, group.places) != (before.digest, before.places) or bool(group.archived) != archived:
            raise CorruptRecord(f"{target}: a turn is not kept as it should be", rollout=group.rollout)
        if not group.archived:
            references.turn(group.rollout, group.digest)


def _less(members: Event) -> str:
    """An event without what a migration changes, as text, so that order and kinds of numbers count."""
    metadata = members.get("metadata")
    if isinstance(metadata, dict):
        kept = {name: value for name, value in metadata.items() if name != ARCHIVE}
        if isinstance(mark := kept.get(MARK), dict):
            kept[MARK] = {name: value for name, value in mark.items() if name != "rollout"}
        members = {**members, "metadata": kept}
    return json.dumps(members)


def _told(file: EventFile, groups: Mapping[str, Group], plan: _Plan, *, dry_run: bool) -> Callable[..., Migrated]:
    before = file.path.stat().st_size
    events = file.count()

    def told(*, bytes_after: int | None, backup: str | None) -> Migrated:
        counts = (events, len(groups), len(plan.changes), len(plan.missing))
        return Migrated(str(file.path), file.kind, plan.to, dry_run, *counts, before, bytes_after, backup)

    return told


def _is_new(store: str) -> bool:
    _, separator, path = store.partition(":///")
    return not Path(path if separator else store).exists()
