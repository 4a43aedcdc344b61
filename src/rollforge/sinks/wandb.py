"""Logs to Weights & Biases: offline into the run's directory, unless upload is requested.

`wandb=PROJECT` names the project and stays offline; `wandb=online:PROJECT` uploads. One run with its own step
axis (`rollforge_step`), so other writers to the same run do not disturb it. Needs the extra `wandb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollforge.sinks.base import SinkOptions, need_extra

STEP_KEY = "rollforge_step"


class WandbSink:
    """One W&B run."""

    is_remote = True

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        mode, colon, project = (options.target or "").partition(":")
        self.is_online = bool(colon) and mode == "online"
        self._project = (project if self.is_online else options.target) or "rollforge"
        self._run: Any = None

    def start(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise need_extra("wandb", "wandb", error) from error
        self._options.directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._project,
            name=self._options.run,
            config=self._options.config,
            dir=str(self._options.directory),
            mode="online" if self.is_online else "offline",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric=STEP_KEY)

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        finite = {name: value for name, value in metrics.items() if value is not None}
        self._run.log({**finite, STEP_KEY: step})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
