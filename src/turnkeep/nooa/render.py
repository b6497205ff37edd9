"""Rendering: what an event knows of its turn travels to the chat message that NOOA makes of it.

NOOA renders in two steps, blocks to neutral messages and those to chat dictionaries, with a formatter for each in the
agent's `render_config`. Both are wrapped, whatever they are; what is rendered stays as it was, and the client takes
what it finds under `turnkeep` off again before anything is sent.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from nooa.context_blocks.formatter import BlockFormatter, OpenAIProviderFormatter, ProviderFormatter
from nooa.context_blocks.render_config import RenderConfig

from turnkeep.errors import ConfigurationError
from turnkeep.nooa.marks import ARCHIVE, MARK, RUNTIME, Carried, carried_by, is_made_by_nooa

rendered_archives: ContextVar[Mapping[str, str]] = ContextVar("turnkeep_nooa_archives", default=MappingProxyType({}))
"""The archives, by digest, of the events that were rendered last in this context. They go past the messages, which
NOOA hashes, traces and hands to middleware."""


class KeepingBlockFormatter(BlockFormatter):  # type: ignore[misc]
    """Another block formatter's messages, with what their events carry in `reasoning_items`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def format_type(self) -> Any:
        """The inner formatter's."""
        return self.inner.format_type

    def format_event(self, event: Any, event_format: Any = None) -> Any:
        """The inner formatter's text of an event."""
        return self.inner.format_event(event, event_format=event_format)

    def format_description(self) -> Any:
        """The inner formatter's."""
        return self.inner.format_description()

    def format(self, blocks: list[Any]) -> list[Any]:
        """The inner formatter's messages, each of a marked event carrying its mark."""
        messages = list(self.inner.format(blocks))
        archives: dict[str, str] = {}
        at = 0
        for block in blocks:
            carried = None if block.event is None else carried_by(block.event)
            if carried is None:
                continue
            found = next((index for index in range(at, len(messages)) if _is_of(messages[index], block)), None)
            if found is None:
                continue
            if ARCHIVE in block.event.metadata and "turn" in carried:
                archives[carried["turn"]] = block.event.metadata[ARCHIVE]
            messages[found] = messages[found].model_copy(update={"reasoning_items": [{MARK: carried}]})
            at = found + 1
        rendered_archives.set(archives)
        return messages


class KeepingProviderFormatter(ProviderFormatter):  # type: ignore[misc]
    """Another chat formatter's dictionaries, each with what its message carries under `turnkeep`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def format(self, messages: list[Any]) -> list[dict[str, Any]]:
        """The inner formatter's dictionaries; a turn that NOOA shows as none gets one before its event's."""
        chat: list[dict[str, Any]] = []
        for message in messages:
            carried = _carried(message)
            if carried is None:
                chat += self.inner.format([message])
                continue
            made = self.inner.format([message.model_copy(update={"reasoning_items": None})])
            if carried["kind"] == "silent":
                chat.append({"role": "assistant", "content": None, MARK: carried})
            elif made:
                made[0] = {**made[0], MARK: carried}
            chat += made
        return chat


class KeepingRenderConfig(RenderConfig):  # type: ignore[misc]
    """A render configuration whose formatters stay wrapped when a strategy swaps them (CodeActLite does, by a copy)."""

    def model_copy(self, *, update: Any = None, deep: bool = False) -> "KeepingRenderConfig":
        """A copy with the formatters of `update` wrapped like the others."""
        return keeping(super().model_copy(update=update, deep=deep))


def keeping(config: Any) -> KeepingRenderConfig:
    """`config` with both formatters wrapped. Raises ConfigurationError where it does not make OpenAI chat messages."""
    block, provider = config.block_formatter, config.provider_formatter
    if not isinstance(block, KeepingBlockFormatter):
        block = KeepingBlockFormatter(block)
    if not isinstance(provider, KeepingProviderFormatter):
        if not isinstance(provider, OpenAIProviderFormatter):
            raise ConfigurationError(f"{type(provider).__name__} makes no OpenAI chat messages, which turnkeep reads")
        provider = KeepingProviderFormatter(provider)
    return KeepingRenderConfig(block_formatter=block, provider_formatter=provider)


def mark_runtime_calls(messages: Iterable[Any], event_manager: Any) -> None:
    """Mark the calls that NOOA made, by its events, in messages rendered before the agent was attached."""
    made = {
        event.tool_call_id for event in event_manager.values() if hasattr(event, "arguments") and is_made_by_nooa(event)
    }
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls and MARK not in message and calls[0].get("id") in made:
            message[MARK] = RUNTIME


def _carried(message: Any) -> Carried | None:
    items = message.reasoning_items or []
    return next((item[MARK] for item in items if MARK in item), None)


def _is_of(message: Any, block: Any) -> bool:
    """Whether a rendered message is the one of an event's block. Formatters keep the order of the events."""
    if message.reasoning_items and any(MARK in item for item in message.reasoning_items):
        return False
    if hasattr(block.event, "tool_call_id") and hasattr(block.event, "arguments"):
        return message.tool_call is not None and message.tool_call.id == block.event.tool_call_id
    if message.tool_call is not None or message.tool_call_id is not None or message.role != block.role:
        return False
    keys = [part.key for part in message.parts or () if hasattr(part, "key")]
    return block.key in keys if keys else block.content in (message.content or "")
