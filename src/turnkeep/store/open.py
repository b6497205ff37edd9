"""Opening a store by its URL."""

from pathlib import Path

from turnkeep.errors import ConfigurationError
from turnkeep.store.base import Store

DEFAULT_URL = "sqlite:///rollouts.db"


def open_store(url: str | Path = DEFAULT_URL, *, create: bool = True) -> Store:
    """The store at `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, a bare path, or `memory:`.

    Made where there is none; `create=False` raises StoreError instead. Raises ConfigurationError for another scheme.
    """
    text = str(url)
    if text == "memory:":
        from turnkeep.store.memory import MemoryStore

        return MemoryStore()
    scheme, separator, rest = text.partition("://")
    if not separator:
        rest = "/" + text
    elif scheme != "sqlite" or not rest.startswith("/") or len(rest) < 2:
        raise ConfigurationError(f"{text!r} is no store: use sqlite:///file.db, a path, or memory:")
    from turnkeep.store.sqlite import SqliteStore

    return SqliteStore(rest[1:], create=create)
