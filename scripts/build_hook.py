"""Compiles the C modules when rollforge is installed; without a compiler Python code does the same work, more slowly.

Called by hatchling. Each module stands beside its source, so that an editable install finds it too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "src/rollforge/_groups",
    "src/rollforge/index/_rows",
    "src/rollforge/steps/profile/_weave",
)
"""Where they stand, without suffix; whoever imports one of them can do without."""


class CompiledModules(BuildHookInterface):  # type: ignore[misc]
    """Adds those that could be compiled to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are gathered."""
        for module in MODULES:
            if self._compile(module, is_editable=version == "editable"):
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"].append(f"/{module}{_suffix()}")

    def _compile(self, module: str, *, is_editable: bool) -> bool:
        source = Path(self.root) / f"{module}.c"
        target = source.with_name(source.stem + _suffix())
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            subprocess.run(_command(source, partial), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"{source.name} was not compiled, Python code is used instead: {error}")
            partial.unlink(missing_ok=True)
            if is_editable:
                target.unlink(missing_ok=True)  # one from another state of the source would be found
            return False
        partial.replace(target)
        return True


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def _command(source: Path, target: Path) -> list[str]:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    words = [
        *compiler,
        "-O3",
        "-fPIC",
        "-shared",
        f"-I{sysconfig.get_path('include')}",
        str(source),
        "-o",
        str(target),
    ]
    return [*words, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else words
