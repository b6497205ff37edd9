"""`turnkeep export atif` and `import atif`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.options import AsJson, Store
from turnkeep.cli.output import EXIT_FOUND, console, print_json, printable, readable_errors, watched, writing
from turnkeep.cli.several import chosen, is_gone, without_deleted
from turnkeep.errors import ConfigurationError
from turnkeep.export.staging import check_target
from turnkeep.store.open import DEFAULT_URL, open_store

if TYPE_CHECKING:
    from turnkeep.check.finding import Finding
    from turnkeep.export.atif import Examined, Written

_SHOWN = 20
"""Reasons that are shown one by one; --json has them all."""


def export_atif(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to make; it must not be there.")],
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT]...", help="Which ones, or --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every rollout of the store, in the order they began.")] = False,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Write what strict export refuses too, the reasons and gaps in the file.")
    ] = False,
    store: Store = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write rollouts as ATIF 1.8 documents, a file each, token ids, log probs and routed experts included.

    Strict by default: a rollout with a gap, one that cannot be graded, and what the format cannot show are refused,
    every reason is listed, and nothing is written (exit code 1). `turnkeep import atif` gives the history back exactly;
    requests and responses stay behind. Docs: docs/atif.md.

    Example: `turnkeep export atif r-1 --store rollouts.db --out trajectories`
    """
    with readable_errors(as_json=as_json):
        sys.exit(_export(rollouts or [], store, out, every=every, lenient=lenient, as_json=as_json))


def _export(rollouts: Sequence[str], url: str, target: Path, *, every: bool, lenient: bool, as_json: bool) -> int:
    from turnkeep.export.atif import examine, export_atif, load_models

    check_target(target)
    load_models()
    with writing(target), open_store(url, create=False) as store:

        def work(names: list[str]) -> "tuple[list[Examined], list[Written]]":
            examined = [
                each
                for each in watched(examine(store, names), len(names), "examining", quiet=as_json)
                if not (every and each.reasons and is_gone(store, each.rollout))
            ]
            if any(each.obstacles if lenient else each.reasons for each in examined):
                return examined, []
            return examined, [*watched(export_atif(store, examined, target), len(names), "exporting", quiet=as_json)]

        examined, written = without_deleted(work, chosen(rollouts, store, every=every), store, every=every)
    refused = [each for each in examined if (each.obstacles if lenient else each.reasons)]
    if as_json:
        print_json({"folder": str(target), "refused": _refused_json(refused), "documents": _written_json(written)})
    elif refused:
        _print_refused(refused, len(examined), lenient=lenient)
    else:
        _print_written(target, written)
    return EXIT_FOUND if refused else 0


def _reason_json(reason: "Finding") -> dict[str, Any]:
    names = ("rule", "message", "turn", "call", "item", "field", "index", "todo")
    return {name: getattr(reason, name) for name in names}


def _refused_json(refused: Sequence["Examined"]) -> list[dict[str, Any]]:
    return [{"rollout": each.rollout, "reasons": [*map(_reason_json, each.reasons)]} for each in refused]


def _written_json(written: Sequence["Written"]) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in each._asdict().items() if name != "reasons"},
            "refused_by_strict": [*map(_reason_json, each.reasons)],
        }
        for each in written
    ]


