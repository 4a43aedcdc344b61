"""Opens the metric sinks that the options name, and the observer to which a collection reports its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from rollforge.errors import UsageError
from rollforge.unread_options import refuse_unread

if TYPE_CHECKING:
    from rollforge.records import JsonFields
    from rollforge.sinks.base import Sinks
    from rollforge.steps.monitor import ExperienceStream, StepMonitor
    from rollforge.store import RunFiles


@dataclass(frozen=True, kw_only=True)
class SinkChoice:
    """Where metrics are written."""

    sink: tuple[str, ...] = ()
    """jsonl (default), console, tensorboard, wandb, mlflow, prometheus or otel; NAME=TARGET; repeatable."""
    metric_names: str = "rollforge"
    """Naming scheme of the metrics: rollforge, trinity-0.6 or verl."""


@dataclass(frozen=True, kw_only=True)
class MonitorChoice(SinkChoice):
    """What is reported during a collection."""

    step_size: int | None = None
    """Tasks per step: report rollout/ and time/ metrics after each step."""
    pipeline: str | None = None
    """TOML file of operators to apply to the experiences of each step before --buffer."""
    buffer: str | None = None
    """Append the experiences of each step to the buffer at this path or postgresql:// URL."""
    model_version: int | None = None
    """Version of the policy, recorded on every experience."""

    @property
    def has_stream(self) -> bool:
        """Whether experiences are made from each step."""
        return self.pipeline is not None or self.buffer is not None

    def check(self) -> None:
        """Refuse impossible combinations before anything is written."""
        usual = MonitorChoice()
        values = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        changed = [name for name, value in vars(self).items() if value != getattr(usual, name)]
        refuse_unread("collect", [f"--{name.replace('_', '-')}" for name in changed], values)
        refuse_password(self.buffer)
        if self.step_size is not None and self.step_size < 1:
            raise UsageError(
                f"--step-size must be at least 1, not {self.step_size}",
                hint="it counts tasks: --step-size 32",
            )
        if self.step_size is not None:
            refuse_unknown_sinks(self)

    def refuse_shards(self) -> None:
        """Refuse a monitor where several processes share the rollouts."""
        if self.sink or self.step_size is not None or self.has_stream:
            raise UsageError(
                "--sink, --step-size, --pipeline and --buffer need all rollouts in one process",
                hint="leave them out here; afterwards: rollforge experiences RUN",
            )


def refuse_unknown_sinks(choice: SinkChoice) -> None:
    """Refuse names of sinks and of naming schemes that do not exist; nothing is opened."""
    from rollforge.metrics.profiles import rename
    from rollforge.sinks import SINKS

    rename({}, choice.metric_names)
    for spec in choice.sink:
        SINKS.load(spec.partition("=")[0])


def start_sinks(choice: SinkChoice, files: RunFiles, config: JsonFields) -> Sinks:
    """Start the requested sinks; a sink that cannot start stops the command here.

    The run's own metrics file is always kept: from it a resumed run knows which steps were reported.
    """
    from rollforge.sinks.base import SinkOptions, open_sinks

    options = SinkOptions(
        directory=files.rollouts.parent,
        metrics_file=files.metrics,
        run=files.rollouts.absolute().parent.name,
        config=config,
    )
    return open_sinks(["jsonl", *choice.sink], options, profile=choice.metric_names)


@contextmanager
def open_monitor(choice: MonitorChoice, out: str, config: JsonFields) -> Iterator[StepMonitor | None]:
    """Open the requested observer, or None; leaving the context closes its sinks and buffer."""
    if choice.step_size is None:
        yield None
        return
    from rollforge.steps.monitor import StepMonitor
    from rollforge.store import RunFiles

    files = RunFiles(out)
    stream = _open_stream(choice) if choice.has_stream else None
    try:
        with start_sinks(choice, files, config) as sinks:
            yield StepMonitor(files, sinks, step_size=choice.step_size, stream=stream)
    finally:
        if stream is not None and stream.buffer is not None:
            stream.buffer.close()


def refuse_password(url: str | None) -> None:
    """Refuse a password on the command line: it would reach the run's manifest and shell histories."""
    if url is None or "://" not in url:
        return
    parts = urlsplit(url)
    if parts.password or any(key == "password" for key, _ in parse_qsl(parts.query)):
        raise UsageError(
            "--buffer: the URL holds a password, which would be written into the run's files",
            hint="leave it out and set PGPASSWORD, or use ~/.pgpass",
        )


def _open_stream(choice: MonitorChoice) -> ExperienceStream:
    from rollforge.buffer import open_buffer
    from rollforge.experience import RowSource
    from rollforge.operators.chain import Pipeline, read_pipeline
    from rollforge.steps.monitor import ExperienceStream

    return ExperienceStream(
        pipeline=read_pipeline(choice.pipeline) if choice.pipeline else Pipeline([]),
        buffer=open_buffer(choice.buffer) if choice.buffer else None,
        source=RowSource(model_version=choice.model_version),
    )
