"""`evaluate` and `bench` as coroutines, for sync and async callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from rollforge.assembly.evaluations import (
    ChosenVerifier,
    Contestant,
    EvalSettings,
    bench_record,
    choose_verifier,
    collect_options,
    curve_so_far,
    evaluation_record,
    fold_options,
    join,
    parse_contestants,
    refuse_empty,
    refuse_reserved_name,
    safe_folder,
    write_record,
)
from rollforge.assembly.monitoring import SinkChoice, start_sinks
from rollforge.errors import UsageError
from rollforge.interactive.evaluated import Benched, Evaluated
from rollforge.interactive.in_memory import write_tasks
from rollforge.interactive.keyword_values import texts_of
from rollforge.interactive.option_records import SAMPLING, field_types, resolve, take_record, take_sampling
from rollforge.interactive.outcome import RunOutcome
from rollforge.interactive.progress import Progress
from rollforge.interactive.running import collection_work
from rollforge.interactive.waiting import WaitingWork
from rollforge.steps.collect import CollectOptions, CollectResult
from rollforge.steps.collect.collect_options import DatasetOptions
from rollforge.steps.evaluation import (
    Evaluation,
    JoinedTasksets,
    Taskset,
    check_metric,
    compare,
    evaluate_run,
    judge_claims,
    parse_claims,
    parse_taskset,
)
from rollforge.store import RunFiles, write_atomically

RunT = TypeVar("RunT")


class Evaluating(Generic[RunT]):
    """Shared by `evaluate` and `bench`: task sets, verifier, and the options of every collection."""

    def __init__(
        self,
        tasks: Any,
        out: str | Path | None,
        base_url: str | Sequence[str],
        verifier: Any,
        fresh: bool,
        progress: Progress,
        options: Mapping[str, Any],
        open_run: Callable[..., RunT],
        *,
        function: str | None = None,
    ) -> None:
        keywords = resolve("evaluate", options, function=function)
        sampling = {name: keywords.pop(name) for name in SAMPLING if name in keywords}
        own = {name: keywords.pop(name) for name in field_types(EvalSettings) if name in keywords}
        self._settings = EvalSettings(**own, verifier=_verifier_words(verifier))
        if self._settings.limit is not None and self._settings.limit < 1:
            raise UsageError(
                f"{function or 'evaluate'}: limit must be at least 1, not {self._settings.limit}",
                hint="n=100",
            )
        self._function = verifier if callable(verifier) else None
        self._sinks = take_record(keywords, SinkChoice)
        self._dataset = take_record(keywords, DatasetOptions)
        self._asked = {
            **keywords,
            **sampling,
            "base_urls": texts_of(base_url, name="base_url", command=function or "evaluate"),
        }
        take_sampling(self._asked)
        self._tasks, self._out, self._fresh, self._progress = tasks, out, fresh, progress
        self._open_run = open_run
        self._running: WaitingWork[CollectResult] | None = None
        self._is_stopped = False

    def one(self, model: str, step: int) -> WaitingWork[Evaluated[RunT]]:
        """Evaluate one model."""
        folder = Path(self._out or f"runs/eval-{safe_folder(model)}")

        async def run() -> Evaluated[RunT]:
            files = RunFiles(folder)
            curve = curve_so_far(files, step)
            joined = self._join(folder, "eval", [folder])
            options = collect_options(
                joined,
                self._verifier(joined),
                folder,
                folder,
                model,
                self._settings,
                self._asked,
                fresh=self._fresh or curve is not None,
                step=step or None,
            )
            done = await self._evaluate(options, joined, "eval", step, model, curve)
            record = evaluation_record(done.evaluation) | {"model": model, "step": step}
            write_record(files.evaluation, record | {"exit_code": int(done.outcome.exit_code)})
            return done

        return self._work(run)

    def several(
        self, models: Sequence[str] | Mapping[str, str], metric: str, require: Sequence[str]
    ) -> WaitingWork[Benched[RunT]]:
        """Benchmark several models in sequence."""
        words = (
            [f"{label}={model}" for label, model in models.items()] if isinstance(models, Mapping) else models
        )
        contestants = parse_contestants([words] if isinstance(words, str) else list(words))
        if not contestants:
            raise UsageError("bench: no models", hint='models={"base": "qwen", "trained": "qwen-rl"}')
        wanted = [require] if isinstance(require, str) else list(require)
        claims = parse_claims(wanted, [one.label for one in contestants])
        folder = Path(self._out or "runs/bench")

        async def run() -> Benched[RunT]:
            joined = self._join(folder, "bench", [folder / safe_folder(one.label) for one in contestants])
            verifier = self._verifier(joined)
            evaluated: dict[str, Evaluated[RunT]] = {}
            for one in contestants:
                options = self._options_of(one, folder, joined, verifier)
                evaluated[one.label] = await self._evaluate(options, joined, "bench", one.step, one.label)
                if len(evaluated) == 1:
                    check_metric([evaluated[one.label].evaluation], metric)
                if self._is_stopped:
                    break
            results = {label: one.evaluation for label, one in evaluated.items()}
            differences = compare(results, metric) if len(results) > 1 else []
            judged = judge_claims(claims, results, metric) if len(results) == len(contestants) else []
            done = Benched(evaluated, differences, judged)
            record = bench_record([one for one in contestants if one.label in results], results) | {
                "differences": msgspec.to_builtins(differences),
                "required": msgspec.to_builtins(judged),
                "exit_code": int(done.outcome.exit_code),
            }
            write_record(folder / "bench.json", record)
            return done

        return self._work(run)

    def _options_of(
        self, one: Contestant, folder: Path, joined: JoinedTasksets, verifier: ChosenVerifier
    ) -> CollectOptions:
        server_fields = self._asked | ({"base_urls": (one.url,)} if one.url else {})
        run = folder / safe_folder(one.label)
        return collect_options(
            joined, verifier, folder, run, one.model, self._settings, server_fields, fresh=self._fresh
        )

    def _join(self, folder: Path, category: Literal["eval", "bench"], runs: Sequence[Path]) -> JoinedTasksets:
        tasksets = _tasksets(self._tasks, folder, self._settings.limit)
        if category == "bench":
            refuse_reserved_name(tasksets)
        return join(tasksets, self._settings, self._dataset, folder, runs=() if self._fresh else runs)

    def _verifier(self, joined: JoinedTasksets) -> ChosenVerifier:
        if self._function is not None:
            return ChosenVerifier(self._function, dict(self._settings.verifier_set))
        return choose_verifier(self._settings, joined)

    async def _evaluate(
        self,
        options: CollectOptions,
        joined: JoinedTasksets,
        category: Literal["eval", "bench"],
        step: int,
        label: str,
        curve: bytes | None = None,
    ) -> Evaluated[RunT]:
        """Collect one model's run and fold it; its metrics are logged beside it."""
        started = time.monotonic()
        self._running = collection_work(options, self._progress, label)
        result = await self._running.start()
        refuse_empty(result)
        evaluation: Evaluation = evaluate_run(options.out, fold_options(self._settings, joined, category))
        evaluation.metrics[f"time/{category}"] = time.monotonic() - started
        files = RunFiles(options.out)
        if curve and not self._fresh and not files.metrics.exists():
            write_atomically(files.metrics, curve)
        with start_sinks(self._sinks, files, options.to_config()) as sinks:
            sinks.log(evaluation.metrics, step=step)
        return Evaluated(evaluation, self._open_run(options.out, result=result), RunOutcome.of_result(result))

    def _work(self, run: Callable[[], Coroutine[Any, Any, Any]]) -> WaitingWork[Any]:
        def drain() -> None:
            self._is_stopped = True
            if self._running is not None:
                self._running.drain()

        def abort() -> None:
            self._is_stopped = True
            if self._running is not None:
                self._running.abort()

        def show() -> None:
            if self._running is not None:
                self._running.show()

        return WaitingWork(run, drain=drain, abort=abort, show=show)


