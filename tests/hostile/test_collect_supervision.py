"""A background task or thread that dies is noticed: a message, an exit code, a resumable run, never a hang."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rollforge.cli.render.verify import LiveLine
from rollforge.endpoint.client import Client, ClientOptions
from rollforge.errors import Failure, IncompleteError
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.simulate import example_tasks
from rollforge.sinks.base import Sinks
from rollforge.steps.collect import server_load
from rollforge.steps.collect.observer import GuardedObserver
from rollforge.steps.collect.shards import runner, sharded
from rollforge.store import DurableFile, RunFiles
from rollforge.store.atomic import sync_file

DEAD_COMMITTER = """
import os
real, calls = os.fdatasync, 0
def fdatasync(handle):
    global calls
    calls += 1
    if calls > {after} and "rollouts.jsonl" in os.readlink(f"/proc/self/fd/{{handle}}"):
        raise {error}
    return real(handle)
os.fdatasync = fdatasync
"""
DEAD_DISPLAY = """
import rollforge.steps.collect.step as step
real, calls = step.Collection.snapshot, 0
def snapshot(self):
    raise ZeroDivisionError("no snapshot")
step.Collection.snapshot = snapshot
"""
DEAD_TICKER = """
import rollforge.steps.collect.live as live
def tick(self):
    raise ZeroDivisionError("no tick")
live.Live.tick = tick
"""


def collect(folder: Path, fault: str = "", *more: str) -> subprocess.CompletedProcess[str]:
    """`rollforge collect` in a process where `fault` ran first."""
    tasks = folder / "tasks.jsonl"
    if not tasks.exists():
        tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(40, 0, "math")))
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact", "-k", "4"]
    program = f"{fault}\nfrom rollforge.cli import main\nmain({[*words, '-c', '8', *more]!r})"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    "error", ["RuntimeError('torn')", "OSError(5, 'Input/output error')", "MemoryError()"]
)
def test_a_committer_that_dies_ends_the_run_with_a_message_and_the_run_resumes(
    tmp_path: Path, error: str
) -> None:
    done = collect(tmp_path, DEAD_COMMITTER.format(after=2, error=error), "--progress", "none")
    assert done.returncode == 3, done.stderr
    assert "rollouts.jsonl: cannot write" in done.stderr and "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert collect(tmp_path).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    keys = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}
    assert len(rows) == len(keys) == 160


@pytest.mark.parametrize("end", [RuntimeError("unexpected"), SystemExit(1)], ids=["error", "exit"])
async def test_nothing_waits_for_a_dead_committer(
    tmp_path: Path, end: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise end

    monkeypatch.setattr("rollforge.store.durable.BACKLOG_BYTES", 10)
    file = DurableFile(tmp_path / "lines.jsonl")
    await file.start()
    monkeypatch.setattr(file, "_commit", fail)
    waiting = file.append(b"a line of more than ten bytes")
    async with asyncio.timeout(10):
        with pytest.raises(IncompleteError):
            await file.room()
        with pytest.raises(IncompleteError):
            await waiting
        with pytest.raises(IncompleteError):
            await file.flush()
        with pytest.raises(IncompleteError):
            file.append(b"another")
        with pytest.raises(IncompleteError):
            await file.close()


async def test_a_cancelled_committer_fails_those_who_wait(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "lines.jsonl", delay_s=60)
    await file.start()
    waiting = file.append(b"{}")
    assert file._committer is not None
    await asyncio.sleep(0)
    file._committer.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(IncompleteError):
            await waiting
        with pytest.raises(IncompleteError):
            await file.close()


def test_a_file_is_synced_where_there_is_no_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.fdatasync")
    with (tmp_path / "file").open("wb") as file:
        sync_file(file.fileno())


def test_a_display_that_fails_says_so_and_the_run_goes_on(tmp_path: Path) -> None:
    done = collect(tmp_path, DEAD_DISPLAY, "--progress", "plain", "--base-url", "http://127.0.0.1:9/v1")
    assert "the display failed: ZeroDivisionError: no snapshot" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_ticker_that_fails_says_so_and_the_run_ends_well(tmp_path: Path) -> None:
    done = collect(tmp_path, DEAD_TICKER, "--progress", "none", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 160
    assert done.stderr.count("ZeroDivisionError: no tick") == 1


class _Failing:
    """An observer whose callbacks raise, as an operator's defect would."""

    def __init__(self) -> None:
        self.calls = 0

    def begin(self, run: str, tasks: object, owed: object, given_up: object) -> None: ...
    def gave_up(self, task: int) -> None: ...
    def settled(self, task: int) -> None: ...
    async def room(self) -> None: ...
    async def close(self) -> None: ...

    def finished(self, row: object) -> None:
        self.calls += 1
        raise KeyError("reward")

    def shortfall(self) -> str:
        return ""


