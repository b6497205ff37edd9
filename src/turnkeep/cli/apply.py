"""`turnkeep apply`: the core's operations over a line protocol, for other languages and for conformance.

One JSON request a line on standard input, one JSON answer a line on standard output, in order, never stopping at a
bad one. Requests: `capture`, `project`, `roundtrip`, `parse`, `scope`, `edit`, `import_nooa`; what fails is answered
`{"error": {"type": <class>, "message": ..., "at": <place>}}`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from turnkeep.archive.json_form import dumps_turn, from_json, loads_turn, to_json
from turnkeep.archive.nooa_form import from_nooa
from turnkeep.archive.packed import pack, unpack
from turnkeep.errors import ConfigurationError, MalformedItem, PreparationFailure, TurnkeepError
from turnkeep.history.capture import capture, response_fault
from turnkeep.history.projection import project
from turnkeep.history.scope import Scope
from turnkeep.history.structured import parse_output
from turnkeep.history.turn import Turn
from turnkeep.wire.json import Fault, InexactJson, NotJson, dumps, loads


def apply_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The answer to each request, one line each."""
    for line in lines:
        if line.strip():
            yield _write(apply_one(line))


def _write(answer: dict[str, Any]) -> bytes:
    """The answer's line; one that is nested deeper than JSON is written here is an error, like the rest."""
    try:
        return dumps(answer)
    except ValueError as error:
        return dumps({"error": {"type": "ArchiveError", "message": f"the answer cannot be written: {error}"}})


def apply_one(line: bytes) -> dict[str, Any]:
    """The answer to one request."""
    try:
        request = _read(line)
        name = request.get("op")
        operation = _OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            known = ", ".join(_OPERATIONS)
            raise ConfigurationError(f"unknown op {request.get('op')!r}; there are {known}", field="op")
        return operation(request)
    except TurnkeepError as error:
        return {"error": {"type": type(error).__name__, "message": error.message, **_at(error)}}


def _read(line: bytes) -> dict[str, Any]:
    """The request; a value in it that JSON cannot hold exactly is the error of what it stands in."""
    try:
        request = loads(line)
    except NotJson as error:
        raise ConfigurationError(f"the request is no JSON: {error}") from None
    except InexactJson as error:
        fault = error.faults[0]
        match fault.path:
            case ("response", *inner):
                raise response_fault(Fault(tuple(inner), fault.reason)) from None
            case ("history", int(entry), *_):
                raise PreparationFailure(fault.reason, entry=entry) from None
            case _:
                raise ConfigurationError(f"the request cannot be read exactly: {error}") from None
    if not isinstance(request, dict):
        raise ConfigurationError("a request is an object with an op")
    return request


def _at(error: TurnkeepError) -> dict[str, Any]:
    if isinstance(error, PreparationFailure):
        return {"at": error.entry}
    return {"at": error.place} if isinstance(error, MalformedItem) else {}


def _need(request: Mapping[str, Any], *names: str) -> list[Any]:
    for name in names:
        if name not in request:
            raise ConfigurationError(f"{request['op']} needs {name}", field=name)
    return [request[name] for name in names]


def _scope(request: Mapping[str, Any]) -> str | None:
    scope = request.get("scope")
    if not isinstance(scope, str | None):
        raise ConfigurationError("scope is the finished string, or null", field="scope")
    return scope


def _capture(request: Mapping[str, Any]) -> dict[str, Any]:
    body = request["body"] if "body" in request else _need(request, "response")[0]
    if "body" in request and not isinstance(body, str):
        raise ConfigurationError("body is the response's text", field="body")
    turn = capture(body if isinstance(body, str) else dumps(body), _scope(request))
    return {"turn": to_json(turn), "content": turn.content, "finish_reason": turn.finish_reason}


def _project(request: Mapping[str, Any]) -> dict[str, Any]:
    (history,) = _need(request, "history")
    if not isinstance(history, list):
        raise ConfigurationError("history is a list of entries", field="history")
    projected = project([_entry(entry) for entry in history], _scope(request))
    codes = sorted(gap.code for gap in projected.gaps)
    return {"input": projected.input, "instructions": projected.instructions, "gaps": codes}


def _entry(entry: Any) -> Any:
    return from_json(entry["turn"]) if isinstance(entry, dict) and "turn" in entry else entry


def _roundtrip(request: Mapping[str, Any]) -> dict[str, Any]:
    value, through = _need(request, "turn", "through")
    turn = from_json(value)
    if not isinstance(through, list):
        raise ConfigurationError("through is a list of forms", field="through")
    for form in through:
        if not isinstance(form, str) or form not in _FORMS:
            raise ConfigurationError(f"unknown form {form!r}; there are {', '.join(_FORMS)}", field="through")
        turn = _FORMS[form](turn)
    return {"turn": to_json(turn)}


def _through_sqlite(turn: Turn) -> Turn:
    import tempfile
    from pathlib import Path

    from turnkeep.rollout.record import Rollout
    from turnkeep.rollout.view import RolloutView
    from turnkeep.store.open import open_store

    with tempfile.TemporaryDirectory(prefix="turnkeep-") as folder:
        path = str(Path(folder) / "roundtrip.db")
        with open_store(path) as store, Rollout.open(store, "roundtrip") as rollout:
            rollout.add_turn(turn)
        with open_store(path) as store:
            return RolloutView(store, "roundtrip").turn(0)


_FORMS: Mapping[str, Callable[[Turn], Turn]] = {
    "json": lambda turn: loads_turn(dumps_turn(turn)),
    "packed": lambda turn: unpack(pack([turn]))[0],
    "sqlite": _through_sqlite,
}


def _parse(request: Mapping[str, Any]) -> dict[str, Any]:
    response, schema = _need(request, "response", "schema")
    return {"value": parse_output(capture(dumps(response)), response, schema)}


def _scope_text(request: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: request[name] for name in ("server", "alias") if request.get(name) is not None}
    _need(names | {"op": "scope"}, "server")
    for name, value in names.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"{name} is text", field=name)
    return {"scope": str(Scope(**names))}


def _edit(request: Mapping[str, Any]) -> dict[str, Any]:
    value, part, fields = _need(request, "turn", "part", "set")
    if type(part) is not int or not isinstance(fields, dict):
        raise ConfigurationError("part is an index and set an object of public fields")
    return {"turn": to_json(from_json(value).edit(part, **fields))}


def _import_nooa(request: Mapping[str, Any]) -> dict[str, Any]:
    value, scope, revision = _need(request, "turn", "scope", "revision")
    return {"turn": to_json(from_nooa(value, scope, revision))}


_OPERATIONS: Mapping[Any, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "capture": _capture,
    "project": _project,
    "roundtrip": _roundtrip,
    "parse": _parse,
    "scope": _scope_text,
    "edit": _edit,
    "import_nooa": _import_nooa,
}
