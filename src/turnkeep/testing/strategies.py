"""Hypothesis strategies for whatever can stand on the wire or in a history, made to be hard.

    @given(strategies.turns())
    def test_my_backend_keeps_every_turn(turn: Turn) -> None:
        assert my_backend_roundtrip(turn) == turn

Values are as a JSON reader gives them: two halves of a surrogate pair that stand side by side are one character. What
these strategies draw is valid, so that it can be captured, unless the docstring says otherwise. They need hypothesis,
which is not installed with turnkeep.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st

from turnkeep.archive.json_form import from_json, to_json
from turnkeep.history.capture import capture
from turnkeep.history.projection import Entry, RuntimeEntry
from turnkeep.history.scope import Scope
from turnkeep.history.turn import PUBLIC_FIELDS, Turn, public_fields
from turnkeep.wire.item import CLIENT_CALLS
from turnkeep.wire.json import dumps, merge_surrogates
from turnkeep.wire.training import TRAINING_FIELDS

SCOPE = str(Scope("policy_model"))
"""The scope of the turns drawn here, where nothing else is said."""

HOSTED_TYPES = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
)
"""Hosted items that are kept and read as nothing (contract 1.1)."""

HARD_FLOATS = (
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    1e-310,
    0.1,
    -0.30000000000000004,
    1e16,
    1e22,
    1e23,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    9007199254740993.0,
    1.0,
    -1.5,
)
"""Floats that a careless reader or writer changes."""

HARD_INTEGERS = (
    0,
    1,
    -1,
    *(
        sign * 2**bits + step
        for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 70)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ),
    10**400,
)
"""Integers at the edges of every dtype, and beyond them."""

HARD_TEXTS = (
    "",
    "null",
    " ",
    "\n",
    "\x00\x1f\x7f",
    "\ufeff",
    "\u2028\u2029",
    "\ud800",
    "\udfff",
    "\udc00\ud800",
    "a\ud83d",
    "\ude00b",
    "😀",
    "é e\u0301",
    '"\\/',
    "\\u0041",
    "NaN",
    "__proto__",
)
"""Strings that a careless reader or writer changes; lone surrogates among them."""


@cache
def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    """Any text that JSON can spell, lone surrogates included."""
    free = st.text(st.characters(exclude_categories=()), max_size=max_size).map(merge_surrogates)
    return st.sampled_from(HARD_TEXTS) | free


@cache
def names() -> st.SearchStrategy[str]:
    """Member names: mostly short and plain, sometimes any text."""
    return st.text("abxyz_", min_size=1, max_size=3) | texts(4)


@cache
def integers() -> st.SearchStrategy[int]:
    """Integers of any size."""
    return st.sampled_from(HARD_INTEGERS) | st.integers()


@cache
def floats() -> st.SearchStrategy[float]:
    """Finite floats, the smallest and the negative zero included."""
    return st.sampled_from(HARD_FLOATS) | st.floats(allow_nan=False, allow_infinity=False)


@cache
def scalars() -> st.SearchStrategy[Any]:
    """Every JSON value that holds no other."""
    return st.none() | st.booleans() | integers() | floats() | texts()


@cache
def json_values(max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Any JSON value: hard floats, huge integers, lone surrogates, any key order, nested; now and then very deep."""
    wide = st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names(), inner, max_size=4),
        max_leaves=max_leaves,
    )
    return wide | st.builds(_nest, wide, st.lists(st.none() | names(), max_size=60))


def _nest(value: Any, steps: Iterable[str | None]) -> Any:
    for name in steps:
        value = [value] if name is None else {name: value}
    return value


