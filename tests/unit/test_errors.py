"""errors.py: every error is public, pickles, and names its place."""

import copy
import pickle
import re
from typing import Any

import pytest

import turnkeep
from turnkeep import errors
from turnkeep.errors import TransportFailure, TurnkeepError

_PLACES: dict[str, Any] = {"rollout": "r-1", "turn": 0, "call": 3, "entry": 0, "item": 1, "field": "f", "index": 0}


def _classes() -> list[type[TurnkeepError]]:
    found = [TurnkeepError]
    for kind in found:
        found.extend(sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__)
    return found


def _tree(kind: type[TurnkeepError]) -> dict[str, Any]:
    return {sub.__name__: _tree(sub) for sub in kind.__subclasses__() if sub.__module__ == errors.__name__}


def _drawn_tree() -> dict[str, Any]:
    """The tree in the module's docstring."""
    drawn: dict[str, Any] = {}
    stack = [drawn]
    for indent, name in re.findall(r"^    ([│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 4
        del stack[depth + 1 :]
        stack.append(stack[depth].setdefault(name, {}))
    return drawn


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    """The docstring draws exactly the classes there are, each below its base."""
    assert _drawn_tree() == {"TurnkeepError": _tree(TurnkeepError)}


def test_every_error_is_public() -> None:
    """Every error is in `errors.__all__`, sorted, and in turnkeep itself."""
    names = sorted(kind.__name__ for kind in _classes())
    assert errors.__all__ == names
    assert set(names) <= set(turnkeep.__all__)
    assert all(getattr(turnkeep, name) is getattr(errors, name) for name in names)


def _copies(error: TurnkeepError) -> list[TurnkeepError]:
    pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    return [*pickled, copy.copy(error), copy.deepcopy(error)]


@pytest.mark.parametrize("kind", _classes())
def test_an_error_pickles_with_its_places(kind: type[TurnkeepError]) -> None:
    """A pickled or copied error has the class, message, places and words of the first."""
    error = kind("what happened", **_PLACES)
    for other in _copies(error):
        assert type(other) is kind
        assert str(other) == str(error)
        assert other.args == error.args
        assert other.to_json() == error.to_json()
        assert {name: getattr(other, name) for name in _PLACES} == _PLACES


def test_a_place_learnt_later_pickles_too() -> None:
    """A place, a status and a body that were put in after the error was made survive a pickle."""
    error = TransportFailure("no answer", status=502, body=b"\xff")
    error.rollout = "r-2"
    error.add_note("a note")
    for other in _copies(error):
        assert isinstance(other, TransportFailure)
        assert (other.status, other.body, other.rollout) == (502, b"\xff", "r-2")
        assert other.__notes__ == ["a note"]


@pytest.mark.parametrize("kind", _classes())
def test_an_error_says_its_places_in_words(kind: type[TurnkeepError]) -> None:
    """`str` names every place that is known, zero too, and none that is not."""
    assert str(kind("what happened")) == "what happened"
    words = str(kind("what happened", **_PLACES))
    assert words.startswith("what happened (")
    for name, value in _PLACES.items():
        assert f"{name} {value!r}" in words
        alone = kind("what happened", **{name: value})
        assert str(alone) == f"what happened ({name} {value!r})"


@pytest.mark.parametrize("kind", _classes())
def test_an_error_as_data_is_its_class_message_and_places(kind: type[TurnkeepError]) -> None:
    """`to_json` gives class, message and the places that are known."""
    assert kind("m").to_json() == {"type": kind.__name__, "message": "m"}
    assert kind("m", **_PLACES).to_json() == {"type": kind.__name__, "message": "m", **_PLACES}


@pytest.mark.parametrize("kind", _classes())
def test_an_error_says_when_it_is_raised(kind: type[TurnkeepError]) -> None:
    """Every error class has a docstring of its own."""
    assert kind.__doc__
    assert kind.__doc__ not in [base.__doc__ for base in kind.__bases__]
