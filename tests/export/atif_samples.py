"""Rollouts to be exported as ATIF documents, made without a server; and documents to and fro."""

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from turnkeep import Rollout, RolloutView, Turn, capture, project
from turnkeep.export.atif import Written, examine, export_atif
from turnkeep.export.atif_import import Imported, import_atif
from turnkeep.history.projection import Entry
from turnkeep.rollout.conversation import conversation
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.wire.json import dumps

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'
HARBOR = "harbor==0.26.0"
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}]

type Step = tuple[Sequence[Entry], dict[str, Any]]
"""What came before a policy call, and the Responses object that answered it."""


def ids(prompt: list[int], generation: list[int], rows: int | None = None) -> dict[str, Any]:
    """Training fields, with a row of routes for each token, or as many as are said."""
    tokens = [*prompt, *generation]
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-0.1 * (place + 1) for place in range(len(generation))],
        "routed_experts": [[[token % 7, 7], [9, 8]] for token in (tokens if rows is None else tokens[:rows])],
    }


def message(*texts: str, **members: Any) -> dict[str, Any]:
    """A message item with a block for each text."""
    blocks = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": blocks, **members}


def reasoning(text: str = "Hm.", **members: Any) -> dict[str, Any]:
    """A reasoning item that reads from its summary."""
    return {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **members}


def call(id: str = "c_1", arguments: str = '{"city": "Oslo"}', **members: Any) -> dict[str, Any]:
    """A function call."""
    return {"type": "function_call", "id": "fc", "call_id": id, "name": "weather", "arguments": arguments, **members}


def answer(*items: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A Responses object."""
    return {"id": "resp", "object": "response", "model": "m", "status": "completed", "output": [*items], **members}


def output(id: str = "c_1", text: Any = "-3") -> dict[str, Any]:
    """What a tool gave."""
    return {"role": "tool", "tool_call_id": id, "content": text}


ASKED: list[Entry] = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "How cold is it?"}]
FIRST, SECOND = ids([1, 2, 3], [4, 5]), ids([1, 2, 3, 4, 5, 6], [7, 8])
USAGE = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2, "total_tokens": 5}
GOOD: list[Step] = [
    (ASKED, answer(reasoning(), message("Let me ", "look."), call(**FIRST), usage=USAGE)),
    ([output()], answer(message("It is cold.", **SECOND))),
]
"""Two turns that strict export accepts."""


def record(rollout: Rollout, steps: Sequence[Step]) -> list[Turn]:
    """Make the policy calls of `steps`."""
    history: list[Entry] = []
    for entries, response in steps:
        history += entries
        number = _begin(rollout, history)
        body = dumps(response)
        rollout.answer_call(number, Reply(None, 200, body))
        history.append(rollout.add_turn(capture(body, rollout.scope), call=number))
    return list(rollout.turns)


def _begin(rollout: Rollout, history: list[Entry]) -> int:
    request = project(history, rollout.scope)
    written, blobs = Prepared(request.entries, request.tail({"tools": TOOLS})).record(rollout.number_of)
    return rollout.begin_call(written, blobs, request.gaps)


def kept(steps: Sequence[Step] = GOOD, name: str = "r", store: Store | None = None) -> Store:
    """A store with one rollout."""
    store = MemoryStore() if store is None else store
    with Rollout.open(store, name, scope=SCOPE) as rollout:
        record(rollout, steps)
    return store


def export(store: Store, folder: Path, name: str = "r") -> Written:
    """The rollout's document, whatever strict export says."""
    (written,) = export_atif(store, list(examine(store, [name])), folder)
    return written


def load(path: Path) -> Any:
    """A document, read by a reader that refuses NaN and infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(path.read_bytes(), parse_constant=refuse)


def back(path: Path) -> tuple[RolloutView, Imported]:
    """The rollout that a document becomes in a new store."""
    store = MemoryStore()
    told = import_atif(path, store)
    return RolloutView(store, told.rollout), told


def said(view: RolloutView) -> list[tuple[str, str | None, bytes]]:
    """The conversation of a rollout, comparable: turns by their digests, since equal ones may change numbers."""
    return [
        (each.kind, None if each.turn is None else view.turn(each.turn).digest, dumps(each.item))
        for each in conversation(view)
    ]


@cache
def harbor_errors() -> Callable[[Path], list[str]]:
    """Harbor's own validator, which says what is wrong with a file.

    Its dependencies do not fit beside nemo-gym, and the validator needs none but pydantic: the package is installed
    alone into a folder of its own, for as long as the tests run. Skips where it cannot be had.
    """
    uv = shutil.which("uv")
    folder = Path(tempfile.mkdtemp(prefix="harbor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if uv is not None:
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder)]
        subprocess.run([*command, HARBOR], check=False, capture_output=True)
    if not (folder / "harbor").is_dir():
        pytest.skip(f"{HARBOR} is not at hand, and uv cannot fetch it")
    sys.path.append(str(folder))
    from harbor.utils.trajectory_validator import TrajectoryValidator

    def errors(path: Path) -> list[str]:
        validator = TrajectoryValidator()
        validator.validate(path)
        found: list[str] = validator.get_errors()
        return found

    return errors
