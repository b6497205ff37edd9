"""`turnkeep serve-policy`."""

from collections.abc import Sequence
from pathlib import Path

from turnkeep.errors import ConfigurationError


def serve(port: int, script: Path | None, seed: int, faults: Sequence[str]) -> None:
    """Run the embedded policy until it is interrupted."""
    try:
        from turnkeep.serve.model import Policy
        from turnkeep.serve.script import load_script
        from turnkeep.serve.server import run
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the policy server needs {error.name}: pip install 'turnkeep[serve]'") from None
    run(port=port, policy=Policy(seed), script=None if script is None else load_script(script), faults=faults)
