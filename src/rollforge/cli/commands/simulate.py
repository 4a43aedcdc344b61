"""`rollforge simulate`: the embedded model as a server, and its example tasks as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.converters import PORT, within
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.simulate.service import Stats
    from rollforge.simulate.simulate_options import SimulateOptions

EXAMPLE = "rollforge simulate --port 8000 --latency 0.2 --fault 500=0.05"

COMMON = ("--port", "--host", "--seed", "--write-tasks", "--limit", "--kind", "--model", "--skill", "--answer-tokens", "--latency",
    "--capacity", "--rate-limit", "--fault")  # fmt: skip
"""Flags that `-h` shows."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Answering:
    """Flags for the answers of the simulated model."""

    seed: int = 0
    """Another seed gives other answers (and, with --write-tasks, other tasks)."""
    model: Annotated[tuple[str, ...], Parameter(name=("--model", "-m"), negative=(), show_default=False)] = ()
    """Model name to serve; repeatable. By default `simulated`, and every name is accepted."""
    strict_model: bool | None = None
    """Answer 404 for other model names; the default when --model is given."""
    api_key_env: Annotated[str | None, Parameter(name=("--api-key-env", "--api-key"))] = None
    """Name of the environment variable with the key that requests must send."""
    skill: Annotated[float, within(0, 1)] = 0.5
    """Share of the example tasks it tends to solve, 0 to 1."""
    answer_tokens: Annotated[float, within(1)] = 60.0
    """Median length of an answer in tokens."""
    context_tokens: Annotated[int, within(1)] = 131_072
    """Context length in tokens; a longer prompt and answer get 400."""
    dialect: Literal["openai", "llama.cpp", "transformers-serve", "vllm"] = "openai"
    """Imitate the habits of a real server."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Serving:
    """Flags for speed, limits and faults of the simulated server."""

    latency: Annotated[float, within(0)] = 0.0
    """Median seconds until an answer."""
    latency_spread: Annotated[float, within(0)] = 0.3
    """Spread of the latency: standard deviation of its logarithm."""
    tokens_per_second: Annotated[float, within(0)] = 0.0
    """Answers take as long as their tokens at this speed; 0 = off."""
    capacity: Annotated[int, within(0)] = 0
    """Requests served at once, others queue; 0 = no bound."""
    rate_limit: Annotated[float, within(0)] = 0.0
    """Requests per second beyond which it answers 429; 0 = no bound."""
    rpm: Annotated[float, within(0)] = 0.0
    """Requests a minute for each key, enforced with 429 and announced in rate-limit headers; 0 = no bound."""
    tpm: Annotated[float, within(0)] = 0.0
    """Tokens a minute for each key, likewise; 0 = no bound."""
    rate_headers: Literal["openai", "anthropic", "none"] = "openai"
    """Whose headers tell the limits of --rpm and --tpm."""
    kv_tokens: Annotated[int, within(0)] = 0
    """Tokens of a KV cache that running requests share, with queue, preemption and /metrics; 0 = no such model."""
    kv_requests: Annotated[int, within(1)] = 256
    """With --kv-tokens: requests that run at once; others queue."""
    kv_speed: Annotated[float, within(1)] = 4000.0
    """With --kv-tokens: tokens a second that very many requests generate together."""
    metrics: Literal["vllm", "sglang"] = "vllm"
    """With --kv-tokens: whose names /metrics uses."""
    fault: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """KIND=RATE[,option=value…], repeatable. Kinds: 429, 500, 502, 503, 504, hang, drip, torn, error-event, content-type, reset, down, empty, truncated, refusal, filtered, overflow, wrong-model, absurd-numbers, endless, large-body, gzip-bomb, headers, nested, bad-utf8, redirect, echo-headers; for batches batch-delay, batch-partial, batch-expired, batch-error, batch-lost, batch-lost-upload, batch-failed."""  # noqa: E501  (help keeps the line breaks of a field's docstring)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Flags for writing example tasks."""

    write_tasks: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None
    """Write example tasks to this file (`-` for stdout) and exit."""
    limit: Annotated[int, Parameter(name=("--limit", "-n")), within(1)] = 200
    """How many example tasks."""
    kind: Literal["math", "mcqa", "tools", "mixed"] = "math"
    """Which example tasks."""


