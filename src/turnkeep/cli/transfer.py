"""`turnkeep import gym`, `import nooa` and `export gym`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from turnkeep.cli.output import (
    EXIT_FOUND,
    console,
    file_to_read,
    file_to_write,
    print_json,
    printable,
    progress,
    replacing,
    watched,
    writing,
)
from turnkeep.cli.several import chosen, is_gone
from turnkeep.errors import ArchiveError, ConfigurationError, MalformedItem, UnknownRollout
from turnkeep.export.gym_import import Result, import_gym
from turnkeep.export.gym_jsonl import Remark, Written, export_gym
from turnkeep.export.gym_rows import OnMalformed
from turnkeep.export.nooa_import import import_nooa
from turnkeep.store.open import open_store

if TYPE_CHECKING:
    from rich.console import Console

    from turnkeep.store.base import Store

_SHOWN = 20
"""Reasons that are shown one by one; --json has them all."""


def import_gym_files(
    paths: Sequence[Path], url: str, *, scope: str | None, on_malformed: OnMalformed, name: str | None, as_json: bool
) -> int:
    """Import rollout files and print what became of their rows. Returns the exit code."""
    if name is not None and len(paths) > 1:
        raise ConfigurationError("--name is for one file: the rows of several would get the same ids", field="name")
    for path in paths:
        file_to_read(path)
    reports: list[tuple[Path, Counter[str], list[Result]]] = []
    total = sum(path.stat().st_size for path in paths)
    with open_store(url) as store, progress(total, "importing", quiet=as_json) as advance:
        for path in paths:
            counts, refused = Counter[str](), list[Result]()
            for result in import_gym(path, store, scope=scope, on_malformed=on_malformed, name=name):
                counts[_state(result)] += 1
                counts["turns"] += result.turns
                if result.error is not None:
                    refused.append(result)
                advance(result.size)
            reports.append((path, counts, refused))
    if as_json:
        print_json({"store": url, "files": [_file_json(*report) for report in reports]})
    else:
        _print_files(reports)
    return EXIT_FOUND if any(refused for _, _, refused in reports) else 0


_STATES = ("imported", "with_gap", "already_there", "refused")


def _state(result: Result) -> str:
    if result.error is not None:
        return "refused"
    return "already_there" if result.already else "with_gap" if result.with_gap else "imported"


def _file_json(path: Path, counts: Counter[str], refused: list[Result]) -> dict[str, Any]:
    lines = [
        {"line": result.line, "rollout": result.rollout, "error": result.error.to_json()}
        for result in refused
        if result.error is not None
    ]
    rows = {"rows": sum(counts[state] for state in _STATES), "turns": counts["turns"]}
    return {"file": str(path), **rows, **{state: counts[state] for state in _STATES}, "refusals": lines}


def _print_files(reports: list[tuple[Path, Counter[str], list[Result]]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    columns = ("rows", "turns", *(state for state in _STATES if any(counts[state] for _, counts, _ in reports)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold", ratio=1)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    total = Counter[str]()
    for path, counts, _ in reports:
        counts["rows"] = sum(counts[state] for state in _STATES)
        total.update(counts)
        table.add_row(escape(printable(path.name)), *(_number(column, counts[column]) for column in columns))
    if len(reports) > 1:
        table.add_section()
        table.add_row(f"{len(reports)} files", *(_number(column, total[column]) for column in columns))
    out.print(table)
    _print_some(out, "refused", [*_reasons(reports)])


def _reasons(reports: list[tuple[Path, Counter[str], list[Result]]]) -> Iterator[str]:
    """A line for each reason, lines of a file that follow one another taken together."""
    from rich.markup import escape

    for path, _, refused in reports:
        for reason, group in groupby(refused, lambda result: str(result.error)):
            lines = [result.line for result in group]
            where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]} ({len(lines)} rows)"
            yield f"{escape(printable(path.name))} {where}: {escape(printable(reason))}"


def _number(column: str, count: int) -> str:
    colour = {"refused": "red", "with_gap": "yellow"}.get(column)
    return f"[{colour}]{count:,}[/]" if colour and count else f"{count:,}"


def _print_some(out: "Console", word: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        out.print(f"[red]{word}[/] {line}", soft_wrap=True)
    if len(lines) > _SHOWN:
        out.print(f"and {len(lines) - _SHOWN} more; --json lists them all")


def import_nooa_file(path: Path, url: str, scope: str, revision: str, rollout: str | None, *, as_json: bool) -> int:
    """Import NOOA's compact archives and print what was made of them. Returns the exit code."""
    from rich.markup import escape

    file_to_read(path)
    try:
        with open_store(url) as store:
            done = import_nooa(path, store, scope=scope, revision=revision, rollout=rollout)
    except (ArchiveError, MalformedItem) as error:
        if as_json:
            print_json({"file": str(path), "error": error.to_json()})
        else:
            _print_some(console(), "refused", [f"{escape(printable(path.name))}: {escape(printable(str(error)))}"])
        return EXIT_FOUND
    if as_json:
        print_json({"file": str(path), **done._asdict()})
        return 0
    words = "already there, " if done.already else ""
    native = "" if done.already else f", {done.turns - done.portable} of them native"
    console().print(f"{escape(printable(done.rollout))}: {words}{done.turns} turns{native}", soft_wrap=True)
    return 0


