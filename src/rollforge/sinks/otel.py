"""Sends metrics over OpenTelemetry (OTLP over HTTP) to the collector named by `otel=http://HOST:4318`.

Each metric is a gauge with the run as an attribute; the step is an attribute of its own gauge `progress/step`. Without an
address, here or in OTEL_EXPORTER_OTLP_ENDPOINT, nothing is sent. Needs the extra `otel`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rollforge.errors import UsageError
from rollforge.metrics.names import safe_name
from rollforge.sinks.base import SinkOptions, need_extra


class OtelSink:
    """A meter with a gauge per metric."""

    is_remote = True

    def __init__(self, options: SinkOptions) -> None:
        self._run = options.run
        self._endpoint = options.target or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        self._exporter: Any = None
        self._reader: Any = None
        self._meter: Any = None
        self._gauges: dict[str, Any] = {}

    def start(self) -> None:
        if not self._endpoint:
            raise UsageError("the sink 'otel' has no address", hint="write it as otel=http://127.0.0.1:4318")
        address = urlsplit(self._endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UsageError(
                f"the sink 'otel': {self._endpoint!r} is no URL",
                hint="write it as otel=http://127.0.0.1:4318",
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise need_extra("otel", "otel", error) from error
        # Every failed export is logged there, retries too; `log` raises, and that is warned about once.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=f"{self._endpoint.rstrip('/')}/v1/metrics", timeout=5)
        self._reader = InMemoryMetricReader()
        resource = Resource.create({"service.name": "rollforge", "rollforge.run": self._run})
        provider = MeterProvider(metric_readers=[self._reader], resource=resource, shutdown_on_exit=False)
        self._meter = provider.get_meter("rollforge")

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        finite = {name: value for name, value in metrics.items() if value is not None}
        for name, value in {**finite, "progress/step": float(step)}.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(safe_name(name, "otel"))
            self._gauges[name].set(value, {"run": self._run})
        if self._exporter.export(self._reader.get_metrics_data()).name != "SUCCESS":
            raise ConnectionError(f"{self._endpoint} did not take the metrics")

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown(timeout_millis=5000)
            self._exporter = None
