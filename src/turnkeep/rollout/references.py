"""Which blobs a row names: for deleting those that no row names any more."""

from collections.abc import Iterator

from turnkeep.archive.arrays import FORMAT, read_turn_document
from turnkeep.archive.documents import expecting
from turnkeep.rollout.evidence import read_references
from turnkeep.store.base import Row


def named_blobs(row: Row) -> Iterator[str]:
    """The digests of the blobs that a row's document names. Raises ArchiveError, UnsupportedVersion."""
    if row.kind == "calls":
        yield from read_references(row.document)
    if row.kind == "turns":
        document = read_turn_document(row.document)
        with expecting(FORMAT):
            yield from document["body"] if "body" in document else [ref["blob"] for ref in document["arrays"]]
