"""Reports a running collection step by step: metrics to sinks, experiences to a buffer.

A step is `step_size` tasks in dispatch order; it is reported when its last task is settled. Steps are determined by task, so a
resumed run reports the missing steps, and repeats those that have grown, with the rollouts of all sessions; the numbers equal
those of an offline fold of the file. Reporting runs in a separate thread; if it falls behind, new work waits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.buffer import Buffer
from rollforge.experience import RowSource, experiences_from_row
from rollforge.experience.from_rollout import USAGE, row_metrics
from rollforge.index import open_index
from rollforge.json_shapes import OwnJson, RowJson
from rollforge.metrics.fold import StepFold
from rollforge.metrics.names import is_metric
from rollforge.operators.chain import Pipeline
from rollforge.records import OWN_KEY, ROLLOUT_KEY, TASK_KEY, Response, from_json
from rollforge.sinks.base import Sinks
from rollforge.sinks.jsonl import read_metrics
from rollforge.store import RunFiles
from rollforge.store.reading import read_row

logger = logging.getLogger(__name__)

MOST_BEHIND = 4
"""Most steps waiting to be reported; beyond that, new rollouts wait."""


class ExperienceStream(msgspec.Struct, kw_only=True):
    """Destination and pipeline for the experiences of each step."""

    pipeline: Pipeline
    buffer: Buffer | None
    source: RowSource
    """Facts that rows lack; the run's id is filled in at the start of the run."""


class _Step:
    """State of one step."""

    __slots__ = ("ends", "fold", "generated_s", "rows", "starts", "tokens", "unsettled")

    def __init__(self) -> None:
        self.fold = StepFold()
        self.unsettled = 0
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.generated_s = 0.0
        self.tokens = 0
        self.rows: list[RowJson] = []


class StepMonitor:
    """Observer that reports one collection."""

    def __init__(
        self, files: RunFiles, sinks: Sinks, *, step_size: int, stream: ExperienceStream | None = None
    ) -> None:
        self._files = files
        self._sinks = sinks
        self._size = step_size
        self._stream = stream
        self._run = ""
        self._steps: dict[int, _Step] = {}
        self._rank_by_task: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._reporter = ThreadPoolExecutor(1, thread_name_prefix="monitor")
        self._behind: list[Future[None]] = []
        self.failures = 0
        """Steps that could not be reported."""
        self._last_error = ""

    def begin(
        self, run: str, tasks: NDArray[np.int64], owed: NDArray[np.int64], given_up: NDArray[np.int64]
    ) -> None:
        """Assign tasks to steps, and queue steps that an earlier session left unreported."""
        self._run = run
        self._rank_by_task = np.full(int(tasks.max(initial=-1)) + 1, -1, dtype=np.int64)
        self._rank_by_task[tasks] = np.arange(len(tasks))
        for task in tasks[owed > 0].tolist():
            self._step(task).unsettled += 1
        failing = np.repeat(tasks, given_up).tolist()
        failed = Counter(self._number(task) for task in failing)
        rows_and_steps = self._rows_and_steps()
        finished = Counter(number for _, number in rows_and_steps)
        reported = {
            number
            for number, runs in reported_steps(self._files).items()
            if number not in self._steps and runs == (finished[number], failed[number])
        }
        reported -= self._absent_from_buffer(rows_and_steps, reported)
        for row in self._read([row for row, number in rows_and_steps if number not in reported]):
            self.finished(row)
        for task in failing:
            if self._number(task) not in reported:
                self.gave_up(task)
        for number in sorted(self._steps):
            if not self._steps[number].unsettled:
                self._report(number)

    def _absent_from_buffer(self, rows_and_steps: list[tuple[int, int]], reported: set[int]) -> set[int]:
        """Reported steps with rows none of which the buffer knows: reported without a buffer, or to another one."""
        if self._stream is None or self._stream.buffer is None or not reported:
            return set()
        numbers = [name.rpartition("/")[2] for name in self._stream.buffer.known_tasks(f"{self._run}/")]
        tasks = [int(number) for number in numbers if number.isdecimal()]
        held = {self._number(task) for task in tasks if self._is_known(task)}
        return {number for _, number in rows_and_steps if number in reported} - held

    def _rows_and_steps(self) -> list[tuple[int, int]]:
        """Location and step of every row on disk."""
        if not self._files.rollouts.exists() or not self._files.rollouts.stat().st_size:
            return []
        with open_index(self._files.rollouts) as index:
            table = index.table(["row", "task"])
        rows = zip(table.column("row").to_pylist(), table.column("task").to_pylist(), strict=True)
        return [(row, self._number(task)) for row, task in rows if self._is_known(task)]

    def _read(self, rows: list[int]) -> list[RowJson]:
        if not rows:
            return []
        with open_index(self._files.rollouts) as index:
            return [read_row(line) for line in index.read(rows)]

    def _is_known(self, task: int | None) -> bool:
        return task is not None and 0 <= task < len(self._rank_by_task) and self._rank_by_task[task] >= 0

    def _number(self, task: int) -> int:
        """The step of a task, from 1."""
        return int(self._rank_by_task[task]) // self._size + 1

    def _step(self, task: int) -> _Step:
        return self._steps.setdefault(self._number(task), _Step())

    def finished(self, row: RowJson) -> None:
        task = int(row[TASK_KEY])
        step = self._step(task)
        step.fold.add(task, rollout_metrics(row), order=row[ROLLOUT_KEY])
        own = row.get(OWN_KEY) or OwnJson()
        started, seconds = own.get("started"), own.get("seconds")
        if started is not None and seconds is not None:
            step.starts[task] = min(started, step.starts.get(task, math.inf))
            step.ends[task] = max(started + seconds, step.ends.get(task, -math.inf))
            tokens = Response(row.get("response") or {}).usage.get("output_tokens")
            if isinstance(tokens, int):
                step.generated_s += seconds
                step.tokens += tokens
        if self._stream is not None:
            step.rows.append(row)

    def gave_up(self, task: int) -> None:
        self._step(task).fold.add_failed(task)

    def settled(self, task: int) -> None:
        number = self._number(task)
        step = self._steps[number]
        step.unsettled -= 1
        if step.unsettled == 0:
            self._report(number)

    def _report(self, number: int) -> None:
        step = self._steps.pop(number)
        self._behind = [future for future in self._behind if not future.done()]
        report = self._reporter.submit(self._report_now, number, step)
        report.add_done_callback(functools.partial(self._reported, number))
        self._behind.append(report)

    def _report_now(self, number: int, step: _Step) -> None:
        """Report one step, in the thread of the reporter."""
        metrics = step_metrics(step)
        if self._stream is not None:
            metrics |= self._feed(self._stream, step)
        self._sinks.log(metrics, step=number)

    def _reported(self, number: int, report: Future[None]) -> None:
        """Count a step that could not be reported. An error in an operator or the buffer does not end the collection: the next
        session reports the step.
        """
        error = report.exception()
        if error is None:
            return
        self.failures += 1
        self._last_error = f"{type(error).__name__}: {error}"
        if self.failures == 1:
            logger.warning(
                "step %d could not be reported: %s (said once; resume the run to report it)",
                number,
                self._last_error,
            )

    def _feed(self, stream: ExperienceStream, step: _Step) -> dict[str, float]:
        rows = sorted(step.rows, key=lambda row: (row[TASK_KEY], row[ROLLOUT_KEY]))
        source = msgspec.structs.replace(stream.source, run=self._run)
        made = [experience for row in rows for experience in experiences_from_row(_plain(row), source)]
        kept_experiences, metrics = stream.pipeline.run(made)
        if stream.buffer is not None:
            stream.buffer.append(kept_experiences)
        return metrics

    async def room(self) -> None:
        while sum(not future.done() for future in self._behind) >= MOST_BEHIND:
            await asyncio.wait([asyncio.wrap_future(self._behind[0])])
            self._behind = [future for future in self._behind if not future.done()]

    def shortfall(self) -> str:
        """Number of steps that did not reach the buffer; metrics lost by a sink only cause a warning."""
        if not self.failures or self._stream is None or self._stream.buffer is None:
            return ""
        steps = "1 step" if self.failures == 1 else f"{self.failures:,} steps"
        return (
            f"{steps} did not reach the buffer ({self._last_error}); run the same command again to bring them"
        )

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._reporter.shutdown)


