"""The server's own load decides about concurrency where it tells it; where it does not, nothing changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.server_metrics import GRID, OVERSHOOT, SHAPES, SHARE, Shape, adaptive, best_fixed

from rollforge.endpoint import ConcurrencyRange, Limiter
from rollforge.endpoint.server_metrics import ServerLoad, joined, read_load
from rollforge.errors import Exit
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.collect.machinery import is_slots
from rollforge.store import RunFiles, read_manifest
from tests.steps.test_collect import collect, write_tasks

VLLM = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 8.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
"""
SGLANG = "sglang:num_running_reqs 5\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n"
LLAMA = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 7\n"


def test_the_metrics_of_three_servers_are_read() -> None:
    assert read_load(VLLM) == ServerLoad(running=20, waiting=3, kv=0.75, preemptions=4)
    assert read_load(SGLANG) == ServerLoad(running=5, waiting=2, kv=0.5)
    assert read_load(LLAMA) == ServerLoad(running=1, waiting=7, kv=None)
    assert read_load("go_goroutines 12\n") is None and read_load("<html>") is None
    both = joined([ServerLoad(running=1, waiting=2, kv=0.1), ServerLoad(running=3, waiting=0, kv=0.9)])
    assert both == ServerLoad(running=4, waiting=2, kv=0.9)


def test_sglang_counts_its_retractions_beside_a_gauge_of_the_last_ones() -> None:
    """The counter is there from the first retraction on; before, the gauge is 0."""
    counted = "sglang:num_retracted_reqs 0\nsglang:num_retracted_requests_total 7\n"
    found = [read_load(SGLANG + more) for more in ("sglang:num_retracted_reqs 0\n", counted)]
    assert [load and load.preemptions for load in found] == [0, 7]


def test_a_counter_that_begins_again_hides_no_later_preemption() -> None:
    """A server that was restarted counts from 0; SGLang's gauge falls back to 0 by itself."""
    limiter = saturated()
    for at, preemptions in ((10.0, 500), (20.0, 0), (30.0, 3)):
        limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.85, preemptions=preemptions), at)
        while limiter.try_acquire():
            pass
    assert limiter.history[-1].reason == "server: 3 preemptions"


def saturated(limit: str = "auto") -> Limiter:
    limiter = Limiter(ConcurrencyRange.parse(limit))
    limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.85), 0.0)  # neither full nor free
    while limiter.try_acquire():
        pass
    for _ in range(limiter.limit):
        limiter.succeed(1.0, 1.0)
    return limiter


def test_a_full_cache_and_preemptions_cut_and_say_so() -> None:
    limiter = saturated()
    limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.95), 10.0)
    assert limiter.limit < 16 and limiter.history[-1].reason == "server: KV cache 95% full"
    limiter = saturated()
    limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.5), 10.0)
    grown = limiter.limit
    while limiter.try_acquire():
        pass
    limiter.observe_server(ServerLoad(running=grown, waiting=0, kv=0.5, preemptions=3), 20.0)
    assert limiter.limit < grown and limiter.history[-1].reason == "server: 3 preemptions"


def test_a_queue_at_the_server_sets_the_limit_to_what_it_runs() -> None:
    limiter = saturated()
    limiter.observe_server(ServerLoad(running=8, waiting=8, kv=0.2), 10.0)
    assert limiter.limit == 9 and limiter.history[-1].reason == "server: 8 in its queue"


def test_free_room_raises_the_limit_and_a_fixed_one_stays() -> None:
    limiter, fixed = saturated(), saturated("16")
    for one in (limiter, fixed):
        one.observe_server(ServerLoad(running=16, waiting=0, kv=0.2), 10.0)
    assert limiter.limit == 19 and limiter.history[-1].reason == "server: no queue, KV cache 20% full"
    assert fixed.limit == 16


