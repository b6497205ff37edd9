"""turnkeep keeps every turn of an LLM agent exactly, through crashes, restores and exports."""

from turnkeep.archive.json_form import dumps_turn, from_json, loads_turn, to_json
from turnkeep.history.capture import capture
from turnkeep.history.projection import Request, RuntimeEntry, project
from turnkeep.history.scope import Scope
from turnkeep.history.structured import parse_output
from turnkeep.history.turn import AssistantReasoning, AssistantText, ToolCall, Turn
from turnkeep.wire.item import Item
