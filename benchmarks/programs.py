"""Programs as agents: what the recording proxy costs per call beyond `endpoint`, and memory as rollouts grow.

The proxy's cost is the CPU time of the process that holds it, for calls that another process sends, less that of the same calls made
straight through `endpoint.Model`. Memory is the peak of the collecting process, with 32 programs at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.collect import fast_server, measure_part, prompt
from benchmarks.limits import Limit, show

AT_ONCE = 32

SENDER = """
import asyncio, sys, aiohttp

async def main(url, count, at_once, body):
    left = iter(range(count))
    async with aiohttp.ClientSession() as http:
        async def work():
            for number in left:
                data = body.replace("NUMBER", str(number)).encode()
                async with http.post(url, data=data, headers={"Content-Type": "application/json"}) as answer:
                    await answer.read()
                    assert answer.status == 200, answer.status
        await asyncio.gather(*(work() for _ in range(at_once)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
"""

PROGRAM = """
import json, os, urllib.request
for turn in range(3):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"turn {turn} " + "x" * 2000}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
"""


async def direct(url: str, count: int) -> dict[str, float]:
    """The calls through `endpoint.Model` alone."""
    from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions

    async with Client(ClientOptions(base_urls=(url,))) as client:
        model = Model(client, ModelOptions(name="m", api="chat"))
        left = iter(range(count))

        async def work() -> None:
            for number in left:
                await model.respond({"input": prompt(number)})

        begun = time.process_time()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return {"cpu_ms": (time.process_time() - begun) * 1000 / count}


async def proxied(url: str, count: int) -> dict[str, float]:
    """The same calls, sent by another process to the proxy and recorded."""
    from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
    from rollforge.proxy import ProgramSession, RecordingProxy
    from rollforge.store import DurableFile

    with tempfile.TemporaryDirectory() as folder:
        async with Client(ClientOptions(base_urls=(url,))) as client:
            model = Model(client, ModelOptions(name="m", api="chat"))
            proxy, journal = RecordingProxy(model), DurableFile(Path(folder) / "calls.jsonl")
            await proxy.start()
            await journal.start()
            session = ProgramSession(model=model, journal=journal, imposed={}, task=0, sample=0)
            proxy.add(session)
            body = json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": "NUMBER " + prompt(0)}]}
            )
            begun = time.process_time()
            words = (f"{proxy.url}/r/{session.secret}/v1/chat/completions", str(count), str(AT_ONCE), body)
            sender = await asyncio.create_subprocess_exec(sys.executable, "-c", SENDER, *words)
            code = await sender.wait()
            cpu = time.process_time() - begun
            await proxy.close()
            await journal.close()
        if code:
            raise SystemExit("the sender failed")
        return {"cpu_ms": cpu * 1000 / count}


async def programs(url: str, count: int) -> dict[str, float]:
    """Whole rollouts with a program each."""
    from rollforge.steps.collect import Collection
    from rollforge.steps.collect.collect_options import CollectOptions

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "agent.py").write_text(PROGRAM)
        (place / "tasks.jsonl").write_text(
            "".join(json.dumps({"prompt": f"task {n}"}) + "\n" for n in range(count))
        )
        begun = time.monotonic()
        result = await Collection(
            CollectOptions(
                input=str(place / "tasks.jsonl"),
                out=str(place / "run"),
                model="m",
                base_urls=(url,),
                no_verify=True,
                agent=f"program:{Path(sys.executable).resolve()} {place / 'agent.py'}",
                sandbox="off",
                concurrency=str(AT_ONCE),
            )
        ).run()
        seconds = time.monotonic() - begun
    if result.finished != count:
        raise SystemExit(f"only {result.finished} of {count} rollouts: {result.failed}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak_mb": peak, "per_s": count / seconds, "cpu_ms": time.process_time() * 1000 / count}


PARTS = {"direct": direct, "proxied": proxied, "programs": programs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rollouts", type=int, nargs=2, default=[50, 200])
    parser.add_argument("--part", nargs=3)
    options = parser.parse_args()
    if options.part:
        name, url, count = options.part
        print(json.dumps(asyncio.run(PARTS[name](url, int(count)))))
        return 0
    with fast_server() as url:
        alone = measure_part("programs", "direct", url, str(options.calls))
        through = measure_part("programs", "proxied", url, str(options.calls))
        few, many = (measure_part("programs", "programs", url, str(count)) for count in options.rollouts)
    beyond = through["cpu_ms"] - alone["cpu_ms"]
    print(
        f"endpoint alone {alone['cpu_ms']:.2f} ms CPU per call, through the proxy {through['cpu_ms']:.2f} ms"
    )
    for count, found in zip(options.rollouts, (few, many), strict=True):
        print(
            f"{count} program rollouts at {AT_ONCE} at once: {found['per_s']:.1f}/s, peak {found['peak_mb']:.0f} MB"
        )
    times = options.rollouts[1] / options.rollouts[0]
    is_met = show(
        [
            Limit("the proxy beyond endpoint, ms of CPU per call", beyond, 1.0),
            Limit(f"peak memory for {times:.0f} times the rollouts", many["peak_mb"] / few["peak_mb"], 1.1),
        ]
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
