"""Compiles the C modules when rollforge is installed; without a compiler, Python code does the same work more slowly.

Hatchling calls it. Each module lies beside its source, so that an editable install finds it too. A digest of the source is compiled
in, so that a module older than its source is noticed (`rollforge/runtime/native.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "src/rollforge/_groups",
    "src/rollforge/index/_rows",
)
"""Their paths without suffix. Every importer of one can do without it."""

STABLE_API, STABLE_SUFFIX = "0x030b0000", ".abi3.so"
"""The stable ABI of Python 3.11, the oldest that rollforge runs on, and what its modules are called."""
INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
HARDENING = ["-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"]
LINUX_HARDENING = ["-Wl,-z,relro,-z,now"]


class CompiledModules(BuildHookInterface):  # type: ignore[misc]
    """Adds the modules that could be compiled to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are gathered."""
        for module in MODULES:
            if self._compile(module, is_editable=version == "editable"):
                build_data["pure_python"] = False
                build_data["infer_tag"] = not has_stable_abi()
                if has_stable_abi():
                    build_data["tag"] = f"cp311-abi3-{_platform()}"
                build_data["artifacts"].append(f"/{module}{_suffix()}")

    def _compile(self, module: str, *, is_editable: bool) -> bool:
        source = Path(self.root) / f"{module}.c"
        target = source.with_name(source.stem + _suffix())
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            subprocess.run(command(source, partial), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or error
            self.app.display_warning(f"{source.name} was not compiled, Python code is used instead: {said}")
            partial.unlink(missing_ok=True)
            if is_editable:
                target.unlink(missing_ok=True)  # an older one would be found
            return False
        partial.replace(target)
        if is_editable and has_stable_abi():
            # One of this very version of Python would be found first.
            source.with_name(source.stem + str(sysconfig.get_config_var("EXT_SUFFIX"))).unlink(
                missing_ok=True
            )
        return True


def has_stable_abi() -> bool:
    """Whether one module serves every later Python: not on builds without the global lock, which lack the stable ABI."""
    return STABLE_SUFFIX in EXTENSION_SUFFIXES and not sysconfig.get_config_var("Py_GIL_DISABLED")


def _suffix() -> str:
    return STABLE_SUFFIX if has_stable_abi() else str(sysconfig.get_config_var("EXT_SUFFIX"))


def _platform() -> str:
    """The platform tag; on macOS of the oldest system that the compiler builds for."""
    from packaging.tags import platform_tags

    asked = os.environ.get("_PYTHON_HOST_PLATFORM", "")
    if asked.startswith("macosx-"):  # cibuildwheel
        return asked.replace("-", "_").replace(".", "_")
    tags = list(platform_tags())
    # Plain `linux_…`: which manylinux it is, auditwheel finds out.
    return next((tag for tag in tags if tag.startswith("linux_")), tags[0])


def source_digest(source: Path) -> str:
    """A digest of a C source and of what it includes; `rollforge.runtime.native` computes the same."""
    digest, pending, seen = hashlib.sha256(), [source], set()
    while pending:
        path = pending.pop(0)
        if path not in seen:
            seen.add(path)
            text = path.read_bytes()
            digest.update(path.name.encode() + b"\0" + text + b"\0")
            pending += [path.parent / name.decode() for name in INCLUDE.findall(text)]
    return digest.hexdigest()[:16]


def command(source: Path, target: Path, flags: tuple[str, ...] = ("-O3",)) -> list[str]:
    """The compiler's command line."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    words = [*compiler, *flags, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", *WARNINGS, *HARDENING]
    words += [
        f'-DSOURCE_DIGEST="{source_digest(source)}"',
        *([f"-DPy_LIMITED_API={STABLE_API}"] if has_stable_abi() else []),
        f"-I{sysconfig.get_path('include')}",
        str(source),
        "-o",
        str(target),
    ]
    if sys.platform == "darwin":
        return [*words, "-undefined", "dynamic_lookup"]
    return [*words, *LINUX_HARDENING] if sys.platform == "linux" else words