def export_gym_file(rollouts: Sequence[str], url: str, target: Path, *, every: bool, force: bool, as_json: bool) -> int:
    """Write rollouts as Gym rollout JSONL and print what the rows do not say. Returns the exit code."""
    place = file_to_write(target, url, force=force)
    with open_store(url, create=False) as store:
        names = chosen(rollouts, store, every=every)
        with writing(target), replacing(place) as file:
            rows = (row for name in names for row in _export_row(store, name, file, every=every))
            written = [*watched(rows, len(names), "exporting", quiet=as_json)]
    unsaid = [each for each in written if each.error is not None or each.remarks]
    if as_json:
        print_json({"file": str(target), "rollouts": [_written_json(each) for each in written]})
    else:
        _print_written(target, written)
    return EXIT_FOUND if unsaid else 0


def _export_row(store: "Store", name: str, file: BinaryIO, *, every: bool) -> list[Written]:
    """Write a rollout's row; nothing where all were asked for and it has been deleted."""
    begun = file.tell()
    try:
        written = [*export_gym(store, [name], file)]
    except UnknownRollout:
        if not (every and is_gone(store, name)):
            raise
        file.seek(begun)
        file.truncate()
        return []
    return [each for each in written if not (every and each.error is not None and is_gone(store, name))]


def _written_json(each: Written) -> dict[str, Any]:
    error = None if each.error is None else each.error.to_json()
    remarks = [remark._asdict() for remark in each.remarks]
    return {"rollout": each.rollout, "turns": each.turns, "bytes": each.size, "remarks": remarks, "error": error}


def _at(remark: Remark) -> str:
    return "" if remark.turn is None else f" turn {remark.turn}"


def _print_written(target: Path, written: list[Written]) -> None:
    from rich.markup import escape

    out = console()
    good = [each for each in written if each.error is None]
    turns, size = sum(each.turns for each in good), sum(each.size for each in good)
    out.print(f"{escape(str(target))}: {len(good):,} rows, {turns:,} turns, {size:,} bytes", soft_wrap=True)
    lines = [
        f"{escape(printable(each.rollout))}: {escape(printable(str(each.error)))}" for each in written if each.error
    ]
    _print_some(out, "left out", lines)
    lines = [
        f"{escape(printable(each.rollout))}{_at(remark)}: {escape(printable(remark.message))}"
        for each in good
        for remark in each.remarks
    ]
    _print_some(out, "note", lines)
