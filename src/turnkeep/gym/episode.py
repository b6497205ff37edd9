"""One run of the agent: its policy calls, its tools, what it gave; in the order in which things happened.

What happened is a list of steps. A step names a policy call of the rollout by its number, so nothing is held twice,
and a run answered from evidence has the same steps as the one that the evidence is of.
"""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeep.errors import TransportFailure
from turnkeep.gym.config import Setup
from turnkeep.gym.resources import ResourcesClient, cookie_header
from turnkeep.gym.tools import (
    Call,
    Tool,
    arguments_text,
    as_text,
    check_visible,
    read_output,
    read_tools,
    unwritable,
    with_tools,
)
from turnkeep.history.projection import Entry, project
from turnkeep.history.structured import why_invalid
from turnkeep.nooa import TurnkeepLLM
from turnkeep.rollout.gym_row import resource_id
from turnkeep.rollout.policy import Answer, PolicyClient
from turnkeep.rollout.record import Rollout

SAMPLING = ("temperature", "top_p", "max_output_tokens", "top_logprobs", "reasoning", "metadata")
"""Members of a run's request that go into each policy call, and win over the server's `sampling` and NOOA's own."""


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """The policy answered: the number of the call in the rollout."""

    call: int


@dataclass(frozen=True, slots=True)
class OutputStep:
    """The output of one of the policy's calls, as the policy got it: a `function_call_output` item."""

    call_id: str
    item: dict[str, Any]


@dataclass(slots=True)
class ToolStep:
    """A tool of the resources server, called by the agent. Times are in seconds since the epoch.

    `arguments` and `output` are texts of what they were then: the values are the agent's, which may change them.
    """

    call_id: str
    name: str
    arguments: str
    began: float
    ended: float | None = None
    status: str = "incomplete"
    error: str | None = None
    output: str = "null"


type Step = PolicyStep | OutputStep | ToolStep


@dataclass(slots=True)
class Episode:
    """A run in progress, or what came of it: its steps, and the value that the agent returned."""

    rollout: Rollout
    known_as: str
    """The id by which Gym knows this try of the run; the rollout's own is without the try, and may have a suffix."""
    recorded: int
    """How many policy calls the rollout held when this run began."""
    steps: list[Step] = field(default_factory=list)
    value: str | None = None
    """What the agent returned, as text; None where that was None."""
    fault: TransportFailure | None = None
    """A tool could not be reached: whatever the agent made of it, the run is not to be graded."""


class StepPolicy(PolicyClient):
    """A policy client that notes the steps, and sends no member that this Gym's model servers refuse."""

    def __init__(self, url: str, episode: Episode, members: frozenset[str], **options: Any) -> None:
        super().__init__(url, episode.rollout, **options)
        self._episode = episode
        self._members = members
        self._made: set[str] = set()

    async def answer(self, history: Iterable[Entry], params: Mapping[str, Any] | None = None) -> Answer:
        """The policy's turn, and the outputs that went to it, noted."""
        entries = list(history)
        kept = {name: value for name, value in (params or {}).items() if name in self._members}
        answer = await super().answer(entries, kept)
        steps = self._episode.steps
        steps += [OutputStep(item["call_id"], item) for item in _outputs(entries) if item["call_id"] in self._made]
        self._made -= {step.call_id for step in steps if isinstance(step, OutputStep)}
        self._made |= {call.id for call in answer.turn.tool_calls}
        steps.append(PolicyStep(answer.call))
        return answer


def _outputs(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The tool outputs among a history's entries, as they are sent."""
    told = [each for each in entries if isinstance(each, dict) and _is_output(each)]
    return list(project(told).input)


def _is_output(entry: Mapping[str, Any]) -> bool:
    return entry.get("role") == "tool" or entry.get("type") == "function_call_output"


async def run_episode(
    setup: Setup,
    episode: Episode,
    request: Any,
    params: Mapping[str, Any],
    *,
    model_url: str,
    members: frozenset[str],
    cookies: Mapping[str, str],
    resources: ResourcesClient,
) -> None:
    """Make the agent, give it its tools and the request, and keep in `episode` what comes of it.

    `request` is what the adapter gets, `params` the same as plain JSON; `members` are those that a model server takes;
    `cookies` go to the model server until it has set its own. Raises whatever the agent lets through.
    """
    tools = read_tools(params.get("tools") or ())
    sampling = {**setup.sampling, **{name: params[name] for name in SAMPLING if params.get(name) is not None}}
    async with StepPolicy(
        model_url,
        episode,
        members,
        sampling=sampling,
        timeout=setup.run_timeout_secs,
        on_malformed=setup.on_malformed,
        prefix_guard=setup.prefix_guard,
        headers=cookie_header(cookies),
    ) as policy:
        llm = TurnkeepLLM(policy, embed=setup.embed, model=setup.model)
        made = with_tools(setup.invocation.agent_class, tools, _caller(episode, resources, tools))
        agent = llm.attach(made(llm=llm, **copy.deepcopy(dict(setup.invocation.init_kwargs))))
        check_visible(agent, tools)
        value = await setup.invocation.adapter(agent, request)
        episode.value = None if value is None else as_text(value)


def _caller(episode: Episode, resources: ResourcesClient, tools: Iterable[Tool]) -> Call:
    schemas = {tool.name: tool.schema for tool in tools}

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        number = sum(isinstance(step, ToolStep) for step in episode.steps)
        step = ToolStep(resource_id(number), name, arguments_text(arguments), time.time())
        episode.steps.append(step)
        if (why := unwritable(arguments) or why_invalid(arguments, schemas[name])) is not None:
            step.status, step.error = "failed", "invalid_arguments"
            output: Any = {"error": f"Invalid arguments for {name}: {why}"}
        else:
            output = await _post(episode, step, resources)
        step.output = as_text(output)
        step.ended = max(step.began, time.time())
        return output

    return call


async def _post(episode: Episode, step: ToolStep, resources: ResourcesClient) -> Any:
    """Call the tool; what it gives, an HTTP error too, is the agent's to make sense of."""
    try:
        answered = await resources.post(f"/{step.name}", step.arguments.encode())
    except TransportFailure as error:
        step.status, step.error = "failed", type(error).__name__
        episode.fault = error
        raise
    step.status = "completed" if answered.status < 400 else "failed"
    step.error = None if answered.status < 400 else f"http_{answered.status}"
    return read_output(answered.body)
