"""Compiles the index's fast reader when rollforge is installed; without a compiler the Python code does the same work, more slowly.

Called by hatchling. The module stands beside its source, so that an editable install finds it too.
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

FOLDER = Path("src/rollforge/index")


class CompiledReader(BuildHookInterface):  # type: ignore[misc]
    """Adds `_rows` to the wheel, or nothing."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are gathered."""
        name = f"_rows{sysconfig.get_config_var('EXT_SUFFIX')}"
        folder = Path(self.root) / FOLDER
        partial = folder / f"{name}.{os.getpid()}"
        try:
            subprocess.run(_command(folder / "_rows.c", partial), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the fast reader was not compiled, the Python one is used: {error}")
            partial.unlink(missing_ok=True)
            if version == "editable":
                (folder / name).unlink(missing_ok=True)  # one from another state of the source would be found
            return
        partial.replace(folder / name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"/{FOLDER}/{name}")


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
