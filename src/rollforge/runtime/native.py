"""Loads compiled modules, each of which has an equivalent, slower Python implementation.

A module compiled from another version of its source is not used: after `git pull` in an editable install, the binary may be
outdated. The build hook compiles a digest of the source into each module.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
MODULES = ("rollforge._groups", "rollforge.index._rows")
_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


def source_digest(source: Path) -> str:
    """Digest of a C source and its includes; the build hook computes the same digest."""
    digest, pending, seen = hashlib.sha256(), [source], set[Path]()
    while pending:
        path = pending.pop(0)
        if path not in seen:
            seen.add(path)
            text = path.read_bytes()
            digest.update(path.name.encode() + b"\0" + text + b"\0")
            pending += [path.parent / name.decode() for name in _INCLUDE.findall(text)]
    return digest.hexdigest()[:16]


def _loaded(name: str) -> ModuleType | None:
    """Import a compiled module without its package, which may import numpy and Arrow; `--version` needs neither."""
    stem = PACKAGE.joinpath(*name.split(".")[1:])
    for suffix in EXTENSION_SUFFIXES:
        spec = spec_from_file_location(name, stem.with_name(stem.name + suffix))
        try:
            if spec is None or spec.loader is None:
                continue
            module = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError:
            sys.modules.pop(name, None)
            continue
        return module
    return None


@cache
def load_native(name: str) -> ModuleType | None:
    """A compiled module such as `rollforge.index._rows`; None if it is missing or does not match its source."""
    module = _loaded(name)
    if module is None:
        return None
    source = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".c")
    try:
        expected = source_digest(source)
    except OSError:
        return module  # installed without its source
    if getattr(module, "SOURCE_DIGEST", None) == expected:
        return module
    logger.warning(
        "%s was compiled from another version of its source and is not used; commands are slower. To mend it: pip install -e .",
        name,
    )
    return None
