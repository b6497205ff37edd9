import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.report.visible import is_odd, visible, visible_plain

ODD = ("\u202e", "\u2066", "\x00", "\x1b", "\r", "\u200b", "\ufeff", "\ud83d", "\u2028", "\U000e0041")
ANY_TEXT = st.text(st.characters() | st.sampled_from([*ODD, "\u200d", *"<>&'\""]))


def read_back(shown: str) -> str:
    """The text that was made visible, from the HTML: no code is shared with what made it."""
    spelled = re.compile(r'<b class="odd" title="[^"<>]*">U\+([0-9A-F]{4,6})</b>')
    pieces = spelled.split(shown)
    plain = [html.unescape(piece) if index % 2 == 0 else chr(int(piece, 16)) for index, piece in enumerate(pieces)]
    assert all("<" not in piece and '"' not in piece for piece in pieces[::2])
    return "".join(plain)


@given(ANY_TEXT)
def test_every_text_can_be_read_back_and_nothing_in_it_is_markup(text: str) -> None:
    """What is shown holds every character of the text, escaped or spelled out, and can be written as UTF-8."""
    shown = str(visible(text))
    shown.encode()
    assert read_back(shown) == text


@given(ANY_TEXT)
def test_an_attribute_holds_no_quote_and_no_odd_character(text: str) -> None:
    """In an attribute odd characters are spelled out without tags, and quotes are escaped."""
    shown = str(visible_plain(text))
    shown.encode()
    assert not set('<>"') & set(shown)
    assert not any(is_odd(shown, index) for index in range(len(shown)) if shown[index] not in "\u200c\u200d")


@pytest.mark.parametrize("char", ODD)
def test_what_cannot_be_seen_is_spelled_out(char: str) -> None:
    """Bidirectional controls, control characters, zero-width ones, lone surrogates and tags show their number."""
    assert f">U+{ord(char):04X}</b>" in visible(f"a{char}b")


def test_joiners_stay_where_a_script_or_an_emoji_needs_them() -> None:
    """A family of emoji and a Persian word stay whole; a joiner in ASCII, or beside another, is spelled out."""
    family, word = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "می\u200cخواهم"
    assert str(visible(family + word)) == family + word
    assert "U+200D" in visible("pass\u200dword")
    assert "U+200C" in visible("é\u200c\u200cé")
