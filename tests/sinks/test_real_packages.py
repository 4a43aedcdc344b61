"""Every sink against its real package: what was logged is read back by the tool's own reader or wire
format."""

import http.server
import struct
import threading
import time
import urllib.request

import pytest

from rollforge.errors import UsageError
from rollforge.metrics import original_name
from rollforge.sinks import SINKS
from rollforge.sinks.base import SinkOptions, open_sinks
from rollforge.sinks.jsonl import read_metrics

STEPS = {
    1: {"rollout/accuracy/mean": 0.25, "eval/gsm8k-eval/accuracy/mean@4": 0.5},
    2: {"rollout/accuracy/mean": 0.75, "eval/gsm8k-eval/accuracy/mean@4": 1.0},
}


def log_steps(tmp_path, spec):
    with open_sinks(
        [spec], SinkOptions(directory=tmp_path, run="r1", config={"model": {"name": "m"}})
    ) as sinks:
        for step, metrics in STEPS.items():
            sinks.log(metrics, step=step, at=1763240000.0 + step)
    assert sinks.failures == {}


def test_jsonl_reads_back(tmp_path):
    log_steps(tmp_path, "jsonl")
    assert {line["step"]: line["metrics"] for line in read_metrics(tmp_path / "metrics.jsonl")} == STEPS


def test_console_prints_headlines(tmp_path, capsys):
    log_steps(tmp_path, "console")
    assert "step 2" in capsys.readouterr().err


def test_tensorboard_files_read_back_with_their_own_names(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard (the reader) is not installed",
    )
    log_steps(tmp_path, "tensorboard")
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name in STEPS[1]:
        assert {event.step: event.value for event in events.Scalars(name)} == {
            step: metrics[name] for step, metrics in STEPS.items()
        }


def wandb_records(path):
    """The records of a .wandb file: a LevelDB log of protobufs behind a 7-byte header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + length > len(data):
            return  # still being written
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last piece of one
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.mark.slow
def test_wandb_stays_offline_and_holds_every_step(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    log_steps(tmp_path, "wandb")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for _ in range(100):  # wandb's own service writes the file a moment after `finish` returns
        found = wandb_steps(path)
        if found == STEPS:
            break
        time.sleep(0.1)
    assert found == STEPS


def wandb_steps(path):
    found = {}
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            found[int(items["rollforge_step"])] = {name: float(items[name]) for name in STEPS[1]}
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_on_sqlite_reads_back_under_names_that_turn_back(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra 'mlflow' is not installed")
    log_steps(tmp_path, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rollforge")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"model.name": "m"}
    assert {original_name(name, "mlflow") for name in run.data.metrics} == set(STEPS[1])
    history = client.get_metric_history(run.info.run_id, "eval/gsm8k-eval/accuracy/mean_at_4")
    assert {point.step: point.value for point in history} == {1: 0.5, 2: 1.0}


def test_a_prometheus_scrape_sees_the_newest_values(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra 'prometheus' is not installed")
    sink = SINKS.load("prometheus")(SinkOptions(directory=tmp_path, run="r1", target="127.0.0.1:0"))
    sink.start()
    try:
        for step, metrics in STEPS.items():
            sink.log(metrics, step=step, at=0.0)
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
            families = list(parser.text_string_to_metric_families(answer.read().decode()))
    finally:
        sink.close()
    samples = {
        original_name(sample.name.removeprefix("rollforge:"), "prometheus"): (sample.labels, sample.value)
        for family in families
        for sample in family.samples
    }
    assert samples == {
        **{name: ({"run": "r1"}, value) for name, value in STEPS[2].items()},
        "progress/step": ({"run": "r1"}, 2.0),
    }


class Collector(http.server.BaseHTTPRequestHandler):
    """An OTLP collector that keeps the bodies."""

    bodies: list[bytes] = []  # noqa: RUF012  (one server, one test)

    def do_POST(self):
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Quiet."""


def test_an_otlp_collector_receives_every_step(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra 'otel' is not installed")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    Collector.bodies = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        log_steps(tmp_path, f"otel=http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    seen: dict[str, list[float]] = {}
    for body in Collector.bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                values = [point.as_double for point in metric.gauge.data_points]
                seen.setdefault(original_name(metric.name, "otel"), []).extend(values)
    for name in STEPS[1]:
        assert seen[name][:2] == [STEPS[1][name], STEPS[2][name]]


@pytest.mark.slow
def test_an_otlp_collector_that_is_away_harms_nothing_and_is_warned_about_once(tmp_path, caplog):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra 'otel' is not installed")
    with open_sinks(["otel=http://127.0.0.1:9", "jsonl"], SinkOptions(directory=tmp_path)) as sinks:
        sinks.log(STEPS[1], step=1)
        sinks.log(STEPS[2], step=2)
    assert len(list(read_metrics(tmp_path / "metrics.jsonl"))) == 2
    assert sinks.failures["otel"] == 2
    assert ["'otel' failed" in record.getMessage() for record in caplog.records] == [True]


def test_an_address_that_is_no_url_stops_otel_at_the_start(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra 'otel' is not installed")
    with pytest.raises(UsageError, match="no URL"):
        open_sinks(["otel=collector:4318"], SinkOptions(directory=tmp_path))


@pytest.mark.slow
def test_a_tracking_server_that_is_not_there_stops_mlflow_at_the_start(tmp_path):
    pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
    with pytest.raises(UsageError, match="does not answer"):
        open_sinks(["mlflow=http://127.0.0.1:9"], SinkOptions(directory=tmp_path))
