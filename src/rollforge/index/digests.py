"""This module has the SHA-256 of a run's file taken by the command that reads it: what is made from the file names it by its digest.

Commands that come before `prepare` and read the whole file take it too, so that the first data set is as quick as the next. Where
several may read, a process of its own takes it beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.index import hashing

if TYPE_CHECKING:
    from subprocess import Popen


class Digests:
    """Digests that are taken beside other work; when that fails, they are left to whoever needs them."""

    def __init__(self) -> None:
        self._children: list[Popen[bytes]] = []
        self._begun: set[Path] = set()

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for child in self._children:
            if failed is not None:
                child.kill()
            child.wait()

    def begin(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Have the digests of these files, each with the folder that remembers it, taken in a process of their own."""
        new = [(path, folder) for path, folder in files if path not in self._begun]
        if not new or not sys.executable:
            return
        from subprocess import DEVNULL, Popen

        self._begun.update(path for path, _ in new)
        words = [str(word.absolute()) for pair in new for word in pair]
        command = [sys.executable, "-I", "-S", hashing.__file__, str(os.getpid()), *words]
        with suppress(OSError):  # they are taken by whoever needs them
            self._children.append(Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL))

    def take(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Take them now."""
        for path, folder in files:
            with suppress(OSError):
                hashing.digest_of(path, folder)
