"""Files on disk before a program starts: its working directory and its task.

The task file leaves out the expected answer: a program that can read the expected answer does not solve the task.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from rollforge.errors import Failure
from rollforge.records import PARAMS_KEY, TASK_KEY, JsonFields, Task

WITHHELD = frozenset(
    {
        *("expected_answer", "answer", "answers", "solution", "solutions", "ground_truth", "reward_model"),
        *("verifier_metadata", "expected_synonym_values", "label", "labels", "target", "targets", "gold"),
        *("reference_answer", "unit_tests", "tests", "test_cases", "test_script", "script", "files"),
    }
)
"""Fields that the task file never contains, at any depth; `--withhold` adds others. (`files` are in the working directory
already.)
"""


def program_task(task: Task, withhold: Iterable[str]) -> JsonFields:
    """The task row without the fields hidden from programs."""
    hidden = {*WITHHELD, *withhold}
    fields = {key: _shown(value, hidden) for key, value in task.items() if not _is_hidden(key, hidden)}
    return {TASK_KEY: task.index, **fields, PARAMS_KEY: task.get(PARAMS_KEY), "prompt": task.prompt}


def _shown(value: object, hidden: set[str]) -> object:
    """A value without the hidden fields of the objects in it, such as `extra_info.answer`."""
    if isinstance(value, dict):
        return {key: _shown(inner, hidden) for key, inner in value.items() if not _is_hidden(key, hidden)}
    return [_shown(inner, hidden) for inner in value] if isinstance(value, list) else value


def _is_hidden(key: str, hidden: set[str]) -> bool:
    return key in hidden or key.startswith("expected_")


def folder_digest(folder: str) -> str:
    """Digest of a directory's names, links and contents: another starting directory would produce different rollouts."""
    root, digest = Path(folder), hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            digest.update(b"link " + os.fsencode(path.readlink()))
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def fill_workdir(work: Path, source: str | None, files: object) -> None:
    """Copy a directory, then write the task's own files over it.

    Raises:
        Failure: the task's `files` are no mapping of relative paths to texts.
    """
    if source:
        shutil.copytree(source, work, symlinks=True, dirs_exist_ok=True)
    if files is None:
        return
    if not isinstance(files, dict):
        raise _bad("the task's files must map paths to texts")
    for name, content in files.items():
        path = work / _inside(str(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.resolve().is_relative_to(work.resolve()):
            raise _bad(f"the task's file {name!r} lies outside the working directory")
        path.unlink(missing_ok=True)
        path.write_bytes(_bytes(str(name), content))


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise _bad(f"the task's file {name!r} lies outside the working directory")
    return path


def _bytes(name: str, content: object) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict) and isinstance(content.get("base64"), str):
        try:
            return base64.b64decode(content["base64"], validate=True)
        except binascii.Error as error:
            raise _bad(f"the task's file {name!r} is no base64: {error}") from error
    raise _bad(f"the task's file {name!r} is neither a text nor {{'base64': …}}")


def _bad(message: str) -> Failure:
    return Failure("agent", "permanent", message)
