"""What goes out as ATIF comes back the same; what somebody changed in the file comes back changed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import atif
import pytest
from atif_samples import (
    ASKED,
    FIRST,
    GOOD,
    SCOPE,
    TOOLS,
    Step,
    answer,
    back,
    call,
    export,
    harbor_errors,
    kept,
    load,
    message,
    output,
    said,
)
from gym_samples import ROWS, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep import ArchiveError, MalformedItem, Rollout, RolloutView, Turn, TurnkeepError, UnsupportedVersion, project
from turnkeep.check.plain import read_arguments
from turnkeep.export.atif import examine, export_atif
from turnkeep.export.atif_arguments import put_together, take_apart
from turnkeep.export.atif_import import import_atif
from turnkeep.export.gym_import import import_gym
from turnkeep.export.gym_jsonl import row_chunks
from turnkeep.history.gaps import UNGRADABLE
from turnkeep.history.projection import Entry
from turnkeep.rollout.conversation import conversation
from turnkeep.rollout.evidence import Prepared
from turnkeep.rollout.origin import find_reward
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps, loads, same

TURNS = st.lists(strategies.turns(), min_size=1, max_size=2)


@settings(max_examples=60)
@given(TURNS)
def test_turns_come_back_exactly(turns: list[Turn]) -> None:
    """Turns of every kind have equal digests after export and import, and the models accept the documents (8.2)."""
    store = MemoryStore()
    with Rollout.open(store, "r", scope=strategies.SCOPE) as rollout:
        rollout.add_turns(turns)
    with TemporaryDirectory() as folder:
        path = Path(folder, "out", export(store, Path(folder, "out")).file)
        atif.Trajectory.model_validate_json(path.read_bytes())
        assert harbor_errors()(path) == []
        view, told = back(path)
    assert [turn.digest for turn in view.turns] == [turn.digest for turn in turns]
    assert told.changed == ()
    assert view.scope == strategies.SCOPE


@settings(max_examples=60)
@given(st.lists(strategies.histories(max_size=3), min_size=1, max_size=3))
def test_the_conversation_comes_back_exactly(histories: list[list[Entry]]) -> None:
    """All that requests carried, of every role and shape, comes back in order, and so do the gaps."""
    store = MemoryStore()
    history: list[Entry] = []
    with Rollout.open(store, "r", scope=strategies.SCOPE) as rollout:
        for entries in histories:
            history += entries
            rollout.add_turns([entry for entry in entries if isinstance(entry, Turn)])
            request = project(history, rollout.scope)
            written, blobs = Prepared(request.entries, request.tail()).record(rollout.number_of)
            rollout.begin_call(written, blobs, request.gaps)
    before = RolloutView(store, "r")
    if not [*conversation(before)]:
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "out", export(store, Path(folder, "out")).file)
        atif.Trajectory.model_validate_json(path.read_bytes())
        view, _ = back(path)
    assert said(view) == said(before)
    assert view.gaps == before.gaps


def test_late_and_crossed_outputs_keep_their_places(tmp_path: Path) -> None:
    """Outputs that came late, crossed, twice, or for no call come back where they stood."""
    two, user = answer(call("a"), call("b", **FIRST)), {"role": "user", "content": "Wait."}
    steps: list[Step] = [
        (ASKED, two),
        ([output("b"), user, output("a", "late")], answer(message("One."), call("c"))),
        ([output("a", "again"), output("c"), output("nobody")], answer(message("Two."))),
    ]
    store = kept(steps)
    path = tmp_path / "out" / export(store, tmp_path / "out").file
    atif.Trajectory.model_validate_json(path.read_bytes())
    assert harbor_errors()(path) == []
    view, _ = back(path)
    assert said(view) == said(RolloutView(store, "r"))
    assert len(said(view)) == 11


ODD = ('{"a":1}', '{"a": 1}', '{\n  "a": 1\n}', '{ "\\u00e9":\t[1.0 , 1e0, -0] }', '{"x":"\\/","y":"\\u00e9é"}', "{ }")


@given(
    st.sampled_from(ODD)
    | strategies.texts()
    | strategies.json_objects().map(lambda value: dumps(value).decode())
    | strategies.json_objects().map(lambda value: json.dumps(value, indent=3))
)
def test_every_spelling_of_arguments_comes_back(text: str) -> None:
    """Arguments are the text they were, whatever it is; an object shows wherever there is an exact one."""
    value, spelling = take_apart(text)
    assert put_together(value, spelling) == text
    assert (read_arguments(text).fault is None) == (text != "" and "text" not in (spelling or {}))


def test_a_change_within_odd_arguments_keeps_the_spelling() -> None:
    """A string changed in the object is changed in the text, and nothing else; another structure is spelled anew."""
    value, spelling = take_apart('{ "q" : "Oslo",\t"n":1e1 }')
    assert put_together({**value, "q": "Rome"}, spelling) == '{ "q" : "Rome",\t"n":1e1 }'
    assert put_together({**value, "n": 11}, spelling) == '{"q":"Oslo","n":11}'
    assert put_together({"q": "Rome"}, spelling) == '{"q":"Rome"}'
    assert put_together({"a": 1}, take_apart("no JSON").spelling) == '{"a":1}'


type Edit = Callable[[list[dict[str, Any]]], None]
"""Changes the steps of a document."""


def edited(folder: Path, edit: Edit, steps: Sequence[Any] = GOOD) -> Path:
    """The document of `GOOD`, changed by hand: step 3 is turn 0, step 4 turn 1."""
    path = folder / "out" / export(kept(steps), folder / "out").file
    document = load(path)
    edit(document["steps"])
    path.write_text(json.dumps(document, indent=1))
    return path


def _set(step: int, *path: str | int, to: Any) -> Edit:
    def edit(steps: list[dict[str, Any]]) -> None:
        target: Any = steps[step - 1]
        for name in path[:-1]:
            target = target[name]
        target[path[-1]] = to

    return edit


def _item(turn: Turn, index: int) -> Mapping[str, Any]:
    native = turn.parts[index].native
    assert native is not None
    return native


CALL = ("tool_calls", 0)
CHANGES: dict[str, tuple[Edit, int, Callable[[Turn], Any], Any]] = {
    "message": (_set(4, "message", to="Mild."), 1, lambda turn: turn.content, "Mild."),
    "within blocks": (
        _set(3, "message", to="Let US look."),
        0,
        lambda turn: [block["text"] for block in _item(turn, 1)["content"]],
        ["Let US ", "look."],
    ),
    "reasoning": (_set(3, "reasoning_content", to="Oh."), 0, lambda turn: turn.reasoning, "Oh."),
    "arguments": (
        _set(3, *CALL, "arguments", "city", to="Rome"),
        0,
        lambda turn: (turn.tool_calls[0].arguments, _item(turn, 2)["arguments"]),
        ('{"city": "Rome"}',) * 2,
    ),
    "call id": (_set(3, *CALL, "tool_call_id", to="c_9"), 0, lambda turn: turn.tool_calls[0].id, "c_9"),
    "name": (_set(3, *CALL, "function_name", to="f"), 0, lambda turn: _item(turn, 2)["name"], "f"),
    "prompt id": (
        _set(4, "metrics", "prompt_token_ids", 5, to=66),
        1,
        lambda turn: _item(turn, 0)["prompt_token_ids"],
        [1, 2, 3, 4, 5, 66],
    ),
    "completion id": (
        _set(4, "metrics", "completion_token_ids", 0, to=70),
        1,
        lambda turn: _item(turn, 0)["generation_token_ids"],
        [70, 8],
    ),
    "log prob": (
        _set(4, "metrics", "logprobs", 1, to=-0.0),
        1,
        lambda turn: repr(_item(turn, 0)["generation_log_probs"]),
        "[-0.1, -0.0]",
    ),
    "expert": (
        _set(4, "metrics", "extra", "routed_experts", 0, 0, 1, to=-1),
        1,
        lambda turn: _item(turn, 0)["routed_experts"][0],
        [[1, -1], [9, 8]],
    ),
    "model": (_set(4, "model_name", to="n"), 1, lambda turn: turn.model_name, "n"),
    "count": (
        _set(3, "metrics", "cached_tokens", to=2),
        0,
        lambda turn: (turn.usage or {})["input_tokens_details"],
        {"cached_tokens": 2},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_field_is_imported_as_it_is(tmp_path: Path, name: str) -> None:
    """What a person changes in a field of a turn shows after import; that turn is named, and never replays natively."""
    edit, number, read, expected = CHANGES[name]

    def consistent(steps: list[dict[str, Any]]) -> None:
        edit(steps)
        if name == "call id":
            steps[2]["observation"]["results"][0]["source_call_id"] = "c_9"

    view, told = back(edited(tmp_path, consistent))
    assert read(view.turn(number)) == expected
    assert told.changed == (number,)
    assert view.turn(number).scope is None
    assert view.turn(1 - number).scope == view.scope
    request = project([view.turn(number)], view.scope)
    assert [entry.form for entry in request.entries] == ["portable"]


def test_changes_between_turns_are_imported(tmp_path: Path) -> None:
    """A changed question and a changed output show in the conversation, and no turn is called changed."""

    def edit(steps: list[dict[str, Any]]) -> None:
        steps[1]["message"] = "How warm?"
        steps[2]["observation"]["results"][0]["content"] = "+3"

    view, told = back(edited(tmp_path, edit))
    items = [each.item for each in conversation(view) if each.item is not None]
    assert [item.get("content", item.get("output")) for item in items] == ["Be exact.", "How warm?", "+3"]
    assert told.changed == ()


def _drop(step: int, *path: str | int) -> Edit:
    def edit(steps: list[dict[str, Any]]) -> None:
        target: Any = steps[step - 1]
        for name in path[:-1]:
            target = target[name]
        del target[path[-1]]

    return edit


CONTRADICTIONS: dict[str, tuple[Edit, int | None, str]] = {
    "lengths of blocks": (
        _set(3, "message", to="Let me look there."),
        0,
        "has 18 characters where its 2 parts",
    ),
    "log probs gone": (_drop(4, "metrics", "logprobs"), 1, "metrics has no logprobs"),
    "experts gone": (_drop(4, "metrics", "extra"), 1, "metrics.extra has no routed_experts"),
    "one id less": (_drop(4, "metrics", "completion_token_ids", 0), 1, "1 generation ids but 2 log probs"),
    "an id that is none": (_set(4, "metrics", "prompt_token_ids", 0, to=-1), 1, "-1 is not a non-negative integer"),
    "call gone": (_drop(3, "tool_calls"), 0, "the number of tool calls"),
    "another speaker": (_set(4, "source", to="user"), 1, "is a turn by its extra, and not the agent's"),
    "a count that is none": (_set(3, "metrics", "cached_tokens", to="1"), 0, "no field for usage"),
    "arguments that are text": (_set(3, *CALL, "arguments", to="{}"), 0, "arguments is of another type"),
    "model gone": (_drop(4, "model_name"), 1, "no field for model_name"),
    "no finish reason": (_set(3, "extra", "turnkeep", "finish_reason", to=None), 0, "finish_reason must be text"),
    "a result of no text": (_set(2, "message", to=5), None, "step 2: a message is text"),
    "text nowhere": (_set(4, "reasoning_content", to="Hm?"), 1, "reasoning_content has no part in extra"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_change_that_extra_contradicts_is_an_error(tmp_path: Path, name: str) -> None:
    """Where a change and what extra says cannot both be, import says where and why, and keeps nothing."""
    edit, turn, message = CONTRADICTIONS[name]
    path, store = edited(tmp_path, edit), MemoryStore()
    with pytest.raises(TurnkeepError, match=message) as caught:
        import_atif(path, store)
    assert isinstance(caught.value, (ArchiveError, MalformedItem))
    assert caught.value.turn == turn
    assert store.rollouts() == []


def _nodes(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, member in pairs for found in _nodes(member, (*path, name)))]


@settings(max_examples=150)
@given(st.data(), st.sampled_from([None, "x", -1, [], {}, [1], {"a": 1}, 10**30, True]))
def test_no_file_ends_in_a_traceback(data: st.DataObject, new: Any) -> None:
    """Whatever stands in a document, import says in an error of ours what is wrong, or takes what can be read again."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "out", export(kept(), Path(folder, "out")).file)
        document = load(path)
        *outer, last = data.draw(st.sampled_from([place for place in _nodes(document) if place]))
        target = document
        for name in outer:
            target = target[name]
        target[last] = new
        path.write_text(json.dumps(document))
        store = MemoryStore()
        with suppress(TurnkeepError):
            import_atif(path, store)
        for name in store.rollouts():
            assert RolloutView(store, name).turn_count == len(RolloutView(store, name).turns)


