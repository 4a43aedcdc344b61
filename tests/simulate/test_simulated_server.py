"""The server around the model: capacity, rate limit, latency, a child process, loopback only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from rollforge.errors import UsageError
from rollforge.records import from_json, to_json
from rollforge.simulate import SimulatedProcess, SimulatedServer, SimulateOptions
from rollforge.simulate.service import Service
from rollforge.simulate.wire import HttpRequest as WireRequest
from tests.simulate.simulated_client import ask

QUESTION = "What is 47 × 83 + 12?"


async def test_requests_beyond_the_capacity_queue():
    async with SimulatedServer(SimulateOptions(capacity=2, latency=0.05, latency_spread=0)) as server:
        started = asyncio.get_running_loop().time()
        raws = await asyncio.gather(*(ask(server, QUESTION, sample) for sample in range(8)))
        seconds = asyncio.get_running_loop().time() - started
    assert [raw.status for raw in raws] == [200] * 8
    assert server.stats.peak_in_flight == 8
    assert seconds >= 4 * 0.05  # four rounds of two; nothing is said about an upper bound


async def test_a_client_that_leaves_frees_its_place():
    async with SimulatedServer(SimulateOptions(capacity=1, faults=("hang=interval,length=0.2",))) as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(server, QUESTION), 0.3)
        assert (await asyncio.wait_for(ask(server, QUESTION), 10)).status == 200
    assert server.stats.abandoned == 1


def test_requests_beyond_the_rate_limit_are_told_to_wait():
    moments = iter([0.0, *[0.0] * 14, *[0.5] * 10])
    last = 0.0

    def clock() -> float:
        nonlocal last
        last = next(moments, last)
        return last

    service = Service(SimulateOptions(rate_limit=4), clock)
    request = WireRequest("POST", "/v1/responses", {}, b'{"model":"m","input":"hi"}')
    replies = [service.outcome(request).reply for _ in range(8)]
    assert [reply.status for reply in replies[:4]] == [200] * 4
    assert 429 in {reply.status for reply in replies}
    assert all(("Retry-After", "1") in reply.headers for reply in replies if reply.status == 429)


def test_latency_is_spread_around_its_median_and_grows_with_the_answer():
    request = WireRequest("POST", "/v1/responses", {}, to_json({"model": "m", "input": QUESTION}))
    service = Service(SimulateOptions(latency=0.2, latency_spread=0.5))
    delays = sorted(service.outcome(request).delay for _ in range(400))
    assert 0.17 < delays[200] < 0.23
    assert delays[20] < 0.12 and delays[380] > 0.35
    slow = Service(SimulateOptions(tokens_per_second=100)).outcome(request)
    assert slow.delay == from_json(slow.reply.body)["usage"]["output_tokens"] / 100


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "example.org"])
def test_only_loopback_is_served(host):
    with pytest.raises(UsageError, match="loopback only"):
        SimulatedServer(SimulateOptions(host=host))


async def test_localhost_is_one_address():
    async with SimulatedServer(SimulateOptions(host="localhost", latency=0.001)) as server:
        assert (await ask(server, QUESTION)).status == 200
    assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
    assert server.stats.by_status == {"200": 1}


@pytest.mark.parametrize("options", [{"skill": 2}, {"latency": -1}, {"faults": ("hnag=1",)}])
def test_options_that_cannot_work_are_refused_before_a_child_is_started(options):
    with pytest.raises(UsageError):
        SimulatedProcess(SimulateOptions(**options))


async def test_a_taken_port_is_named():
    async with SimulatedServer() as server:
        with pytest.raises(UsageError, match=str(server.port)):
            await SimulatedServer(SimulateOptions(port=server.port)).start()


def test_the_child_process_serves_and_ends_with_its_context():
    with SimulatedProcess(SimulateOptions(seed=2)) as server:
        pid = server.pid
        data = to_json({"model": "simulated", "input": QUESTION, "seed": 1})
        with urlopen(Request(f"{server.base_url}/responses", data)) as reply:
            first = from_json(reply.read())["output"]
    assert first and pid and not is_alive(pid)


def test_the_child_process_dies_with_its_parent():
    code = (
        "import os, sys\n"
        "from rollforge.simulate import SimulatedProcess\n"
        "server = SimulatedProcess().start()\n"
        "sys.stdout.write(f'{server.pid}\\n'); sys.stdout.flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    pid = int(parent.stdout)
    for _ in range(200):
        if not is_alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError("the child outlived its parent")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A dead process may stay in the table until its foster parent looks at it.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()
