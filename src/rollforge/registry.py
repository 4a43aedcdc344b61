"""Finds the members of a family by name, and imports only those that are used.

A family is a table of name → "module:attribute". Looking a name up imports that one module; a wrong name suggests the
nearest right ones; installed packages add members through entry points named `rollforge.<family>`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rollforge.errors import UsageError


class Registry:
    """The members of one family."""

    def __init__(self, family: str, members: Mapping[str, str]) -> None:
        self.family = family
        self._members = dict(members)

    def names(self) -> list[str]:
        """Built-in names and those of installed plugins, sorted."""
        return sorted(self._targets())

    def load(self, name: str) -> Any:
        """The member called `name`, imported now; plugins are looked for only when it is none of ours, which win."""
        targets = self._members if name in self._members else self._targets()
        if name not in targets:
            raise UsageError(
                f"there is no {self.family.rstrip('s')} {name!r}{did_you_mean(name, targets)}",
                hint=f"see them all: rollforge list {self.family}",
            )
        return load_target(targets[name])

    def is_ours(self, member: Any) -> bool:
        """Whether it is one of the built-in members."""
        place = f"{getattr(member, '__module__', '')}:{getattr(member, '__qualname__', '')}"
        return place in self._members.values()

    def _targets(self) -> dict[str, str]:
        return {**_plugins(self.family), **self._members}


@cache
def _plugins(family: str) -> dict[str, str]:
    """The members that installed packages add to a family: name → "module:attribute"."""
    from importlib.metadata import entry_points  # slow to import; most commands name built-in members only

    return {point.name: point.value for point in entry_points(group=f"rollforge.{family}")}


def did_you_mean(name: str, known: Mapping[str, object] | list[str], *, prefix: str = "") -> str:
    """A clause like `; did you mean 'mcqa'?`, or nothing when no name is near; `prefix` stands before each name."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(prefix + one) for one in near)}?" if near else ""


def refuse_unknown(options: Iterable[str], known: Sequence[str], command: str) -> None:
    """Raise when one of the options is none of the command's: a misspelt one must never be left out in silence."""
    for name in options:
        if name not in known:
            raise UsageError(
                f"{command} has no option {name!r}{did_you_mean(name, list(known))}",
                hint=f"it has: {', '.join(known)}",
            )


def load_target(target: str) -> Any:
    """The object at `module:attribute` or `path/to/file.py:attribute`."""
    place, _, attribute = target.partition(":")
    if not place or not attribute:
        lacking = "attribute" if place else "file or module"
        raise UsageError(f"{target!r} names no {lacking}", hint="write it as file.py:name or module:name")
    module = _module_from_file(place) if place.endswith(".py") else _module_by_name(place, target)
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        names = [name for name in vars(module) if not name.startswith("_")]
        raise UsageError(f"{place} has no {attribute!r}{did_you_mean(attribute, names)}") from error
    return found


def load_module(place: str) -> ModuleType:
    """The module in `path/to/file.py`, imported once."""
    return _module_from_file(place)


def _module_by_name(name: str, target: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        _search_last(Path.cwd())  # a user's module beside the task file
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {name!r} (from {target!r})",
                hint="a file is written with its ending: my_file.py:verify",
            ) from error
        raise


def _search_last(folder: Path) -> None:
    """Let modules in the folder of a named file be imported; last, so that none of them poses as an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _module_from_file(place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        near = did_you_mean(Path(place).name, [one.name for one in path.parent.glob("*.py")])
        raise UsageError(f"{place}: no such file{near}", hint="it is looked for from the folder you are in")
    name = f"rollforge_user_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{place}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _search_last(path.parent)  # the modules that it imports from beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            f"{place}: {type(error).__name__}: {error}", hint=f"run it alone: python {place}"
        ) from error
    return module
