"""`turnkeep export parquet`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.options import AsJson, Store
from turnkeep.cli.output import EXIT_FOUND, console, print_json, printable, readable_errors, watched, writing
from turnkeep.cli.several import chosen, is_gone, without_deleted
from turnkeep.export.staging import check_target
from turnkeep.store.open import DEFAULT_URL, open_store

_SHOWN = 20
"""Rollouts left out that are named; --json has them all."""


def export_parquet(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to make; it must not be there.")],
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT]...", help="Which ones, or --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every rollout of the store, in the order they began.")] = False,
    store: Store = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write rollouts as one Parquet file, DIR/turns.parquet, a row for each turn. Docs: docs/parquet.md.

    For DuckDB, pandas, Hugging Face datasets. A rollout with something that no column can hold is left out, with the
    reason (exit code 1).

    Example: `turnkeep export parquet --all --store rollouts.db --out dataset`
    """
    with readable_errors(as_json=as_json):
        sys.exit(_export(rollouts or [], store, out, every=every, as_json=as_json))


def _export(rollouts: Sequence[str], url: str, target: Path, *, every: bool, as_json: bool) -> int:
    from turnkeep.export.parquet import FILE, Written, arrow_schema, export_parquet

    check_target(target)
    arrow_schema()  # raises where pyarrow is missing
    with writing(target), open_store(url, create=False) as store:

        def work(names: list[str]) -> list[Written]:
            return [
                each
                for each in watched(export_parquet(store, names, target), len(names), "exporting", quiet=as_json)
                if not (every and each.error is not None and is_gone(store, each.rollout))
            ]

        written = without_deleted(work, chosen(rollouts, store, every=every), store, every=every)
    path = target / FILE
    size = path.stat().st_size
    turns = sum(each.turns for each in written)
    left_out = [(each.rollout, each.error) for each in written if each.error is not None]
    if as_json:
        told = [{"rollout": name, "error": error.to_json()} for name, error in left_out]
        counts = {"rollouts": len(written) - len(left_out), "turns": turns, "bytes": size}
        print_json({"file": str(path), **counts, "left_out": told})
        return EXIT_FOUND if left_out else 0
    out = console()
    for name, error in left_out[:_SHOWN]:
        out.print(f"left out {printable(name)}: {printable(str(error))}", markup=False, soft_wrap=True)
    if len(left_out) > _SHOWN:
        out.print(f"and {len(left_out) - _SHOWN} more; --json lists them all")
    kept = f"{len(written) - len(left_out):,} rollouts, {turns:,} rows, {size:,} bytes"
    out.print(f"{path}: {kept}", markup=False, soft_wrap=True)
    return EXIT_FOUND if left_out else 0
