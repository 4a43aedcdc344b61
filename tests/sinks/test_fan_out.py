"""The fan-out: a sink that cannot start stops the command, one that fails later never harms the run."""

import logging
import math
import resource
import threading

import pytest

from rollforge.errors import UsageError
from rollforge.sinks import SINKS
from rollforge.sinks.base import SinkOptions, Sinks, open_sinks
from rollforge.sinks.jsonl import read_metrics


class FlakySink:
    """Fails on every step, and on closing."""

    is_remote = False

    def start(self):
        """Starts fine."""

    def log(self, metrics, *, step, at):
        raise OSError("disk full")

    def close(self):
        raise OSError("still full")


class HangingSink(FlakySink):
    """Waits for a server that never answers."""

    is_remote = True

    def __init__(self):
        self.released = threading.Event()

    def log(self, metrics, *, step, at):
        self.released.wait()

    def close(self):
        """Nothing to do."""


@pytest.mark.parametrize(
    "spec", ["jsonll", "console=loud", "otel", "prometheus=nowhere", "mlflow=nonsense://x"]
)
def test_a_sink_that_cannot_start_stops_before_any_work(spec, tmp_path, monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    extra = {"otel": "opentelemetry", "prometheus": "prometheus_client", "mlflow": "mlflow"}.get(
        spec.split("=")[0]
    )
    if extra:
        pytest.importorskip(extra)
    with pytest.raises(UsageError):
        open_sinks(["jsonl", spec], SinkOptions(directory=tmp_path))


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(UsageError, match="tensorboardX") as raised:
        open_sinks(["tensorboard"], SinkOptions(directory=tmp_path))
    assert "rollforge[tensorboard]" in raised.value.hint


def test_a_failing_sink_is_warned_about_once_and_the_others_go_on(tmp_path, caplog):
    jsonl = SINKS.load("jsonl")(SinkOptions(directory=tmp_path))
    jsonl.start()
    with caplog.at_level(logging.WARNING), Sinks([("flaky", FlakySink()), ("jsonl", jsonl)]) as sinks:
        for step in range(3):
            sinks.log({"rollout/a/mean": 1.0}, step=step, at=0.0)
    assert [line["step"] for line in read_metrics(jsonl.path)] == [0, 1, 2]
    assert sum("disk full" in record.message for record in caplog.records) == 1
    assert sinks.failures == {"flaky": 3}


def test_a_hanging_sink_holds_nothing_up_and_what_it_missed_is_counted():
    sink = HangingSink()
    sinks = Sinks([("hanging", sink)])
    for step in range(300):
        sinks.log({"rollout/a/mean": 1.0}, step=step, at=0.0)
    assert sinks.failures["hanging"] >= 40
    sink.released.set()
    sinks.close()


def test_a_value_that_is_not_finite_becomes_null(tmp_path):
    with open_sinks(["jsonl"], SinkOptions(directory=tmp_path)) as sinks:
        sinks.log({"rollout/a/mean": math.nan, "rollout/b/mean": 2.0}, step=1, at=5.0)
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [
        {"step": 1, "at": 5.0, "metrics": {"rollout/a/mean": None, "rollout/b/mean": 2.0}}
    ]


def test_a_torn_line_spoils_no_other(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 0, "metrics": {}}\n{"step": 1, "met')
    with open_sinks([f"jsonl={path}"], SinkOptions(directory=tmp_path)) as sinks:
        sinks.log({"rollout/a/mean": 1.0}, step=2, at=0.0)
    assert [line["step"] for line in read_metrics(path)] == [0, 2]


def test_a_line_that_does_not_fit_on_the_disk_spoils_no_later_one(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_sinks(["jsonl"], SinkOptions(directory=tmp_path)) as sinks:
        sinks.log({"rollout/a/mean": 1.0}, step=0, at=0.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (80, hard))
        try:
            sinks.log({"rollout/a/mean": 1.0}, step=1, at=0.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sinks.log({"rollout/a/mean": 1.0}, step=2, at=0.0)
    assert sinks.failures == {"jsonl": 1}
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0, 2]


def test_names_follow_the_profile(tmp_path):
    with open_sinks(["jsonl"], SinkOptions(directory=tmp_path), profile="verl") as sinks:
        sinks.log({"time/step": 1.0}, step=0)
    assert next(read_metrics(tmp_path / "metrics.jsonl"))["metrics"] == {"timing_s/step": 1.0}