def json_objects(avoid: Iterable[str] = (), max_size: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with none of the member names in `avoid`."""
    avoided = frozenset(avoid)
    keys = names().filter(lambda name: name not in avoided)
    return st.dictionaries(keys, json_values(4), max_size=max_size)


@st.composite
def reordered(draw: st.DrawFn, objects: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """An object of `objects` with its members in any order."""
    value = draw(objects)
    return dict(draw(st.permutations(list(value.items()))))


@cache
def token_ids(max_size: int = 6) -> st.SearchStrategy[list[int]]:
    """Token ids whose narrowest dtype is any of the four, or none: some need more than 64 bits."""
    bounds = st.sampled_from((255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**70))
    return bounds.flatmap(lambda bound: st.lists(st.just(bound) | st.integers(0, bound), max_size=max_size, min_size=0))


@cache
def log_probs(size: int) -> st.SearchStrategy[list[int | float]]:
    """`size` log probs: all floats, all integers, or a mixture."""
    return st.sampled_from((floats(), st.integers(-9, 0), floats() | st.integers(-(2**70), 0))).flatmap(
        lambda values: st.lists(values, min_size=size, max_size=size)
    )


@cache
@st.composite
def routed_experts(draw: st.DrawFn) -> list[list[list[int]]] | str:
    """A full rectangle of `[tokens, layers, top_k]` with missing routes among them, none at all, or an envelope."""
    if draw(st.integers(0, 5)) == 0:
        return draw(_ENVELOPES)
    tokens, layers, width = draw(st.integers(0, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 3))
    largest = draw(st.sampled_from((7, 127, 128, 255, 256, 2**31, 2**63, 2**64)))
    experts = iter(draw(st.permutations([largest, -1, *range(tokens * layers * width)])))
    return [[[next(experts) for _ in range(width)] for _ in range(layers)] for _ in range(tokens)]


_ENVELOPES = st.sampled_from(("", "nrlre1:int8:1x2x1:AQI=", "\ud800"))


@cache
@st.composite
def training_fields(draw: st.DrawFn) -> dict[str, Any]:
    """The training fields of an item, together as contract 1.5 asks: in every dtype, empty, with or without routes."""
    generated = draw(token_ids())
    fields: dict[str, Any] = {
        "prompt_token_ids": draw(token_ids()),
        "generation_token_ids": generated,
        "generation_log_probs": draw(log_probs(len(generated))),
    }
    if draw(st.booleans()):
        fields["routed_experts"] = draw(st.none() | routed_experts())
    return fields


@cache
def _text_block() -> st.SearchStrategy[dict[str, Any]]:
    annotations = st.lists(json_objects(), max_size=2)
    block = st.fixed_dictionaries(
        {"type": st.just("output_text"), "text": texts()},
        optional={"annotations": annotations, "logprobs": st.none() | st.lists(json_values(3), max_size=1)},
    )
    return reordered(block)


@cache
def _refusal_block() -> st.SearchStrategy[dict[str, Any]]:
    return reordered(st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts()}))


@cache
def _unknown_block() -> st.SearchStrategy[dict[str, Any]]:
    kinds = st.sampled_from(("output_scent", "input_text", ""))
    return st.builds(lambda rest, kind: {**rest, "type": kind, "text": "unseen"}, json_objects(("type", "text")), kinds)


@cache
def _blocks(kind: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    block = reordered(st.fixed_dictionaries({"type": st.just(kind), "text": texts()}))
    return st.lists(block | block | _unknown_block(), max_size=3)


@cache
def messages() -> st.SearchStrategy[dict[str, Any]]:
    """Message items of several blocks: texts with annotations, refusals, blocks that nobody has heard of."""
    blocks = st.lists(_text_block() | _text_block() | _refusal_block() | _unknown_block(), max_size=4)
    return st.fixed_dictionaries(
        {"type": st.just("message"), "role": st.just("assistant"), "content": blocks},
        optional={
            "id": texts(),
            "status": st.sampled_from(("completed", "incomplete")),
            "phase": st.sampled_from((None, "commentary", "final_answer")),
        },
    )


@cache
def reasonings() -> st.SearchStrategy[dict[str, Any]]:
    """Reasoning items: content, summary, both, neither, null, encrypted."""
    return st.fixed_dictionaries(
        {"type": st.just("reasoning")},
        optional={
            "id": texts(),
            "summary": st.none() | _blocks("summary_text"),
            "content": st.none() | _blocks("reasoning_text"),
            "encrypted_content": st.sampled_from((None, "", "gAAAAB+/=")),
            "status": st.none() | st.just("completed"),
        },
    )


@cache
def function_calls() -> st.SearchStrategy[dict[str, Any]]:
    """Function calls whose arguments are JSON oddly written, no JSON at all, or any text."""
    odd = st.sampled_from(
        (
            "{}",
            '{ "b":1,\t"a" : [ 1.0,1 ]}\n',
            '{"a":1,"a":2}',
            '{"cmd": "ls',
            '{"x":"\\u00e9\\/"}',
            f'{{"values": {list(range(40))}}}',  # long enough to be read as an array
            f'{{"values":\t{[0.5] * 40}}}',
        )
    )
    return st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": texts(), "name": texts(), "arguments": odd | texts()},
        optional={"id": st.none() | texts(), "status": st.just("completed")},
    )


@cache
def hosted_items() -> st.SearchStrategy[dict[str, Any]]:
    """Hosted items, which read as nothing."""
    return st.fixed_dictionaries(
        {"type": st.sampled_from(HOSTED_TYPES), "id": texts()},
        optional={"status": st.just("completed"), "action": json_values(4), "results": st.none() | json_values(4)},
    )


@cache
def unknown_items() -> st.SearchStrategy[dict[str, Any]]:
    """Items of a type that nobody here has heard of."""
    known = {"message", "reasoning", "function_call", *HOSTED_TYPES, *CLIENT_CALLS}
    kinds = st.just("weather_map") | texts().filter(lambda kind: kind not in known)
    return st.fixed_dictionaries({"type": kinds}, optional={"text": json_values(3), "content": json_values(3)})


@cache
def _extras() -> st.SearchStrategy[dict[str, Any]]:
    taken = {"type", "role", "content", "summary", "text", "id", "call_id", "name", "arguments", *TRAINING_FIELDS}
    numbers = st.fixed_dictionaries({"teacher_log_probs": log_probs(2), "mask": token_ids()})
    return st.just({}) | json_objects(taken, 2) | numbers


def output_items(kinds: st.SearchStrategy[dict[str, Any]] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Output items of every kind (or of `kinds`): members in any order, unknown ones and training fields among them."""
    if kinds is None:
        return _any_items()
    pieces: tuple[st.SearchStrategy[dict[str, Any]], ...] = (_extras(), kinds, st.just({}) | training_fields())
    return reordered(st.builds(lambda *found: {k: v for members in found for k, v in members.items()}, *pieces))


@cache
def _any_items() -> st.SearchStrategy[dict[str, Any]]:
    return output_items(messages() | reasonings() | function_calls() | hosted_items() | unknown_items())


_ENDINGS: tuple[Mapping[str, Any], ...] = (
    {"status": "completed", "incomplete_details": None},
    {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
    {"status": "failed", "error": {"code": "server_error", "message": "x"}},
    {},
)


@cache
def responses(max_items: int = 3, items: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Whole Responses objects as plain values: what a model server answers. `items` replaces the output items."""
    members = {
        "id": texts(),
        "object": st.just("response"),
        "model": st.none() | texts(),
        "output": st.lists(_any_items() if items is None else items, max_size=max_items),
        "usage": st.none() | st.just({"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}) | json_objects(),
    }
    taken = (*members, "status", "incomplete_details", "error")
    pieces: tuple[st.SearchStrategy[Any], ...] = (
        st.just({}) | json_objects(taken, 1),
        st.sampled_from(_ENDINGS),
        st.fixed_dictionaries(members),
    )
    return st.builds(lambda *found: {k: v for part in found for k, v in part.items()}, *pieces)


def scopes() -> st.SearchStrategy[Scope]:
    """Scopes of any server and alias."""
    return st.builds(Scope, texts()) | st.builds(Scope, texts(), texts())


@st.composite
def captured_turns(draw: st.DrawFn, max_items: int = 3, scope: str | None = SCOPE) -> Turn:
    """Turns as they are captured live."""
    return capture(dumps(draw(responses(max_items))), scope)


@st.composite
def edited_turns(draw: st.DrawFn, scope: str | None = SCOPE) -> Turn:
    """Turns one of whose parts was edited, so that it has lost its native item (contract 1.7)."""
    turn = draw(captured_turns(scope=scope).filter(lambda turn: bool(turn.parts)))
    part = draw(st.integers(0, len(turn.parts) - 1))
    name = draw(st.sampled_from(PUBLIC_FIELDS[turn.parts[part].kind]))
    old = public_fields(turn.parts[part])[name]
    return turn.edit(part, **{name: draw(texts().filter(lambda text: text != old))})


@st.composite
def stale_turns(draw: st.DrawFn, scope: str | None = SCOPE) -> Turn:
    """Turns rebuilt from a dictionary in which a public field was changed and the native item left (contract 3.2)."""
    form = to_json(draw(captured_turns(scope=scope).filter(lambda turn: bool(turn.parts))))
    part = draw(st.sampled_from(form["parts"]))
    name = draw(st.sampled_from(PUBLIC_FIELDS[part["kind"]]))
    part[name] = draw(texts().filter(lambda text: text != part[name]))
    return from_json(form)


@st.composite
def archived_turns(draw: st.DrawFn, scope: str | None = SCOPE) -> Turn:
    """Turns that an archive brought along: other members beside the usual, or some of the usual missing."""
    form = to_json(draw(captured_turns(scope=scope)))
    kept = {name: member for name, member in form.items() if name == "parts" or draw(st.booleans())}
    return from_json(kept | draw(json_objects(form, 2)))


@cache
def turns(scope: str | None = SCOPE) -> st.SearchStrategy[Turn]:
    """Turns however they were built: captured, edited, rebuilt with stale natives, read from an archive."""
    captured = captured_turns(scope=scope)
    return captured | captured | edited_turns(scope) | stale_turns(scope) | archived_turns(scope)


@cache
def _content() -> st.SearchStrategy[Any]:
    block = st.fixed_dictionaries({"type": st.just("input_text"), "text": texts()})
    return texts() | st.lists(block, max_size=2)


@cache
@st.composite
def assistant_messages(draw: st.DrawFn) -> dict[str, Any]:
    """Public assistant dictionaries: reasoning, content and calls, each of them missing, null or empty at times."""
    function = st.fixed_dictionaries({"name": texts(), "arguments": texts()})
    call = st.fixed_dictionaries({"id": texts(), "type": st.just("function"), "function": function})
    return draw(
        st.fixed_dictionaries(
            {"role": st.just("assistant")},
            optional={
                "content": st.none() | _content(),
                "reasoning_content": st.none() | texts(),
                "tool_calls": st.none() | st.lists(call, max_size=2),
            },
        )
    )


@cache
def other_messages() -> st.SearchStrategy[dict[str, Any]]:
    """Chat dictionaries that are not the assistant's: system, user, developer, tool results, cache markers."""
    ids = texts().filter(bool)
    return (
        st.fixed_dictionaries({"role": st.just("system"), "content": st.none() | texts()})
        | st.fixed_dictionaries({"role": st.sampled_from(("user", "developer")), "content": _content()})
        | st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": ids, "content": _content()})
        | st.just({"role": "metadata", "nooa_cache_boundary": True})
    )


@cache
def entries(scope: str | None = SCOPE) -> st.SearchStrategy[Entry]:
    """History entries of every kind: turns, chat dictionaries, items, entries of the runtime."""
    items = output_items(messages() | function_calls() | unknown_items())
    public = assistant_messages()
    return turns(scope) | turns(scope) | other_messages() | public | public.map(RuntimeEntry) | items


def histories(scope: str | None = SCOPE, max_size: int = 5) -> st.SearchStrategy[list[Entry]]:
    """Histories that can be projected."""
    return st.lists(entries(scope), max_size=max_size)
