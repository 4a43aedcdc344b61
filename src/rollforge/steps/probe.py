"""Probes a verifier with the tasks and responses of a run, or with a task file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonObject, Response, Task, has_field, to_json
from rollforge.rollouts import RolloutReader, TaskFields
from rollforge.store import RunFiles, write_atomically
from rollforge.store.lock import is_held
from rollforge.store.reading import read_json
from rollforge.verifiers.base import Mode, VerifierFunction, load_verifier
from rollforge.verifiers.probes import Prober, ProbeReport
from rollforge.verifiers.running.ready_verifier import Workers, make_judge

AT_ONCE = 32


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Verifier and source of the tasks of a probe."""

    verifier: str | VerifierFunction
    run: str | Path | None = None
    input: str | Path | None = None
    """A task file; with a run, the source of the tasks' fields."""
    options: JsonObject = {}
    mode: Mode | None = None
    limit: int = 200
    """Tasks to ask about, spread over the file."""
    workers: Workers = "auto"
    timeout: float = 60.0
    memory_mb: int = 4096


async def probe(options: ProbeOptions) -> ProbeReport:
    """Run the probe questions."""
    verifier = load_verifier(options.verifier, options.options, options.mode)
    if verifier.is_group:
        raise UsageError(
            f"{verifier.name} scores samples of a task against each other; probes ask about single answers",
            hint="look at its verdicts instead: rollforge show RUN",
        )
    material = list(_from_run(options) if options.run is not None else _from_tasks(options))
    if not material:
        raise UsageError("there is no task to ask about", hint="give a run or a task file with rows")
    missing = [need for need in verifier.needs if not has_field(material[0][0], need)]
    if missing:
        raise UsageError(
            f"the tasks have no field {missing[0]!r}, which {verifier.name} needs",
            hint="give the task file that has it: --input FILE",
        )
    judge = make_judge(
        verifier, workers=options.workers, timeout=options.timeout, memory_mb=options.memory_mb
    )
    await judge.start()
    try:
        prober = Prober(judge)
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(task: Task, response: Response | None) -> None:
            async with slots:
                await prober.ask(task, response)

        await asyncio.gather(*(ask(task, response) for task, response in material))
    finally:
        await judge.close()
    report = prober.report()
    if options.run is not None:
        _keep(RunFiles(options.run), report)
    return report


def _keep(files: RunFiles, report: ProbeReport) -> None:
    """Record the outcome in the run's manifest for `check`; a run in progress records its own probes."""
    if not files.manifest.exists() or is_held(files.lock):
        return
    manifest = read_json(files.manifest)
    if isinstance(manifest, dict):
        extra = manifest.get("extra")
        manifest["extra"] = {**(extra if isinstance(extra, dict) else {}), "probe": report.facts()}
        write_atomically(files.manifest, msgspec.json.format(to_json(manifest), indent=2) + b"\n")


def _from_tasks(options: ProbeOptions) -> Iterator[tuple[Task, Response | None]]:
    """Tasks spread evenly over the file."""
    with TaskFields(RunFiles(str(options.input)), options.input) as tasks:
        for index in spread(tasks.indices(), options.limit):
            task = tasks.get(index)
            if task is not None:
                yield task, None


def _from_run(options: ProbeOptions) -> Iterator[tuple[Task, Response | None]]:
    """Tasks spread evenly over the run, each with its first non-empty response."""
    files = RunFiles(options.run or "")
    if not files.rollouts.exists() and not files.is_sharded:
        raise UsageError(f"{files.rollouts}: no such run", hint="give a run: a rollouts file, or its folder")
    seen = dict.fromkeys(rollout.task for rollout in RolloutReader(files.rollouts, files))
    wanted = set(spread(sorted(seen), options.limit))
    with TaskFields(files, options.input) as tasks:
        for rollout in RolloutReader(files.rollouts, files):
            if rollout.task in wanted and not rollout.response.is_empty:
                wanted.remove(rollout.task)
                yield tasks.of(rollout), rollout.response


def spread(items: list[int], count: int) -> list[int]:
    """At most `count` of the items, evenly spaced."""
    if len(items) <= count:
        return items
    return [items[position * len(items) // count] for position in range(count)]