def test_a_drift_is_one_entry_of_the_history_until_it_has_gone_far() -> None:
    limiter = saturated()
    for second in range(10, 40):
        while limiter.try_acquire():
            pass
        limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.78), float(second))
    entries = [change for change in limiter.history if change.reason.startswith("server: no queue")]
    assert limiter.limit > 20 and limiter.history[-1].limit == limiter.limit
    assert len(entries) <= 4, entries


def test_a_nearly_full_cache_holds_new_requests_back_until_there_is_room_or_silence() -> None:
    for end in ("room", "silence"):
        limiter = saturated()
        limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.88), 2.0)
        limit = limiter.limit
        while limiter.in_flight > limit // 2:
            limiter.release()
        assert not limiter.try_acquire()  # half of the places are free, but the cache has no room
        if end == "room":
            limiter.observe_server(ServerLoad(running=12, waiting=0, kv=0.7), 3.0)
        else:
            limiter.forget_server()
        assert limiter.try_acquire() and limiter.limit >= limit - 1


async def test_a_hold_never_shuts_a_run_out() -> None:
    limiter = saturated()
    limiter.observe_server(ServerLoad(running=16, waiting=0, kv=0.9), 2.0)  # others fill the cache
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    while limiter.in_flight:
        limiter.release()
        await asyncio.sleep(0)
        if all(task.done() for task in waiting):
            break
    assert all(task.done() for task in waiting)


def test_the_slots_of_llama_cpp_are_recognised() -> None:
    assert is_slots([{"id": 0, "is_processing": False}, {"id": 1, "is_processing": True}])
    assert not is_slots({"error": "off"}) and not is_slots([1, 2]) and not is_slots([{"id": 0}])


def test_without_metrics_the_limiter_does_what_it_did() -> None:
    output, plain = Limiter(ConcurrencyRange.parse("auto")), Limiter(ConcurrencyRange.parse("auto"))
    output.observe_server(ServerLoad(running=1, waiting=0, kv=0.1), -100.0)  # long ago
    for limiter in (output, plain):
        now = 0.0
        for _ in range(200):
            limiter.try_acquire()
            now += 0.01
            limiter.succeed(0.1, now)
    assert [change.limit for change in output.history] == [change.limit for change in plain.history]


@pytest.mark.parametrize("style", ["vllm", "sglang"])
async def test_auto_follows_the_metrics_of_a_real_endpoint(tmp_path: Path, style: str) -> None:
    write_tasks(tmp_path, 60)
    options = SimulateOptions(kv_tokens=2_000, kv_requests=6, kv_speed=12_000.0, metrics=style)
    async with SimulatedServer(options) as server:
        result = await collect(tmp_path, server, concurrency="auto")
    assert (result.exit_code, result.finished) == (Exit.DONE, 60)
    manifest = read_manifest(RunFiles(tmp_path / "run"))
    assert manifest is not None
    reasons = [change.reason for change in manifest.concurrency.history]
    assert any(reason.startswith("server: ") for reason in reasons), reasons
    assert any("follows the metrics of the server" in note for note in result.notes)


@pytest.mark.parametrize("seed", [101, 105, 106])
def test_short_answers_that_end_first_do_not_fill_the_cache_with_long_ones(seed: int) -> None:
    """For a minute only answers of 150 tokens have ended; those of 2,500 are still growing."""
    bimodal = next(shape for shape in SHAPES if shape.name == "bimodal")
    assert adaptive(bimodal, seed=seed).overshoot <= OVERSHOOT


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_throughput_is_near_the_best_fixed_limit_and_the_cache_is_seldom_full(shape: Shape) -> None:
    grid = tuple(limit for limit in GRID if limit in (40, 48, 64, 96, 112, 224, 256))
    for seed in (1, 4):  # the benchmark takes more
        found, best = adaptive(shape, seed=seed), best_fixed(shape, seed=seed, grid=grid)
        assert found.tokens_per_s >= SHARE * best.tokens_per_s, seed
        assert found.overshoot <= OVERSHOOT, seed
