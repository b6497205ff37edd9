"""`turnkeep compact`."""

from turnkeep.cli.output import console, print_json
from turnkeep.errors import ConfigurationError
from turnkeep.store.open import open_store
from turnkeep.store.sqlite import SqliteStore


def compact_store(url: str, *, as_json: bool) -> None:
    """Compact a store and print how many bytes that freed."""
    with open_store(url, create=False) as store:
        if not isinstance(store, SqliteStore):
            raise ConfigurationError(f"{url} is no file: there is nothing to compact", field="store")
        before, after = store.compact()
    if as_json:
        print_json({"before": before, "after": after, "reclaimed": before - after})
    else:
        console().print(f"{before:,} bytes before, {after:,} after: {before - after:,} reclaimed")
