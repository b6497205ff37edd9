"""Which NOOA this adapter was proven on, and what to look at again with another."""

from importlib.metadata import version

import pytest
from nooa.context_blocks.formatter import BlockFormatter, OpenAIProviderFormatter
from nooa.context_blocks.models import RenderedMessage
from nooa.runtime import context_vars
from nooa.runtime.event_manager import EventManager
from nooa.unifiedllm import unifiedllm

import nooa
from turnkeep.nooa import PROVEN_VERSIONS
from turnkeep.nooa.parts import has_ordered_parts

pytestmark = pytest.mark.nooa

LOOK_AGAIN = """\
nooa {installed} is installed; turnkeep.nooa was proven on {proven}. Look again at:
 1. generation: does LLMResponse have `parts` (then parts.py serves, else events.py and render.py)?
 2. strategies/codeact.py `_process_tool_calls`: calls run in order, stop at the first error, arguments json-parsed;
    text-only turns become TextOnlyReply + synthetic_<hex>; inline returns codeact_inline_<hex>; prefill_<hex>.
 3. strategies/predict.py: predict_<hex>; Error after invalid output; ValueErrors of the client are retried.
 4. EventManager.add runs handlers before it stores; update() runs none; AfterTurn ends each turn, also Predict's.
 5. context_blocks: RenderedMessage.reasoning_items, BlockPart.key, formatters keep the order of events.
 6. the private names in use: runtime.context_vars._parent_agent_var, EventManager._backend.
 7. ids that NOOA makes up (MADE_UP_IDS).
Then run tests/nooa and add the version to PROVEN_VERSIONS."""


def test_the_installed_nooa_is_one_that_was_proven() -> None:
    """Another version says what to look at again."""
    installed = version("nooa")
    assert installed in PROVEN_VERSIONS, LOOK_AGAIN.format(installed=installed, proven=", ".join(PROVEN_VERSIONS))


def test_the_names_of_nooa_that_the_adapter_rests_on_are_there() -> None:
    """Public and private names, checked apart from behaviour so that a change says which one it is."""
    assert nooa.__version__ == version("nooa")
    assert not has_ordered_parts(unifiedllm.LLMResponse)
    assert {"reasoning_items", "parts", "tool_call", "tool_call_id"} <= set(RenderedMessage.model_fields)
    assert issubclass(type(nooa.context_blocks.render_config.RenderConfig().block_formatter), BlockFormatter)
    assert isinstance(nooa.context_blocks.render_config.RenderConfig().provider_formatter, OpenAIProviderFormatter)
    assert context_vars._parent_agent_var.get() is None
    assert hasattr(EventManager(), "_backend")
