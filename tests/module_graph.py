"""The package's modules and what each imports, anywhere in it: at the top, inside functions, for type checkers only."""

from __future__ import annotations

import ast
import graphlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rollforge"


def name_of(path: Path) -> str:
    """The dotted name of a module below `rollforge`, which is "" for the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"}
"""Path of every module by its dotted name below `rollforge`."""

PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py" and name}


@cache
def parsed(name: str) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(MODULES[name].read_text())


@cache
def names_imported_by(name: str) -> frozenset[str]:
    """Dotted names below `rollforge` that the module imports: modules, and names in them."""
    found = set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(text.removeprefix("rollforge.") for text in found if text.startswith("rollforge."))


@cache
def modules_imported_by(name: str) -> frozenset[str]:
    """Modules of the package that the module imports; the package itself, for its version, is not one of them."""
    found = set()
    for target in names_imported_by(name):
        if target in MODULES:
            found.add(target)
        elif (parent := target.rpartition(".")[0]) in MODULES and parent:
            found.add(parent)
    return frozenset(found - {name})


def cycle() -> list[str]:
    """Modules that import each other in a circle, or nothing."""
    sorter = graphlib.TopologicalSorter({name: modules_imported_by(name) for name in MODULES})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def door_of(package: str) -> list[str]:
    """The names that a package offers in `__all__`; a package without is no door, only a folder."""
    for node in parsed(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def past_the_door(package: str) -> dict[str, set[str]]:
    """Modules of the package that others import by their own name, each with who does."""
    found: dict[str, set[str]] = {}
    for name in MODULES:
        if name == package or name.startswith(f"{package}."):
            continue
        for target in modules_imported_by(name):
            if target.startswith(f"{package}."):
                found.setdefault(target.removeprefix(f"{package}."), set()).add(name)
    return found


@cache
def family_members() -> frozenset[str]:
    """Modules that a family's registry names: the "module:attribute" lines of a `Registry(...)` or of its table."""
    members = set()
    for package in PACKAGES:
        if "registry.Registry" not in names_imported_by(package):
            continue
        for node in ast.walk(parsed(package)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                module, colon, _ = node.value.removeprefix("rollforge.").partition(":")
                if colon and module in MODULES:
                    members.add(module)
    return frozenset(members)


def public_classes() -> dict[str, list[str]]:
    """Modules that define each public class name."""
    found: dict[str, list[str]] = {}
    for name in MODULES:
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return found
