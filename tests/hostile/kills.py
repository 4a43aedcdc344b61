"""Kill -9 at random moments of a real command, and the counts of what the kills did."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.hostile import fork_server

JUDGE = """
import time, zlib
def judge(task, response):
    time.sleep({seconds})
    return 0.25 + zlib.crc32(response.text.encode()) % 1000 / 2000
"""
"""A verifier that never says 0: a reward of 0 was made by somebody else."""

Key = tuple[int, int]


def true_reward(text: str) -> float:
    """What `JUDGE` says about an answer."""
    return 0.25 + zlib.crc32(text.encode()) % 1000 / 2000


@dataclass
class Damage:
    """What the kills of one area did. Every count but `kills` must stay 0."""

    area: str
    kills: int = 0
    lost: int = 0
    doubled: int = 0
    zero: int = 0
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        return f"{self.area}: {self.kills:,} kills, {self.lost} lost, {self.doubled} doubled, {self.zero} silently zero"

    def assert_none(self) -> None:
        assert (self.lost, self.doubled, self.zero) == (0, 0, 0), "\n".join([self.line(), *self.notes[:10]])


class Started(Protocol):
    """A command that runs; both `Popen` and `Forked` are one."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Forked:
    """A command that a `ForkServer` started."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.server = server
        self.returncode: int | None = None
        try:
            self.handle: int | None = os.pidfd_open(pid)  # the number alone may be somebody else's by then
        except ProcessLookupError:
            self.handle = None

    def poll(self) -> int | None:
        if self.returncode is None and self.server.says_something(0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self.server.says_something(timeout):
                raise subprocess.TimeoutExpired("a forked command", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = self.server.read_number()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class ForkServer:
    """Starts one command after another without Python's start; see `fork_server.serve_commands`."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.hostile.fork_server", "commands", str(folder / "modules")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **fork_server.ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip

    def start(self, words: Iterable[str | Path]) -> Forked:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(word) for word in words]).encode() + b"\n")
        self.process.stdin.flush()
        return Forked(self.read_number(), self)

    def says_something(self, timeout: float | None) -> bool:
        return bool(select.select([self.process.stdout], [], [], timeout)[0])

    def read_number(self) -> int:
        """The next number; byte by byte, so that `select` sees what is left."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, "the fork server ended"
            line += byte
        return int(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Killer:
    """Starts a command and kills it after a random share of the time that it needs undisturbed."""

    def __init__(self, damage: Damage, chance: random.Random, servers: list[ForkServer]) -> None:
        self.damage = damage
        self.chance = chance
        self.servers = servers
        """Empty: every command is a new process."""
        self.usual_s = 2.0

    def start(self, words: Iterable[str | Path], *, seat: int = 0, is_new: bool = False) -> Started:
        """Start the command; a seat takes one at a time."""
        if self.servers and not is_new:
            return self.servers[seat].start(words)
        words = list(words)
        arguments = [sys.executable, *map(str, words)] if words[0] == "-c" else command(words)
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def measure(self, words: Iterable[str | Path]) -> None:
        """Run the command to its end, and learn how long it takes."""
        started = time.monotonic()
        self.finish(words)
        self.usual_s = time.monotonic() - started

    def finish(self, words: Iterable[str | Path], *, is_new: bool = False) -> None:
        """Run the command to its end."""
        code = self.start(words, is_new=is_new).wait(timeout=600)
        assert code == 0, f"exit code {code}; once more it said: {run(words).stderr}"

    def kill(self, words: Iterable[str | Path]) -> int | None:
        """Kill the command once, every tenth time while Python starts; return its exit code if it ended by itself before."""
        is_new = self.chance.random() < 0.1
        process = self.start(words, is_new=is_new)
        moment = time.monotonic() + self.chance.uniform(0.02, 1.0) * self.usual_s
        while process.poll() is None and time.monotonic() < moment:
            time.sleep(0.002)
        ended = process.poll()
        if ended is None:
            self.finish_off(process)
            self.usual_s *= 1.02
        else:  # the machine is faster than when it was measured, or there was little left to do
            self.usual_s = max(0.8 * self.usual_s, 0.05)
        return ended

    def finish_off(self, process: Started) -> None:
        """Kill it, and count the kill if there was something to kill."""
        process.kill()
        self.damage.kills += process.wait() == -signal.SIGKILL


def command(words: Iterable[str | Path]) -> list[str]:
    return [sys.executable, "-m", "rollforge", *map(str, words)]


def run(words: Iterable[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(words), capture_output=True, text=True, check=False, timeout=600)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Rows that end in a newline: what a reader may rely on."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line.strip(b"\0 \t")]


def key(row: dict[str, Any]) -> Key:
    return row["_ng_task_index"], row["_ng_rollout_index"]


def count_missing(damage: Damage, before: Iterable[Any], after: Iterable[Any]) -> None:
    """Count what was on disk before a kill and is not afterwards, and what is there twice."""
    counted = Counter(after)
    gone = [one for one in before if one not in counted]
    twice = [one for one, number in counted.items() if number > 1]
    damage.lost += len(gone)
    damage.doubled += len(twice)
    if gone or twice:
        damage.notes.append(f"after kill {damage.kills}: gone {gone[:5]}, twice {twice[:5]}")


def count_wanting(damage: Damage, wanted: Iterable[Any], present: Iterable[Any]) -> None:
    """Count what the end lacks, and what it has twice or beyond what was wanted."""
    counted, owed = Counter(list(present)), Counter(list(wanted))
    damage.lost += sum((owed - counted).values())
    damage.doubled += sum((counted - owed).values())
    if counted != owed:
        damage.notes.append(f"at the end: lacks {list(owed - counted)[:5]}, more {list(counted - owed)[:5]}")


def final_text(row: dict[str, Any]) -> str:
    """The last assistant message's text."""
    for item in reversed(row["response"]["output"]):
        if item.get("type") == "message" and item.get("role") == "assistant":
            return "".join(part.get("text", "") for part in item["content"])
    return ""


def is_alive(pid: int, started: int) -> bool:
    """Whether a process runs; a zombie does not, nor one that was given the number later."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] != "Z" and int(fields[19]) == started
