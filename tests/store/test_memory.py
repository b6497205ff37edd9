from pathlib import Path
from typing import ClassVar

from turnkeep.store.base import Row, Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing.store_contract import Place, StoreContract


class TestMemoryStore(StoreContract):
    """The store in memory holds to the contract of stores."""

    lasts: ClassVar[bool] = False

    def open_store(self, folder: Path) -> Store:
        """A new store, since nothing of an earlier one lasts."""
        return MemoryStore()

    def flip(self, folder: Path, store: Store, place: Place, bit: int) -> None:
        """Put bytes with one bit changed beside the digest of the old ones."""
        assert isinstance(store, MemoryStore)
        if place.what == "blob":
            store._blobs[place.digest] = flipped(store._blobs[place.digest], bit)
        elif place.what == "state":
            row, digest = store._states[place.rollout]
            store._states[place.rollout] = (row._replace(document=flipped(row.document, bit)), digest)
        else:
            key = (place.rollout, place.what, place.number)
            row, digest = store._rows[key]
            store._rows[key] = (Row(row.kind, row.number, flipped(row.document, bit)), digest)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
