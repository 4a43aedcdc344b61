"""Makes hostile text safe to display: control characters, direction overrides and invisible characters become visible symbols.

No character is removed; readers see which character was there.
"""

from __future__ import annotations

import re

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}

_NAMED = re.compile(
    "[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    "|[\U000e0000-\U000e007f]"
)
"""C1 controls, soft hyphen, zero-width and direction characters, separators, lone surrogates, tag characters."""


def visible(text: str) -> str:
    """The text with a symbol for every control character and `⟨U+202E⟩` for every invisible one; line breaks stay."""
    if text.isprintable():
        return text
    return _NAMED.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text.translate(_PICTURES))
