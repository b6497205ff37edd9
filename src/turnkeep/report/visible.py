"""Text of a model made safe to look at in HTML: escaped, and what would be unseen or would mislead is spelled out.

Spelled out as `U+202E`: control characters but newline and tab, format characters (bidirectional controls, zero-width
ones, tags), lone surrogates, private and unassigned characters, line and paragraph separators, and the variation
selectors beyond the common sixteen. Joiners between characters beyond ASCII stay: scripts and emoji need them.
Categories as in the Unicode Character Database.
"""

import re
import unicodedata

from markupsafe import Markup, escape

_ODD_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SELECTORS = range(0xE0100, 0xE01F0)
_CANDIDATES = re.compile(r"[^\n\t\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u4e00-\u9fff]")
_JOINERS = "\u200c\u200d"


def visible(text: str) -> Markup:
    """The text as HTML: odd characters stand in a `<b class="odd">` with their name as its title."""
    pieces: list[Markup] = []
    end = 0
    for found in _CANDIDATES.finditer(text):
        if is_odd(text, found.start()):
            pieces += [escape(text[end : found.start()]), _spell_in_html(found[0])]
            end = found.end()
    return Markup("").join([*pieces, escape(text[end:])])


def visible_plain(text: str) -> Markup:
    """The text for an attribute's value: odd characters as `U+202E`, escaped."""
    return escape(_CANDIDATES.sub(lambda found: _spell(found[0]) if is_odd(text, found.start()) else found[0], text))


def is_odd(text: str, index: int) -> bool:
    """Whether the character at `index` would be unseen, or would change how others are seen."""
    char = text[index]
    if char in _JOINERS:
        around = text[max(0, index - 1) : index + 2]
        return len(around) < 3 or any(other.isascii() or other in _JOINERS for other in (around[0], around[2]))
    return char not in "\n\t" and (unicodedata.category(char) in _ODD_CATEGORIES or ord(char) in _SELECTORS)


def _spell(char: str) -> str:
    return f"U+{ord(char):04X}"


def _spell_in_html(char: str) -> Markup:
    name = unicodedata.name(char, "control character" if ord(char) < 0xA0 else "no name")
    return Markup('<b class="odd" title="{}">{}</b>').format("lone surrogate" if _is_half(char) else name, _spell(char))


def _is_half(char: str) -> bool:
    return "\ud800" <= char <= "\udfff"
