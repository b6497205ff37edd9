"""The NOOA adapter: an LLM client for any NOOA agent whose history is exact, also after NOOA's own storage.

    policy = PolicyClient(url, rollout)
    llm = TurnkeepLLM(policy)
    agent = llm.attach(MyAgent(llm=llm, storage=SQLiteStorageManager(path)))

Needs the extra `nooa`. Nothing of NOOA is patched: a client subclass, event handlers, and formatters in the agent's
`render_config`. Agents that a method of an attached agent makes are attached at their first call.

NOOA, whose import takes seconds, is imported when the client or a snapshot is first asked for; migrating needs none.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Before nooa is imported: litellm otherwise fetches its price list from the network at import, with retries.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from turnkeep.nooa.messages import NOT_EXECUTED, NOT_EXECUTED_GAP
from turnkeep.nooa.once import once

if TYPE_CHECKING:
    from turnkeep.nooa.llm import MADE_UP_IDS, PROVEN_VERSIONS, TurnkeepLLM
    from turnkeep.nooa.snapshot import restore_snapshot, save_snapshot

__all__ = [
    "MADE_UP_IDS",
    "NOT_EXECUTED",
    "NOT_EXECUTED_GAP",
    "PROVEN_VERSIONS",
    "TurnkeepLLM",
    "once",
    "restore_snapshot",
    "save_snapshot",
]

_MODULES = {
    "MADE_UP_IDS": "llm",
    "PROVEN_VERSIONS": "llm",
    "TurnkeepLLM": "llm",
    "restore_snapshot": "snapshot",
    "save_snapshot": "snapshot",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