def _print_refused(refused: Sequence["Examined"], examined: int, *, lenient: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    out = console()
    told = 0
    for each in refused:
        out.print(Text.assemble(("refused", "red"), f"  {printable(each.rollout)}"))
        for reason in each.reasons:
            told += 1
            if told <= _SHOWN:
                text = Text.assemble((reason.rule, "bold"), _where(reason), f": {printable(reason.message)}")
                out.print(Padding(text, (0, 0, 0, 9)))
    if told > _SHOWN:
        out.print(Padding(f"and {told - _SHOWN} more; --json lists them all", (0, 0, 0, 9)))
    count = f"{told} reason{'s' * (told > 1)}, {len(refused)} of {examined} rollouts"
    out.print(f"nothing written: {count}{'' if lenient else '; see --lenient'}")


def _where(reason: "Finding") -> str:
    places = (("turn", reason.turn), ("item", reason.item), ("field", reason.field), ("index", reason.index))
    found = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    return f" ({found})" if found else ""


def _print_written(target: Path, written: Sequence["Written"]) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rollout", overflow="fold", ratio=1)
    table.add_column("file", overflow="fold", ratio=1)
    for column in ("steps", "turns", "bytes", "reasons"):
        table.add_column(column, justify="right")
    for each in written[:_SHOWN]:
        reasons = f"[yellow]{len(each.reasons)}[/]" if each.reasons else "0"
        counts = (f"{each.steps:,}", f"{each.turns:,}", f"{each.size:,}", reasons)
        table.add_row(_escaped(each.rollout), _escaped(each.file), *counts)
    out.print(table)
    if len(written) > _SHOWN:
        out.print(f"and {len(written) - _SHOWN} more")
    size = sum(each.size for each in written)
    documents = f"{len(written):,} document{'s' * (len(written) != 1)} and manifest.jsonl, {size:,} bytes"
    out.print(f"{_escaped(str(target))}: {documents}", soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def import_atif(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="ATIF documents, or folders of them.")],
    store: Store = DEFAULT_URL,
    rollout: Annotated[
        str | None, typer.Option("--rollout", metavar="ID", help="The rollout's id, for one file (default: its own).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import ATIF documents, each as one rollout, all of it or nothing; what turnkeep exported comes back exactly.

    The history comes back; the evidence (requests and responses) does not travel. What was changed in a file is
    imported as it is there: such a turn is named, and loses its scope. Exit code 1 where a file was refused.

    Example: `turnkeep import atif trajectories --store other.db`
    """
    with readable_errors(as_json=as_json):
        sys.exit(_import(files, store, rollout, as_json=as_json))


def _import(paths: Sequence[Path], url: str, rollout: str | None, *, as_json: bool) -> int:
    from turnkeep.export.atif_import import import_atif
    from turnkeep.export.imports import OF_ONE_ROLLOUT

    files = [*_documents(paths)]
    if rollout is not None and len(files) > 1:
        raise ConfigurationError(f"--rollout is for one file, and there are {len(files)}", field="rollout")
    done: list[dict[str, Any]] = []
    with open_store(url) as store:
        for path in watched(files, len(files), "importing", quiet=as_json):
            try:
                told = import_atif(path, store, rollout=rollout)._asdict()
            except OF_ONE_ROLLOUT as error:
                told = {"error": error.to_json(), "reason": str(error)}
            done.append({"file": str(path), **told})
    if as_json:
        print_json({"store": url, "files": [{k: v for k, v in each.items() if k != "reason"} for each in done]})
    else:
        for each in done:
            _print_import(each)
    return EXIT_FOUND if any("error" in each for each in done) else 0


def _documents(paths: Sequence[Path]) -> list[Path]:
    """The files, and the documents in the folders. Raises ConfigurationError where there are none."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.glob("*.json") if not each.is_dir()) if path.is_dir() else [path]
        if not inside or not (path.is_dir() or os.path.lexists(path)):
            raise ConfigurationError(f"there is no document {path}", field="FILE")
        found += inside
    return found


def _print_import(told: dict[str, Any]) -> None:
    out = console()
    file = _escaped(Path(told["file"]).name)
    if "error" in told:
        out.print(f"[red]refused[/] {file}: {_escaped(told['reason'])}", soft_wrap=True)
        return
    already = "already there, " if told["already"] else ""
    turns = f"{told['turns']} turn{'s' * (told['turns'] != 1)}"
    out.print(f"{file}: {already}{turns}, rollout {_escaped(told['rollout'])}", soft_wrap=True)
    if told["changed"]:
        numbers = ", ".join(map(str, told["changed"]))
        many = "s" * (len(told["changed"]) > 1)
        out.print(f"[yellow]changed[/] turn{many} {numbers} since the export; no scope now", soft_wrap=True)
