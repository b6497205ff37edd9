"""A tool call in an ATIF document, made of a function call and made into one again."""

from collections.abc import Mapping
from typing import Any

from turnkeep.errors import ArchiveError
from turnkeep.export.atif_arguments import put_together, take_apart
from turnkeep.export.atif_text import exact, extra, lossy, own_extra

FIELDS = ("call_id", "name", "arguments")
"""The members of a function_call item that ATIF holds."""


def write_call(id: str, name: str, arguments: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A call with what else is to be kept of it: its item, and what ATIF's fields cannot show."""
    value, spelling = take_apart(arguments)
    own = {
        **kept,
        **({} if spelling is None else {"spelling": spelling}),
        **{field: text for field, text in (("id", id), ("name", name)) if lossy(text) != text},
    }
    call = {"tool_call_id": lossy(id), "function_name": lossy(name), "arguments": value}
    return {**call, "extra": extra(own)} if own else call


def read_call(call: Mapping[str, Any]) -> dict[str, str]:
    """The `id`, `name` and `arguments` of a call. Raises ArchiveError where a field is of another type."""
    own = own_extra(call)
    for field, kind in (("tool_call_id", str), ("function_name", str), ("arguments", Mapping)):
        if not isinstance(call[field], kind):
            raise ArchiveError(f"{field} is of another type than ATIF has it", field=field)
    return {
        "id": exact(own.get("id"), call["tool_call_id"]),
        "name": exact(own.get("name"), call["function_name"]),
        "arguments": put_together(call["arguments"], own.get("spelling")),
    }
