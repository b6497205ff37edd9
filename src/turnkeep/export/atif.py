"""Rollouts as ATIF documents, one file each, in a folder that appears whole or not at all.

The format is the Agent Trajectory Interchange Format (Harbor's RFC 0001), version 1.8. Token ids and log probs are in
`metrics`, routed experts in `metrics.extra`; what ATIF has no field for is in `extra.turnkeep`, so that
`turnkeep.export.atif_import` gives the history back exactly. docs/atif.md tells the same to users.
"""

import hashlib
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from turnkeep.check.doctor import check_stored
from turnkeep.check.finding import ERROR, Finding
from turnkeep.check.plain import is_plain
from turnkeep.errors import ArchiveError, ConfigurationError
from turnkeep.export.atif_items import write_item, write_result
from turnkeep.export.atif_plan import Planned, plan_steps
from turnkeep.export.atif_text import KEY, SCHEMA, extra
from turnkeep.export.atif_turn import AgentStep, write_turn
from turnkeep.export.staging import staged_folder
from turnkeep.rollout.origin import find_reward
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.wire.item import Item
from turnkeep.wire.json import dumps
from turnkeep.wire.scan import scan_body

VERSION = 1
"""Of what stands in `extra.turnkeep`."""
MANIFEST = "manifest.jsonl"

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_LONGEST_NAME = 120


class Examined(NamedTuple):
    """A rollout, and every reason for which strict export refuses it."""

    rollout: str
    reasons: Sequence[Finding]

    @property
    def obstacles(self) -> list[Finding]:
        """The reasons for which lenient export refuses it too: it cannot be read, or there is nothing in it."""
        return [reason for reason in self.reasons if reason.rule in ("unreadable", "no-step")]


class Written(NamedTuple):
    """A document: its rollout, the file's name, its steps, turns and bytes, its SHA-256, and what strict refuses."""

    rollout: str
    file: str
    steps: int
    turns: int
    size: int
    sha256: str
    reasons: Sequence[Finding]


def examine(store: Store, rollouts: Iterable[str]) -> Iterator[Examined]:
    """Each rollout, with what strict export refuses in it. Raises UnknownRollout."""
    for rollout in rollouts:
        yield Examined(rollout, _refusals(store, rollout))


def _refusals(store: Store, rollout: str) -> list[Finding]:
    """What strict export refuses, in the order of the turns: what the doctor calls an error for a document."""
    found = [finding for finding in check_stored(store, rollout, "atif") if finding.severity is ERROR]
    return sorted(found, key=lambda finding: math.inf if finding.turn is None else finding.turn)


def export_atif(store: Store, rollouts: Iterable[Examined], target: Path) -> Generator[Written]:
    """Write a document for each rollout and a manifest into the new folder `target`; yields what was written.

    Nothing is refused here: what `examine` found is written into the documents. The folder is there when the last was
    taken. Raises ConfigurationError where `target` is there already or the `atif` package is missing, ArchiveError
    where a document would be none that its models accept, CorruptRecord.
    """
    models = load_models()
    names: set[str] = set()
    with staged_folder(target) as staging, (staging / MANIFEST).open("wb") as manifest:
        for rollout, reasons in rollouts:
            view = RolloutView(store, rollout)
            name = _file_name(rollout, names)
            with (staging / name).open("wb") as file:
                out = _Hashed(file)
                steps = _write_document(view, reasons, models, out)
            written = Written(rollout, name, steps, view.turn_count, out.size, out.digest.hexdigest(), reasons)
            told = {"rollout": rollout, "file": name, "sha256": written.sha256, "bytes": written.size}
            counts = {"steps": steps, "turns": written.turns, "gaps": [gap.code for gap in view.gaps]}
            manifest.write(dumps({**told, **counts, "strict": not reasons}) + b"\n")
            yield written


def load_models() -> Any:
    """The `atif` package. Raises ConfigurationError where it is missing."""
    try:
        import atif
    except ImportError:
        message = "ATIF export holds each document against the models of the atif package: pip install 'turnkeep[atif]'"
        raise ConfigurationError(message) from None
    return atif


