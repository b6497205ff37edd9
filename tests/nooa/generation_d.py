"""Classes of the shape that NOOA's newer runtime documents (ordered parts), since no registry serves it.

As in the design notes: parts are frozen and closed, `native` is deep-frozen JSON that dumps as plain containers,
`parts` and `replay_scope` cannot be set, `content` and its kin are derived, a `model_copy` that changes parts or scope
strips every native, and `model_validate` of an archive strips nothing and ignores flat keys beside parts.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SkipValidation, model_validator


class FrozenObject(Mapping[str, Any]):
    """A JSON object that nobody can change."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = {name: freeze(value) for name, value in members.items()}

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __deepcopy__(self, memo: Any) -> "FrozenObject":
        return self


def freeze(value: Any) -> Any:
    """JSON, deep-frozen: objects to FrozenObject, lists to tuples."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ValueError("object keys must be text")
        return value if isinstance(value, FrozenObject) else FrozenObject(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(freeze, value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return value


def thawed(value: Any) -> Any:
    """The plain containers of frozen JSON."""
    if isinstance(value, Mapping):
        return {name: thawed(member) for name, member in value.items()}
    return [thawed(member) for member in value] if isinstance(value, tuple) else value


def _object(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, (dict, FrozenObject)):
        raise ValueError("native must be an object")
    return freeze(value)


NativeJSON = Annotated[SkipValidation[Any], BeforeValidator(_object), PlainSerializer(thawed)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    native: NativeJSON = Field(default=None, repr=False)


class AssistantText(_Part):
    """A text part."""

    kind: Literal["text"] = "text"
    text: str


class AssistantReasoning(_Part):
    """A reasoning part."""

    kind: Literal["reasoning"] = "reasoning"
    text: str = ""


class ToolCall(_Part):
    """A call part."""

    kind: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: str


AssistantPart = Annotated[AssistantText | AssistantReasoning | ToolCall, Field(discriminator="kind")]


class LLMResponse(BaseModel):
    """A response with ordered parts."""

    parts: tuple[AssistantPart, ...] = Field(default=(), frozen=True)
    replay_scope: str | None = Field(default=None, frozen=True)
    raw_response: Any = Field(default=None, exclude=True)
    parsed: Any = Field(default=None, exclude=True)
    finish_reason: Literal["stop", "tool_calls", "length", "error"] = "stop"
    usage: dict[str, Any] | None = None
    model_name: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = dict(value)
        flat = {name: given.pop(name, None) for name in ("content", "tool_calls", "reasoning")}
        if "parts" not in given:
            given["parts"] = [AssistantText(text=flat["content"] or "")]
        return given

    @property
    def content(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls."""
        return [part for part in self.parts if part.kind == "tool_call"]

    def model_copy(self, *, update: Any = None, deep: bool = False) -> "LLMResponse":
        """A copy; where parts or scope change, every native, the scope, the raw response and the parsed value go."""
        update = dict(update or {})
        if {"content", "tool_calls", "reasoning"} & set(update):
            raise TypeError("edit the parts")
        if {"parts", "replay_scope"} & set(update):
            parts = update.get("parts", self.parts)
            update["parts"] = tuple(BaseModel.model_copy(part, update={"native": None}) for part in parts)
            update |= {"replay_scope": None, "raw_response": None, "parsed": None}
        return super().model_copy(update=update, deep=deep)


class CacheBoundary(Mapping[str, Any]):
    """A marker among the messages, never sent."""

    def __init__(self) -> None:
        self._members = {"role": "metadata", "nooa_cache_boundary": True}

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
