"""Turns' wire texts, made once and kept within a bound: what makes a replay a copy instead of an encoding."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from turnkeep.errors import ConfigurationError
from turnkeep.history.turn import Turn

DEFAULT_BYTES = 64 << 20


class WireCache:
    """Texts of turns that are replayed by their items, least recently used first out, `max_bytes` of them at most.

    Safe to share among threads and tasks. A turn is known by its identity, and held while its text is.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        if max_bytes < 0:
            raise ConfigurationError("max_bytes must be 0 or more", field="max_bytes")
        self.max_bytes = max_bytes
        self.bytes = 0
        self._texts: OrderedDict[tuple[int, str], tuple[Turn, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def text(self, turn: Turn, form: str, make: Callable[[], bytes]) -> bytes:
        """The text of `turn` in a form: from the cache where it is there, else made, and kept where it fits."""
        key = (id(turn), form)
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key][1]
        text = make()
        if len(text) <= self.max_bytes:
            self._keep(key, turn, text)
        return text

    def _keep(self, key: tuple[int, str], turn: Turn, text: bytes) -> None:
        with self._lock:
            if key in self._texts:
                return
            self._texts[key] = (turn, text)
            self.bytes += len(text)
            while self.bytes > self.max_bytes:
                _, (_, oldest) = self._texts.popitem(last=False)
                self.bytes -= len(oldest)
