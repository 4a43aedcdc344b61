"""A run reported step by step: the streamed, the resumed and the offline numbers are the same."""

import json

import pytest

from rollforge.buffer import open_buffer
from rollforge.experience import RowSource
from rollforge.metrics import StepFold
from rollforge.operators.chain import Pipeline, pipeline_from_config
from rollforge.runtime.event_loop import run_async
from rollforge.simulate import SimulatedProcess, SimulateOptions
from rollforge.sinks.base import SinkOptions, open_sinks
from rollforge.sinks.jsonl import read_metrics
from rollforge.steps.collect import Collection, CollectOptions
from rollforge.steps.experiences import ExperienceOptions, make_experiences
from rollforge.steps.monitor import ExperienceStream, StepMonitor, rollout_metrics
from rollforge.store import RunFiles

TASKS, SAMPLES, STEP = 20, 3, 8


SERVER = {}


@pytest.fixture(scope="module", autouse=True)
def server():
    """A model slow enough that a run can be stopped in its middle."""
    with SimulatedProcess(SimulateOptions(latency=0.03)) as process:
        SERVER["url"] = process.base_url
        yield


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"prompt": f"What is {i} + {i * 7}? Use \\boxed{{}}.", "expected_answer": str(i * 8)}
        for i in range(TASKS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class StopAfter(StepMonitor):
    """Asks the collection to drain after some rollouts."""

    left = 10**9
    collection = None

    def finished(self, row):
        super().finished(row)
        self.left -= 1
        if self.left == 0 and self.collection is not None:
            self.collection.drain()


def collect(tasks, out, *, stop_after=10**9, stream=None, samples=SAMPLES, profile="rollforge", **options):
    files = RunFiles(out)
    options = CollectOptions(
        input=str(tasks),
        out=str(out),
        model="simulated",
        base_urls=(SERVER["url"],),
        verifier="exact",
        samples=samples,
        concurrency="4",
        verify_workers="0",
        **options,
    )
    where = SinkOptions(directory=files.rollouts.parent, metrics_file=files.metrics)
    with open_sinks(["jsonl"], where, profile=profile) as sinks:
        monitor = StopAfter(files, sinks, step_size=STEP, stream=stream)
        monitor.left = stop_after
        monitor.collection = Collection(options, observer=monitor)
        result = run_async(monitor.collection.run())
    return files, result


def offline(files):
    """The same metrics from the file alone."""
    folds = {}
    for line in files.rollouts.read_bytes().splitlines():
        row = json.loads(line)
        fold = folds.setdefault(row["_ng_task_index"] // STEP + 1, StepFold())
        fold.add(row["_ng_task_index"], rollout_metrics(row), order=row["_ng_rollout_index"])
    return {step: fold.metrics("rollout") for step, fold in folds.items()}


def reported(files):
    lines = {}
    for line in read_metrics(files.metrics):
        lines.setdefault(line["step"], []).append(line["metrics"])
    return lines


@pytest.mark.slow
def test_a_run_stopped_and_resumed_reports_every_step_once_with_the_offline_numbers(tasks, tmp_path):
    out = tmp_path / "run"
    files, first = collect(tasks, out, stop_after=31)
    assert first.ending == "interrupted"
    assert len(reported(files)) < 3
    _, second = collect(tasks, out)
    assert second.ending == "done"
    lines = reported(files)
    assert sorted(lines) == [1, 2, 3]
    for step, numbers in offline(files).items():
        (metrics,) = lines[step]
        assert {name: metrics[name] for name in numbers} == numbers
        assert metrics["time/wait_explore_step"] > 0
        assert metrics["timing_per_token_ms/rollout"] > 0
        assert "rollout/time/task_execution/mean" in metrics


@pytest.mark.slow
def test_a_run_that_grows_reports_its_last_step_again_and_no_other(tasks, tmp_path):
    out = tmp_path / "run"
    collect(tasks, out, limit=10)
    files, _ = collect(tasks, out)
    lines = reported(files)
    assert {step: len(found) for step, found in lines.items()} == {1: 1, 2: 2, 3: 1}
    assert lines[2][-1] | offline(files)[2] == lines[2][-1]


@pytest.mark.slow
def test_a_step_whose_tasks_get_more_samples_is_reported_again_over_all_of_them(tasks, tmp_path):
    out, place = tmp_path / "run", str(tmp_path / "buffer.db")
    pipeline = pipeline_from_config([{"use": "group_advantages", "method": "drgrpo"}])
    with open_buffer(place) as buffer:
        for samples in (1, 4):
            stream = ExperienceStream(pipeline=pipeline, buffer=buffer, source=RowSource())
            files, _ = collect(tasks, out, stream=stream, samples=samples)
        streamed = {e.id: e.advantage for e in buffer.claim(TASKS * 4, timeout=0).experiences}
    for step, numbers in offline(files).items():
        assert reported(files)[step][-1] | numbers == reported(files)[step][-1]
    make_experiences(ExperienceOptions(run=str(out), out=str(tmp_path / "offline.jsonl")))
    rows = [json.loads(line) for line in (tmp_path / "offline.jsonl").read_text().splitlines()]
    groups = {}
    for row in rows:
        groups.setdefault(row["task"], []).append(row["reward"])
    assert streamed == {
        row["id"]: pytest.approx(row["reward"] - sum(groups[row["task"]]) / 4) for row in rows
    }


@pytest.mark.slow
def test_steps_with_failed_tasks_are_reported_once_under_any_names(tasks, tmp_path):
    rows = tasks.read_text().splitlines()
    refused = {"input": "What?", "temperature": "hot"}
    rows[3] = json.dumps({"responses_create_params": refused, "expected_answer": "1"})
    tasks.write_text("\n".join(rows) + "\n")
    for _ in range(2):
        files, result = collect(tasks, tmp_path / "run", profile="trinity-0.6", attempts=1, limit=8)
    assert (result.finished, result.expected) == (21, 24)
    assert [len(lines) for lines in reported(files).values()] == [1]


@pytest.mark.slow
def test_experiences_of_each_step_stream_into_a_buffer_whole_groups_together(tasks, tmp_path):
    out = tmp_path / "run"
    for stop_after in (20, 10**9):
        with open_buffer(tmp_path / "buffer.db") as buffer:
            stream = ExperienceStream(
                pipeline=pipeline_from_config([{"use": "group_advantages"}]),
                buffer=buffer,
                source=RowSource(model_version=2),
            )
            collect(tasks, out, stop_after=stop_after, stream=stream)
    with open_buffer(tmp_path / "buffer.db") as buffer:
        batch = buffer.claim(TASKS * SAMPLES, timeout=0)
        assert buffer.counters()["duplicates"] == 0
    groups = {}
    for experience in batch.experiences:
        groups.setdefault(experience.task, []).append(experience.advantage)
    assert len(groups) == TASKS
    assert all(
        len(group) == SAMPLES and sum(group) == pytest.approx(0, abs=1e-6) for group in groups.values()
    )
    assert batch.metrics()["sample/model_version/mean"] == 2


@pytest.mark.slow
def test_a_run_begun_anew_reports_into_its_own_file(tasks, tmp_path):
    out = tmp_path / "run"
    for limit in (8, 16):
        files, _ = collect(tasks, out, limit=limit, fresh=True)
    assert sorted(reported(files)) == [1, 2]
    (old,) = out.glob("*/rollouts_metrics.jsonl")
    assert [line["step"] for line in read_metrics(old)] == [1]


@pytest.mark.slow
def test_a_run_begun_anew_is_another_run_and_one_moved_is_the_same(tasks, tmp_path):
    out, place = tmp_path / "run", str(tmp_path / "buffer.db")
    with open_buffer(place) as buffer:
        for _ in range(2):
            stream = ExperienceStream(pipeline=Pipeline([]), buffer=buffer, source=RowSource())
            collect(tasks, out, stream=stream, limit=4, fresh=True)
        assert (len(buffer), buffer.counters()["duplicates"]) == (2 * 4 * SAMPLES, 0)
    (old,) = (folder for folder in out.iterdir() if folder.is_dir() and "index" not in folder.name)
    for moved in (out, old):
        assert make_experiences(ExperienceOptions(run=str(moved), buffer=place)).duplicates == 4 * SAMPLES


@pytest.mark.slow
def test_an_operator_that_fails_ends_no_run_and_the_step_is_reported_next_time(tasks, tmp_path):
    out = tmp_path / "run"

    class Broken:
        def apply(self, experiences):
            raise ZeroDivisionError("mine")

    stream = ExperienceStream(pipeline=Pipeline([("broken", Broken())]), buffer=None, source=RowSource())
    files, result = collect(tasks, out, stream=stream)
    assert result.ending == "done"
    assert not files.metrics.exists()
    collect(tasks, out)
    assert sorted(reported(files)) == [1, 2, 3]