def _verifier_words(verifier: Any) -> list[str]:
    """A verifier as text for --verifier; None for a function."""
    if verifier is None or callable(verifier):
        return []
    if isinstance(verifier, Mapping):
        return [f"{taskset}={name}" for taskset, name in verifier.items()]
    return [verifier] if isinstance(verifier, str) else list(verifier)


def _tasksets(tasks: Any, folder: Path, limit: int | None) -> list[Taskset]:
    """Named task sets: from paths, `NAME=PATH` texts, a mapping, or in-memory tasks."""
    if isinstance(tasks, Mapping):
        return [_taskset(str(name), source, folder, limit) for name, source in tasks.items()]
    if isinstance(tasks, list | tuple) and tasks and all(isinstance(one, str | Path) for one in tasks):
        return [parse_taskset(str(one)) for one in tasks]
    if isinstance(tasks, str | Path):
        return [parse_taskset(str(tasks))]
    return [_taskset("tasks", tasks, folder, limit)]


def _taskset(name: str, source: Any, folder: Path, limit: int | None) -> Taskset:
    if isinstance(source, str | Path):
        return parse_taskset(f"{name}={source}")
    named = parse_taskset(f"{name}=memory")
    path = write_tasks(source, folder / f"{safe_folder(named.name)}_input.jsonl", limit=limit)
    return msgspec.structs.replace(named, path=str(path))
