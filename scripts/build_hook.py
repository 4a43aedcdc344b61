"""Compiles what is fast in rollforge when it is installed; without a compiler the Python code does the same work, more slowly.

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

SOURCES = (Path("src/rollforge/index/_rows.c"), Path("src/rollforge/exporters/_texts.c"))


class CompiledModules(BuildHookInterface):  # type: ignore[misc]
    """Adds each compiled module to the wheel, or nothing."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are gathered."""
        for source in SOURCES:
            target = source.with_name(f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")
            if self._compile(source, target, is_editable=version == "editable"):
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"].append(f"/{target}")

    def _compile(self, source: Path, target: Path, *, is_editable: bool) -> bool:
        root = Path(self.root)
        partial = root / f"{target}.{os.getpid()}"
        try:
            subprocess.run(_command(root / source, partial), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"{source} was not compiled, Python does its work: {error}")
            partial.unlink(missing_ok=True)
            if is_editable:
                (root / target).unlink(missing_ok=True)  # one from another state of the source would be found
            return False
        partial.replace(root / target)
        return True


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
