"""Gym and nooa are imported once, with their warnings, before the tests are collected: they are not ours to mend."""

import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # where `responses_api_agents` is
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import nemo_gym.base_responses_api_agent
    import nemo_gym.base_responses_api_model  # noqa: F401

    import nooa  # noqa: F401