def _plain(row: RowJson) -> RowJson:
    """The row as if read from disk, with parts that the writer kept encoded decoded."""
    plain = {key: from_json(value) if isinstance(value, msgspec.Raw) else value for key, value in row.items()}
    return cast("RowJson", plain)


def reported_steps(files: RunFiles) -> dict[int, tuple[int, int]]:
    """Step → finished and failed runs at its last report, from the run's metrics file; a step that has grown is reported again."""
    if not files.metrics.exists():
        return {}
    finished, failed = "rollout/finished_run_count", "rollout/failed_run_count"
    return {
        line["step"]: (int(line["metrics"][finished]), int(line["metrics"][failed]))
        for line in read_metrics(files.metrics)
        if finished in line["metrics"]
    }


def rollout_metrics(row: RowJson) -> dict[str, object]:
    """The numbers of one rollout: verdict, usage, durations, and how the answer ended."""
    response = Response(row.get("response") or {})
    own = row.get(OWN_KEY) or OwnJson()
    numbers: dict[str, object] = {
        metric: value for metric, value in row_metrics(row).items() if is_metric(metric)
    }
    numbers["reward"] = row.get("reward")
    numbers |= {name: response.usage.get(name) for name in USAGE}
    numbers |= {"time/run_execution": own.get("seconds"), "time/verify": own.get("verify_seconds")}
    numbers |= {"is_truncated": response.is_truncated, "is_empty": response.is_empty}
    return numbers


def step_metrics(step: _Step) -> dict[str, float]:
    """`rollout/*`, and the step's own durations."""
    metrics = step.fold.metrics("rollout")
    spans = [step.ends[task] - start for task, start in step.starts.items()]
    metrics |= _spread("rollout/time/task_execution", spans)
    if spans:
        metrics["time/wait_explore_step"] = max(step.ends.values()) - min(step.starts.values())
    if step.tokens:
        metrics["timing_per_token_ms/rollout"] = 1000.0 * step.generated_s / step.tokens
    return metrics


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    numbers = list(values)
    reducers: dict[str, Callable[[list[float]], float]] = {
        "mean": lambda v: math.fsum(v) / len(v),
        "max": max,
        "min": min,
    }
    return {f"{name}/{how}": reduce(numbers) for how, reduce in reducers.items()} if numbers else {}
