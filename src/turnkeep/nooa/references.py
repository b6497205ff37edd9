"""Turns by reference: what an event's mark names is fetched from turnkeep's store."""

from turnkeep.errors import CorruptRecord, MissingTurn, UnknownRollout
from turnkeep.history.turn import Turn
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store


class References:
    """The turns of a store's rollouts, by rollout and digest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._views: dict[str, RolloutView] = {}

    def turn(self, rollout: str, digest: str) -> Turn:
        """The turn of that digest. Raises MissingTurn, which names rollout and digest, CorruptRecord."""
        turn = self.find(rollout, digest)
        if turn is None:
            raise MissingTurn(f"the store holds no turn of digest {digest}", rollout=rollout)
        return turn

    def find(self, rollout: str, digest: str) -> Turn | None:
        """The turn of that digest, or None where the store has no such rollout or the rollout no such turn."""
        for fresh in (False, True):  # another process may have added it since the rollout was read
            try:
                return _exact(self._view(rollout, fresh=fresh).turn_of_digest(digest), digest, rollout)
            except (MissingTurn, UnknownRollout):
                continue
        return None

    def view(self, rollout: str) -> RolloutView | None:
        """The rollout, or None where the store has none of that id."""
        try:
            return self._view(rollout)
        except UnknownRollout:
            return None

    def _view(self, rollout: str, *, fresh: bool = False) -> RolloutView:
        if fresh or rollout not in self._views:
            self._views[rollout] = RolloutView(self._store, rollout)
        return self._views[rollout]


def _exact(turn: Turn, digest: str, rollout: str) -> Turn:
    if turn.digest != digest:
        raise CorruptRecord(f"what the store has under {digest} is another turn", rollout=rollout)
    return turn
