"""The resources server's tools as methods of the agent, made at run time from their JSON schemas."""

import inspect
import keyword
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import jsonschema

from turnkeep.errors import ConfigurationError
from turnkeep.wire.json import InexactJson, NotJson, dumps, find_unwritable, loads, render_path

type Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a tool by its name with its arguments, checked; gives what it gave."""

_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class Tool(NamedTuple):
    """A function tool of a Responses request."""

    name: str
    description: str
    schema: Mapping[str, Any]


class _LeftOut:
    """The default of a parameter that need not be given."""

    def __repr__(self) -> str:
        return "..."


_LEFT_OUT = _LeftOut()


def read_tools(tools: Iterable[Any]) -> list[Tool]:
    """The tools of a request. Raises ConfigurationError that names the tool which no method can be made of."""
    read: list[Tool] = []
    for index, tool in enumerate(tools):
        kind, name = tool.get("type"), tool.get("name")
        if kind != "function":
            raise ConfigurationError(f"tool {index} is a {kind}, and the agent can be given functions only")
        if not isinstance(name, str) or not _is_public(name) or any(name == other.name for other in read):
            raise ConfigurationError(f"tool {index}: {name!r} cannot be the name of a method of the agent")
        schema = tool.get("parameters") or _NO_ARGUMENTS
        _check_schema(name, schema)
        read.append(Tool(name, tool.get("description") or "", schema))
    return read


def _check_schema(name: str, schema: Any) -> None:
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"tool {name}: its parameters are no JSON Schema: {error.message}") from None
    if schema.get("type") != "object":
        raise ConfigurationError(f"tool {name}: its parameters must be an object")


def with_tools(agent_class: type, tools: Iterable[Tool], call: Call) -> type:
    """A subclass of an agent's class that has each tool as an async method.

    Raises ConfigurationError where the agent has something of that name already.
    """
    methods: dict[str, Any] = {}
    for tool in tools:
        if hasattr(agent_class, tool.name):
            raise ConfigurationError(f"tool {tool.name}: {agent_class.__name__} has something of that name already")
        methods[tool.name] = _method(agent_class, tool, call)
    members = {"__module__": agent_class.__module__, "__doc__": agent_class.__doc__, **methods}
    execution = getattr(agent_class, "_execution_config", None)
    made: type = type(agent_class)(agent_class.__name__, (agent_class,), members, execution=execution)
    return made


def check_visible(agent: Any, tools: Iterable[Tool]) -> None:
    """Refuse an agent whose own fields hide a tool. Raises ConfigurationError."""
    for tool in tools:
        if tool.name in vars(agent):
            raise ConfigurationError(f"tool {tool.name}: a field of {type(agent).__name__} hides it")


def _method(agent_class: type, tool: Tool, call: Call) -> Any:
    signature = _signature(tool.schema)
    properties = tool.schema.get("properties", {})
    defaults = {name: schema["default"] for name, schema in properties.items() if _has_default(schema)}

    async def method(self: Any, *given: Any, **named: Any) -> Any:
        arguments = signature.bind(self, *given, **named).arguments
        del arguments["self"]
        if _takes_any(signature):
            arguments = arguments.get("arguments", {})
        return await call(tool.name, {**arguments, **{n: v for n, v in defaults.items() if n not in arguments}})

    method.__name__ = tool.name
    method.__qualname__ = f"{agent_class.__qualname__}.{tool.name}"
    method.__module__ = agent_class.__module__
    method.__doc__ = "\n\n".join(filter(None, (tool.description, f"Arguments: {dumps(tool.schema).decode()}")))
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _signature(schema: Mapping[str, Any]) -> inspect.Signature:
    """Named parameters, the required ones first; `**arguments` where a name is none that Python takes.

    A parameter that need not be given shows the schema's default, which then goes to the tool, or `...`, which then
    does not.
    """
    properties, required = schema.get("properties", {}), schema.get("required", ())
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    if not all(map(_is_parameter, properties)) or schema.get("additionalProperties") not in (None, False):
        return inspect.Signature([*own, inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)])
    for name in sorted(properties, key=lambda name: name not in required):
        default = properties[name]["default"] if _has_default(properties[name]) else _LEFT_OUT
        default = inspect.Parameter.empty if name in required else default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own.append(inspect.Parameter(name, kind, default=default, annotation=_annotation(properties[name])))
    return inspect.Signature(own, return_annotation=Any)


def _takes_any(signature: inspect.Signature) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())


def _has_default(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema


def _annotation(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _is_public(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name != "self"


def unwritable(arguments: Mapping[str, Any]) -> str | None:
    """Why JSON cannot hold a tool's arguments, or None."""
    fault = find_unwritable(arguments)
    return None if fault is None else f"{fault.reason} at $.{render_path(fault.path)}"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """A tool's arguments as JSON, as they are now; what JSON cannot hold as its repr."""
    written = {name: value if find_unwritable(value) is None else repr(value) for name, value in arguments.items()}
    return dumps(written).decode()


def as_text(value: Any) -> str:
    """A value as the text of a message or an output: text as it is, anything else as JSON.

    Raises ValueError where it can be written in no way.
    """
    if isinstance(value, str):
        return value
    from pydantic_core import to_json, to_jsonable_python  # the value may be a model, or hold some

    with suppress(ValueError):
        return dumps(to_jsonable_python(value, serialize_unknown=True)).decode()
    return to_json(value, serialize_unknown=True).decode()  # NaN and infinities, which JSON has no spelling for


def read_output(body: bytes) -> Any:
    """What a tool gave: its JSON value, else its text."""
    try:
        return loads(body)
    except (NotJson, InexactJson):
        return body.decode("utf-8", "replace")
