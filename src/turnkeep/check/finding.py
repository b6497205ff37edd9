"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

PROFILES = ("nemo-rl", "trl", "verl", "atif")
"""Who will read the rollout: NeMo RL's Gym environment, TRL's NeMo Gym example, verl, a strict ATIF document."""


class Severity(StrEnum):
    """How grave a finding is: an `error` is refused or trains on something else than what was done."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ERROR, WARNING, NOTE = Severity


class For(NamedTuple):
    """How grave a rule's findings are without a profile and for each; None where that reader does not care."""

    all: Severity | None
    nemo_rl: Severity | None
    trl: Severity | None
    verl: Severity | None
    atif: Severity | None

    def of(self, profile: str | None) -> Severity | None:
        """The severity for one of `PROFILES`, or without one."""
        severity: Severity | None = getattr(self, "all" if profile is None else profile.replace("-", "_"))
        return severity


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule says of one place: positions are 0-based, `index` is one in the array or list `field`."""

    message: str
    turn: int | None = None
    call: int | None = None
    item: int | None = None
    field: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule found in a rollout: how grave it is, what is there, what to do, and where."""

    rule: str
    severity: Severity
    message: str
    todo: str
    rollout: str
    turn: int | None = None
    call: int | None = None
    item: int | None = None
    field: str | None = None
    index: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as data, every member there."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Rule[Facts]:
    """One rule: its stable name, what it holds, what to do, where it comes from, how grave it is, and its function."""

    name: str
    says: str
    todo: str
    source: str
    severities: For
    find: Callable[[Facts], Iterator[Found]]


def report(rule: Rule[Any], severity: Severity, found: Found, rollout: str) -> Finding:
    """What a rule found, as a finding in a rollout."""
    places = (found.turn, found.call, found.item, found.field, found.index)
    return Finding(rule.name, severity, found.message, rule.todo, rollout, *places)


def rule[Facts](
    severities: For, *, source: str, todo: str
) -> Callable[[Callable[[Facts], Iterator[Found]]], Rule[Facts]]:
    """Make a function a rule: its name is the function's, what it holds is the docstring."""

    def make(find: Callable[[Facts], Iterator[Found]]) -> Rule[Facts]:
        says = " ".join((find.__doc__ or "").split())
        return Rule(find.__name__.replace("_", "-"), says, todo, source, severities, find)

    return make
