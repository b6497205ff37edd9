import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.serve import tokens

TEXTS = st.text(st.characters(codec=None, exclude_categories=())) | st.lists(
    st.sampled_from([piece.decode() for piece in tokens.PIECES]), max_size=30
).map("".join)
SEEDS = st.integers(0, 2**32 - 1)


@given(TEXTS)
def test_the_canonical_ids_decode_to_the_bytes_of_any_text(text: str) -> None:
    """Decoding what was encoded gives the text's bytes, lone surrogates included, and back its code points."""
    assert tokens.decode(tokens.encode(text)) == text.encode("utf-8", "surrogatepass")
    assert tokens.to_text(tokens.decode(tokens.encode(text))) == text


@given(TEXTS, SEEDS)
def test_any_segmentation_decodes_to_the_bytes_of_any_text(text: str, seed: int) -> None:
    """A seeded segmentation spells the same bytes as the canonical one."""
    ids = tokens.segment(text, np.random.default_rng(seed))
    assert tokens.decode(ids) == text.encode("utf-8", "surrogatepass")


@given(TEXTS, SEEDS)
def test_no_text_spells_a_special_token(text: str, seed: int) -> None:
    """Only the template writes special tokens, even where a text spells their names."""
    spelled = text + "".join(tokens.SPECIAL)
    special = set(range(tokens.PAD, tokens.PAD + len(tokens.SPECIAL)))
    assert not special.intersection(tokens.encode(spelled))
    assert not special.intersection(tokens.segment(spelled, np.random.default_rng(seed)))


def test_a_sentence_is_usually_not_segmented_canonically() -> None:
    """Almost every seed gives ids that encoding does not give, and the same seed gives the same ids."""
    text = "The result of the function is a list of numbers, and we return it."
    found = [tokens.segment(text, np.random.default_rng(seed)) for seed in range(200)]
    assert sum(ids != tokens.encode(text) for ids in found) > 160
    assert tokens.segment(text, np.random.default_rng(7)) == found[7]


def test_the_vocabulary_has_no_token_twice() -> None:
    """Every id stands for bytes that no other id has."""
    assert len(set(tokens.TOKENS)) == tokens.VOCABULARY_SIZE


def test_bytes_that_are_no_text_read_as_replacement_characters() -> None:
    """Sampled bytes need not be text; they are shown with the replacement character."""
    assert tokens.to_text(b"a\xffb") == "a\N{REPLACEMENT CHARACTER}b"
