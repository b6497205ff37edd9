"""Which rollouts a command is about, while another process may delete some of them.

One that was named must be there. Where all are asked for, one that is gone by the time it is read is passed over.
"""

from collections.abc import Callable, Sequence

from turnkeep.errors import ConfigurationError, TurnkeepError
from turnkeep.store.base import Store


def chosen(rollouts: Sequence[str], store: Store, *, every: bool) -> list[str]:
    """The rollouts to export. Raises ConfigurationError where it is not said which, UnknownRollout."""
    if every == bool(rollouts):
        raise ConfigurationError("say which rollouts, or --all", field="ROLLOUT")
    there = store.rollouts()
    for name in set(rollouts).difference(there):
        store.state(name)  # raises UnknownRollout
    return there if every else list(dict.fromkeys(rollouts))


def is_gone(store: Store, rollout: str) -> bool:
    """Whether a rollout that was listed has been deleted: what reading it gave is then no finding."""
    return rollout not in store.rollouts()


def without_deleted[Done](work: Callable[[list[str]], Done], rollouts: list[str], store: Store, *, every: bool) -> Done:
    """What `work` makes of the rollouts; where one was deleted meanwhile, and all were asked for, of those left."""
    while True:
        try:
            return work(rollouts)
        except TurnkeepError:
            there = set(store.rollouts())
            left = [name for name in rollouts if name in there]
            if not every or len(left) == len(rollouts):
                raise
            rollouts = left
