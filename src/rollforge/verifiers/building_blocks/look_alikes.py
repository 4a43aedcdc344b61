"""Finds words in a text even if written with look-alike characters, and breaks them up.

NFKC handles compatibility forms (full-width, mathematical letters); a small table handles similar letters of other scripts and
similar brackets. Invisible characters inside a word are ignored.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_SAME = str.maketrans(
    {
        **dict.fromkeys("⟦⟬【〔〖〚❲⦗⁅", "["),
        **dict.fromkeys("⟧⟭】〕〗〛❳⦘⁆", "]"),
        **dict.fromkeys("ǃ❗❕ⵑ¡", "!"),
        **dict.fromkeys("꞊᐀═⚌", "="),
        **dict.fromkeys("ΑАᎪꓮ", "A"),
        **dict.fromkeys("ΒВᏴꓐ", "B"),
        **dict.fromkeys("СϹⅭ", "C"),
        **dict.fromkeys("ЕΕ", "E"),
        **dict.fromkeys("ОΟ", "O"),
        **dict.fromkeys("ТΤ", "T"),
        **dict.fromkeys("ІΙ", "I"),
        **dict.fromkeys("ΝՆ", "N"),
    }
)


def fold(text: str) -> tuple[str, list[int]]:
    """The text in canonical characters, without invisible characters and spaces, and the original position of each character."""
    folded: list[str] = []
    offsets: list[int] = []
    for position, character in enumerate(text):
        plain = "!=" if character == "≠" else unicodedata.normalize("NFKC", character).translate(_SAME)
        for part in plain:
            if unicodedata.category(part) in ("Cf", "Mn", "Cc", "Zs", "Zl", "Zp"):
                continue
            folded.append(part)
            offsets.append(position)
    return "".join(folded), offsets


def looks_like(text: str, words: Sequence[str]) -> bool:
    """Whether any of the words occurs in the text, also in look-alike characters."""
    if _has_none(text, words):
        return False
    folded, _ = fold(text)
    return any(fold(word)[0].casefold() in folded.casefold() for word in words)


def taken_apart(text: str, words: Sequence[str]) -> str:
    """The text with `·` between the characters of every occurrence of a word, also in look-alike characters."""
    if _has_none(text, words):
        return text
    folded, offsets = fold(text)
    folded = folded.casefold() if len(folded.casefold()) == len(folded) else folded
    inside: set[int] = set()
    for word in words:
        wanted = fold(word)[0].casefold()
        start = folded.find(wanted) if wanted else -1
        while start >= 0:
            inside.update(offsets[start : start + len(wanted) - 1])
            start = folded.find(wanted, start + 1)
    return "".join(
        f"{character}·" if position in inside else character for position, character in enumerate(text)
    )


def _has_none(text: str, words: Sequence[str]) -> bool:
    """Fast path: whether an ASCII text lacks the first character of every word."""
    return text.isascii() and not any(word[:1].casefold() in text.casefold() for word in words)
