"""Rewards with the result of a test script on the files that a program left.

The script is the task's `test_script` (a text), or one file for all tasks (`script=FILE`). It runs in a sandbox of its own without a
network, in a copy of the program's working directory, or of its artifacts when the rollout is judged later (no program: an empty
directory). It writes a number, or an object with `reward` in it, to the file that `$ROLLFORGE_REWARD` names. A file that is missing,
empty, no number or not finite is a failure to judge, never 0; so is a program that left no files. `$ROLLFORGE_RESULT` and
`$ROLLFORGE_ANSWER` name files with the program's result and answer; `test_files` of the task (path → text) are laid beside the
script, in `$ROLLFORGE_TESTS`.

The program's files are hostile: if a script executes them (imports them, lets pytest collect them), they can write the reward
themselves, undetected. Keep the code that you execute apart from the code that decides.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from pathlib import Path, PurePosixPath

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonObject, Response, Task, from_json
from rollforge.sandbox import Mode
from rollforge.sandbox.programs import Network, ProgramFolders, ProgramSandbox
from rollforge.store.reading import UNREADABLE

needs = ()

MAX_REWARD_BYTES = 1 << 16


class ScriptOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for running scripts."""

    script: str | None = None
    """File with the script for every task; a task's own `test_script` comes first."""
    timeout: float = 600.0
    """Seconds the script may take; --verify-timeout ends it too."""
    sandbox: Mode = "auto"
    """`auto` (or `require`) confines scripts with bubblewrap or refuses to run them; `off` runs them as you."""
    network: Network | None = None
    """`host` gives scripts this machine's network."""
    at_once: int = 0
    """Scripts run at the same time; 0 takes the number of cores."""


class Script:
    """Judges with a test script."""

    options_type = ScriptOptions

    def __init__(self, options: ScriptOptions | None = None) -> None:
        self._options = options or ScriptOptions()
        if self._options.timeout <= 0:
            raise UsageError("timeout must be more than 0 seconds", hint="--verifier-set timeout=60")
        self._script: str | None = None
        if self._options.script is not None:
            try:
                self._script = Path(self._options.script).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"script={self._options.script}: cannot be read: {error}",
                    hint="give the path of a script",
                ) from error
        self._sandbox = ProgramSandbox(self._options.sandbox, network=self._options.network)
        self._slots = asyncio.Semaphore(self._options.at_once or os.cpu_count() or 1)

    @staticmethod
    def check_machine(options: JsonObject) -> None:
        """Refuse to run scripts without working bubblewrap, before any work."""
        if options.get("sandbox") != "off":
            ProgramSandbox("require")

    @staticmethod
    def warning_for(options: JsonObject) -> str | None:
        """Warning about what a script can do without a sandbox."""
        weakness = ProgramSandbox("off").weakness if options.get("sandbox") == "off" else None
        return f"test scripts run without a sandbox: {weakness}" if weakness else None

    async def verify(self, task: Task, response: Response) -> JsonObject:
        script = task.get("test_script") or self._script
        if not isinstance(script, str) or not script.strip():
            raise ValueError("the task has no test_script, and no script=FILE is given")
        async with self._slots:
            scratch = await asyncio.to_thread(ProgramFolders.make)
            try:
                return await self._judge(scratch, script, task, response)
            finally:
                await asyncio.shield(asyncio.to_thread(scratch.remove))

    async def _judge(
        self, scratch: ProgramFolders, script: str, task: Task, response: Response
    ) -> JsonObject:
        await asyncio.to_thread(_lay_out, scratch.work, response)
        reward = scratch.control / f"reward-{secrets.token_hex(8)}"
        inside = self._sandbox.inside
        files = {"result": response.result or "", "answer": response.text, "test_script": script}
        for name, text in files.items():
            (scratch.control / name).write_text(text, encoding="utf-8")
        tests = scratch.control / "tests"
        tests.mkdir()
        for name, text in (task.get("test_files") or {}).items():
            _write_inside(tests, str(name), str(text).encode())
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": inside(scratch, scratch.home),
            "LANG": "C.UTF-8",
            "ROLLFORGE_REWARD": inside(scratch, reward),
            "ROLLFORGE_RESULT": inside(scratch, scratch.control / "result"),
            "ROLLFORGE_ANSWER": inside(scratch, scratch.control / "answer"),
            "ROLLFORGE_TESTS": inside(scratch, tests),
        }
        path = inside(scratch, scratch.control / "test_script")
        try:
            async with asyncio.timeout(self._options.timeout):
                ended = await self._sandbox.run(
                    [*_interpreter(script), path], scratch, environment=environment
                )
        except TimeoutError:
            raise ValueError(f"the script took longer than {self._options.timeout:g} s") from None
        verdict = read_reward(reward, f"exit code {ended.exit_code}: {ended.last_words}")
        return {**verdict, "sandbox": "bubblewrap" if self._sandbox.is_confined else "limits"}


def _interpreter(script: str) -> list[str]:
    """Interpreter of the script: the program in its first line, else a shell."""
    first = script.partition("\n")[0]
    return first[2:].split() if first.startswith("#!") else ["/bin/sh"]


def _lay_out(work: Path, response: Response) -> None:
    """Copy the program's files: its working directory if it still exists, else its artifacts."""
    if response.workdir is not None and Path(response.workdir).is_dir():
        shutil.copytree(response.workdir, work, symlinks=True, dirs_exist_ok=True)
        return
    stored_artifacts = [artifact for artifact in response.artifacts if artifact.file is not None]
    if not stored_artifacts and "artifacts" in response:
        raise ValueError(
            "the program's working directory is gone and no artifacts were kept (--artifacts GLOB keeps files)"
        )
    for artifact in stored_artifacts:
        _write_inside(work, artifact.path, artifact.read())


def _write_inside(folder: Path, name: str, data: bytes) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"the file {name!r} lies outside its directory")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def read_reward(path: Path, how: str) -> JsonObject:
    """Reward and other fields from a file; raises `ValueError` if it contains none."""
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"the script wrote no reward ({how})")
    with path.open("rb") as file:
        data = file.read(MAX_REWARD_BYTES + 1)
    if len(data) > MAX_REWARD_BYTES:
        raise ValueError("the reward file is too large")
    if not data.strip():
        raise ValueError(f"the reward file is empty ({how})")
    try:
        value = from_json(data)
    except UNREADABLE:
        value = _number(data)
    if isinstance(value, dict):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"the reward file holds no number: {data[:80]!r}")
    return {"reward": value}


def _number(data: bytes) -> float | None:
    """Parse a number printed by a script; `nan` and `inf` are parsed too, and refused later as rewards."""
    try:
        return float(data.decode("ascii"))
    except ValueError:
        return None
