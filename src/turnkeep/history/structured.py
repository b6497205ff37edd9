"""Structured output: the value a policy was asked for, parsed from exactly what is persisted (contract section 6)."""

import re
from collections.abc import Mapping
from typing import Any

from turnkeep.errors import ConfigurationError, InvalidPolicyOutput
from turnkeep.history.turn import Turn
from turnkeep.wire.item import refusals
from turnkeep.wire.json import InexactJson, NotJson, loads


def parse_output(turn: Turn, response: Mapping[str, Any] | None, schema: Any) -> Any:
    """The value in `turn.content`, or None where the turn has tool calls (nothing is parsed, nothing fails).

    `schema` is a JSON Schema (draft 2020-12) as a mapping, which gives the plain value, or a pydantic model class,
    which gives an instance. `response` is the Responses object where it is at hand, else None: after a restore a
    refusal shows in the turn's native items. Raises InvalidPolicyOutput with the validator's own message.
    """
    if turn.tool_calls:
        return None
    output = response.get("output") if response is not None else None
    items = output if isinstance(output, list) else [part.native.skeleton() for part in turn.parts if part.native]
    refused = [text for item in items if isinstance(item, Mapping) for text in refusals(item)]
    if refused:
        raise InvalidPolicyOutput(f"the policy refused: {refused[0]}")
    try:
        value = loads(turn.content)
    except (NotJson, InexactJson) as error:
        raise InvalidPolicyOutput(f"the text is no JSON: {error}") from None
    return _validate(value, schema)


def _validate(value: Any, schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return _validate_schema(value, schema)
    validate = getattr(schema, "model_validate", None)
    if validate is None:
        raise ConfigurationError(f"a schema is a mapping or a pydantic model, not {schema!r}")
    try:
        return validate(value)
    except ValueError as error:  # pydantic's ValidationError is one
        raise InvalidPolicyOutput(str(error)) from error


def _validate_schema(value: Any, schema: Mapping[str, Any]) -> Any:
    why = why_invalid(value, schema)
    if why is not None:
        raise InvalidPolicyOutput(why)
    return value


def why_invalid(value: Any, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a value by a JSON Schema (draft 2020-12), in the validator's own words, or None.

    Raises ConfigurationError where the schema is at fault.
    """
    import jsonschema
    import jsonschema_specifications
    import referencing.exceptions

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        # the meta-schemas are at hand, and nothing is fetched
        validator = jsonschema.Draft202012Validator(schema, registry=jsonschema_specifications.REGISTRY)
        worst = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"the schema is not valid: {error.message}") from None
    except referencing.exceptions.Unresolvable as error:
        raise ConfigurationError(f"the schema refers to what is not there: {error}") from None
    except re.error as error:
        raise ConfigurationError(f"the schema has a pattern that is no regular expression: {error}") from None
    except RecursionError:
        if _ends(validator):
            return "the value is nested too deeply for the schema"
        raise ConfigurationError("the schema refers to itself without end") from None
    except OverflowError as error:  # from numbers beyond float64, of which JSON has more than the validator takes
        return f"the value has a number that the schema cannot be held to: {error}"
    return None if worst is None else f"{worst.message} at {worst.json_path}"


def _ends(validator: Any) -> bool:
    """Whether a schema comes to an end on a value that holds nothing, so that the depth was the policy's doing."""
    try:
        validator.is_valid(None)
    except RecursionError:
        return False
    return True
