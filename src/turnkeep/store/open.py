"""Opening a store by its URL."""

from pathlib import Path

from turnkeep.errors import ConfigurationError
from turnkeep.store.base import Store

DEFAULT_URL = "sqlite:///rollouts.db"


def open_store(url: str | Path = DEFAULT_URL, *, create: bool = True) -> Store:
    """The store at `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, a bare path, or `memory:`.

    Made where there is none; `create=False` raises StoreError instead. Raises ConfigurationError for another scheme.
    """
    path = store_file(url)
    if path is None:
        from turnkeep.store.memory import MemoryStore

        return MemoryStore()
    from turnkeep.store.sqlite import SqliteStore

    return SqliteStore(path, create=create)


def store_file(url: str | Path) -> str | None:
    """The path of the file that `url` names; None for `memory:`. Raises ConfigurationError for another scheme."""
    text = str(url)
    if text == "memory:":
        return None
    scheme, separator, rest = text.partition("://")
    if not separator:
        rest = "/" + text
    elif scheme != "sqlite" or not rest.startswith("/") or len(rest) < 2:
        raise ConfigurationError(f"{text!r} is no store: use sqlite:///file.db, a path, or memory:")
    return rest[1:]
