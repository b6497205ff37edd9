"""The `turnkeep` command. Each command's work is in a module of its own, imported when it is called."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.output import print_bytes, readable_errors
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

Store = Annotated[str, typer.Option("--store", metavar="URL", help="A store: sqlite:///file.db, or a path.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of a table.")]
RolloutId = Annotated[str, typer.Argument(metavar="ROLLOUT", help="A rollout's id, as `turnkeep ls` lists it.")]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"turnkeep {installed('turnkeep')}")
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

    Example: `turnkeep show demo --store turnkeep-demo/rollouts.db`
    """
    from turnkeep.cli.look import show_rollout

    with readable_errors(as_json=as_json):
        show_rollout(store, rollout, as_json=as_json)


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

    Example: `turnkeep replay demo --scope 'nemo-gym/responses/v1:["policy_model", "gym-policy"]' --store rollouts.db`
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

    Example: `turnkeep verify --store rollouts.db`
    """
    from turnkeep.cli.verify import verify_store

    with readable_errors(as_json=as_json):
        sys.exit(verify_store(store, rollout, as_json=as_json))


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


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
