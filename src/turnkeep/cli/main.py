"""The `turnkeep` command. Each command's work is in a module of its own, imported when it is called."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.options import AsJson, Store
from turnkeep.cli.output import print_bytes, readable_errors, running
from turnkeep.cli.transfer_atif import export_atif, import_atif
from turnkeep.cli.transfer_parquet import export_parquet
from turnkeep.store.open import DEFAULT_URL

app = typer.Typer(
    name="turnkeep",
    help="Keep every turn of an LLM agent exactly: look at rollouts, replay and verify them, see it all work.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

migrate_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(migrate_app, name="migrate")
import_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(import_app, name="import")
export_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(export_app, name="export")

RolloutId = Annotated[str, typer.Argument(metavar="ROLLOUT", help="A rollout's id, as `turnkeep ls` lists it.")]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"turnkeep {installed('turnkeep')}", flush=True)
        raise typer.Exit


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the demo keeps its files; made where it is missing.")
    ] = Path("turnkeep-demo"),
    turns: Annotated[int, typer.Option(min=2, max=60, help="How many turns the agent takes.")] = 8,
    seed: Annotated[
        int | None, typer.Option(help="Chooses the moment of the kill; printed, so it can be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a real NOOA agent, kill it with SIGKILL, resume it, restore it and compare everything with the evidence.

    Example: `turnkeep demo --turns 8`
    """
    from turnkeep.cli.demo import run_demo

    with readable_errors(as_json=as_json):
        sys.exit(run_demo(folder, turns=turns, seed=seed, as_json=as_json))


