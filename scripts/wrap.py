"""Wraps the prose of Markdown pages at 120 characters: `python scripts/wrap.py [--check] [PAGE…]`.

Paragraphs and list items are filled; code blocks, tables, headings and comments stay as they are.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
WIDTH = 120

_ITEM = re.compile(r"^( *)([-*+]|\d+[.)]) +")
_FIXED = re.compile(r"^ *(\||#|<!--|>|---$|$)")
_MARKER = re.compile(r" (?=([-*+#>|]|\d+[.)]|<!--)(\s|$))")
"""A space that must not become a line break: what follows would read as the start of a list, heading or table."""

_CODE = re.compile(r"`[^`]{1,40}`")
"""Short code stays on one line."""


def fill(text: str, first: str, rest: str) -> list[str]:
    """The words in lines of at most `WIDTH`, the first one after `first`, the others after `rest`."""
    glued = _MARKER.sub("\x00", " ".join(text.split()))
    glued = _CODE.sub(lambda match: match.group().replace(" ", "\x00"), glued)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\x00", " ") for line in lines]


def wrap(text: str) -> str:
    """The page with its prose filled."""
    made: list[str] = []
    words: list[str] = []
    first = rest = ""
    is_code = False

    def flush() -> None:
        nonlocal words, first, rest
        if words:
            made.extend(fill(" ".join(words), first, rest))
        words, first, rest = [], "", ""

    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        if is_fence or is_code or _FIXED.match(line):
            flush()
            made.append(line)
            is_code = is_code != is_fence
        elif item := _ITEM.match(line):
            flush()
            first = item.group()
            rest = " " * len(first)
            words = [line[item.end() :]]
        elif words:
            words.append(line)
        else:
            first = rest = line[: len(line) - len(line.lstrip())]
            words = [line]
    flush()
    return "\n".join(made) + "\n"


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    stale = []
    for page in [Path(name) for name in names] or [page for page in PAGES if page.exists()]:
        text = page.read_text()
        if (wrapped := wrap(text)) != text:
            stale.append(page)
            if not is_check:
                page.write_text(wrapped)
    for page in stale:
        print(f"{'not wrapped' if is_check else 'wrapped'}: {page}")
    return int(bool(stale) and is_check)


if __name__ == "__main__":
    sys.exit(main())
