"""The client: a NOOA UnifiedLLM whose calls go through a turnkeep `PolicyClient`."""

import asyncio
from contextvars import ContextVar
from typing import Any, Literal

from nooa.runtime import context_vars as nooa_context
from nooa.unifiedllm import unifiedllm as nooa_llm

from turnkeep.errors import (
    BudgetExhausted,
    ConfigurationError,
    CorruptRecord,
    MalformedItem,
    MissingTurn,
    PreparationFailure,
    TransportFailure,
    UnsupportedClientCall,
)
from turnkeep.history.scope import DEFAULT_ALIAS
from turnkeep.history.structured import parse_output
from turnkeep.history.turn import Turn
from turnkeep.nooa.archives import read_archive, write_archive
from turnkeep.nooa.events import Flight, current, is_heard, listen
from turnkeep.nooa.marks import Carried
from turnkeep.nooa.messages import NOT_EXECUTED_DETAIL, NOT_EXECUTED_GAP, to_history
from turnkeep.nooa.parts import has_ordered_parts, native_response
from turnkeep.nooa.references import References
from turnkeep.nooa.render import keeping, mark_runtime_calls, rendered_archives
from turnkeep.nooa.request import request_params, usage_counts
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import MadeUpIds
from turnkeep.wire.json import InexactJson, loads

PROVEN_VERSIONS = ("0.0.10",)
"""The nooa versions that the tests of this adapter were run on; with another, `tests/nooa/test_version.py` says what to
look at again."""

MADE_UP_IDS = MadeUpIds(
    patterns=(r"(?:prefill|synthetic|predict|codeact_inline)_[0-9a-f]{8}",), members=("prompt_cache_key",)
)
"""The ids that NOOA makes up anew at each run: call ids, also inside the text of `PythonOutput(...)` messages, and the
agent's uuid in `prompt_cache_key`. A client gives them to its policy, so that a re-run knows its requests."""

_RECORDED = (PreparationFailure, TransportFailure, MalformedItem, UnsupportedClientCall)
"""What `PolicyClient.call` records itself."""

current_rollout: ContextVar[Rollout | None] = ContextVar("turnkeep_nooa_rollout", default=None)
"""The rollout of the last policy call in this context: where a `once` tool that has no agent looks."""


