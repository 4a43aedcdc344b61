"""Prints sizes and habits of the source, for seeing drift: `python scripts/shape.py [ROOT]`.

ROOT is a checkout, this one by default, so that two states of the code can be compared.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

BAGS = re.compile(r"\bJsonObject\b|\bdict\[str, Any\]")
"""Spellings of "a dictionary of anything"."""

UNCHECKED = re.compile(r"\bJsonFields\b|\bdict\[str, object\]")
"""Spellings of "a dictionary whose values must be narrowed before use": typed, yet no record."""

BANNED = ("This module", "data set", " is told", "is had")
"""Phrases that `tests/test_words.py` refuses."""


@dataclass
class Shape:
    """What was counted over the modules of a package."""

    lines: int = 0
    modules: list[tuple[int, str]] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    undocumented: int = 0
    bags: dict[str, int] = field(default_factory=dict)
    """Mentions of JsonObject and dict[str, Any] by module; imports are not mentions."""
    unchecked: int = 0
    """Mentions of JsonFields and dict[str, object]."""
    broad_excepts: int = 0
    openings: int = 0
    """Modules whose docstring opens with "This module"."""
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    phrases: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def measure(package: Path) -> Shape:
    """Count over every Python file below `package`."""
    shape = Shape()
    for path in sorted(package.rglob("*.py")):
        name, text = str(path.relative_to(package)), path.read_text()
        parsed = ast.parse(text)
        count = text.count("\n")
        docstring = ast.get_docstring(parsed)
        shape.lines += count
        shape.modules.append((count, name))
        shape.undocumented += bool(text.strip()) and docstring is None
        shape.openings += (docstring or "").startswith("This module")
        shape.bags[name] = len(BAGS.findall(_without_imports(text, parsed)))
        shape.unchecked += len(UNCHECKED.findall(_without_imports(text, parsed)))
        for phrase in BANNED:
            shape.phrases[phrase] += text.count(phrase)
        for node in ast.walk(parsed):
            _count(shape, node, name)
    return shape


def _without_imports(text: str, parsed: ast.Module) -> str:
    imported = {
        number
        for node in ast.walk(parsed)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return "\n".join(line for number, line in enumerate(text.splitlines(), 1) if number not in imported)


def _count(shape: Shape, node: ast.AST, module: str) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
        shape.functions.append((node.end_lineno - node.lineno + 1, f"{module}:{node.lineno} {node.name}"))
    elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        shape.classes[node.name].append(module)
    elif isinstance(node, ast.ExceptHandler):
        names = "" if node.type is None else ast.unparse(node.type)
        shape.broad_excepts += node.type is None or bool(re.search(r"\b(Base)?Exception\b", names))


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    shape = measure(root / "src")
    for title, sizes in (("modules", sorted(shape.modules)), ("functions", sorted(shape.functions))):
        half, most = sizes[len(sizes) // 2][0], sizes[int(len(sizes) * 0.9)][0]
        print(f"{title}: {len(sizes)}, lines p50 {half}, p90 {most}, longest:")
        for size, name in sizes[-6:][::-1]:
            print(f"  {size:5d}  {name}")
    thousands = shape.lines / 1000
    c_lines = sum(path.read_text().count("\n") for path in (root / "src").rglob("*.[ch]"))
    test_lines = sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py"))
    bags = sum(shape.bags.values())
    repeated = {name: places for name, places in shape.classes.items() if len(places) > 1}
    print(f"lines: {shape.lines} Python, {c_lines} C; {shape.undocumented} modules without a docstring")
    print(f"modules under 60 lines: {sum(size < 60 for size, _ in shape.modules)}")
    print(f"tests: {test_lines} lines, {test_lines / shape.lines:.2f} per source line")
    print(f"JsonObject and dict[str, Any]: {bags}, {bags / thousands:.1f} per 1,000 lines; most in:")
    for name, count in sorted(shape.bags.items(), key=lambda item: -item[1])[:8]:
        print(f"  {count:5d}  {name}")
    print(
        f"JsonFields and dict[str, object]: {shape.unchecked}, {shape.unchecked / thousands:.1f} per 1,000 lines"
    )
    print(f"broad excepts: {shape.broad_excepts}, {shape.broad_excepts / thousands:.2f} per 1,000 lines")
    print(f"modules that open with 'This module': {shape.openings}")
    print("banned phrases: " + ", ".join(f"{phrase.strip()!r} {shape.phrases[phrase]}" for phrase in BANNED))
    print(f"public class names defined more than once: {len(repeated)}")
    for name, places in sorted(repeated.items()):
        print(f"  {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
