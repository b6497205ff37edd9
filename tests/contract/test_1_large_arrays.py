"""Contract 1.5 and 1.6 for arrays so large that they are read another way than small ones."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from samples import SCOPE, exactly, message, response

from turnkeep import MalformedItem, TransportFailure, capture, project, to_json

MANY = 4_000
IDS = [(number * 7919) % 151_936 for number in range(MANY)]
LOG_PROBS = [-number / 7 for number in range(MANY)]
ROUTES = [[[(token * layer + slot) % 256 for slot in range(4)] for layer in range(3)] for token in range(MANY // 4)]
FIELDS: dict[str, Any] = {
    "prompt_token_ids": IDS,
    "generation_token_ids": IDS,
    "generation_log_probs": LOG_PROBS,
    "routed_experts": ROUTES,
}

_SPELLINGS: dict[str, Callable[[Any], str]] = {
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "spaced": json.dumps,
    "indented": lambda value: json.dumps(value, indent=1),
    "tabs": lambda value: json.dumps(value, separators=("\t,\r\n", ":")),
    "spaces inside": lambda value: json.dumps(value).replace("[", "[ ").replace("]", " ]"),
    "mixed": lambda value: json.dumps(value).replace("0, ", "0,").replace("1, ", "1 , "),
}

_ITEMS: dict[str, dict[str, Any]] = {
    "all fields": message("x", **FIELDS),
    "fields first": {**FIELDS, **message("x")},
    "one layer": message("x", **{**FIELDS, "routed_experts": [[[1]]] * MANY}),
    "missing routes": message("x", **{**FIELDS, "routed_experts": [[[-1, 300]], *[[[0, 5]]] * MANY]}),
    "integer log probs": message("x", **{**FIELDS, "generation_log_probs": [0] * MANY}),
    "mixed log probs": message("x", **{**FIELDS, "generation_log_probs": [0, *LOG_PROBS[1:]]}),
    "hard log probs": message("x", **{**FIELDS, "generation_log_probs": [-0.0, 5e-324, 1e22, *LOG_PROBS[3:]]}),
    "wide ids": message("x", **{**FIELDS, "prompt_token_ids": [*IDS, 2**53 + 1, 2**63, 2**64 - 1]}),
    "too wide ids": message("x", **{**FIELDS, "prompt_token_ids": [*IDS, 2**64, 10**30]}),
    "zeros": message(
        "x", **{**FIELDS, "prompt_token_ids": [0] * MANY, "generation_token_ids": [10, 100] * (MANY // 2)}
    ),
    "fields below": message("x", below={"prompt_token_ids": IDS, "deeper": [FIELDS, IDS]}),
    "other names": message("x", mask=IDS, teacher_log_probs=[LOG_PROBS], ragged=[IDS, IDS[1:]], signed=[-1, *IDS]),
    "no numbers": message("x", words=["a", "1", None, True] * MANY, mixed=[1, "1", 1.0, [1]] * MANY),
    "an array in a text": message('"prompt_token_ids": ' + json.dumps(IDS), '\\"prompt_token_ids\\":[1,2'),
    "a text of brackets": message("[[1, 2], [3, 4]]" * MANY, note='"]}, ' + "[1]," * MANY),
}


@pytest.mark.parametrize("spelling", _SPELLINGS)
@pytest.mark.parametrize("name", _ITEMS)
def test_large_items_are_read_exactly(name: str, spelling: str) -> None:
    """However a large item is spelled, it is the item that the standard library reads, and replays as it (1.6)."""
    text = _SPELLINGS[spelling](response(_ITEMS[name], message("after")))
    expected = json.loads(text)["output"]
    for body in (text.encode(), text):
        turn = capture(body, SCOPE)
        assert exactly([part["native"] for part in to_json(turn)["parts"]], expected)
        assert exactly(json.loads(project([turn], SCOPE).body())["input"], expected)


def test_large_arrays_outside_the_items_are_kept() -> None:
    """A large array in the usage comes back from the turn (contract 1.6)."""
    assert capture(json.dumps(response(usage={"ids": IDS})), SCOPE).usage == {"ids": IDS}


_BODY = json.dumps(response(message("before"), message("x", **FIELDS)))


def _spoil(field: str, wrong: str) -> str:
    """The body with one element in the middle of a field written as `wrong`."""
    start = _BODY.index(f'"{field}"')
    needle = f"{FIELDS[field][3000]!r}, {FIELDS[field][3001]!r}"
    at = _BODY.index(needle, start)
    return _BODY[:at] + wrong + _BODY[at + len(repr(FIELDS[field][3000])) :]


@pytest.mark.parametrize("wrong", ["NaN", "-Infinity", "1e999", "null", "true", '"1"', "[1]", "{}", "9" * 5000])
@pytest.mark.parametrize("field", ["prompt_token_ids", "generation_token_ids", "generation_log_probs"])
def test_a_wrong_element_is_named_by_index(field: str, wrong: str) -> None:
    """One wrong element among thousands is a MalformedItem with item, field and index (contract 1.5)."""
    with pytest.raises(MalformedItem) as caught:
        capture(_spoil(field, wrong), SCOPE)
    assert caught.value.place == {"item": 1, "field": field, "index": 3000}


@pytest.mark.parametrize("wrong", ["-1", "1.0", "-0.0", "1e2"])
def test_a_number_that_is_no_id_is_named_by_index(wrong: str) -> None:
    """A negative number or a float among thousands of ids is named by its index (contract 1.5)."""
    with pytest.raises(MalformedItem) as caught:
        capture(_spoil("prompt_token_ids", wrong), SCOPE)
    assert caught.value.place == {"item": 1, "field": "prompt_token_ids", "index": 3000}


@pytest.mark.parametrize(
    "wrong", ["01", "00", "+1", ".5", "1.", "0x1", "1 2", "1,,2", "", "]", "[", "1]", "nan", "--1", "\u0661"]
)
@pytest.mark.parametrize("field", ["prompt_token_ids", "generation_log_probs"])
def test_an_array_that_is_no_json_is_a_transport_failure(field: str, wrong: str) -> None:
    """What is no JSON in the middle of a large array leaves no response, and never another number (1.5, 1.6)."""
    text = _spoil(field, wrong)
    with pytest.raises(ValueError, match=r"."):
        json.loads(text)
    for body in (text, text.encode()):
        with pytest.raises(TransportFailure):
            capture(body, SCOPE)


@pytest.mark.parametrize("cut", [1, 2, 3, 500, 20_000, 40_000])
def test_a_body_that_breaks_off_is_a_transport_failure(cut: int) -> None:
    """A body cut anywhere, in the middle of an array or a number too, is a TransportFailure (contract 1.5)."""
    with pytest.raises(TransportFailure):
        capture(_BODY[:-cut].encode(), SCOPE)


@pytest.mark.parametrize(
    "spelled", ['"prompt_token_ids": [1]', '"prompt\\u005ftoken_ids": [1]', f'"prompt_token_ids": {IDS}']
)
def test_a_large_field_that_comes_twice_is_refused(spelled: str) -> None:
    """A training field twice in an item, spelled the same or not, is a MalformedItem that names it (contract 1.6)."""
    text = _BODY.replace('"generation_token_ids"', f'{spelled}, "generation_token_ids"')
    with pytest.raises(MalformedItem) as caught:
        capture(text.encode(), SCOPE)
    assert caught.value.place == {"item": 1, "field": "prompt_token_ids", "index": None}


def test_a_field_whose_name_is_escaped_is_the_same_field() -> None:
    """A member name spelled with escapes is the member that it names (contract 1.6)."""
    turn = capture(_BODY.replace('"prompt_token_ids"', '"prompt\\u005ftoken\\u005fids"').encode(), SCOPE)
    assert turn == capture(_BODY, SCOPE)


@pytest.mark.parametrize(
    ("row", "index"), [([[1, 2, 3, 4]] * 2, 1000), ([[1, 2, 3]] * 3, 1000), ([[1, 2, 3, -2]] * 3, 1000)]
)
def test_a_wrong_route_is_named_by_token(row: Any, index: int) -> None:
    """A ragged or impossible row among thousands of routes is named by its token (contract 1.5)."""
    routes = [*ROUTES[:index], row, *ROUTES[index + 1 :]]
    with pytest.raises(MalformedItem) as caught:
        capture(json.dumps(response(message("x", **{**FIELDS, "routed_experts": routes}))), SCOPE)
    assert caught.value.place == {"item": 0, "field": "routed_experts", "index": index}


def test_an_item_that_is_a_large_array_is_named() -> None:
    """An output item that is an array, however large, is a MalformedItem (contract 1.5)."""
    with pytest.raises(MalformedItem) as caught:
        capture(json.dumps(response(message("x"), IDS)), SCOPE)
    assert caught.value.place == {"item": 1, "field": None, "index": None}