class TurnkeepLLM(nooa_llm.UnifiedLLM):  # type: ignore[misc]
    """A NOOA client that keeps every turn exactly.

    `embed="archive"` writes each turn whole into the metadata of the NOOA event it became; NOOA's own storage is then
    all that a restore needs. `embed="reference"` writes its digest there and leaves the turn to turnkeep's store, where
    it is looked for in the client's rollout, then in the one that made it.
    Several agents may share a client; each is to be attached once, before its first call.
    """

    def __init__(
        self,
        policy: PolicyClient,
        *,
        embed: Literal["archive", "reference"] = "archive",
        model: str = DEFAULT_ALIAS,
        context_window: int | None = None,
    ) -> None:
        if embed not in ("archive", "reference"):
            raise ConfigurationError(f"embed is 'archive' or 'reference', not {embed!r}", field="embed")
        super().__init__(model)
        self.policy = policy
        if policy.made_up == MadeUpIds():
            policy.made_up = MADE_UP_IDS
        self.embed = embed
        self._context_window = context_window
        self._turns: dict[str, Turn] = {}
        self._references = References(policy.rollout._store)

    @property
    def rollout(self) -> Rollout:
        """The rollout that the calls belong to."""
        rollout: Rollout = self.policy.rollout
        return rollout

    @property
    def context_window(self) -> int | None:
        """The policy's context window in tokens, or None where it is not known; then NOOA limits nothing by it."""
        return self._context_window

    def attach[A](self, agent: A) -> A:
        """Keep `agent`'s turns in its events and replay them from there; gives the agent back.

        To be called before the first call, and after each construction, a restored agent's too. Once is enough, twice
        does no harm. Agents that an attached agent's code makes need no call of it.
        """
        target: Any = agent
        if not has_ordered_parts(nooa_llm.LLMResponse):
            target.render_config = keeping(target.render_config)
            listen(target.event_manager)
        return agent

    async def acall(self, messages: list[Any], tools: Any = None, output_model: Any = None, **options: Any) -> Any:
        """One policy call: the messages as exact history, then the policy's answer as NOOA reads it.

        Whatever turnkeep raises goes on to NOOA, which may show it to the model as text; the rollout has recorded it.
        With `output_model`, text that does not satisfy it (a refusal never does) raises InvalidPolicyOutput after the
        call was charged and recorded; NOOA's Predict then tells the model and calls again, up to its `max_retries`.
        """
        current.set(None)
        current_rollout.set(self.rollout)
        self._attach_caller(messages)
        try:
            params = request_params(tools, output_model, options)
            turn, call = await self.policy.answer(self._history(messages), params)
        except Exception as error:
            self._record(error)
            raise
        self._turns[turn.digest] = turn
        archive = write_archive(turn) if self.embed == "archive" else None
        current.set(Flight(turn, self.rollout.id, archive, bool(tools)))
        parsed = None if output_model is None else parse_output(turn, self._response_object(call), output_model)
        return _response(turn, parsed)

    def _response_object(self, call: int) -> Any:
        """The Responses object of a call, from its evidence: it shows a refusal also where the turn has no natives."""
        try:
            return loads(self.rollout.response(call) or b"null")
        except InexactJson as error:  # a training field that is malformed, under on_malformed="gap"
            return error.value

    def call(self, messages: list[Any], tools: Any = None, output_model: Any = None, **options: Any) -> Any:
        """`acall`, for callers outside an event loop. NOOA's runtime never calls it."""
        return asyncio.run(self.acall(messages, tools, output_model, **options))

    async def aclose(self) -> None:
        """Close the connection to the model server."""
        await super().aclose()
        await self.policy.aclose()

    def _attach_caller(self, messages: list[Any]) -> None:
        """Attach the calling agent if nobody has: one that model code made has no other moment."""
        agent = nooa_context._parent_agent_var.get() if hasattr(nooa_context, "_parent_agent_var") else None
        if agent is not None and agent.llm is self and not is_heard(agent.event_manager):
            self.attach(agent)
            mark_runtime_calls(messages, agent.event_manager)

    def _history(self, messages: list[Any]) -> list[Any]:
        history, dropped = to_history(messages, self._turn)
        if dropped:
            self.rollout.add_gap(NOT_EXECUTED_GAP, detail=NOT_EXECUTED_DETAIL)
        return history

    def _record(self, error: Exception) -> None:
        """Keep what only NOOA would hear of: any error that the policy client has not recorded."""
        if not isinstance(error, (*_RECORDED, BudgetExhausted)):
            self.rollout.record_failure(PreparationFailure(f"{type(error).__name__}: {error}", rollout=self.rollout.id))

    def _turn(self, carried: Carried) -> Turn:
        """The turn that a message carries: at hand, in its archive, or in the store. Raises where it is in none."""
        digest = carried["turn"]
        if digest not in self._turns:
            archive = rendered_archives.get().get(digest)
            turn = self._referenced(carried) if archive is None else read_archive(archive)
            if turn.digest != digest:
                raise CorruptRecord(f"an event's archive is not the turn {digest}", rollout=carried.get("rollout"))
            self._turns[digest] = turn
        return self._turns[digest]

    def _referenced(self, carried: Carried) -> Turn:
        """The turn in the store: in the rollout that the mark names, or in this one."""
        digest, maker = carried["turn"], carried.get("rollout", self.rollout.id)
        if maker != self.rollout.id and (turn := self._references.find(maker, digest)) is not None:
            return turn
        try:
            return self.rollout.turn_of_digest(digest)
        except MissingTurn:
            raise MissingTurn(f"the store holds no turn of digest {digest}", rollout=maker) from None


def _response(turn: Turn, parsed: Any) -> Any:
    """The turn as this NOOA's LLMResponse. `content` is text exactly as persisted, so that NOOA stores it unchanged."""
    if has_ordered_parts(nooa_llm.LLMResponse):
        from nooa import llm_types

        return native_response(turn, nooa_llm.LLMResponse, llm_types, parsed)
    calls = [nooa_llm.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in turn.tool_calls]
    return nooa_llm.LLMResponse(
        raw_response=None,
        content=turn.content,
        tool_calls=calls,
        finish_reason=turn.finish_reason,
        assistant_message=_public_message(turn),
        reasoning=turn.reasoning,
        usage=usage_counts(turn.usage),
    )


def _public_message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
    return message
