"""Code blocks of the documentation: found in order, each with the marks that stand before it.

A mark is an HTML comment directly above a block. `<!-- file: NAME -->` writes the block to that file. `<!-- exit: 0 4 -->` names the
exit codes that its commands may have. `<!-- serves: PORT -->` runs its command until the end of the page, on a free port; the printed
port leads there in the blocks that follow. `<!-- needs: NAME -->` names services of `docs_services`. `<!-- not run: REASON -->` keeps
it from running: its flags, syntax and imports are still checked.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(r"((?:^<!-- [^\n]*? -->\n)*)^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- ([a-z ]+): (.*?) -->")
_GENERATED = re.compile(
    r"<!-- (help:[\w-]+|tree|families|api) -->.*?<!-- /(help|tree|families|api) -->", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return "not run" not in self.marks

    @property
    def exit_codes(self) -> set[int]:
        """Exit codes that its commands may have."""
        return {int(code) for code in self.marks.get("exit", "0").split()}

    @property
    def commands(self) -> list[list[str]]:
        """The words of every rollforge command, without the program's name."""
        return [words[1:] for words in self.lines if words[0] == "rollforge"]

    @property
    def lines(self) -> list[list[str]]:
        """The words of every command: all lines of a bash block, lines after `$ ` of a console block."""
        if self.language not in ("bash", "sh", "console"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks, without those that `scripts/docs.py` writes."""
    text = _GENERATED.sub(lambda match: "\n" * match.group().count("\n"), page.read_text())
    found = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start(2)].count("\n") + 1
        marks = dict(_MARK.findall(match.group(1)))
        found.append(Block(page, line, match.group(2), match.group(3), marks))
    return found