def simulate(
    *,
    port: Annotated[int, PORT] = 8000,
    host: str = "127.0.0.1",
    answering: Answering = Answering(),  # noqa: B008  (frozen)
    serving: Serving = Serving(),  # noqa: B008  (frozen)
    tasks: Tasks = Tasks(),  # noqa: B008  (frozen)
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Serve a simulated, seeded, OpenAI-compatible model on loopback; no key, no GPU.

    Parameters
    ----------
    port
        Where to listen; 0 takes any free port.
    host
        A loopback address.
    json
        Print the start record, and at the end the stats, as one line of JSON each on stdout.
    """
    if tasks.write_tasks is not None:
        return _write_tasks(tasks, answering.seed, json)
    return _serve(_options(port, host, answering, serving), json)


def _options(port: int, host: str, answering: Answering, serving: Serving) -> SimulateOptions:
    import os

    from rollforge.simulate.simulate_options import SimulateOptions

    key = os.environ.get(answering.api_key_env, "") if answering.api_key_env else None
    if key == "":
        name = answering.api_key_env
        raise UsageError(f"the environment variable {name} is not set", hint=f"export {name}=some-key")
    return SimulateOptions(
        host=host,
        port=port,
        seed=answering.seed,
        models=answering.model,
        strict_model=answering.strict_model,
        api_key=key,
        skill=answering.skill,
        answer_tokens=answering.answer_tokens,
        context_tokens=answering.context_tokens,
        dialect=answering.dialect,
        latency=serving.latency,
        latency_spread=serving.latency_spread,
        tokens_per_second=serving.tokens_per_second,
        capacity=serving.capacity,
        rate_limit=serving.rate_limit,
        rpm=serving.rpm,
        tpm=serving.tpm,
        rate_headers=serving.rate_headers,
        kv_tokens=serving.kv_tokens,
        kv_requests=serving.kv_requests,
        kv_speed=serving.kv_speed,
        metrics=serving.metrics,
        faults=serving.fault,
    )


JUDGED_BY = {
    "math": "--verifier exact",
    "mcqa": "--verifier mcqa",
    "tools": "--tools multineedle --verifier multineedle",
    "mixed": "--tools multineedle --verifier exact",
}
"""`collect` options that judge each kind of example task."""


def _write_tasks(tasks: Tasks, seed: int, json: bool) -> Exit:
    import sys

    from rollforge.records import to_json
    from rollforge.simulate.tasks import example_tasks
    from rollforge.store.outputs import refuse_output

    path = tasks.write_tasks
    lines = (to_json(row) + b"\n" for row in example_tasks(tasks.limit, seed, tasks.kind))
    if str(path) == "-" or path is None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        return Exit.DONE
    refuse_output(path, flag="--write-tasks")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(lines)
    if json:
        print_json({"path": str(path), "rows": tasks.limit, "kind": tasks.kind, "seed": seed})
    else:
        say(f"wrote {tasks.limit} example tasks ({tasks.kind}, seed {seed}) to {path}")
        say(f"  next: rollforge collect -i {path} -o runs/example -m simulated {JUDGED_BY[tasks.kind]} -k 8")
    return Exit.DONE


def _serve(options: SimulateOptions, json: bool) -> Exit:
    import os

    from rollforge.simulate.simulated_server import SimulatedServer, run_quickly

    server = SimulatedServer(options)

    async def serve() -> None:
        async with server:
            name = options.served_models[0]
            if json:
                record = {"simulated": True, "base_url": server.base_url, "models": options.served_models}
                _print_line({**record, "pid": os.getpid(), "seed": options.seed, "faults": options.faults})
            else:
                say(f"simulated model {name!r} at {server.base_url} (not a language model; Ctrl-C ends it)")
                say(f"  try: {_collect_line(server.base_url, name)}")
            await _until_told_to_stop()

    run_quickly(serve())
    _report(server.stats, json)
    return Exit.DONE


async def _until_told_to_stop() -> None:
    import asyncio
    import contextlib
    import signal

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _collect_line(base_url: str, name: str) -> str:
    tasks = "rollforge simulate --write-tasks tasks.jsonl"
    collect = "rollforge collect -i tasks.jsonl -o runs/example"
    return f"{tasks} && {collect} -m {name} --base-url {base_url} --verifier exact -k 8"


def _report(stats: Stats, json: bool) -> None:
    if json:
        _print_line(stats)
        return
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(stats.by_status.items())) or "none"
    faults = ", ".join(f"{count} × {kind}" for kind, count in sorted(stats.faults.items())) or "none"
    say(f"served {stats.requests} model requests (replies: {statuses}; faults: {faults})")
    say(
        f"  at most {stats.peak_in_flight} in flight, "
        f"{stats.input_tokens} tokens in, {stats.output_tokens} out, all simulated"
    )


def _print_line(record: object) -> None:
    """Write one flushed JSON line: a script reads the first one while the server runs."""
    import sys

    from rollforge.records import to_json

    sys.stdout.buffer.write(to_json(record) + b"\n")
    sys.stdout.buffer.flush()
