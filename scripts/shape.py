"""Prints sizes and habits of the source, for seeing drift: `python scripts/shape.py [ROOT]`.

ROOT is a checkout, this one by default, so that two states of the code can be compared.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

BAGS = re.compile(r"\bJsonObject\b|\bdict\[str, Any\]")
"""Spellings of "a dictionary of anything"."""

UNCHECKED = re.compile(r"\bJsonFields\b|\bdict\[str, object\]|\bMapping\[str, (?:object|Any)\]")
"""Spellings of "a dictionary whose values must be narrowed before use", or read-only ones: typed, yet no record."""

BANNED = ("This module", "data set", " is told", "is had")
"""Phrases that `tests/test_words.py` refuses."""

VAGUE = ("told", "found", "place", "places")
"""Names that say how a value came or that it is somewhere, and not what it is."""

TO_TOOLS = re.compile(r"noqa(: ?[A-Z]+\d+(, ?[A-Z]+\d+)*)?|type: ?ignore(\[[\w-]+\])?")
"""What a comment says to a linter or a type checker: no reason for anything."""

Catch = ast.ExceptHandler | ast.Call | ast.With | ast.AsyncWith
"""Nodes of code that can catch exceptions."""

IDIOM_LINES = 3
"""A vague name that lives no longer than this, in one function, hides nothing."""


@dataclass
class Shape:
    """What was counted over the modules of a package."""

    lines: int = 0
    modules: list[tuple[int, str]] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    undocumented: int = 0
    bags: dict[str, int] = field(default_factory=dict)
    """Mentions of JsonObject and dict[str, Any] by module; imports are not mentions."""
    unchecked: dict[str, int] = field(default_factory=dict)
    """Mentions of JsonFields, dict[str, object] and mappings of both by module."""
    broad_excepts: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Broad excepts, and `suppress` of everything, without words beside them."""
    openings: int = 0
    """Modules whose docstring opens with "This module"."""
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    phrases: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    vague: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Functions in which a vague name is a parameter or lives for more than a few lines."""


def measure(package: Path) -> Shape:
    """Count over every Python file below `package`."""
    shape = Shape()
    texts = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    kept = names_of_all(trees.values())
    for name, text in texts.items():
        parsed = trees[name]
        count = text.count("\n")
        docstring = ast.get_docstring(parsed)
        shape.lines += count
        shape.modules.append((count, name))
        shape.undocumented += bool(text.strip()) and docstring is None
        shape.openings += (docstring or "").startswith("This module")
        shape.bags[name] = len(BAGS.findall(_without_imports(text, parsed)))
        shape.unchecked[name] = len(UNCHECKED.findall(_without_imports(text, parsed)))
        for phrase in BANNED:
            shape.phrases[phrase] += text.count(phrase)
        lines = text.split("\n")
        for node in ast.walk(parsed):
            _count(shape, node, name)
        for node in broad_catches(parsed, kept):
            shape.broad_excepts += 1
            if not says_why(lines[node.lineno - 2 : node.lineno + 1]):
                shape.unexplained.append(f"{name}:{node.lineno}")
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
        for name in VAGUE:
            if _is_vague(node, name):
                shape.vague[name].append(f"{module}:{node.lineno} {node.name}")
    elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        shape.classes[node.name].append(module)


def names_of_all(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Names, of any module, that stand for catching everything: `ANY = (OSError, Exception)`, `QUIET = suppress(Exception)`."""
    return frozenset(
        _last_name(target)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if _is_all(node.value) or _suppresses_all(node.value)
    )


def broad_catches(tree: ast.Module, kept: frozenset[str] = frozenset()) -> list[Catch]:
    """Every place that catches all exceptions: `except`, `suppress(Exception)`, and each `with` of such an object in a name."""
    assigned = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
    }
    return [node for node in ast.walk(tree) if id(node) not in assigned and _catches_all(node, kept)]


def _catches_all(node: ast.AST, kept: frozenset[str]) -> TypeGuard[Catch]:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None or _is_all(node.type, kept)
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(_last_name(item.context_expr) in kept for item in node.items)
    return _suppresses_all(node, kept)


def _suppresses_all(node: ast.AST, kept: frozenset[str] = frozenset()) -> TypeGuard[ast.Call]:
    if isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
        return any(_is_all(word, kept) for word in node.args)
    return False


def _is_all(expression: ast.expr, kept: frozenset[str] = frozenset()) -> bool:
    words = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    return any(_last_name(word) in {"Exception", "BaseException", *kept} for word in words)


def _last_name(node: ast.expr) -> str:
    """`Exception` of `builtins.Exception` and of `*Exception`; empty for other expressions."""
    if isinstance(node, ast.Starred):
        return _last_name(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def says_why(lines: list[str]) -> bool:
    """Whether a comment in these lines has words, beside what it says to tools."""
    comments = [line.partition("#")[2] for line in lines]
    return any(re.search(r"[a-z]+\W+[a-z]+", TO_TOOLS.sub("", comment)) for comment in comments)


def _is_vague(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    parameters = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    lines = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    return name in parameters or (bool(lines) and max(lines) - min(lines) >= IDIOM_LINES)


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
    unchecked = sum(shape.unchecked.values())
    print(
        f"JsonFields, dict[str, object] and Mapping of both: {unchecked}, {unchecked / thousands:.1f} per 1,000 lines; most in:"
    )
    for name, count in sorted(shape.unchecked.items(), key=lambda item: -item[1])[:8]:
        print(f"  {count:5d}  {name}")
    wide = bags + unchecked
    print(f"no record, all spellings: {wide}, {wide / thousands:.1f} per 1,000 lines; by folder:")
    folders: dict[str, int] = defaultdict(int)
    for counts in (shape.bags, shape.unchecked):
        for name, count in counts.items():
            folders["/".join(Path(name).parts[1:2])] += count
    for name, count in sorted(folders.items(), key=lambda item: -item[1])[:8]:
        print(f"  {count:5d}  {name}")
    print(
        f"broad excepts: {shape.broad_excepts}, {shape.broad_excepts / thousands:.2f} per 1,000 lines; "
        f"{len(shape.unexplained)} without a reason beside them"
    )
    print(f"modules that open with 'This module': {shape.openings}")
    print("banned phrases: " + ", ".join(f"{phrase.strip()!r} {shape.phrases[phrase]}" for phrase in BANNED))
    print(
        f"functions with a vague name as a parameter or over more than {IDIOM_LINES} lines: "
        + ", ".join(f"{name} {len(shape.vague[name])}" for name in VAGUE)
    )
    print(f"public class names defined more than once: {len(repeated)}")
    for name, places in sorted(repeated.items()):
        print(f"  {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
