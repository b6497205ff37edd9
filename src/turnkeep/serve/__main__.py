"""`python -m turnkeep.serve`: the embedded policy as a process of its own."""

import argparse
import sys
from collections.abc import Sequence

from turnkeep.errors import ConfigurationError
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import load_script
from turnkeep.serve.server import run


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m turnkeep.serve", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free port")
    add("--seed", type=int, default=0, help="of the policy's weights")
    add("--script", help="JSON or JSONL, see turnkeep.serve.script; without it the words are sampled")
    add("--fault", action="append", default=[], metavar="NAME[@N[,N...]][:ARG]", help="see turnkeep.serve.faults")
    add("--model", default="turnkeep-policy", help="name in the answers to requests that name none")
    add("--experts", choices=["nested", "envelope", "none"], default="nested")
    add("--experts-rows", choices=["all", "generation"], default="all")
    add("--delay", type=float, default=0.0, help="seconds before each answer")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; 2 where the arguments cannot work."""
    given = make_parser().parse_args(arguments)
    try:
        options = Options(given.model, given.experts, given.experts_rows, given.delay)
        script = load_script(given.script) if given.script else None
        run(given.host, given.port, policy=Policy(given.seed), script=script, faults=given.fault, options=options)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
