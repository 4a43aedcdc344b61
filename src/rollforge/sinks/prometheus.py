"""Serves the newest value of every metric at `/metrics` for a Prometheus server to scrape.

`prometheus=HOST:PORT`, by default 127.0.0.1:9464. Requests from web pages and for other host names are refused. Beyond loopback
every request needs the token in `ROLLFORGE_PROMETHEUS_TOKEN`. A name becomes `rollforge:rollout:accuracy:mean` (slashes as
colons, other characters escaped), the run is a label. Needs the extra `prometheus`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

from rollforge.errors import UsageError
from rollforge.metrics.names import safe_name
from rollforge.runtime.web_guard import WebGuard, is_loopback
from rollforge.sinks.base import SinkOptions, need_extra
from rollforge.text_safety.redaction import SECRETS

DEFAULT_ADDRESS = "127.0.0.1:9464"
TOKEN_VARIABLE = "ROLLFORGE_PROMETHEUS_TOKEN"


class PrometheusSink:
    """An HTTP server with one page."""

    is_remote = False

    def __init__(self, options: SinkOptions) -> None:
        self._run = options.run
        self._address = options.target or DEFAULT_ADDRESS
        self._values: dict[str, float] = {}
        self._lock = Lock()
        self._server: Any = None
        self._thread: Any = None
        self.port = 0

    def start(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise need_extra("prometheus", "prometheus", error) from error
        host, _, port = self._address.rpartition(":")
        if not port.isdecimal():
            raise UsageError(
                f"prometheus={self._address}: no port", hint="write it as prometheus=127.0.0.1:9464"
            )
        host = host.strip("[]") or "127.0.0.1"
        guard = WebGuard(host=host, token=self._token(host))
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(int(port), host, registry)
        except OSError as error:
            raise UsageError(
                f"the sink 'prometheus' cannot listen at {self._address}: {error.strerror}",
                hint="name another port: --sink prometheus=127.0.0.1:9465",
            ) from error
        self._server.set_app(guard.wsgi(self._server.get_app()))
        self.port = self._server.server_port

    def _token(self, host: str) -> str | None:
        """The token that requests need; None on loopback, where it is not needed unless the variable is set."""
        token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
        SECRETS.learn(token)
        if token is None and not is_loopback(host):
            raise UsageError(
                f"prometheus={self._address}: beyond loopback every request needs a token",
                hint=f"set {TOKEN_VARIABLE}, and give it to Prometheus as `credentials` of `authorization`",
            )
        return token

    def collect(self) -> Iterator[Any]:
        """Current metrics, called by the client library at each scrape."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            values = dict(self._values)
        for name, value in values.items():
            family = GaugeMetricFamily(f"rollforge:{safe_name(name, 'prometheus')}", name, labels=["run"])
            family.add_metric([self._run], value)
            yield family

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        finite = {name: value for name, value in metrics.items() if value is not None}
        with self._lock:
            self._values.update(finite)
            self._values["progress/step"] = step

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5)
            self._server = None