@app.command("ls")
def list_rollouts(store: Store = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the rollouts of a store: turns, policy calls, gaps, and whether each can be graded.

    Example: `turnkeep ls --store rollouts.db`
    """
    from turnkeep.cli.look import list_store

    with readable_errors(as_json=as_json):
        list_store(store, as_json=as_json)


@app.command()
def show(rollout: RolloutId, store: Store = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one rollout: each turn's parts, tokens and log probs, its gaps, failures and unfinished calls.

    Example: `turnkeep show demo-1 --store turnkeep-demo/rollouts.db`
    """
    from turnkeep.cli.look import show_rollout

    with readable_errors(as_json=as_json):
        show_rollout(store, rollout, as_json=as_json)


@app.command()
def report(
    rollout: RolloutId,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page to write.")],
    store: Store = DEFAULT_URL,
    force: Annotated[bool, typer.Option("--force", help="Write over FILE.html.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one rollout as a page: one file, opened in any browser, that needs no network.

    Example: `turnkeep report r-1 --out r-1.html --store rollouts.db`
    """
    from turnkeep.cli.report import write_report

    with readable_errors(as_json=as_json):
        write_report(store, rollout, out, force=force, as_json=as_json)


@app.command()
def view(
    store: Store = DEFAULT_URL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on loopback; 0 takes a free one.")] = 8765,
) -> None:
    """Serve a store's rollouts as pages on loopback, read only, each read anew when it is asked for.

    Example: `turnkeep view --store rollouts.db --port 8765`
    """
    from turnkeep.cli.report import view_store

    with readable_errors():
        view_store(store, port)


@app.command()
def diff(
    rollout: RolloutId,
    other: Annotated[str | None, typer.Argument(metavar="[OTHER]", help="Another rollout, or --replay.")] = None,
    store: Store = DEFAULT_URL,
    store_b: Annotated[
        str | None, typer.Option("--store-b", metavar="URL", help="The other's store (default: the same).")
    ] = None,
    replayed: Annotated[
        bool, typer.Option("--replay", help="Against what its own evidence makes: turns and requests.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave members of this name out; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where two rollouts first differ: turn, item, field, index, both values. Exit code 1 where they do.

    Example: `turnkeep diff r-1 r-2 --ignore id --ignore call_id --store rollouts.db`
    """
    from turnkeep.cli.diff import diff_rollouts

    with readable_errors(as_json=as_json):
        sys.exit(diff_rollouts(rollout, other, store, store_b, replay=replayed, ignore=ignore or [], as_json=as_json))


@app.command()
def top(
    store: Store = DEFAULT_URL,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and leave.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch rollouts while they are collected: turns, calls, in flight, tokens, calls a minute, gaps. Ctrl-C leaves.

    Example: `turnkeep top --store rollouts.db`
    """
    from turnkeep.cli.top import watch_store

    with readable_errors(as_json=as_json):
        watch_store(store, interval=interval, once=once, as_json=as_json)


@app.command()
def replay(
    rollout: RolloutId,
    scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPE", help="The scope of the replay; without one every turn is portable."),
    ] = None,
    call: Annotated[int | None, typer.Option(min=0, help="As of this policy call (default: the last).")] = None,
    store: Store = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print the request input that a rollout's history makes; the gaps go to standard error.

    With --json: one object with input, instructions and gaps.

    Example: `turnkeep replay demo-1 --scope 'nemo-gym/responses/v1:["policy_model", "gym-policy"]' --store
    turnkeep-demo/rollouts.db`
    """
    from turnkeep.cli.look import replay_rollout

    with readable_errors(as_json=as_json):
        replay_rollout(store, rollout, scope, call, as_json=as_json)


@app.command()
def verify(
    rollout: Annotated[str | None, typer.Argument(metavar="[ROLLOUT]", help="One rollout (default: all).")] = None,
    store: Store = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Check digests, agreement, and that every turn is exactly what its evidence holds. Exit code 1 where not.

    What was imported has no evidence, and is whole where its digests hold.

    Example: `turnkeep verify --store rollouts.db`
    """
    from turnkeep.cli.verify import verify_store

    with readable_errors(as_json=as_json):
        sys.exit(verify_store(store, rollout, as_json=as_json))


class Reader(StrEnum):
    """Who will read a rollout."""

    nemo_rl = "nemo-rl"
    trl = "trl"
    verl = "verl"
    atif = "atif"


@app.command()
def check(
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT]...", help="Which (default: all).")] = None,
    store: Store = DEFAULT_URL,
    reader: Annotated[
        Reader | None, typer.Option("--for", help="Only the rules of this trainer, or of a strict ATIF document.")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(min=1, metavar="N", help="Token ids are below N.")] = None,
    experts: Annotated[int | None, typer.Option(min=1, metavar="N", help="Expert ids are below N.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a trainer would refuse in a rollout, or drop without a word: turn, item, field, index, what to do.

    Exit code 0: it can be trained on; 1: an error was found. Docs: docs/rules.md.

    Example: `turnkeep check r-1 --for nemo-rl --experts 256 --store rollouts.db`
    """
    from turnkeep.cli.check import check_store, list_rules

    with readable_errors(as_json=as_json):
        profile = None if reader is None else reader.value
        if rules:
            list_rules(profile, as_json=as_json)
        else:
            limits = {"vocabulary": vocabulary, "experts": experts}
            sys.exit(check_store(store, rollouts or [], profile, **limits, as_json=as_json))


@app.command()
def prune(
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Those begun before it (ISO 8601; UTC).")] = None,
    keep: Annotated[int | None, typer.Option(min=0, metavar="N", help="All but the newest N.")] = None,
    store: Store = DEFAULT_URL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete whole rollouts, evidence included, all or nothing. Those that are being written stay.

    Example: `turnkeep prune --before 2026-01-31 --store rollouts.db`
    """
    from turnkeep.cli.prune import prune_store, read_choice

    with readable_errors(as_json=as_json):
        prune_store(store, read_choice(before, keep), dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def compact(store: Store = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Give the room of what was deleted back to the disk. Refused while a rollout is being written.

    Example: `turnkeep compact --store rollouts.db`
    """
    from turnkeep.cli.compact import compact_store

    with readable_errors(as_json=as_json):
        compact_store(store, as_json=as_json)


@app.command()
def apply() -> None:
    """Answer requests, one JSON line each, on standard input: the core for other languages.

    Operations: capture, project, roundtrip, parse, scope, edit, import_nooa.

    Example: `echo '{"op": "scope", "server": "policy_model"}' | turnkeep apply`
    """
    from turnkeep.cli.apply import apply_lines

    with readable_errors():
        for answer in apply_lines(sys.stdin.buffer):
            print_bytes(answer)


@app.command("serve-policy")
def serve_policy(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on loopback; 0 takes a free one.")] = 8000,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the policy says (JSON or JSONL); without it, it samples.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes the model's weights.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[@N][:ARG]", help="A fault for tests, such as 500@0 or slow@*:2; may be repeated."),
    ] = None,
) -> None:
    """Serve a small real policy on loopback: `/v1/responses` with true log probs and routed experts.

    Example: `turnkeep serve-policy --port 8000 --script script.json --seed 7`
    """
    from turnkeep.cli.serve import serve

    with readable_errors():
        serve(port, script, seed, fault or [])


class MigrateTo(StrEnum):
    """How a NOOA storage is to keep its turns."""

    reference = "reference"
    archive = "archive"


@migrate_app.callback()
def _migrate() -> None:
    """Convert what another runtime keeps, both ways, all or nothing.

    Example: `turnkeep migrate nooa nooa.db --to reference --store rollouts.db`
    """


@migrate_app.command("nooa")
def migrate_nooa(
    database: Annotated[Path, typer.Argument(metavar="DB", help="NOOA's SQLite storage, or a JSON snapshot.")],
    to: Annotated[
        MigrateTo,
        typer.Option(help="reference: turns go to the store. archive: turns come back into NOOA's events."),
    ],
    store: Store = DEFAULT_URL,
    rollout: Annotated[
        str | None, typer.Option(metavar="ID", help="Where turns go or are (default: the rollout that made each).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and change nothing.")] = False,
    backup: Annotated[bool, typer.Option("--backup/--no-backup", help="Keep the old file as DB.bak.")] = True,
    as_json: AsJson = False,
) -> None:
    """Move a NOOA storage's turns to the store, leaving references, or back; every turn compared before it replaces.

    Example: `turnkeep migrate nooa nooa.db --to reference --store rollouts.db`
    """
    from turnkeep.cli.migrate import migrate_nooa

    with readable_errors(as_json=as_json):
        migrate_nooa(database, to.value, store, rollout, dry_run=dry_run, keep_backup=backup, as_json=as_json)


class OnMalformed(StrEnum):
    """What becomes of a row whose training fields are malformed."""

    refuse = "refuse"
    gap = "gap"


class NooaRevision(StrEnum):
    """The NOOA revision whose rules say which turns may replay natively."""

    r0514723 = "0514723"
    r19caab1 = "19caab1"


@import_app.callback()
def _import() -> None:
    """Take in rollouts that other tools wrote.

    Example: `turnkeep import gym rollouts.jsonl --store rollouts.db`
    """


@import_app.command("gym")
def import_gym(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="NeMo Gym rollout JSONL.")],
    store: Store = DEFAULT_URL,
    scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPE", help="The turns' scope; without one they replay portably, without token ids."),
    ] = None,
    on_malformed: Annotated[
        OnMalformed,
        typer.Option(
            help="Malformed training fields. refuse: the row stays out. gap: its turn loses its native items."
        ),
    ] = OnMalformed.refuse,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="In the ids instead of the file's name; for one file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import Gym rollouts: each row of a file becomes the rollout `<file name>/<line>`, or is refused with the reason.

    Nothing is written over; what is there already is passed by, so an import that was cut short can be run again.
    Exit code 1 where a row was refused; the others are in.

    Example: `turnkeep import gym rollouts.jsonl --store rollouts.db`
    """
    from turnkeep.cli.transfer import import_gym_files

    with readable_errors(as_json=as_json):
        sys.exit(
            import_gym_files(files, store, scope=scope, on_malformed=on_malformed.value, name=name, as_json=as_json)
        )


@import_app.command("nooa")
def import_nooa(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NOOA's compact archives: one, a list, or JSON lines.")],
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="The scope that the turns are to have.")],
    revision: Annotated[NooaRevision, typer.Option(help="Whose rules apply.")] = NooaRevision.r19caab1,
    rollout: Annotated[
        str | None, typer.Option("--rollout", metavar="ID", help="The rollout's id (default: the file's name).")
    ] = None,
    store: Store = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Import a file of NOOA's compact archives as one rollout, all of it or nothing.

    Example: `turnkeep import nooa turns.json --scope 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'`
    """
    from turnkeep.cli.transfer import import_nooa_file

    with readable_errors(as_json=as_json):
        sys.exit(import_nooa_file(file, store, scope, revision.value, rollout, as_json=as_json))


@export_app.callback()
def _export() -> None:
    """Hand rollouts on to trainers and other tools.

    Example: `turnkeep export gym --all --store rollouts.db --out rollouts.jsonl`
    """


@export_app.command("gym")
def export_gym(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The JSONL file to write.")],
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT]...", help="Which ones, or --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every rollout of the store, in the order they began.")] = False,
    store: Store = DEFAULT_URL,
    force: Annotated[bool, typer.Option("--force", help="Write over FILE.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write rollouts as NeMo Gym rollout JSONL; imported rows come back exactly as they were.

    Exit code 1 where a rollout was left out, or has something that a row cannot say; both are listed.

    Example: `turnkeep export gym --all --store rollouts.db --out rollouts.jsonl`
    """
    from turnkeep.cli.transfer import export_gym_file

    with readable_errors(as_json=as_json):
        sys.exit(export_gym_file(rollouts or [], store, out, every=every, force=force, as_json=as_json))


import_app.command("atif")(import_atif)
export_app.command("atif")(export_atif)
export_app.command("parquet")(export_parquet)


def main() -> None:
    """Run the command."""
    with running():
        app()


if __name__ == "__main__":
    main()
