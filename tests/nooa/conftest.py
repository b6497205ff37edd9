"""nooa is imported once, with its warnings, before the tests are collected: they are not ours to turn into errors."""

import os
import warnings

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
