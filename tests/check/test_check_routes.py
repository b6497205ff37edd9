"""Rules about routed experts: each fault is found where it was planted, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planting import (
    EXPERTS,
    LAYERS,
    SCOPE,
    TOP_K,
    check_in_memory,
    check_turns,
    envelope,
    experts,
    fields,
    message,
    places,
    sound,
)

from turnkeep import AssistantText, Item, Turn

ROUTES = "routed_experts"


def rules(made: list[dict[str, Any]], profile: str | None = None, **limits: int) -> list[tuple[str, int | None]]:
    """Rule and index of each finding."""
    found = check_in_memory(made, profile, **limits)
    assert all(each.field == ROUTES for each in found)
    return [(each.rule, each.index) for each in found]


@pytest.mark.parametrize(
    ("prompt", "generated", "rows", "rule"),
    [
        (4, 3, 7, None),
        (4, 3, 3, "experts-generation-only"),
        (4, 3, 6, "experts-one-short"),
        (4, 3, 5, "experts-short"),
        (4, 3, 1, "experts-short"),
        (4, 3, 0, "experts-empty"),
        (4, 3, 8, "experts-extra"),
        (1, 3, 3, "experts-one-short"),
        (1, 1, 1, "experts-one-short"),
        (2, 1, 1, "experts-generation-only"),
        (2, 1, 2, "experts-one-short"),
        (0, 1, 0, "experts-empty"),
    ],
)
def test_rows_are_held_against_prompt_and_generation(prompt: int, generated: int, rows: int, rule: str | None) -> None:
    """Rows for all tokens are right; for the generation alone, one short, fewer and more have names of their own."""
    made = [fields(range(prompt), range(generated), routed_experts=experts(rows))]
    found = [each for each in check_in_memory(made) if each.rule != "prompt-empty"]
    assert [each.rule for each in found] == [rule] * (rule is not None)
    assert all(f"{rows} rows for {prompt} prompt + {generated} generated tokens" in each.message for each in found)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 6])
@pytest.mark.parametrize(
    ("profile", "severities"),
    [(None, {"warning"}), ("nemo-rl", {"error"}), ("trl", set()), ("verl", {"warning"})],
)
def test_too_few_rows_are_what_each_reader_makes_of_them(rows: int, profile: str, severities: set[str]) -> None:
    """NeMo RL refuses fewer rows than prompt + generation, TRL reads none, verl fills them up."""
    found = check_in_memory([fields(range(4), range(3), routed_experts=experts(rows))], profile)
    assert {each.severity for each in found} <= severities
    assert len(found) == bool(severities)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_an_envelope_is_read(dtype: str) -> None:
    """A sound envelope of any dtype is as good as nested lists."""
    made = sound()
    for each in made:
        each[ROUTES] = envelope(each[ROUTES], dtype)
    assert rules(made, "nemo-rl", experts=EXPERTS) == []
    assert rules(made, experts=EXPERTS - 1) == [("expert-range", 3)] * 3


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: text.replace("nrlre1", "nrlre2"), "does not read"),
        (lambda text: text + ":", "does not read"),
        (lambda text: "an opaque string", "does not read"),
        (lambda text: text.replace("int8", "int64"), "dtype 'int64'"),
        (lambda text: text.replace("7x4x2", "7x8"), "dimensions '7x8'"),
        (lambda text: text.replace("7x4x2", "7x-4x2"), "dimensions"),
        (lambda text: text.replace("7x4x2", "8x4x2"), "56 bytes where 8x4x2 of int8 take 64"),
        (lambda text: text[:-4], "bytes where"),
        (lambda text: text[:-1], "base64"),
        (lambda text: text[:-8] + "\n" + text[-8:], "base64"),
        (lambda text: text[:-8] + "ø" + text[-7:], "base64"),
    ],
)
def test_an_envelope_that_cannot_be_read_is_found(spoil: Callable[[str], str], why: str) -> None:
    """Each way in which an envelope can be wrong is said in words, at the turn that has it."""
    made = sound(2)
    made[0][ROUTES] = spoil(envelope(made[0][ROUTES]))
    found = check_in_memory(made)
    assert places(found) == [("experts-unreadable", 0, 0, ROUTES, None)]
    assert why in found[0].message


@given(st.data())
def test_an_expert_out_of_range_is_found_where_it_is(data: st.DataObject) -> None:
    """Wherever an id is that the model has not, the finding has its row, its layer and the id."""
    made = sound()
    number = data.draw(st.integers(0, 2))
    routes = made[number][ROUTES]
    row = data.draw(st.integers(0, len(routes) - 1))
    layer = data.draw(st.integers(0, LAYERS - 1))
    routes[row][layer][data.draw(st.integers(0, TOP_K - 1))] = value = data.draw(st.integers(EXPERTS, 2**40))
    found = check_in_memory(made, experts=EXPERTS)
    assert places(found) == [("expert-range", number, 0, ROUTES, row)]
    assert f"first {value} in layer {layer}; there are {EXPERTS}" in found[0].message
    assert check_in_memory(made) == []


def test_an_expert_below_the_mark_is_out_of_range_without_any_statement() -> None:
    """Capture refuses -2 in lists; an envelope, which it does not open, may hold it (contract 1.5)."""
    made = sound(1)
    routes = np.array(made[0][ROUTES])
    routes[5, 1, 0] = -2
    made[0][ROUTES] = envelope(routes)
    assert rules(made) == [("expert-range", 5)]


@given(st.data())
def test_an_expert_that_is_named_twice_is_found_where_it_is(data: st.DataObject) -> None:
    """Wherever two places of one token and layer name one expert, the finding has the row and the layer."""
    top_k = data.draw(st.integers(2, 5))
    row, layer = data.draw(st.integers(0, 6)), data.draw(st.integers(0, LAYERS - 1))
    one, other = data.draw(st.lists(st.integers(0, top_k - 1), min_size=2, max_size=2, unique=True))
    routes = experts(7, top_k=top_k, first=1)
    routes[row][layer][one] = routes[row][layer][other]
    found = check_in_memory([fields(range(4), range(3), routed_experts=routes)])
    assert places(found) == [("experts-duplicate", 0, 0, ROUTES, row)]
    assert f"expert {routes[row][layer][other]} in layer {layer}" in found[0].message


def test_a_long_array_is_searched_in_blocks() -> None:
    """Rows beyond the first million of experts are looked at too, and counted."""
    routes = np.broadcast_to(np.arange(8, dtype=np.int8), (9000, 32, 8)).copy()
    routes[8000:8003, 7] = 3
    made = [fields(range(8990), range(10), routed_experts=envelope(routes))]
    assert [each[0] for each in rules(made, "atif")] == ["experts-duplicate", "experts-repeated-rows"]
    found = check_in_memory(made, "nemo-rl")[0]
    assert (found.index, found.message) == (8000, "3 rows name an expert twice, first expert 3 in layer 7")


@given(st.sets(st.integers(0, 6), min_size=1, max_size=6))
def test_rows_of_zeros_are_found(rows: set[int]) -> None:
    """Rows in which every expert is 0 are counted, and are no other fault, at the end as well."""
    routes = [[[0] * TOP_K] * LAYERS if row in rows else each for row, each in enumerate(experts(7))]
    found = check_in_memory([fields(range(4), range(3), routed_experts=routes)])
    assert places(found) == [("experts-zero-rows", 0, 0, ROUTES, min(rows))]
    assert found[0].message == f"{len(rows)} of 7 rows are all zeros"


def test_expert_zero_alone_is_an_expert() -> None:
    """With one expert a token, a row of zeros is a choice like any other."""
    assert rules([fields(range(4), range(3), routed_experts=[[[0]] * LAYERS] * 7)]) == []


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, LAYERS - 1)), min_size=1))
def test_missing_routes_are_found(marked: set[tuple[int, int]]) -> None:
    """Rows that hold -1, the whole layer or one place, are counted, and are no other fault (contract 1.5)."""
    routes = experts(7)
    for row, layer in marked:
        routes[row][layer] = [-1] * TOP_K if (row + layer) % 2 else [routes[row][layer][0], -1]
    found = check_in_memory([fields(range(4), range(3), routed_experts=routes)])
    rows = {row for row, _ in marked}
    assert places(found) == [("experts-sentinel", 0, 0, ROUTES, min(rows))]
    assert found[0].message == f"{len(rows)} of 7 rows hold -1, a missing route"


@pytest.mark.parametrize(("repeats", "index"), [(2, None), (3, 4), (7, 0)])
def test_a_row_repeated_to_the_end_is_found(repeats: int, index: int | None) -> None:
    """Three equal rows at the end look like padding; fewer happen, and elsewhere they are none."""
    routes = [*experts(7 - repeats), *experts(1, first=5) * repeats]
    made = [fields(range(4), range(3), routed_experts=routes)]
    assert rules(made) == ([] if index is None else [("experts-repeated-rows", index)])
    made = [fields(range(4), range(3), routed_experts=[*experts(1, first=3) * 5, *experts(2)])]
    assert rules(made) == []


@pytest.mark.parametrize(("repeats", "found"), [(16, []), (17, ["experts-repeated-rows"])])
def test_small_rows_tell_less(repeats: int, found: list[str]) -> None:
    """With one layer and one expert a token, a row is repeated by chance: only a longer run looks like padding."""
    routes = [[[row % 5]] for row in range(6)] + [[[5]]] * repeats
    made = [fields(range(4), range(2 + repeats), routed_experts=routes)]
    assert [rule for rule, _ in rules(made)] == found


@pytest.mark.parametrize(("layers", "found"), [(7, []), (8, [("experts-zero-rows", 2)])])
def test_one_expert_a_token_is_not_zero_in_every_layer(layers: int, found: list[Any]) -> None:
    """In 8 layers and more a row of zeros is no choice, even where each has one expert a token."""
    routes = experts(7, top_k=1, layers=layers)
    routes[2] = [[0]] * layers
    assert rules([fields(range(4), range(3), routed_experts=routes)]) == found


@pytest.mark.parametrize("change", [{"top_k": 3}, {"layers": 5}])
def test_another_number_of_layers_or_places_is_found_once(change: dict[str, int]) -> None:
    """The turn at which layers or top_k change is named, and not those that follow it."""
    made = sound(4)
    for number in (2, 3):
        made[number][ROUTES] = experts(len(made[number][ROUTES]), **change)
    assert places(check_in_memory(made)) == [("experts-shape-changed", 2, 0, ROUTES, None)]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (list, envelope, "routes come as int8, and as lists in turn 1"),
        (envelope, lambda routes: envelope(routes, "int16"), "routes come as int16, and as int8 in turn 1"),
    ],
)
def test_another_form_is_found_once(first: Any, second: Any, message: str) -> None:
    """Lists and envelopes, or envelopes of two dtypes, in one rollout are noted where the form changes."""
    made = sound(4)
    for number, each in enumerate(made):
        each[ROUTES] = (first if number < 2 else second)(each[ROUTES])
    found = check_in_memory(made)
    assert places(found) == [("experts-form-changed", 2, 0, ROUTES, None)]
    assert found[0].message == message


def test_one_turn_of_another_form_or_shape_is_found_once() -> None:
    """A turn that alone is otherwise is named, and the next, which is as those before, is not."""
    made = sound(4)
    for number, each in enumerate(made):
        each[ROUTES] = envelope(each[ROUTES], "int16" if number == 1 else "int8")
    assert places(check_in_memory(made)) == [("experts-form-changed", 1, 0, ROUTES, None)]
    made = sound(4)
    made[1][ROUTES] = experts(len(made[1][ROUTES]), top_k=3)
    assert places(check_in_memory(made)) == [("experts-shape-changed", 1, 0, ROUTES, None)]


def test_a_list_that_needs_other_bits_is_the_same_form() -> None:
    """Only an envelope has a dtype: lists are numbers, whether 8 bits hold them or not."""
    made = sound()
    made[1][ROUTES][0][0] = [300, 4]
    assert rules(made) == []


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("absent", [None, "left out"])
def test_a_turn_without_routes_among_others_is_found(number: int, absent: str | None) -> None:
    """Wherever routes are missing while other turns have them, that turn is named; without any there is no finding."""
    made = sound()
    for each in (made[number], *(made if absent is None else ())):
        each[ROUTES] = None
    if absent is None:
        assert check_in_memory(made, "nemo-rl") == []
    else:
        found = check_in_memory(made, "nemo-rl")
        assert places(found) == [("experts-missing", number, 0, ROUTES, None)]
        assert found[0].severity == "error"


def test_routes_of_an_item_without_tokens_are_passed_over() -> None:
    """What a trainer passes over has no wrong routes."""
    made = sound(2)
    made.append({**made[1], "generation_token_ids": [], "generation_log_probs": [], ROUTES: "nothing"})
    assert [each.rule for each in check_in_memory(made)] == ["generation-empty"]


def test_integers_that_no_array_holds_are_unreadable() -> None:
    """Capture keeps them as plain JSON; nobody can replay them."""
    made = sound(1)
    made[0][ROUTES][2][0][0] = 2**70
    assert rules(made) == [("experts-unreadable", None)]


def test_an_array_without_elements_is_no_rows(tmp_path: Path) -> None:
    """An adapter that hands over arrays may hand over an empty one: it has no rows, and is looked at like a list."""
    item = message("Turn 0.", **{**sound(1)[0], ROUTES: None})
    native = Item(item, {ROUTES: np.zeros((0, LAYERS, TOP_K), dtype=np.int8)})
    built = Turn((AssistantText("Turn 0.", native),), str(SCOPE), "stop")
    assert places(check_turns(tmp_path, [built])) == [("experts-empty", 0, 0, ROUTES, None)]
