"""Every error turnkeep raises.

    TurnkeepError
    ├── ConfigurationError        an argument or option that cannot work
    ├── PreparationFailure        the history cannot be made into a request (nothing charged, nothing sent)
    ├── TransportFailure          no usable response came back (its bytes are kept as evidence)
    ├── MalformedItem             an output item breaks the rules (the response is kept as evidence)
    ├── UnsupportedClientCall     a tool call that nobody here can answer
    ├── InvalidPolicyOutput       the text does not satisfy the asked-for schema
    ├── BudgetExhausted           the rollout may make no further policy call
    ├── UnfinishedTool            a tool marked `once` began in an earlier process and left no output
    ├── ArchiveError              a written turn that cannot be read
    │   └── UnsupportedVersion    written by a newer turnkeep
    └── StoreError                the store refused
        ├── RolloutBusy           another writer has the rollout
        ├── UnknownRollout        no such rollout
        ├── MissingTurn           a reference to a turn that the store does not hold
        └── CorruptRecord         what was read is not what was written

An error names where it happened as far as it knows: `rollout`, `turn`, `item`, `field`, `index`. To add one: subclass,
add it to the tree above and to `__all__`. Every error pickles, because agents run in worker processes.
"""

from typing import Any

__all__ = [
    "ArchiveError",
    "BudgetExhausted",
    "ConfigurationError",
    "CorruptRecord",
    "InvalidPolicyOutput",
    "MalformedItem",
    "MissingTurn",
    "PreparationFailure",
    "RolloutBusy",
    "StoreError",
    "TransportFailure",
    "TurnkeepError",
    "UnfinishedTool",
    "UnknownRollout",
    "UnsupportedClientCall",
    "UnsupportedVersion",
]

_PLACES = ("rollout", "turn", "item", "field", "index", "entry", "call")


def _rebuild(kind: type["TurnkeepError"], message: str, state: dict[str, Any]) -> "TurnkeepError":
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class TurnkeepError(Exception):
    """Base of all errors here: a message and the place it is about.

    `rollout` is an id, `turn`, `call`, `entry` (of the history), `item` (of a response) and `index` (in an array) are
    0-based positions, `field` is a member name. Each is None where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        rollout: str | None = None,
        turn: int | None = None,
        call: int | None = None,
        entry: int | None = None,
        item: int | None = None,
        field: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rollout = rollout
        self.turn = turn
        self.call = call
        self.entry = entry
        self.item = item
        self.field = field
        self.index = index

    def __str__(self) -> str:
        places = [f"{name} {value!r}" for name in _PLACES if (value := getattr(self, name)) is not None]
        return f"{self.message} ({', '.join(places)})" if places else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)

    def to_json(self) -> dict[str, Any]:
        """The error as data: its class, its message and the places it knows."""
        places = {name: value for name in _PLACES if (value := getattr(self, name)) is not None}
        return {"type": type(self).__name__, "message": self.message, **places}


class ConfigurationError(TurnkeepError, ValueError):
    """An argument, option or file that cannot work, found before anything is done."""


class PreparationFailure(TurnkeepError, ValueError):
    """The history cannot be made into a request: `entry` says where. Nothing was charged and nothing was sent."""


class TransportFailure(TurnkeepError):
    """No usable Responses object came back. `status` is the HTTP status or None, `body` the bytes received or None."""

    def __init__(self, message: str, *, status: int | None = None, body: bytes | None = None, **places: Any) -> None:
        super().__init__(message, **places)
        self.status = status
        self.body = body


class MalformedItem(TurnkeepError, ValueError):
    """An output item breaks a rule of contract 1.5 or 1.6: `item`, `field` and `index` say where."""

    @property
    def place(self) -> dict[str, Any]:
        """`{"item": index, "field": name or None, "index": index or None}`."""
        return {"item": self.item, "field": self.field, "index": self.index}


class UnsupportedClientCall(TurnkeepError):
    """The policy made a client-executed call that nobody here can answer (contract 7.4)."""


class InvalidPolicyOutput(TurnkeepError, ValueError):
    """The response does not satisfy the schema; the message is the validator's own. The call was charged."""


class BudgetExhausted(TurnkeepError, RuntimeError):
    """`max_policy_calls` are spent; nothing was sent."""


class UnfinishedTool(TurnkeepError, RuntimeError):
    """A tool marked `once` began before the process died and left no output: a person has to settle it."""


class ArchiveError(TurnkeepError, ValueError):
    """A written turn that cannot be read as one."""


class UnsupportedVersion(ArchiveError):
    """Written in a format version that this turnkeep does not know yet."""


class StoreError(TurnkeepError):
    """The store cannot do what was asked."""


class RolloutBusy(StoreError):
    """Another writer has the rollout, or has taken it over since."""


class UnknownRollout(StoreError, LookupError):
    """The store holds no such rollout."""


class MissingTurn(StoreError, LookupError):
    """A reference names a turn that the store does not hold."""


class CorruptRecord(StoreError):
    """What was read is not what was written: a digest differs, or the database is damaged."""
