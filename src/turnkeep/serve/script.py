r"""The script: what the embedded policy says. Its tokens are scored by the network, not sampled.

A script file is JSON (an object, or just the list of steps) or JSONL (`.jsonl`: one step per line). A step is the list
of the output items of one response, in short form:

    {"steps": [
      [{"reasoning": "First look at the list."},
       {"call": "execute_ipython_cell", "arguments": {"code": "print(total)"}}],
      [{"text": ["The total ", "is 41."]}]
    ]}

- `{"reasoning": "..."}` or a list of blocks: a reasoning item with summary blocks; `reasoning_content`: content blocks.
- `{"text": "..."}` or a list of blocks: a message. `{"refusal": "..."}`: a message that is a refusal.
- `{"call": "name", "arguments": ...}`: a function call; a string is kept byte for byte, an object is written as JSON.
- `{"item": {...}}`: an output item as it stands, for example a hosted `web_search_call`.
- `"extra": {...}` beside any of these: further members of the output item, or others in place of the usual.
- `{"match": "regex"}` or `{"contains": "words"}` in a step makes it a rule: it answers every request in whose last user
  or tool text it is found, before any other step. The first rule that fits wins.

Which step answers a request depends on the request alone, so that a restarted server goes on at the right place: after
n policy turns (assistant messages) comes step n, counted from 0. A message of nothing but calls that the runtime made
up (`call_id` beginning with one of `made_up`, by default `prefill_` and `synthetic_`) is no policy turn. After the last
step comes `after`, a step of its own, or, where there is none, the last plain step again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeep.errors import ConfigurationError
from turnkeep.serve.chat import Message
from turnkeep.serve.parts import Kind, Part

_MEMBERS = {
    "reasoning": {"extra"},
    "reasoning_content": {"extra"},
    "text": {"extra"},
    "refusal": {"extra"},
    "call": {"arguments", "extra"},
    "item": set[str](),
    "match": set[str](),
    "contains": set[str](),
}
_BLOCKS: dict[str, Kind] = {
    "reasoning": "summary",
    "reasoning_content": "reasoning",
    "text": "text",
    "refusal": "refusal",
}


@dataclass(frozen=True, slots=True)
class Step:
    """The parts of one response, and for a rule the pattern of the text it answers."""

    parts: tuple[Part, ...]
    pattern: re.Pattern[str] | None = None


THE_END = Step((Part("text", ("The end.",)),))
"""What comes after the last step of a script that has no plain step."""

MADE_UP = ("prefill_", "synthetic_")
"""How the ids of calls begin that a runtime puts into a history itself."""


@dataclass(frozen=True, slots=True)
class Script:
    """The plain steps in order, the rules, the step after the last, and how made-up call ids begin."""

    steps: tuple[Step, ...]
    rules: tuple[Step, ...]
    after: Step
    made_up: tuple[str, ...]


def load_script(path: str | Path) -> Script:
    """Read a script file; raises ConfigurationError that names the file and the step."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        value = [json.loads(line) for line in lines] if path.suffix == ".jsonl" else json.loads(text)
        return make_script(value)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"script {path}: {error}") from error


def make_script(value: Any) -> Script:
    """Make a script of plain JSON: the list of steps, or an object with `steps`, `after` and `made_up`."""
    options = value if isinstance(value, Mapping) else {"steps": value}
    unknown = set(options) - {"steps", "after", "made_up"}
    if unknown or not isinstance(options.get("steps"), list):
        raise ConfigurationError("a script is a list of steps or an object with steps, after and made_up")
    read = [_read_step(step, f"step {index}") for index, step in enumerate(options["steps"])]
    plain = tuple(step for step in read if step.pattern is None)
    rules = tuple(step for step in read if step.pattern is not None)
    made_up = options.get("made_up", list(MADE_UP))
    if not isinstance(made_up, list) or not all(isinstance(prefix, str) for prefix in made_up):
        raise ConfigurationError("made_up must be a list of strings")
    after = _read_step(options["after"], "after") if "after" in options else plain[-1] if plain else THE_END
    return Script(plain, rules, after, tuple(made_up))


def choose_step(script: Script, messages: Sequence[Message]) -> Step:
    """Choose the step that answers a history: a rule that fits, else the one after as many policy turns."""
    text = next((message.text for message in reversed(messages) if message.role in ("user", "tool")), "")
    for rule in script.rules:
        if rule.pattern is not None and rule.pattern.search(text):
            return rule
    turns = count_turns(messages, script.made_up)
    return script.steps[turns] if turns < len(script.steps) else script.after


def count_turns(messages: Sequence[Message], made_up: tuple[str, ...]) -> int:
    """Count the assistant messages that hold more than calls the runtime made up."""
    return sum(
        any(item.get("type") != "function_call" or not item["call_id"].startswith(made_up) for item in message.items)
        for message in messages
        if message.role == "assistant"
    )


def _read_step(value: Any, place: str) -> Step:
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise ConfigurationError(f"{place} must be a list of objects")
    parts, pattern = [], None
    for entry in value:
        kind = next((name for name in _MEMBERS if name in entry), None)
        if kind is None or set(entry) - _MEMBERS[kind] - {kind}:
            raise ConfigurationError(f"{place}: {json.dumps(entry)[:80]} is not one of {', '.join(_MEMBERS)}")
        if kind in ("match", "contains"):
            pattern = _read_pattern(entry[kind], kind, place)
        else:
            parts.append(_read_part(entry, kind, place))
    if not parts:
        raise ConfigurationError(f"{place} has no output item")
    return Step(tuple(parts), pattern)


def _read_pattern(text: Any, kind: str, place: str) -> re.Pattern[str]:
    try:
        return re.compile(re.escape(text) if kind == "contains" else text, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"{place}: {kind} is no pattern: {error}") from error


def _read_part(entry: Mapping[str, Any], kind: str, place: str) -> Part:
    value, extra = entry[kind], entry.get("extra", {})
    if not isinstance(extra, dict):
        raise ConfigurationError(f"{place}: extra must be an object")
    if kind == "item":
        if not isinstance(value, dict):
            raise ConfigurationError(f"{place}: item must be an object")
        return Part("item", extra=value)
    if kind == "call":
        arguments = entry.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Part("call", (_string(value, kind, place), written), extra)
    blocks = tuple(_string(block, kind, place) for block in (value if isinstance(value, list) else [value]))
    return Part(_BLOCKS[kind], blocks, extra)


def _string(value: Any, kind: str, place: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{place}: {kind} must be a string")
    return value
