"""Which policy a turn came from: the model server's configured name and the model alias (contract section 2).

The spelling is the reference adapter's, so that its archives match. No URL, host, rollout id, cookie, sampling setting
or checkpoint name is part of it, since those change on a restore.
"""

import json
from dataclasses import dataclass

from turnkeep.errors import ConfigurationError

PREFIX = "nemo-gym/responses/v1:"
DEFAULT_ALIAS = "gym-policy"


@dataclass(frozen=True, slots=True)
class Scope:
    """A model server's configured name and the model alias; `str(scope)` is what is written down."""

    server: str
    alias: str = DEFAULT_ALIAS

    def __str__(self) -> str:
        return PREFIX + json.dumps([self.server, self.alias])


def scope_text(scope: Scope | str | None) -> str | None:
    """The scope as it is written down, or None. Raises ConfigurationError for anything else."""
    if not isinstance(scope, Scope | str | None):
        raise ConfigurationError(f"a scope is a Scope, text or None, not {type(scope).__name__}", field="scope")
    return None if scope is None else str(scope)


def scopes_match(turn: str | None, caller: str | None) -> bool:
    """Whether a turn of scope `turn` may replay natively for `caller`: both explicit, ours and equal (2.2, 2.3)."""
    return turn is not None and turn == caller and turn.startswith(PREFIX)
