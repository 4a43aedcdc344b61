"""Metric flags → sinks, and the observer to which `collect` reports its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from rollforge.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rollforge.records import JsonFields
    from rollforge.sinks.base import Sinks
    from rollforge.steps.monitor import ExperienceStream, StepMonitor
    from rollforge.store import RunFiles

_METRICS = Group("Metrics", sort_key=5)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SinkFlags:
    """Where metrics go."""

    sink: Annotated[list[str], Parameter(negative=(), group=_METRICS)] = field(default_factory=list)
    """jsonl (default), console, tensorboard, wandb, mlflow, prometheus or otel; NAME=TARGET; repeatable."""
    metric_names: Annotated[str, Parameter(group=_METRICS)] = "rollforge"
    """Naming scheme of the metrics: rollforge, trinity-0.6 or verl."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MonitorFlags(SinkFlags):
    """What is reported while a run is collected."""

    step_size: Annotated[int | None, Parameter(group=_METRICS)] = None
    """Tasks per step: report rollout/ and time/ metrics after each step."""
    pipeline: Annotated[str | None, Parameter(group=_METRICS)] = None
    """TOML file of operators to apply to the experiences of each step before --buffer."""
    buffer: Annotated[str | None, Parameter(group=_METRICS)] = None
    """Append the experiences of each step to the buffer at this path or postgresql:// URL."""
    model_version: Annotated[int | None, Parameter(group=_METRICS)] = None
    """Version of the policy, recorded on every experience."""


def start_sinks(flags: SinkFlags, files: RunFiles, config: JsonFields) -> Sinks:
    """The sinks asked for, started; one that cannot start stops the command here.

    The run's own metrics file is always kept: it tells a resumed run which steps are reported.
    """
    from rollforge.sinks.base import SinkOptions, open_sinks

    options = SinkOptions(
        directory=files.rollouts.parent, metrics_file=files.metrics, run=_run_name(files), config=config
    )
    return open_sinks(["jsonl", *flags.sink], options, profile=flags.metric_names)


def _run_name(files: RunFiles) -> str:
    return files.rollouts.absolute().parent.name


def open_monitor(
    flags: MonitorFlags, out: str, config: JsonFields
) -> AbstractContextManager[StepMonitor | None]:
    """Open the observer that these flags ask for, or None; leaving the context closes its sinks and buffer."""
    from contextlib import contextmanager

    wants_stream = flags.pipeline is not None or flags.buffer is not None
    if flags.step_size is None and (flags.sink or wants_stream):
        raise UsageError(
            "--sink, --pipeline and --buffer work step by step",
            hint="say how many tasks a step has: --step-size 64",
        )
    refuse_password(flags.buffer)
    if flags.step_size is not None and flags.step_size < 1:
        raise UsageError(f"--step-size must be at least 1, not {flags.step_size}")

    @contextmanager
    def opened() -> Iterator[StepMonitor | None]:
        if flags.step_size is None:
            yield None
            return
        from rollforge.steps.monitor import StepMonitor
        from rollforge.store import RunFiles

        files = RunFiles(out)
        stream = _open_stream(flags) if wants_stream else None
        try:
            with start_sinks(flags, files, config) as sinks:
                yield StepMonitor(files, sinks, step_size=flags.step_size, stream=stream)
        finally:
            if stream is not None and stream.buffer is not None:
                stream.buffer.close()

    return opened()


def refuse_password(url: str | None) -> None:
    """Refuse a password on the command line: it would reach the run's manifest and shell histories."""
    from urllib.parse import parse_qsl, urlsplit

    if url is None or "://" not in url:
        return
    parts = urlsplit(url)
    if parts.password or any(key == "password" for key, _ in parse_qsl(parts.query)):
        raise UsageError(
            "--buffer: the URL holds a password, which would be written into the run's files",
            hint="leave it out and set PGPASSWORD, or use ~/.pgpass",
        )


def _open_stream(flags: MonitorFlags) -> ExperienceStream:
    from rollforge.buffer import open_buffer
    from rollforge.experience import RowSource
    from rollforge.operators.chain import Pipeline, read_pipeline
    from rollforge.steps.monitor import ExperienceStream

    return ExperienceStream(
        pipeline=read_pipeline(flags.pipeline) if flags.pipeline else Pipeline([]),
        buffer=open_buffer(flags.buffer) if flags.buffer else None,
        source=RowSource(model_version=flags.model_version),
    )
