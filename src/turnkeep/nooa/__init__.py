"""The NOOA adapter: an LLM client for any NOOA agent whose history is exact, also after NOOA's own storage.

    policy = PolicyClient(url, rollout)
    llm = TurnkeepLLM(policy)
    agent = llm.attach(MyAgent(llm=llm, storage=SQLiteStorageManager(path)))

Needs the extra `nooa`. Nothing of NOOA is patched: a client subclass, event handlers, and formatters in the agent's
`render_config`. Agents that a method of an attached agent makes are attached at their first call.
"""

import os

# Before nooa is imported: litellm otherwise fetches its price list from the network at import, with retries.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from turnkeep.nooa.llm import MADE_UP_IDS, PROVEN_VERSIONS, TurnkeepLLM
from turnkeep.nooa.messages import NOT_EXECUTED, NOT_EXECUTED_GAP
from turnkeep.nooa.once import once
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