class _Hashed:
    """Writes to a file, and knows the size and the SHA-256 of what it wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        self.digest.update(data)


def _file_name(rollout: str, taken: set[str]) -> str:
    """A file name that says which rollout it is, and that no other has on any file system."""
    stem = re.sub(r"[^A-Za-z0-9._=+-]+", "_", rollout)[:_LONGEST_NAME].lstrip(".") or "rollout"
    name, number = f"{stem}.json", 1
    while name.lower() in taken:
        number += 1
        name = f"{stem}~{number}.json"
    taken.add(name.lower())
    return name


def _write_document(view: RolloutView, reasons: Sequence[Finding], models: Any, out: _Hashed) -> int:
    """Write the document of a rollout, a step in memory at a time. Returns the number of steps."""
    steps = plan_steps(view)
    head = {"schema_version": SCHEMA, "session_id": view.id, "trajectory_id": view.id, "agent": _agent(view)}
    out.write(dumps(head)[:-1] + b',"steps":[')
    counted: list[Mapping[str, Any]] = []
    seen: _Tokens | None = None
    for number, planned in enumerate(steps, 1):
        step, seen = _step(view, planned, number, seen)
        _check(models.Step, _plain(step), view, planned.turn, number)
        counted.append(step.metrics)
        out.write((b"," if number > 1 else b"") + _step_text(step))
    tail = {"final_metrics": _totals(steps, counted), "extra": extra(_about(view, reasons))}
    _check(models.Trajectory, {**head, **tail, "steps": []}, view, None, None)
    out.write(b"]," + dumps(tail)[1:] + b"\n")
    return len(steps)


class _Tokens(NamedTuple):
    """The prompt and the completion of the last turn that has token ids."""

    prompt: Any
    completion: Any


def _step(view: RolloutView, planned: Planned, number: int, seen: _Tokens | None) -> tuple[AgentStep, _Tokens | None]:
    """A step, and the last token ids up to it."""
    if planned.turn is not None:
        written, now = write_turn(view.turn(planned.turn), view.scope), seen
        if written.metrics.get("completion_token_ids") is not None:
            now = _Tokens(written.metrics["prompt_token_ids"], written.metrics["completion_token_ids"])
            if seen is not None and not _extends(now.prompt, seen):
                written.members["extra"][KEY]["new_prompt"] = True
    else:
        item = planned.item
        told = {"source": "system", "message": ""} if item is None else write_item(item)
        written, now = AgentStep(told, {}, {}), seen
    members: dict[str, Any] = {"step_id": number, **written.members}
    if planned.results:
        members["observation"] = {"results": [write_result(*result) for result in planned.results]}
    return written._replace(members=members), now


def _extends(prompt: Any, seen: _Tokens) -> bool:
    """Whether a prompt begins with the prompt and completion before it."""
    from turnkeep.check.facts import first_difference

    if not all(hasattr(ids, "dtype") for ids in (prompt, *seen)):  # empty, or beyond 64 bits
        return list(prompt)[: len(seen.prompt) + len(seen.completion)] == [*seen.prompt, *seen.completion]
    return first_difference(prompt, *seen) is None


def _plain(step: AgentStep) -> dict[str, Any]:
    """The step as plain values, without the routes, in which the models see nothing."""
    metrics = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in step.metrics.items()}
    return {**step.members, "metrics": metrics} if metrics else step.members


def _check(model: Any, value: Mapping[str, Any], view: RolloutView, turn: int | None, step: int | None) -> None:
    """Hold a part of the document against a model of the atif package."""
    from pydantic import ValidationError

    try:
        model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        where = "the document" if step is None else f"step {step}"
        raise ArchiveError(f"{where} is no ATIF: {first['msg']}", rollout=view.id, turn=turn, field=field) from None


def _step_text(step: AgentStep) -> bytes:
    """The JSON text of a step; arrays are written as they are."""
    text = dumps(step.members)
    if step.metrics:
        metrics = Item(step.metrics).to_bytes()
        if step.routes:
            metrics = metrics[:-1] + b',"extra":' + Item(step.routes).to_bytes() + b"}"
        text = text[:-1] + b',"metrics":' + metrics + b"}"
    return text


def _totals(steps: list[Planned], counted: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the turns, of what each of them counts."""
    turns = [metrics for planned, metrics in zip(steps, counted, strict=True) if planned.turn is not None]
    sums = {
        f"total_{name}": sum(metrics[name] for metrics in turns)
        for name in _COUNTS
        if turns and all(name in metrics for metrics in turns)
    }
    return {**sums, "total_steps": len(steps)}


def _agent(view: RolloutView) -> dict[str, Any]:
    """Who wrote the rollout, as far as it says: the agent's name, the model, the tools."""
    origin = view.origin or {}
    row = origin.get("row") if isinstance(origin.get("row"), dict) else {}
    ref = row.get("agent_ref") if isinstance(row, dict) else None
    name = ref.get("name") if isinstance(ref, dict) else None
    agent: dict[str, Any] = {"name": name if isinstance(name, str) and is_plain(name) else KEY}
    agent["version"] = version("turnkeep")
    model = view.turn(0).model_name if view.turn_count else None
    if isinstance(model, str) and model and is_plain(model):
        agent["model_name"] = model
    tools = _tools(view)
    if isinstance(tools, list) and tools and is_plain(tools) and all(isinstance(tool, dict) for tool in tools):
        agent["tool_definitions"] = tools
    return agent


def _tools(view: RolloutView) -> Any:
    """The tools of the first request."""
    if view.calls:
        return scan_body(view.request(0)).value.get("tools")
    row = (view.origin or {}).get("row")
    params = row.get("responses_create_params") if isinstance(row, dict) else None
    return params.get("tools") if isinstance(params, dict) else None


def _about(view: RolloutView, reasons: Sequence[Finding]) -> dict[str, Any]:
    """What the document says of the rollout: its scope, gaps, failure, reward, and what strict export refuses."""
    failure = None if view.gradable else view.failure
    told = {
        "version": VERSION,
        "scope": view.scope,
        "gaps": [list(gap) for gap in view.gaps],
        "reward": find_reward(view.origin),
        "failure": failure,
        "refused": [
            {"rule": each.rule, "turn": each.turn, "field": each.field, "why": each.message} for each in reasons
        ],
    }
    return {name: value for name, value in told.items() if value is not None and value != []}
