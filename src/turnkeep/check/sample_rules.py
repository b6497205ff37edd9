"""Rules about token ids and log probs, one output item at a time."""

from collections.abc import Iterator

import numpy as np

from turnkeep.check.facts import GENERATION, LOG_PROBS, PROMPT, Array, Sample, SampleFacts
from turnkeep.check.finding import ERROR, NOTE, WARNING, For, Found, Rule, rule

_BUILT = "Capture refuses this, so the turn was built by other means: build it again from the response."


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 1.5; NeMo Gym TokenIDLogProbMixin",
    todo=_BUILT,
)
def training_malformed(facts: SampleFacts) -> Iterator[Found]:
    """Training fields come together, and are what the contract says: token ids, numbers, a rank-3 array."""
    fault = facts.sample.fault
    if fault is not None and not _is_count(facts.sample):
        yield facts.sample.found(fault.message, fault.field, fault.index)


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 1.5; NeMo Gym vllm_model (RuntimeError); TRL's NeMo Gym example; ATIF RFC 0001 (1.4)",
    todo=_BUILT,
)
def log_prob_count(facts: SampleFacts) -> Iterator[Found]:
    """There are as many log probs as generated token ids."""
    sample = facts.sample
    if _is_count(sample) and sample.fault is not None:
        yield sample.found(sample.fault.message, LOG_PROBS)


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 1.5; NeMo RL rejects NaN",
    todo="Capture refuses NaN and infinities, and takes an integer that no float64 reaches: look at what wrote it.",
)
def log_prob_finite(facts: SampleFacts) -> Iterator[Found]:
    """Log probs are finite numbers."""
    log_probs = facts.sample.log_probs
    if log_probs is not None and (wrong := np.flatnonzero(~np.isfinite(log_probs))).size:
        index = int(wrong[0])
        yield facts.sample.found(f"{_count(wrong, 'log prob')} not finite, first {log_probs[index]}", LOG_PROBS, index)


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source="a probability is at most 1; no trainer looks",
    todo="See whether the server sends log probs at all (logits, or negated values, look like this).",
)
def log_prob_positive(facts: SampleFacts) -> Iterator[Found]:
    """A log prob is at most 0."""
    log_probs = facts.sample.log_probs
    if log_probs is not None and (wrong := np.flatnonzero((log_probs > 0) & np.isfinite(log_probs))).size:
        index = int(wrong[0])
        message = f"{_count(wrong, 'log prob')} above 0, first {float(log_probs[index])!r}"
        yield facts.sample.found(message, LOG_PROBS, index)


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="the vocabulary that was stated: an id beyond it has no embedding",
    todo="See whether the tokenizer, or the number stated, belongs to another model.",
)
def token_range(facts: SampleFacts) -> Iterator[Found]:
    """Token ids are below the size of the vocabulary (looked at where that is stated)."""
    size = facts.limits.vocabulary
    if size is None:
        return
    for field, ids in ((PROMPT, facts.sample.prompt), (GENERATION, facts.sample.generation)):
        if ids is not None and (wrong := np.flatnonzero(ids >= size)).size:
            index = int(wrong[0])
            message = f"{_count(wrong, 'id')} beyond a vocabulary of {size}, first {int(ids[index])}"
            yield facts.sample.found(message, field, index)


@rule(
    For(ERROR, ERROR, ERROR, ERROR, WARNING),
    source="NeMo RL environments/nemo_gym.py (Non-contiguous messages); TRL's NeMo Gym example; verl: one sequence",
    todo="History was rewritten, tokenized again, or came from another branch: replay turns natively and only append.",
)
def prompt_contiguity(facts: SampleFacts) -> Iterator[Found]:
    """A prompt begins with the prompt and the generation of the trainable item before it, token for token.

    Where it begins with those of the last item that did so, the one between is at fault, and this one is not.
    """
    sample, before, index = facts.sample, facts.before, facts.parts_at
    if before is None or index is None:
        return
    prompt, old, new = sample.prompt, before.prompt, before.generation
    assert prompt is not None
    assert old is not None
    assert new is not None
    expected = int(old[index] if index < len(old) else new[index - len(old)])
    where = f"the {'prompt' if index < len(old) else 'generation'} of turn {before.turn}"
    there = f"id {int(prompt[index])}" if index < len(prompt) else "nothing more"
    yield sample.found(f"at prompt token {index} stands {there}, and {where} has id {expected} there", PROMPT, index)


@rule(
    For(NOTE, NOTE, NOTE, NOTE, NOTE),
    source="contract 1.5: empty arrays are legal; NeMo RL passes over the item",
    todo="Nothing where a harness sends empty fields on purpose; else look at the model server's configuration.",
)
def training_empty(facts: SampleFacts) -> Iterator[Found]:
    """Training fields that are there hold tokens."""
    prompt, generation = facts.sample.prompt, facts.sample.generation
    if prompt is not None and generation is not None and not len(prompt) and not len(generation):
        yield facts.sample.found("the training fields are there and empty", GENERATION)


@rule(
    For(WARNING, NOTE, WARNING, WARNING, WARNING),
    source="NeMo RL environments/nemo_gym.py passes over an item without generated ids",
    todo="The policy said nothing here: see the turn's finish reason and the token limit.",
)
def generation_empty(facts: SampleFacts) -> Iterator[Found]:
    """A completion has at least one token."""
    prompt, generation = facts.sample.prompt, facts.sample.generation
    if prompt is not None and generation is not None and len(prompt) and not len(generation):
        yield facts.sample.found(f"no token was generated after a prompt of {len(prompt)}", GENERATION)


@rule(
    For(WARNING, WARNING, WARNING, WARNING, WARNING),
    source="ATIF RFC 0001 (1.4): prompt_token_ids is the whole prompt of the call",
    todo="Have the server send the ids of the whole prompt, history included.",
)
def prompt_empty(facts: SampleFacts) -> Iterator[Found]:
    """What was generated first came after a prompt (a later prompt without tokens is not contiguous)."""
    sample = facts.sample
    if facts.before is None and sample.is_trainable and sample.prompt is not None and not len(sample.prompt):
        yield sample.found("tokens were generated, and the prompt has none", PROMPT)


def _is_count(sample: Sample) -> bool:
    """Whether what is wrong is that the numbers of ids and of log probs differ."""
    generation, log_probs = sample.generation, sample.log_probs
    return generation is not None and log_probs is not None and len(generation) != len(log_probs)


def _count(wrong: Array, what: str) -> str:
    return f"1 {what} is" if len(wrong) == 1 else f"{len(wrong)} {what}s are"


RULES: tuple[Rule[SampleFacts], ...] = (
    training_malformed,
    log_prob_count,
    log_prob_finite,
    log_prob_positive,
    token_range,
    prompt_contiguity,
    training_empty,
    generation_empty,
    prompt_empty,
)
