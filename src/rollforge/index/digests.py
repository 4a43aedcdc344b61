"""This module has the SHA-256 of large files taken in a process of its own, beside the work on what they hold.

What is made from a file names it by its digest, and taking that of a gigabyte takes as long as reading it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.index import hashing
from rollforge.index.ranges import readers

if TYPE_CHECKING:
    from subprocess import Popen


class Digests:
    """Digests that are taken beside other work; where they cannot be, they are left to whoever needs them."""

    def __init__(self) -> None:
        self._child: Popen[bytes] | None = None

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._child is not None:
            if failed is not None:
                self._child.kill()
            self._child.wait()

    def begin(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Have those of large files taken that are not known; each comes with the folder of its index, which remembers it."""
        unknown = [
            (path, folder)
            for path, folder in files
            if readers(path.stat().st_size, None) > 1 and folder.is_dir() and not hashing.known(path, folder)
        ]
        if not unknown or not sys.executable:
            return
        from subprocess import DEVNULL, Popen

        words = [str(word.absolute()) for pair in unknown for word in pair]
        command = [sys.executable, "-I", "-S", hashing.__file__, str(os.getpid()), *words]
        with suppress(OSError):
            self._child = Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
