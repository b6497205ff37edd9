"""What NOOA asks for, in the words of the Responses API: tools, structured output, sampling. Pure."""

from collections.abc import Mapping
from typing import Any

from turnkeep.errors import ConfigurationError

_RENAMED = {"max_tokens": "max_output_tokens"}
_NOT_SENT = frozenset({"cache_control_injection_points", "turns"})


def request_params(tools: Any, output_model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a request besides its input: NOOA's options as they are, tools and the output's schema converted.

    Members whose value is None are left out. `tool_choice` goes out only beside tools.
    """
    params = {_RENAMED.get(name, name): value for name, value in options.items() if name not in _NOT_SENT}
    if tools:
        params["tools"] = [tool_schema(tool) for tool in tools]
    else:
        params.pop("tool_choice", None)
    if output_model is not None:
        params["text"] = {**(params.get("text") or {}), "format": output_format(output_model)}
    return {name: value for name, value in params.items() if value is not None}


def tool_schema(tool: Any) -> dict[str, Any]:
    """A NOOA Tool as a Responses function tool, strict only where its schema is closed and requires all it names."""
    if isinstance(tool, Mapping):
        return dict(tool)
    strict = tool.get_parameter_schema(strict=True)
    closed = is_closed(tool.get_parameter_schema(), closable=True) and is_closed(strict)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": strict if closed else tool.get_parameter_schema(),
        "strict": closed,
    }


def output_format(output_model: Any) -> dict[str, Any]:
    """The `text.format` of a pydantic model: named after its class, strict only where its schema is closed."""
    schema = getattr(output_model, "model_json_schema", None)
    if schema is None:
        raise ConfigurationError(f"output_model must be a pydantic model class, not {output_model!r}")
    value = schema()
    return {"type": "json_schema", "name": output_model.__name__, "strict": is_closed(value), "schema": value}


def is_closed(schema: Any, *, closable: bool = False) -> bool:
    """Whether every object in a JSON Schema forbids unknown members and requires all it names, and nothing is untyped.

    With `closable` an object may leave unknown members unmentioned, so that it could be closed without changing it.
    """
    if not isinstance(schema, Mapping):
        return False
    if not any(name in schema for name in ("type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref")):
        return False
    if schema.get("type") == "object" and not _closed_object(schema, closable):
        return False
    untyped_array = schema.get("type") == "array" and "items" not in schema
    if untyped_array or schema.get("uniqueItems") or "prefixItems" in schema:
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [member for name in ("anyOf", "oneOf", "allOf") for member in schema.get(name, ())]
    inner += [schema["items"]] if "items" in schema else []
    return all(is_closed(member, closable=closable) for member in inner)


def _closed_object(schema: Mapping[str, Any], closable: bool) -> bool:
    unknown = schema.get("additionalProperties", False if closable else None)
    return unknown is False and "properties" in schema and set(schema["properties"]) == set(schema.get("required", ()))


def usage_counts(usage: Any) -> dict[str, int] | None:
    """A response's usage under the names that NOOA counts by; what is no number is left out."""
    if not isinstance(usage, Mapping):
        return None
    inputs = usage.get("input_tokens_details")
    outputs = usage.get("output_tokens_details")
    found = {
        "prompt_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
        "completion_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
        "total_tokens": usage.get("total_tokens"),
        "cached_tokens": inputs.get("cached_tokens") if isinstance(inputs, Mapping) else None,
        "reasoning_tokens": outputs.get("reasoning_tokens") if isinstance(outputs, Mapping) else None,
    }
    return {name: value for name, value in found.items() if isinstance(value, int)}
