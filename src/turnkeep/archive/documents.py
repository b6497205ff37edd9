"""Versioned documents: every one that is written says its format and its version, and is checked for both when read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from turnkeep.errors import ArchiveError, TurnkeepError, UnsupportedVersion
from turnkeep.wire.json import InexactJson, NotJson, dumps, loads


def write_document(form: str, version: int, members: dict[str, Any]) -> bytes:
    """The members as a document of a format and version."""
    return dumps({"format": form, "version": version, **members})


def read_document(document: bytes, form: str, *versions: int) -> dict[str, Any]:
    """The members of a document of one of `versions`, without its format and version.

    Raises UnsupportedVersion, which says the number, for another version, ArchiveError for anything else.
    """
    try:
        value = loads(document)
    except (NotJson, InexactJson) as error:
        raise ArchiveError(f"a {form} document cannot be read: {error}") from None
    if not isinstance(value, dict) or value.pop("format", None) != form:
        raise ArchiveError(f"this is no {form} document")
    found = value.pop("version", None)
    if type(found) is not int or found not in versions:
        known = " and ".join(map(str, versions))
        raise UnsupportedVersion(f"a {form} document of version {found}; this turnkeep knows version {known}")
    return value


@contextmanager
def expecting(form: str) -> Iterator[None]:
    """Turn what goes wrong while a document's members are taken apart into an ArchiveError."""
    try:
        yield
    except TurnkeepError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArchiveError(f"a {form} document does not hold what its version has: {error!r}") from error
