"""Files of NOOA's compact archives into a store (contract 9.5)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_samples import SCOPE, call, export, ids, message, reasoning

from turnkeep import ArchiveError, ConfigurationError, MalformedItem, RolloutView, TurnkeepError, open_store, project
from turnkeep.export.nooa_import import import_nooa
from turnkeep.store.base import Store
from turnkeep.wire.json import loads

REPLAYED = "openai:openai:sha256:6b1d"


def archive(*parts: dict[str, Any]) -> dict[str, Any]:
    """A turn as NOOA's compact archives have it."""
    return {"parts": [*parts], "replay_scope": REPLAYED, "finish_reason": "stop"}


def said(text: str, **members: Any) -> dict[str, Any]:
    """A part of text whose item has a length in place of it."""
    block = {"type": "output_text", "annotations": [], "_text_length": len(text)}
    return {"kind": "text", "text": text, "native": {**message(**members), "content": [block]}}


def called(**members: Any) -> dict[str, Any]:
    """A call whose item lacks what the part says."""
    item = {name: value for name, value in call(**members).items() if name not in ("call_id", "name", "arguments")}
    return {"kind": "tool_call", "id": "c_1", "name": "weather", "arguments": "{ }", "native": item}


def thought(text: str) -> dict[str, Any]:
    """A summary without encrypted content."""
    blocks = [{"type": "summary_text", "_text_length": len(text)}]
    return {"kind": "reasoning", "text": text, "native": {**reasoning(), "summary": blocks}}


ARCHIVES = [archive(called(**ids())), archive(said("Cold. ☃"), said("Very.", **ids(20)))]
FILES = {
    "a list": json.dumps(ARCHIVES, indent=1),
    "lines": "".join(json.dumps(each) + "\n\n" for each in ARCHIVES),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a file."""
    with open_store(tmp_path / "a.db") as store:
        yield store


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_archives_become_a_rollout_under_the_stated_scope(store: Store, tmp_path: Path, text: str) -> None:
    """Text and calls are back in the items, the turns in order, and they replay natively (contract 9.5, 2.2)."""
    path = tmp_path / "turns.json"
    path.write_text(text)
    assert import_nooa(path, store, scope=SCOPE)[:3] == ("turns", 2, 0)
    view = RolloutView(store, "turns")
    assert [turn.content for turn in view.turns] == ["", "Cold. ☃Very."]
    assert view.turn(0).tool_calls[0].arguments == "{ }"
    request = project([*view.turns], SCOPE)
    assert request.gaps == ()
    assert [item.get("prompt_token_ids") for item in request.input] == [
        ids()["prompt_token_ids"],
        None,
        ids(20)["prompt_token_ids"],
    ]
    assert (view.scope, view.origin and view.origin["source"]) == (SCOPE, "nooa")
    ((row,), (written,)) = export(store, "turns")
    assert [item["type"] for item in loads(row)["response"]["output"]] == ["function_call", "message", "message"]
    assert {remark.rule for remark in written.remarks} == {"no_request"}


def test_one_archive_is_a_rollout_of_one_turn(store: Store, tmp_path: Path) -> None:
    """A file that holds one archive becomes a rollout of that turn, under the id that is given."""
    (tmp_path / "turn.json").write_text(json.dumps(ARCHIVES[0]))
    assert import_nooa(tmp_path / "turn.json", store, scope=SCOPE, rollout="r-1").rollout == "r-1"
    assert RolloutView(store, "r-1").turn_count == 1


@pytest.mark.parametrize(("revision", "portable"), [("0514723", 1), ("19caab1", 0)])
def test_the_revision_decides_what_stays_native(store: Store, tmp_path: Path, revision: str, portable: int) -> None:
    """A summary without encrypted content is portable by the rules of one revision, native by the other (9.5)."""
    (tmp_path / "t.json").write_text(json.dumps([archive(thought("Hm."), said("x")), ARCHIVES[1]]))
    done = import_nooa(tmp_path / "t.json", store, scope=SCOPE, revision=revision)
    assert done == ("t", 2, portable, False)


def test_importing_twice_and_over_another(store: Store, tmp_path: Path) -> None:
    """The same file again is already there; another file, scope or revision is refused, and nothing changes."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(ARCHIVES))
    import_nooa(path, store, scope=SCOPE)
    assert import_nooa(path, store, scope=SCOPE).already
    for options in ({"scope": "other"}, {"scope": SCOPE, "revision": "0514723"}):
        with pytest.raises(ConfigurationError):
            import_nooa(path, store, **options)
    path.write_text(json.dumps(ARCHIVES[:1]))
    with pytest.raises(ConfigurationError, match="another rollout"):
        import_nooa(path, store, scope=SCOPE)
    assert RolloutView(store, "t").turn_count == 2


@pytest.mark.parametrize(
    ("text", "kind", "places"),
    [
        (json.dumps([ARCHIVES[0], archive({**said("Cold"), "text": "Col"})]), MalformedItem, {"turn": 1, "item": 0}),
        (json.dumps([ARCHIVES[0], {"parts": 1}]), ArchiveError, {"turn": 1, "field": "parts"}),
        (json.dumps(ARCHIVES[0]) + "\n{", ArchiveError, {}),
        (json.dumps(ARCHIVES[0])[:-1] + ', "a": NaN}', ArchiveError, {}),
        ("{", ArchiveError, {}),
        ("", ArchiveError, {}),
    ],
)
def test_what_is_malformed_is_refused_whole(
    store: Store, tmp_path: Path, text: str, kind: type[TurnkeepError], places: dict[str, Any]
) -> None:
    """A file with one archive that cannot be read brings nothing in; the error names the turn and the place."""
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(kind) as caught:
        import_nooa(tmp_path / "t.json", store, scope=SCOPE)
    assert {name: getattr(caught.value, name) for name in places} == places
    assert store.rollouts() == []
