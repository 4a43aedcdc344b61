"""Logs to MLflow: an SQLite file in the run's directory, or the tracking server named by `mlflow=URI`.

Names are made legal for MLflow (`mean@4` becomes `mean_at_4`) reversibly. Needs the extra `mlflow`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rollforge.errors import UsageError
from rollforge.metrics.names import safe_name
from rollforge.sinks.base import SinkOptions, need_extra
from rollforge.text_safety.outgoing import cut

_BATCH = 500
"""MLflow's limit of metrics per call."""


class MlflowSink:
    """One MLflow run in the experiment `rollforge`."""

    is_remote = True

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self.uri = options.target or f"sqlite:///{(options.directory / 'mlflow.db').absolute()}"
        self._client: Any = None
        self._run_id = ""

    def start(self) -> None:
        for variable in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
            os.environ.setdefault(variable, "true")  # MLflow looks a telemetry host up on first use otherwise
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Param
        except ImportError as error:
            raise need_extra("mlflow", "mlflow", error) from error
        if self.uri.startswith(("http://", "https://")):
            self._ask_server()
        self._options.directory.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=self.uri)
        existing = self._client.get_experiment_by_name("rollforge")
        experiment = (
            existing.experiment_id
            if existing
            else self._client.create_experiment("rollforge", self._artifacts())
        )
        self._run_id = self._client.create_run(experiment, run_name=self._options.run).info.run_id
        params = [
            Param(safe_name(key, "mlflow")[:250], cut(value, 500))
            for key, value in _flat(self._options.config)
        ]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[start : start + 100])

    def _ask_server(self) -> None:
        """Check that the server answers, because MLflow itself retries for minutes before it reports an error."""
        import requests

        try:
            requests.get(self.uri, timeout=5)
        except requests.RequestException as error:
            raise UsageError(
                f"the sink 'mlflow': {self.uri} does not answer ({type(error).__name__})",
                hint="start the tracking server first",
            ) from error

    def _artifacts(self) -> str | None:
        """Location of artifacts, beside the local file."""
        return (
            None
            if self._options.target
            else (self._options.directory / "mlflow_artifacts").absolute().as_uri()
        )

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        from mlflow.entities import Metric

        moment = int(at * 1000)
        batch = [
            Metric(safe_name(name, "mlflow"), value, moment, step)
            for name, value in metrics.items()
            if value is not None
        ]
        for start in range(0, len(batch), _BATCH):
            self._client.log_batch(self._run_id, metrics=batch[start : start + _BATCH])

    def close(self) -> None:
        if self._client is not None and self._run_id:
            self._client.set_terminated(self._run_id)
            self._client = None


def _flat(config: object, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(config, dict):
        return [
            pair
            for key, value in config.items()
            for pair in _flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, str(config))] if prefix else []