async def test_an_observer_that_raises_is_left_alone_and_counts_as_a_shortfall() -> None:
    failing = _Failing()
    observer = GuardedObserver(failing)
    observer.begin("run", np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    for _ in range(3):
        observer.finished({})
    await observer.room()
    await observer.close()
    assert failing.calls == 1
    assert "KeyError" in observer.shortfall()


class _Exiting:
    """A remote sink whose client ends its thread."""

    is_remote = True

    def __init__(self) -> None:
        self.began = threading.Event()

    def start(self) -> None: ...
    def close(self) -> None: ...

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        self.began.set()
        raise SystemExit(3)


def test_a_sink_whose_thread_ends_is_counted_and_closing_does_not_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = _Exiting()
    sinks = Sinks([("exiting", sink)])
    with caplog.at_level(logging.WARNING):
        sinks.log({"reward": 1.0}, step=1)
        assert sink.began.wait(10)
        sinks._members[0]._thread.join(10)  # type: ignore[union-attr]
        sinks.log({"reward": 1.0}, step=2)
        sinks.close()
    assert sinks.failures == {"exiting": 2}
    assert "SystemExit" in caplog.text


async def test_a_probe_that_ends_in_an_odd_answer_lets_the_next_one_try() -> None:
    """A reader that trips over an answer's shape counts as a failure, and never leaves the breaker waiting for its probe."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    def trip(_: bytes) -> object:
        raise AttributeError("a text has no get")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(ClientOptions(base_urls=(f"http://127.0.0.1:{port}",), retries=0)) as client:
        breaker = client.endpoints[0].breaker
        breaker.state = "half-open"
        with pytest.raises(Failure, match="cannot be read: AttributeError"):
            await client.post("/x", b"{}", read=trip)
        assert breaker.state == "open", "the odd answer decided the probe"
        breaker.state = "half-open"
        assert breaker.wait_s(0.0) == 0.0
    server.close()


def test_a_failing_round_is_said_once_and_interrupts_go_on(caplog: pytest.LogCaptureFixture) -> None:
    logged = LoggedOnce(logging.getLogger("rounds"), "cannot beat")
    for error in (OSError("full"), OSError("full"), KeyError("a"), OSError("full")):
        with logged:
            raise error
    assert [record.message for record in caplog.records] == [
        "cannot beat: OSError: full", "cannot beat: KeyError: 'a'", "cannot beat: OSError: full",
    ]  # fmt: skip
    with pytest.raises(asyncio.CancelledError), logged:
        raise asyncio.CancelledError
    with pytest.raises(KeyboardInterrupt), logged:
        raise KeyboardInterrupt


async def test_a_heartbeat_that_fails_unexpectedly_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(runner, "BEAT_EVERY_S", 0)
    answers = iter([ValueError("a damaged record"), False, False, True])

    def is_taken_over() -> bool:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    beats: list[object] = []
    stops: list[str] = []
    lease: Any = SimpleNamespace(shard=3, is_taken_over=is_taken_over, beat=beats.append)
    engine: Any = SimpleNamespace(ledger=SimpleNamespace(finished=1), ages=list, stop=stops.append)
    shards: Any = SimpleNamespace(live=SimpleNamespace(rates=lambda: (1.0, 1.0), failures={}))
    await runner.ShardRunner._beat(shards, lease, engine)
    assert (len(beats), stops) == (2, ["taken over"])
    assert "shard 3: ValueError: a damaged record" in caplog.text


async def test_a_sharded_run_outlives_a_manifest_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(sharded, "MANIFEST_EVERY_S", 0)
    failures = iter([ZeroDivisionError("no rate"), OSError("full"), asyncio.CancelledError()])

    def fail(run: object, state: str) -> None:
        raise next(failures)

    collection: Any = SimpleNamespace(choice=None, _update_manifest=fail)
    run: Any = SimpleNamespace(files=RunFiles(tmp_path), manifest=None)
    with pytest.raises(asyncio.CancelledError):
        await sharded.ShardedCollection._tick(collection, run)
    assert "no rate" in caplog.text and "full" in caplog.text


async def test_a_limiter_goes_on_without_the_server_when_its_follower_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(client: object) -> None:
        raise ValueError("an odd page")

    forgotten: list[bool] = []
    limiter: Any = SimpleNamespace(forget_server=lambda: forgotten.append(True))
    monkeypatch.setattr(server_load, "look", look)
    await server_load.follow_server(cast("Any", None), limiter)
    assert forgotten == [True] and "ValueError: an odd page" in caplog.text


def test_the_display_of_verify_fails_once_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    looks: list[bool] = []

    def look() -> Any:
        looks.append(True)
        raise ZeroDivisionError("no snapshot")

    line = LiveLine("plain", look)
    line._done = cast("Any", SimpleNamespace(wait=lambda seconds: len(looks) == 3))
    line._run()
    assert capsys.readouterr().err.count("the display failed: ZeroDivisionError: no snapshot") == 1
