"""The members of a family by name, each imported only when it is used.

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
from rollforge.runtime.named_file import import_file

LEAST_LIKENESS = 0.75
"""Names that are less alike are not proposed: a wrong proposal is worse than none."""
SHORTEST_PREFIX = 3
"""Letters from which on the beginning of a name is recognized."""


class Registry:
    """The members of one family."""

    def __init__(self, family: str, members: Mapping[str, str]) -> None:
        self.family = family
        self._members = dict(members)

    @property
    def built_in(self) -> list[str]:
        """Names of our own members, sorted."""
        return sorted(self._members)

    def names(self) -> list[str]:
        """Built-in names and those of installed plugins, sorted."""
        return sorted(self._targets())

    def load(self, name: str) -> Any:
        """Import and return the member called `name`; plugins are searched only if no built-in member has that name."""
        targets = self._members if name in self._members else self._targets()
        if name not in targets:
            raise UsageError(
                f"there is no {self.family.rstrip('s')} {name!r}{did_you_mean(name, targets)}",
                hint=f"see them all: rollforge list {self.family}",
            )
        return load_target(targets[name])

    def is_ours(self, member: Any) -> bool:
        """Whether it is a built-in member."""
        target = f"{getattr(member, '__module__', '')}:{getattr(member, '__qualname__', '')}"
        return target in self._members.values()

    def _targets(self) -> dict[str, str]:
        return {**_plugins(self.family), **self._members}


@cache
def _plugins(family: str) -> dict[str, str]:
    """The members that installed packages add to a family: name → "module:attribute"."""
    from importlib.metadata import entry_points  # slow to import; most commands name built-in members only

    return {point.name: point.value for point in entry_points(group=f"rollforge.{family}")}


def did_you_mean(name: str, names: Mapping[str, object] | list[str], *, prefix: str = "") -> str:
    """A clause like `; did you mean 'mcqa'?`, or nothing when no name is near; `prefix` is put before each name."""
    near = near_names(name, names)
    return f"; did you mean {' or '.join(repr(prefix + one) for one in near)}?" if near else ""


def near_names(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Names that are spelled like this one, have its letters in another order, or begin with it; often none."""
    from difflib import SequenceMatcher

    likeness = {one: SequenceMatcher(None, one, name).ratio() for one in names}
    best = max(likeness.values(), default=0.0)
    least = LEAST_LIKENESS if len(name) > SHORTEST_PREFIX else 0.66  # one letter of three may be wrong
    least = max(least, best - 0.1)  # none that is much less alike than another one
    near = [one for one in sorted(likeness, key=lambda one: -likeness[one]) if likeness[one] >= least]
    letters = sorted(name.lower())
    near = near or [one for one in likeness if sorted(one.lower()) == letters]
    if not near and len(name) >= SHORTEST_PREFIX:
        near = [one for one in likeness if one.startswith(name)]
    return near[:most]


def refuse_unknown(options: Iterable[str], names: Sequence[str], command: str) -> None:
    """Raise if an option is unknown to the command, so that a misspelt option is never ignored."""
    for name in options:
        if name not in names:
            raise UsageError(
                f"{command} has no option {name!r}{did_you_mean(name, list(names))}",
                hint=f"it has: {', '.join(names)}",
            )


def load_target(target: str) -> Any:
    """The object at `module:attribute` or `path/to/file.py:attribute`."""
    home, _, attribute = target.partition(":")
    if not home or not attribute:
        lacking = "attribute" if home else "file or module"
        raise UsageError(f"{target!r} names no {lacking}", hint="write it as file.py:name or module:name")
    module = _module_from_file(home) if home.endswith(".py") else _module_by_name(home, target)
    try:
        target_ = module
        for part in attribute.split("."):
            target_ = getattr(target_, part)
    except AttributeError as error:
        names = [name for name in vars(module) if not name.startswith("_")]
        own = [name for name in names if callable(vars(module)[name])]
        raise UsageError(
            f"{home} has no {attribute!r}{did_you_mean(attribute, names)}",
            hint=f"it has {', '.join(own[:8])}" if own else "define it there",
        ) from error
    return target_


def load_module(home: str) -> ModuleType:
    """The module in `path/to/file.py`, imported once."""
    return _module_from_file(home)


def _module_by_name(name: str, target: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is None and str(Path.cwd()) not in sys.path:
        sys.path.append(
            str(Path.cwd())
        )  # a user's module beside the task file; last, so that it shadows nothing installed
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {name!r} (from {target!r})",
                hint="a file is written with its ending: my_file.py:verify",
            ) from error
        raise


def _module_from_file(file: str) -> ModuleType:
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        near = did_you_mean(Path(file).name, [one.name for one in path.parent.glob("*.py")])
        raise UsageError(
            f"{file}: no such file{near}", hint=f"give its path from {Path.cwd()}, or the whole path"
        )
    return import_file(file)
