"""turnkeep keeps every turn of an LLM agent exactly, through crashes, restores and exports.

    turn = turnkeep.capture(body, scope=turnkeep.Scope("policy_model"))
    request = turnkeep.project([{"role": "user", "content": "Oslo?"}, turn], scope=turn.scope)

The names below are the public API. Everything that needs NumPy, HTTP or a database is imported when it is first used.
"""

from turnkeep.archive.json_form import dumps_turn, from_json, loads_turn, to_json
from turnkeep.archive.packed import pack, unpack
from turnkeep.check.doctor import check_rollout
from turnkeep.check.finding import Finding
from turnkeep.errors import (
    ArchiveError,
    BudgetExhausted,
    ConfigurationError,
    CorruptRecord,
    InvalidPolicyOutput,
    MalformedItem,
    MissingTurn,
    PreparationFailure,
    RolloutBusy,
    StoreError,
    TransportFailure,
    TurnkeepError,
    UnfinishedTool,
    UnknownRollout,
    UnsupportedClientCall,
    UnsupportedVersion,
)
from turnkeep.export.samples import TrainingSample, to_training_samples
from turnkeep.history.capture import capture
from turnkeep.history.gaps import Gap
from turnkeep.history.projection import Request, RuntimeEntry, project
from turnkeep.history.scope import Scope
from turnkeep.history.structured import parse_output
from turnkeep.history.turn import AssistantReasoning, AssistantText, ToolCall, Turn
from turnkeep.history.wire_cache import WireCache
from turnkeep.rollout.outcome import Outcome, outcome
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import MadeUpIds
from turnkeep.rollout.tools import once, once_sync, settle_tool
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.wire.item import Item

__all__ = [
    "ArchiveError",
    "AssistantReasoning",
    "AssistantText",
    "BudgetExhausted",
    "ConfigurationError",
    "CorruptRecord",
    "Finding",
    "Gap",
    "InvalidPolicyOutput",
    "Item",
    "MadeUpIds",
    "MalformedItem",
    "MissingTurn",
    "Outcome",
    "PolicyClient",
    "PreparationFailure",
    "Request",
    "Rollout",
    "RolloutBusy",
    "RolloutView",
    "RuntimeEntry",
    "Scope",
    "StoreError",
    "ToolCall",
    "TrainingSample",
    "TransportFailure",
    "Turn",
    "TurnkeepError",
    "UnfinishedTool",
    "UnknownRollout",
    "UnsupportedClientCall",
    "UnsupportedVersion",
    "WireCache",
    "capture",
    "check_rollout",
    "dumps_turn",
    "from_json",
    "loads_turn",
    "once",
    "once_sync",
    "open_store",
    "outcome",
    "pack",
    "parse_output",
    "project",
    "settle_tool",
    "to_json",
    "to_training_samples",
    "unpack",
]
