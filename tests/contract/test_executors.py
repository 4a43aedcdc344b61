"""Every registered executor keeps the same promises: workers answer, faults arrive as faults, a loss is reported, closing ends all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollforge.errors import RollforgeError, UsageError
from rollforge.executors import EXECUTORS
from rollforge.executors.base import (
    Executor,
    ExecutorOptions,
    Hand,
    Introduction,
    WorkerLost,
    make_executor,
    refuse_differences,
)
from rollforge.executors.processes import Processes
from rollforge.runtime.event_loop import GC_THRESHOLD
from tests.executors.ray_cluster import ray_cluster

TARGET = "tests.executors.echo_worker:EchoWorker"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_cluster(2) as cluster:
        yield cluster.address


@pytest.fixture(
    params=[
        name if name != "ray" else pytest.param(name, marks=pytest.mark.slow) for name in EXECUTORS.names()
    ]
)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ExecutorOptions]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    where = request.getfixturevalue("address") if request.param == "ray" else None
    return request.param, ExecutorOptions(workers=2, address=where)


@asynccontextmanager
async def started(options: tuple[str, ExecutorOptions]) -> AsyncIterator[tuple[Executor, list[Hand]]]:
    executor: Executor = EXECUTORS.load(options[0])(options[1])
    try:
        yield executor, await executor.start(TARGET)
    finally:
        await executor.close()


async def test_a_worker_answers_raises_and_prints_apart(options: tuple[str, ExecutorOptions]) -> None:
    async with started(options) as (_, hands):
        assert len(hands) == (1 if options[0] == "local" else 2)
        assert len({hand.name for hand in hands}) == len(hands)
        for hand in hands:
            large = b"x" * 3_000_000
            assert await hand.ask(b"hello") == b"hello" and await hand.ask(large) == large
            assert await hand.ask(b"print") == b"printed"
            with pytest.raises(RollforgeError, match="refuses") as raised:
                await hand.ask(b"raise")
            assert raised.value.exit_code == 2 and raised.value.hint == "ask otherwise"
            with pytest.raises((RollforgeError, ZeroDivisionError), match="a defect"):
                await hand.ask(b"crash")
            assert await hand.ask(b"still there") == b"still there"


async def test_workers_look_for_cycles_as_rarely_as_the_program_itself(
    options: tuple[str, ExecutorOptions],
) -> None:
    if options[0] == "local":
        pytest.skip("the worker is this process, whose event loop the test runner started")
    async with started(options) as (_, hands):
        for hand in hands:
            assert await hand.ask(b"gc") == repr(GC_THRESHOLD).encode()


async def test_a_lost_worker_is_told_and_can_be_replaced(options: tuple[str, ExecutorOptions]) -> None:
    if options[0] == "local":
        pytest.skip("the worker is this process")
    async with started(options) as (executor, hands):
        os.kill(int(await hands[0].ask(b"pid")), signal.SIGKILL)
        with pytest.raises(WorkerLost):
            for _ in range(50):
                await hands[0].ask(b"hello")
                time.sleep(0.1)
        fresh = None
        for _ in range(12):  # None: no room yet, which a busy machine says too
            if (fresh := await executor.replace(hands[0])) is not None:
                break
        assert fresh is not None and await fresh.ask(b"hello") == b"hello"
        assert await hands[1].ask(b"hello") == b"hello"


async def test_closing_lets_workers_put_their_things_away(
    options: tuple[str, ExecutorOptions], tmp_path: Path
) -> None:
    async with started(options) as (_, hands):
        for number, hand in enumerate(hands):
            assert await hand.ask(f"close-file {tmp_path / str(number)}".encode()) == b"ok"
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["closed"] * len(hands)


def test_differences_between_workers_are_refused_by_name() -> None:
    mine = Introduction(rollforge="1", python="3.11", has_compiled_reader=True, verifier="a", has_key=True)
    refuse_differences(mine, {"w": mine})
    for other, word in (
        (
            Introduction(rollforge="2", python="3.11", has_compiled_reader=True, verifier="a", has_key=True),
            "version is 2",
        ),
        (
            Introduction(rollforge="1", python="3.12", has_compiled_reader=True, verifier="a", has_key=True),
            "3.12, here 3.11",
        ),
        (
            Introduction(rollforge="1", python="3.11", has_compiled_reader=True, verifier="b", has_key=True),
            "fingerprint is b",
        ),
        (
            Introduction(rollforge="1", python="3.11", has_compiled_reader=True, verifier="a"),
            "key's variable is missing",
        ),
    ):
        with pytest.raises(UsageError, match=word):
            refuse_differences(mine, {"w": mine, "x": other})


@pytest.mark.parametrize(
    ("on", "workers", "what"),
    [("rya", None, "did you mean"), ("local:1", None, "address"), ("local", 0, "at least 1")],
)
def test_a_wrong_place_is_refused(on: str, workers: int | None, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        make_executor(on, workers)


def test_ray_that_is_not_installed_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="not installed") as raised:
        make_executor("ray", None)
    assert raised.value.hint == "pip install 'rollforge[ray]'" and raised.value.exit_code == 2


class Nice(Processes):
    """The example of docs/extending.md."""

    def __init__(self, options: ExecutorOptions) -> None:
        super().__init__(options)
        self._priority = options.address or "10"

    def command(self) -> list[str]:
        return ["nice", "-n", self._priority, *super().command()]


async def test_an_executor_of_another_package_gets_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("rollforge.registry._plugins", lambda family: {"nice": f"{__name__}:Nice"})
    executor = make_executor("nice:15", 1)
    try:
        [hand] = await executor.start(TARGET)
        pid = int(await hand.ask(b"pid"))
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 15, 19)
    finally:
        await executor.close()