def test_an_ungradable_rollout_does_not_become_gradable(tmp_path: Path) -> None:
    """The failure stays behind as evidence, so that the import has a gap, and strict export refuses it (8.1)."""
    store = kept()
    with Rollout.open(store, "r") as rollout:
        rollout.record_failure(MalformedItem("no item", item=0))
    path = tmp_path / "out" / export(store, tmp_path / "out").file
    again = MemoryStore()
    import_atif(path, again)
    view = RolloutView(again, "r")
    assert [gap.code for gap in view.gaps] == [UNGRADABLE]
    assert (view.origin or {})["failure"]["type"] == "MalformedItem"
    (examined,) = examine(again, ["r"])
    assert [reason.rule for reason in examined.reasons] == ["gap", "ungradable"]


def test_an_imported_document_goes_on_to_gym(tmp_path: Path) -> None:
    """A Gym row of an imported document has what was asked before the first turn, and the tools."""
    view, _ = back(tmp_path / "out" / export(kept(), tmp_path / "out").file)
    row = loads(b"".join(row_chunks(view, [])))
    assert same(row["responses_create_params"], {"input": ASKED, "tools": TOOLS})
    assert [item["type"] for item in row["response"]["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]


def test_rows_of_gym_go_through_unchanged(tmp_path: Path) -> None:
    """Rollouts of Gym rows of every kind come back from their documents: turns, conversation, reward."""
    write_rows(tmp_path / "f.jsonl", *ROWS.values())
    store = MemoryStore()
    assert all(result.error is None for result in import_gym(tmp_path / "f.jsonl", store, scope=SCOPE))
    examined = list(examine(store, store.rollouts()))
    written = list(export_atif(store, examined, tmp_path / "out"))
    assert len(written) == len(ROWS)
    for each in written:
        atif.Trajectory.model_validate_json((tmp_path / "out" / each.file).read_bytes())
        assert harbor_errors()(tmp_path / "out" / each.file) == []
        view, before = back(tmp_path / "out" / each.file)[0], RolloutView(store, each.rollout)
        assert said(view) == said(before)
        assert [turn.digest for turn in view.turns] == [turn.digest for turn in before.turns]
        assert same((view.origin or {}).get("reward"), find_reward(before.origin))


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    """A document that is there already is passed by; another one of the same rollout is refused."""
    path = tmp_path / "out" / export(kept(), tmp_path / "out").file
    store = MemoryStore()
    assert import_atif(path, store).already is False
    assert import_atif(path, store).already is True
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(TurnkeepError, match="another rollout of this id"):
        import_atif(path, store)
    assert import_atif(path, store, rollout="other").turns == 2


def test_newer_versions_are_refused_by_number(tmp_path: Path) -> None:
    """A document of a schema, or an extra of a version, that nobody here knows is not read (contract 9.4)."""
    path = tmp_path / "out" / export(kept(), tmp_path / "out").file
    document = load(path)
    document["extra"]["turnkeep"]["version"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(UnsupportedVersion, match="version 2"):
        import_atif(path, MemoryStore())
    path.write_text(json.dumps({**document, "schema_version": "ATIF-v1.9"}))
    with pytest.raises(ArchiveError, match=r"ATIF-v1\.9"):
        import_atif(path, MemoryStore())
    path.write_text('{"steps": [], "steps": []}')
    with pytest.raises(ArchiveError, match="duplicate key"):
        import_atif(path, MemoryStore())


def test_documents_of_other_tools_are_read_by_their_fields(tmp_path: Path) -> None:
    """A document without our extra becomes turns of its fields; items are made only where there are token ids."""
    metrics = {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-1], "completion_tokens": 1}
    made = {"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1.0}}
    seen = {"results": [{"source_call_id": "c", "content": [{"type": "text", "text": "done"}]}]}
    steps: list[dict[str, Any]] = [
        {"source": "user", "message": "Go."},
        {"source": "agent", "message": "Yes.", "reasoning_content": "Hm.", "tool_calls": [made], "observation": seen},
        {"source": "agent", "message": "Ends.", "metrics": metrics},
    ]
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    document = {"schema_version": "ATIF-v1.6", "agent": {"name": "a", "version": "1"}, "steps": numbered}
    atif.Trajectory.model_validate(document)
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(document))
    view, told = back(path)
    assert told == ("theirs", 2, (), False)
    first, second = view.turns
    assert (first.content, first.reasoning, first.tool_calls[0].arguments) == ("Yes.", "Hm.", '{"a":1.0}')
    assert [part.native for part in first.parts] == [None] * 3
    assert _item(second, 0)["generation_log_probs"] == [-1]
    assert second.finish_reason == "stop"
    assert same(
        [each.item for each in conversation(view) if each.item],
        [
            {"role": "user", "content": "Go."},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
        ],
    )
