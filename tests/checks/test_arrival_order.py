"""Healthy verdicts in the order in which a real collection brings them do not stop it; broken ones still do."""

from __future__ import annotations

import heapq
import math
import random
from typing import NamedTuple

import pytest

from rollforge.checks.building_blocks.stream import Watch


class Arrival(NamedTuple):
    """One verdict as the detectors see it."""

    task: int
    reward: float
    verify_s: float
    is_draining: bool


class Load(NamedTuple):
    """A collection: how much, how parallel, and what correlates with a wrong answer."""

    tasks: int
    samples: int
    concurrency: int = 64
    mean: float = 0.54
    has_bursts: bool = True
    """The machine is 8 or 20 times slower for stretches of some dozens of verdicts."""
    wrong_takes: float = 1.0
    """How many times as long a wrong answer takes to generate."""
    wrong_judged: float = 1.0
    """How many times as long a wrong answer takes to judge."""


def arrivals(load: Load, seed: int) -> list[Arrival]:
    """Simulate generation at a fixed concurrency; verdicts arrive in the order in which answers finish."""
    rng = random.Random(seed)
    chances = [rng.betavariate(1.2 * load.mean, 1.2 * (1 - load.mean)) for _ in range(load.tasks)]
    work = [task for task in range(load.tasks) for _ in range(load.samples)]
    running: list[tuple[float, int, int, float, float]] = []
    arrived: list[Arrival] = []
    now, begun, slowdown, burst_ends = 0.0, 0, 1.0, 0
    while begun < len(work) or running:
        while begun < len(work) and len(running) < load.concurrency:
            task = work[begun]
            reward = float(rng.random() < chances[task])
            seconds = math.exp(rng.gauss(0, 0.6)) * (1 if reward else load.wrong_takes)
            heapq.heappush(running, (now + seconds, begun, task, reward, seconds))
            begun += 1
        now, _, task, reward, seconds = heapq.heappop(running)
        if load.has_bursts and len(arrived) >= burst_ends:
            slowdown, burst_ends = rng.choice([1, 1, 1, 8, 20]), len(arrived) + rng.randint(30, 200)
        judged_s = 0.004 * math.exp(rng.gauss(0, 0.5)) * slowdown * (1 + seconds / 5)
        judged_s *= 1 if reward else load.wrong_judged
        arrived.append(Arrival(task, reward, judged_s, begun == len(work)))
    return arrived


def trip(verdicts: list[Arrival]) -> int | None:
    """The number of the verdict that trips the detectors."""
    watch = Watch()
    for number, one in enumerate(verdicts):
        watch.observe(
            one.task, one.reward, verify_seconds=one.verify_s, at=number, is_draining=one.is_draining
        )
        if watch.tripped:
            return number
    return None


def broken_from(verdicts: list[Arrival], first: int, *, factor: float, rewarded: float) -> list[Arrival]:
    rng = random.Random(1)
    broken = [
        one._replace(reward=float(rng.random() < rewarded), verify_s=one.verify_s * factor)
        for one in verdicts[first:]
    ]
    return verdicts[:first] + broken


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(Load(tasks=60, samples=64), id="many samples of few tasks arrive together"),
        pytest.param(Load(tasks=200, samples=20), id="a loaded machine"),
        pytest.param(
            Load(tasks=200, samples=20, concurrency=500, wrong_takes=6, wrong_judged=8),
            id="wrong answers come last and take longer to judge",
        ),
        pytest.param(
            Load(tasks=1000, samples=4, concurrency=500, wrong_takes=6, wrong_judged=8),
            id="the last answers of many tasks are the wrong ones",
        ),
    ],
)
def test_a_healthy_collection_is_not_stopped_by_the_order_of_arrival(load: Load) -> None:
    assert [seed for seed in range(12) if trip(arrivals(load, seed)) is not None] == []


@pytest.mark.parametrize("mean", [0.54, 0.9])
@pytest.mark.parametrize(("tasks", "samples"), [(1600, 1), (400, 4), (100, 20)])
@pytest.mark.parametrize("factor", [12.0, 1 / 12])
def test_verification_that_breaks_midway_is_stopped_soon(
    mean: float, tasks: int, samples: int, factor: float
) -> None:
    load = Load(tasks=tasks, samples=samples, mean=mean, has_bursts=False)
    half = tasks * samples // 2
    for seed in range(3):
        number = trip(broken_from(arrivals(load, seed), half, factor=factor, rewarded=0.03))
        assert number is not None and half <= number < half + 12 * samples + 150


def test_answers_that_were_always_slow_to_judge_when_wrong_are_no_change_of_pace() -> None:
    watch = Watch()
    for number in range(4000):
        reward = float(number % 2) if number < 3000 else 0.0
        watch.observe(number, reward, verify_seconds=0.01 if reward else 0.2)
    assert set(watch.signals) == {"rewards"} and not watch.tripped
