"""Processes and tasks around a verifier that stop, die or raise: a message and a verdict or failure, never a hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.steps.verify import Verification, VerifyOptions
from rollforge.steps.verify import rollout_source as source_module
from rollforge.store import RunFiles, RunLock
from rollforge.store.lock import is_held
from rollforge.store.manifest import Manifest
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.probes import SprinkledProbes
from rollforge.verifiers.running import spawner
from rollforge.verifiers.running import worker_pool as pool_module
from rollforge.verifiers.running.ready_verifier import RunningJudge, make_judge
from tests.builders import make_rollout, write_rows

SLOW = """
import time
from pathlib import Path
def verify(task, response):
    if response.text == "slow":
        flag = Path(task["flag"])
        was_there = flag.exists()
        flag.touch()
        while not was_there:
            time.sleep(0.01)
    return 1.0
"""


def slow_verifier(folder: Path) -> str:
    path = folder / "slow.py"
    path.write_text(SLOW)
    return f"{path}:verify"


async def said(judge: RunningJudge, text: str, **task: Any) -> Verdict | str:
    try:
        return await asyncio.wait_for(judge.judge(Task(task), Response.from_text(text)), 60)
    except Failure as failure:
        return failure.message


async def test_a_stopped_template_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner, "REPLY_SECONDS", 0.5)
    judge = make_judge(load_verifier(slow_verifier(tmp_path)), workers=1, timeout=60)
    await judge.start()
    pool: Any = judge._engine
    template = pool._spawner._template.pid
    try:
        os.kill(template, signal.SIGSTOP)
        os.kill(pool._workers[0].handle.pid, signal.SIGKILL)
        assert isinstance(await said(judge, "quick"), Verdict)
        assert pool._spawner._template.pid != template
    finally:
        await asyncio.wait_for(judge.close(), 60)


async def test_a_stopped_template_does_not_keep_the_judge_from_closing(tmp_path: Path) -> None:
    judge = make_judge(load_verifier(slow_verifier(tmp_path)), workers=1, timeout=60)
    await judge.start()
    pool: Any = judge._engine
    os.kill(pool._spawner._template.pid, signal.SIGSTOP)
    await asyncio.wait_for(judge.close(), 120)


async def test_the_verdict_of_a_killed_worker_is_given_by_another(tmp_path: Path) -> None:
    judge = make_judge(load_verifier(slow_verifier(tmp_path)), workers=1, timeout=60)
    await judge.start()
    pool: Any = judge._engine
    flag = tmp_path / "flag"
    try:
        waiting = asyncio.ensure_future(said(judge, "slow", flag=str(flag)))
        while not flag.exists():
            await asyncio.sleep(0.01)
        os.kill(pool._workers[0].handle.pid, signal.SIGKILL)
        verdict = await waiting
    finally:
        await judge.close()
    assert isinstance(verdict, Verdict)
    assert judge.counters.failed == 0


async def test_a_stopped_worker_is_replaced_and_its_calls_move_on(tmp_path: Path) -> None:
    judge = make_judge(load_verifier(slow_verifier(tmp_path)), workers=1, timeout=1.0)
    await judge.start()
    pool: Any = judge._engine
    try:
        os.kill(pool._workers[0].handle.pid, signal.SIGSTOP)
        assert isinstance(await said(judge, "quick"), Verdict)
        assert isinstance(await said(judge, "another"), Verdict)
    finally:
        await judge.close()


async def test_an_unexpected_error_in_the_watcher_fails_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[float]:
        raise RuntimeError("the clock is broken")
        yield 1.0

    monkeypatch.setattr(pool_module, "idle_cores", broken)
    judge = make_judge(load_verifier(slow_verifier(tmp_path)), workers="auto", timeout=60)
    await judge.start()
    try:
        first = await said(judge, "slow", flag=str(tmp_path / "never"))
        second = await said(judge, "quick")
    finally:
        await judge.close()
    assert "the clock is broken" in str(first)
    assert "the clock is broken" in str(second)


async def test_a_probe_that_ends_unexpectedly_is_a_note(tmp_path: Path) -> None:
    judge = make_judge(load_verifier("exact"), workers=0)
    await judge.start()
    try:
        probes = SprinkledProbes(judge, 1.0, tasks=1)
        assert probes.offer(
            Task({"responses_create_params": 7, "expected_answer": "x"}), Response.from_text("x")
        )
        report = await probes.finish()
    finally:
        await judge.close()
    assert any("ended unexpectedly" in note for note in report.notes)


@pytest.mark.parametrize(("tasks", "least"), [(300, 40), (40, 40), (100_000, 1000)])
async def test_a_share_has_a_floor_that_gives_the_probe_power(tasks: int, least: int) -> None:
    judge = make_judge(load_verifier("exact"), workers=0)
    probes = SprinkledProbes(judge, 0.01, tasks=tasks)
    drawn = [number for number in range(tasks) if probes._is_drawn(number)]
    assert len(drawn) >= least
    assert max(drawn) > tasks * 0.8, "they are spread over the run"
    assert len(drawn) <= max(90, tasks * 0.012)


@pytest.mark.parametrize("is_reporting", [False, True])
async def test_follow_notices_a_collector_that_died_on_another_machine(
    tmp_path: Path, is_reporting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "SILENT_SECONDS", 1.0)
    run = tmp_path / "run"
    write_rows(
        run / "rollouts.jsonl", [make_rollout(n, 0, None, text="x", expected_answer="x") for n in range(5)]
    )
    manifest = Manifest(rollforge="0", created=0.0)
    manifest.state, manifest.host, manifest.pid = "running", "elsewhere.example", 1
    verification = Verification(VerifyOptions(run=run, verifier="exact", is_following=True))
    manifest.write(verification.files)
    work = asyncio.create_task(verification.run())
    if is_reporting:
        for beat in range(12):
            manifest.updated = float(beat)
            manifest.write(verification.files)
            await asyncio.sleep(0.2)
            assert not work.done()
        manifest.state = "done"
        manifest.write(verification.files)
    summary = await asyncio.wait_for(work, 60)
    assert summary.judged == 5
    assert any("elsewhere.example" in note for note in summary.notes) is not is_reporting


HOLDER = """
import sys, time
from pathlib import Path
from rollforge.store import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("killed", ["before", "while following"])
async def test_follow_notices_at_once_that_the_collector_was_killed_before_the_run_existed(
    tmp_path: Path, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process holds the lock and gets kill -9; without the mend, `--follow` waits for the deadline of the test."""
    monkeypatch.setattr(source_module, "APPEAR_SECONDS", 600.0)
    monkeypatch.setattr(source_module, "RESTART_SECONDS", 0.5)
    source = source_module.RolloutSource(RunFiles(tmp_path / "run"), is_following=True)
    collector = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run" / "rollouts.lock"], stdout=subprocess.PIPE
    )
    assert collector.stdout is not None and collector.stdout.readline() == b"held\n"
    if killed == "before":
        collector.kill()
        collector.wait()
    waiting = asyncio.create_task(source.await_file())
    await asyncio.sleep(0.5)
    if killed != "before":
        assert not waiting.done()
        collector.kill()
        collector.wait()
    with pytest.raises(UsageError, match="process that was to collect it has ended"):
        await asyncio.wait_for(waiting, 60)


def test_a_look_at_the_lock_refuses_no_writer(tmp_path: Path) -> None:
    """`--follow` and `status` look at the lock while a collector starts."""
    path = tmp_path / "rollouts.lock"
    path.touch()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            is_held(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            with RunLock(path):
                pass
            path.touch()
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()
