"""The Python API from scripts and services: tasks from memory, waiting, lazy tables, outcomes, typed keywords."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollforge as rf
from rollforge.cli.app import build_app
from rollforge.errors import BrokenVerification, DataError, IncompleteError, ResumeRefused, UsageError
from rollforge.interactive.option_records import KEYWORDS, PARAMETERS, keyword_names, resolve
from rollforge.interactive.progress import Progress, make_progress
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks

ROOT = Path(__file__).resolve().parents[2]


def rows(count: int = 6) -> list[dict[str, Any]]:
    return [dict(row) for row in example_tasks(count, 0, "math")]


def contains(task: rf.Task, response: rf.Response) -> float:
    return float(str(task["expected_answer"]) in response.text)


def never(task: rf.Task, response: rf.Response) -> float:
    return 0.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rf.Run:
    out = tmp_path_factory.mktemp("interactive") / "run"
    return rf.collect(rows(30), model="simulated", verifier=contains, k=4, out=out, temperature=0.7)


# Tasks from memory


def containers() -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    found: dict[str, Any] = {
        "list": rows(),
        "iterator": iter(rows()),
        "pandas": pandas.DataFrame(rows()),
        "polars": polars.DataFrame(rows()),
        "lazy": polars.LazyFrame(rows()),
        "arrow": arrow.Table.from_pylist(rows()),
        "reader": arrow.Table.from_pylist(rows()).to_reader(),
    }
    try:
        import datasets
    except ImportError:
        return found
    return {**found, "datasets": datasets.Dataset.from_list(rows())}


def test_every_container_of_tasks_gives_the_same_run_and_resumes_by_content(tmp_path: Path) -> None:
    sent = {}
    for name, tasks in containers().items():
        out = tmp_path / name
        done = rf.collect(tasks, model="simulated", verifier=contains, out=out)
        assert done.outcome == "done" and len(done.rollouts) == 6
        sent[name] = done.files.tasks.read_bytes()
        again = rf.collect(rows(), model="simulated", verifier=contains, out=out, samples=2)
        assert again.result is not None and again.result.fresh == 6, "equal tasks of another container resume"
    assert len(set(sent.values())) == 1
    with pytest.raises(ResumeRefused):
        rf.collect(rows(7)[1:], model="simulated", verifier=contains, out=tmp_path / "list", samples=2)


def test_the_command_line_goes_on_with_tasks_from_memory(tmp_path: Path) -> None:
    rf.collect(rows(), model="simulated", verifier="exact", out=tmp_path / "run")
    words = ["collect", "-i", str(tmp_path / "run" / "rollouts_input.jsonl"), "-o", str(tmp_path / "run")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rollforge",
            *words,
            "-m",
            "simulated",
            "--verifier",
            "exact",
            "-k",
            "2",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["fresh"] == 6


def test_a_table_of_pandas_with_gaps_and_numpy_values_becomes_plain_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from rollforge.interactive.in_memory import write_tasks

    frame = pandas.DataFrame(
        {
            "prompt": ["a", "b"],
            "expected_answer": [1.5, None],
            "tags": [["x"], None],
            "day": pandas.to_datetime(["2024-01-31"] * 2),
        }
    )
    made = write_tasks(frame[frame["prompt"] != "z"], tmp_path / "tasks.jsonl")
    first, second = [json.loads(line) for line in made.read_text().splitlines()]
    assert first == {"prompt": "a", "expected_answer": 1.5, "tags": ["x"], "day": "2024-01-31T00:00:00"}
    assert second == {"prompt": "b", "day": "2024-01-31T00:00:00"}


def test_what_is_no_task_is_refused_with_its_place_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="task 1 is a str, not a dict"):
        rf.collect([{"prompt": "a"}, "b"], model="simulated", out=tmp_path / "run")
    with pytest.raises(UsageError, match="tasks are a dict"):
        rf.collect({"prompt": "a"}, model="simulated", out=tmp_path / "run")
    with pytest.raises(DataError, match="cannot be written as JSON"):
        rf.collect([{"prompt": object()}], model="simulated", out=tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_an_iterator_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield rows()[0]
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        rf.collect(broken(), model="simulated", out=tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


# Waiting


async def test_sync_forms_work_inside_a_running_event_loop(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        done = rf.collect(rows(), model="simulated", verifier=contains, out=tmp_path / "run")
        summary = done.verify("exact")
    assert done.outcome.ok and summary.judged == 6


async def test_async_forms_leave_the_loop_free(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    done = await rf.collect_async(rows(), model="simulated", verifier=contains, out=tmp_path / "run")
    judged = await done.verify_async("exact")
    probed = await done.probe_async("exact", limit=5)
    ticking.cancel()
    assert done.outcome == "done" and judged.state == "done" and not probed.is_broken
    assert ticks > 3


async def test_cancelling_an_async_collection_drains_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions(latency=0.2)) as server:
        work = asyncio.create_task(
            rf.collect_async(
                rows(60),
                model="m",
                base_url=server.base_url,
                verifier="exact",
                concurrency=2,
                out=tmp_path / "run",
            )
        )
        while not len(list(_finished(tmp_path / "run"))) > 1:
            await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    found = rf.open_run(tmp_path / "run")
    assert found.outcome == "interrupted"
    assert 1 < found.status().finished < 60


def _finished(folder: Path) -> Iterator[bytes]:
    file = folder / "rollouts.jsonl"
    return iter(file.read_bytes().splitlines() if file.exists() else [])


SCRIPT = """
import sys, threading, warnings
import rollforge as rf
from rollforge.simulate import example_tasks
warnings.simplefilter("ignore", rf.RunWarning)
run = rf.collect(
    list(example_tasks(200)), model="m", base_url=sys.argv[1], verifier="exact", out=sys.argv[2], concurrency=2, progress="none"
)
print(run.outcome, run.status().finished, threading.active_count(), flush=True)
"""


async def test_ctrl_c_in_a_script_drains_and_the_run_resumes(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions(latency=0.1)) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SCRIPT, server.base_url, str(tmp_path / "run"), stdout=subprocess.PIPE
        )
        while not len(list(_finished(tmp_path / "run"))) > 1:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        word, finished, _ = out.decode().split()
        assert (word, process.returncode) == ("interrupted", 0)
        assert 1 < int(finished) < 200
        done = await rf.collect_async(
            list(example_tasks(200)),
            model="m",
            base_url=server.base_url,
            verifier="exact",
            out=tmp_path / "run",
        )
    assert done.outcome == "done" and done.result is not None and done.result.fresh == 200 - int(finished)


def test_a_second_interrupt_aborts_and_raises() -> None:
    from rollforge.interactive.waiting import WaitingWork

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    stopped: list[str] = []
    aborted = threading.Event()

    async def endless() -> None:
        while not aborted.is_set():
            await asyncio.sleep(0.01)

    work = WaitingWork(
        endless,
        drain=lambda: stopped.append("drain"),
        abort=lambda: (stopped.append("abort"), aborted.set())[1],
    )
    presses = [threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)) for delay in (0.3, 0.9)]
    for press in presses:
        press.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped == ["drain", "abort"]


def test_an_error_inside_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        rf.collect(tmp_path / "none.jsonl", model="simulated", out=tmp_path / "run")


# Outcomes


def constant(task: rf.Task, response: rf.Response) -> float | None:
    return None if task["expected_answer"] else 0.0


def test_a_run_that_is_not_all_right_warns_or_raises(tmp_path: Path) -> None:
    with pytest.warns(rf.RunWarning, match="ended as 'incomplete'") as raised:
        done = rf.collect(rows(), model="simulated", verifier=constant, out=tmp_path / "run")
    assert raised[0].filename == __file__
    assert done.outcome == "incomplete" and not done.outcome.ok and done.outcome.exit_code == 3
    with pytest.raises(IncompleteError) as error:
        rf.collect(rows(), model="simulated", verifier=constant, out=tmp_path / "run", strict=True)
    assert error.value.run.path == tmp_path / "run"  # type: ignore[attr-defined]


def test_over_budget_and_broken_have_words_of_their_own(tmp_path: Path) -> None:
    with pytest.warns(rf.RunWarning, match="over budget"):
        done = rf.collect(
            rows(60),
            model="simulated",
            verifier=contains,
            out=tmp_path / "a",
            max_total_tokens=200,
            concurrency=2,
        )
    reopened = rf.open_run(tmp_path / "a").outcome
    assert done.outcome == reopened == "over budget" and reopened.exit_code == done.outcome.exit_code == 6
    whole = rf.collect(rows(60), model="simulated", verifier=contains, out=tmp_path / "a")
    assert whole.outcome == rf.open_run(tmp_path / "a").outcome == "done"
    with pytest.raises(BrokenVerification):
        rf.collect(
            rows(200),
            model="simulated",
            verifier=lambda task, response: 0.0,
            k=4,
            out=tmp_path / "b",
            strict=True,
            probe=1.0,
        )


def test_an_opened_run_knows_how_it_ended(run: rf.Run, tmp_path: Path) -> None:
    assert rf.open_run(run.path).outcome == "done"
    with pytest.raises(UsageError, match="no such file"):
        rf.open_run(tmp_path / "nowhere").outcome  # noqa: B018
    foreign = tmp_path / "rollouts.jsonl"
    foreign.write_text("")
    assert rf.open_run(foreign).outcome.ok


# Tables and results


def test_rollouts_are_a_lazy_table(run: rf.Run) -> None:
    table = run.rollouts
    assert len(table) == 120 and "reward" in table.columns
    good = table.where("reward = 1").select("task", "reward")
    assert 0 < len(good) < 120
    assert good.to_arrow().column_names == ["task", "reward"]
    first = next(iter(good))
    assert set(first) == {"task", "reward"} and first["reward"] == 1.0
    assert next(iter(table.where("reward = 0").rows()))["reward"] == 0.0
    assert [one["task"] for one in table.sort("task desc").head(2)] == [29, 29]
    assert len(table(where="turns = 1", columns=["turns"]).head(3)) == 3
    assert len(run.tasks) == 30 and len(run.failures) == 0


def test_tables_convert_to_pandas_and_polars(run: rf.Run) -> None:
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    assert run.rollouts.to_pandas()["reward"].mean() == pytest.approx(run.metrics()["reward"].mean)
    assert run.rollouts.select("reward").to_polars().shape == (120, 1)
    assert polars.DataFrame(run.rollouts.select("task")).shape == (120, 1)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_table_library_that_is_not_installed_is_named(
    run: rf.Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"{name} is not installed"):
        getattr(run.rollouts, f"to_{name}")()


def test_a_wrong_column_or_condition_names_the_nearest(run: rf.Run) -> None:
    with pytest.raises(UsageError, match="no column 'rewrd'; did you mean 'reward'"):
        run.rollouts.select("rewrd")
    with pytest.raises(UsageError, match="reward"):
        run.rollouts.where("rewrd > 0").to_arrow()


def test_query_gives_arrow(run: rf.Run) -> None:
    found = run.query("select reward, count(*) as n from rollouts group by 1 order by 1")
    assert found.column_names == ["reward", "n"] and sum(found.column("n").to_pylist()) == 120


def test_metrics_are_found_by_name(run: rf.Run) -> None:
    metrics = run.metrics()
    assert metrics["reward"].n == 120 and "reward" in metrics and "rewrd" not in metrics
    with pytest.raises(KeyError, match="did you mean 'reward'"):
        metrics["rewrd"]


def test_show_and_experiences_and_report(run: rf.Run, tmp_path: Path) -> None:
    shown = run.show(worst=True, limit=2)
    assert [one.reward for one in shown] == [0.0, 0.0] and "task" in repr(shown)
    assert len(run.show(task=3, limit=10)) == 4
    with pytest.raises(UsageError, match="exclude each other"):
        run.show(best=True, worst=True)
    made = run.experiences(out=str(tmp_path / "experiences.jsonl"))
    assert made.experiences == 120
    assert run.report(tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_of_a_stream_without_an_end_only_the_tasks_that_are_needed_are_read(tmp_path: Path) -> None:
    stream = itertools.cycle(rows())
    asked: Any = {"model": "simulated", "verifier": "exact", "out": tmp_path / "run", "progress": "none"}
    assert len(rf.collect(stream, n=4, **asked).rollouts) == 4
    assert rf.collect(rows(), n=4, **asked).result.fresh == 0, "the first tasks are the same"  # type: ignore[union-attr]
    assert len(rf.collect(iter(rows()), n=6, **asked).rollouts) == 6
    sets = {"first": itertools.cycle(rows()), "more": iter(rows())}
    done = rf.evaluate(sets, model="simulated", n=3, out=tmp_path / "eval", progress="none")
    assert done["first"].tasks == done["more"].tasks == 3
    for none in (0, -1):
        with pytest.raises(UsageError, match="limit must be at least 1"):
            rf.evaluate(itertools.cycle(rows()), model="simulated", n=none, out=tmp_path / "none")


HOSTILE = "<script>alert(1)</script>"


def test_results_show_themselves_as_escaped_html(tmp_path: Path) -> None:
    tasks = [row | {"agent_ref": {"name": HOSTILE}} for row in rows(12)]

    def noisy(task: rf.Task, response: rf.Response) -> dict[str, Any]:
        return {"reward": contains(task, response), HOSTILE: 1.0}

    done = rf.collect(tasks, model="simulated", verifier=noisy, k=4, out=tmp_path / HOSTILE.replace("/", "_"))
    summary = done.verify("exact")
    manifest = done.prepare("dpo", to="trl", out=tmp_path / "data", force=True)
    results = [
        done, done.metrics(), done.profile(), done.check("grpo"), manifest, summary, done.status(),
        done.rollouts, done.tasks, done.failures, done.show(limit=3), done.metrics()["reward"],
        done.probe("exact"), done.diff("recorded", "exact"), done.compare(done),
        done.experiences(out=str(tmp_path / "experiences.jsonl")),
    ]  # fmt: skip
    for result in results:
        html = result._repr_html_()  # type: ignore[attr-defined]
        assert html.startswith("<div") and html.count("<div") == html.count("</div>"), type(result)
        assert "<script" not in html, type(result)
    assert "data:image/svg+xml;base64," in done.metrics()._repr_html_()
    assert "&lt;script&gt;" in done.metrics()._repr_html_()


# Evaluations


def test_evaluate_and_bench_take_tasks_from_memory(tmp_path: Path) -> None:
    sets = {"sums": rows(6), "more": rows(8)}
    done = rf.evaluate(sets, model="simulated", verifier=contains, k=2, out=tmp_path / "eval")
    assert done.outcome == "done" and done["sums"].tasks == 6 and len(done.run.rollouts) == 28
    assert "eval/sums/reward/mean@2" in done.metrics
    assert json.loads((tmp_path / "eval" / "rollouts_eval.json").read_text())["exit_code"] == 0
    assert (tmp_path / "eval" / "rollouts_metrics.jsonl").exists()
    with pytest.raises(KeyError, match="did you mean 'sums'"):
        done["sum"]
    both = rf.bench(
        sets, models={"a": "simulated", "b": "simulated"}, verifier="exact", out=tmp_path / "bench", seed=1
    )
    assert list(both.models) == ["a", "b"] and both["a"]["more"].tasks == 8
    assert {one.taskset for one in both.differences} == {"sums", "more", "all"}
    assert both.outcome == "done"
    for result in (done, both):
        assert "<table>" in result._repr_html_()
    assert json.loads((tmp_path / "bench" / "bench.json").read_text())["models"].keys() == {"a", "b"}
    with pytest.warns(rf.RunWarning, match="not shown: b > a"):
        claimed = rf.bench(
            sets,
            models=["a=simulated", "b=simulated"],
            verifier="exact",
            out=tmp_path / "bench",
            seed=1,
            require=["b > a"],
        )
    assert claimed.outcome == "not shown" and not claimed.required[0].holds


async def test_evaluations_have_async_forms(tmp_path: Path) -> None:
    done = await rf.evaluate_async(rows(4), model="simulated", out=tmp_path / "eval", verifier="exact")
    assert done["tasks"].tasks == 4
    both = await rf.bench_async(rows(4), models=["a=simulated"], out=tmp_path / "bench", verifier="exact")
    assert both["a"].outcome == "done"


# Keywords


def flags_of(verb: str) -> set[str]:
    """The long flags of a command, as Python would spell them."""
    app = build_app(verb, shows_all=True)
    arguments = app[verb].assemble_argument_collection()
    names = {name for argument in arguments for name in argument.names if name.startswith("--")}
    return {name.removeprefix("--").replace("-", "_") for name in names}


OF_THE_SHELL = {"json", "progress", "config", "strict"}
"""Flags about printing and config files."""
OTHERWISE = {
    "collect": {
        "input",
        "out",
        "model",
        "base_url",
        "verifier",
        "samples",
        "limit",
        "dry_run",
    },
    "verify": {"verifier", "diff", "use", "probe", "input", "limit"},
    "prepare": {"to", "out", "from", "on", "workers"},
    "eval": {"input", "out", "model", "base_url", "verifier", "step", "fresh"},
    "bench": {"input", "out", "model", "base_url", "verifier", "metric", "require", "fresh"},
    "metrics": {"out", "verifier", "against", "compat", "labels", "on", "workers"},
    "profile": {"out", "verifier", "rollout_infos", "parquet", "gym_files", "on", "workers"},
    "check": {"for", "limits", "markdown", "on", "workers"},
    "show": {
        "calls",
        "example",
        "label",
        "raw",
        "full",
        "line",
        "verifier",
        "blind",
        "stratified",
        "empty_task",
        "workers",
    },
    "experiences": set(),
}
"""Flags that are parameters of the function, or not offered by it."""


@pytest.mark.parametrize("verb", sorted(OTHERWISE))
def test_every_flag_of_a_command_is_a_keyword_of_its_twin(verb: str) -> None:
    twin = "evaluate" if verb in ("eval", "bench") else verb
    missing = flags_of(verb) - set(keyword_names(twin)) - OTHERWISE[verb] - OF_THE_SHELL
    assert not missing


def test_keyword_types_are_generated_from_the_records() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from keywords import keywords_file
    finally:
        sys.path.pop(0)
    path, text = keywords_file()
    assert path.read_text() == text, "run `make docs`"


@pytest.mark.parametrize("command", sorted(KEYWORDS))
def test_a_typo_is_answered_with_the_nearest_keyword(command: str) -> None:
    name = next(iter(sorted(keyword_names(command), key=len, reverse=True)))
    with pytest.raises(UsageError, match=f"did you mean .*{name}"):
        resolve(command, {name[:-1] + "x": 1})


WRONG_TYPES: list[tuple[str, dict[str, Any], str]] = [
    ("collect", {"k": "4"}, "k is a whole number"),
    ("collect", {"k": True}, "k is a whole number"),
    ("collect", {"max_samples": 4.5}, "max_samples is a whole number"),
    ("collect", {"temperature": "hot"}, "temperature is a number"),
    ("collect", {"min_gap": "much"}, "min_gap is a number"),
    ("collect", {"skip_bad": "yes"}, "skip_bad is True or False"),
    ("collect", {"stop_on": "nver"}, "stop_on is 'broken' or 'never'"),
    ("collect", {"goal": {"grpo": 5}}, "goal is a text"),
    ("collect", {"set": "top_k=20"}, "set is a dict"),
    ("collect", {"read_batch": {"a": 1}}, "read_batch is a list"),
    ("collect", {"band": (0.1, 0.5, 0.9)}, "band is two numbers"),
    ("prepare", {"dedupe": "exactly"}, "dedupe is 'none' or 'exact' or 'near'"),
    ("prepare", {"limit": "3"}, "limit is a whole number"),
    ("show", {"task": "3"}, "task is a list"),
    ("verify", {"verify_workers": "some"}, "verify_workers is 'auto' or a whole number"),
]


@pytest.mark.parametrize(("command", "keywords", "hint"), WRONG_TYPES, ids=lambda one: str(one))
def test_a_value_of_another_type_is_refused_with_what_the_keyword_takes(
    command: str, keywords: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError, match=rf"{command}: {next(iter(keywords))}=.* is not understood") as said:
        resolve(command, keywords)
    assert said.value.hint == hint


def test_a_list_may_be_a_set_an_array_or_an_iterator(run: rf.Run) -> None:
    assert resolve("check", {"ignore": {"b", "a"}})["ignore"] == ("a", "b")
    assert resolve("collect", {"mount": iter([Path("data")])})["mount"] == ("data",)
    assert resolve("prepare", {"split": np.array([0.5, 0.5])})["split"] == (0.5, 0.5)
    assert [resolve("show", {"task": some})["tasks"] for some in (np.array([3]), {3})] == [(3,), (3,)]
    assert rf.open_run(path for path in run.paths).paths == run.paths


@pytest.mark.parametrize(
    "arguments",
    [{"samples": "4"}, {"limit": 2.5}, {"base_url": 3}, {"base_url": [3]}, {"out": None}, {"verifier": 3}],
    ids=str,
)
def test_an_argument_of_another_type_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    usual: dict[str, Any] = {"model": "simulated", "verifier": "exact", "out": "run"}
    with pytest.raises(UsageError) as said:
        rf.collect(rows(2), **usual | arguments)
    assert said.value.hint and not list(tmp_path.glob("*/rollouts.jsonl"))


@pytest.mark.parametrize("path", [5, None, []], ids=str)
def test_what_names_no_run_is_refused(path: Any) -> None:
    with pytest.raises(UsageError, match="names no run"):
        rf.open_run(path)


def test_a_report_with_another_word_for_its_texts_is_refused(run: rf.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="texts='all' is not understood"):
        run.report(tmp_path / "report.html", texts="all")  # type: ignore[arg-type]


def test_none_means_that_a_keyword_is_not_used() -> None:
    assert resolve("collect", {"k": None, "temperature": None, "concurrency": None, "goal": None}) == {
        "goal": None
    }


def test_values_may_be_written_as_on_the_command_line() -> None:
    numpy = pytest.importorskip("numpy")
    assert resolve("collect", {"band": "0.1-0.9", "audit": 0.05, "k": numpy.int64(4)}) == {
        "band": (0.1, 0.9),
        "audit": "0.05",
        "k": 4,
    }
    assert resolve("collect", {"map": {"prompt": "q", "expected_answer": "a|after:####|before:,"}}) == {
        "map": ("prompt=q", 'expected_answer="a|after:####|before:,"')
    }
    assert resolve("collect", {"fan_out": {"math": ["a", "b"]}}) == {"fan_out": ("math=a,b",)}
    assert resolve("collect", {"api_key_env": ["KEY_A", "KEY_B"], "write_batch": Path("r.jsonl")}) == {
        "api_key_env": "KEY_A,KEY_B",
        "write_batch": "r.jsonl",
    }
    assert resolve("prepare", {"split": "0.9/0.1", "ignore": "thin-pairs"}) == {
        "split": (0.9, 0.1),
        "ignore": ("thin-pairs",),
    }


def test_a_request_parameter_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"temperature is given twice: 0\.5 by its keyword, 1 in set"):
        rf.collect(rows(), model="simulated", out=tmp_path / "run", temperature=0.5, set={"temperature": 1})


def test_the_sandbox_of_a_program_is_no_option_of_a_verifier_that_runs_none(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rf.RunWarning)  # `true` calls no model
        rf.collect(
            rows(1),
            model="simulated",
            verifier="exact",
            agent="program:true",
            sandbox="off",
            attempts=1,
            out=out,
        )
    assert json.loads((out / "rollouts_run.json").read_text())["config"]["sandbox"] == "off"


def test_requests_are_written_and_their_answers_read_as_by_the_command_line(tmp_path: Path) -> None:
    out, requests = tmp_path / "run", tmp_path / "requests.jsonl"
    keywords: dict[str, Any] = {"model": "simulated", "verifier": "exact", "k": 2, "out": out}
    with warnings.catch_warnings():
        warnings.simplefilter("error", rf.RunWarning)
        written = rf.collect(rows(3), write_batch=requests, **keywords)
    assert (
        written.outcome == "requests" and written.outcome.ok and "wrote 6 requests" in written.outcome.message
    )
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    message = {"role": "assistant", "content": "7"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "simulated", "choices": [choice]}
    answers = [
        {"id": "1", "custom_id": line["custom_id"], "response": {"status_code": 200, "body": body}}
        for line in lines
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in reversed(answers)))
    run = rf.collect(rows(3), read_batch=results, **keywords)
    assert run.outcome == "done" and len(run.rollouts) == 6


def test_a_rehearsal_of_prepare_is_stopped_by_no_finding(tmp_path: Path) -> None:
    wrong = rf.collect(
        rows(12), model="simulated", verifier=never, k=4, out=tmp_path / "run", stop_on="never"
    )
    with pytest.raises(rf.RollforgeError, match="not fit for sft"):
        wrong.prepare("sft", to="trl", out=tmp_path / "data")
    planned = wrong.prepare("sft", to="trl", dry_run=True, push="org/name")
    assert planned.counts["examples"]["planned"] == 0


def test_several_runs_are_compared_in_a_report_and_refused_where_one_is_meant(
    run: rf.Run, tmp_path: Path
) -> None:
    other = rf.collect(rows(30), model="simulated", verifier=contains, k=4, out=tmp_path / "other", seed=1)
    both = rf.open_run([run.path, other.path])
    page = both.report(tmp_path / "report.html").read_text()
    assert str(run.path.name) in page and "other" in page
    for call in (
        both.status,
        lambda: both.verify("exact"),
        lambda: both.probe("exact"),
        lambda: both.use("exact"),
    ):
        with pytest.raises(UsageError, match="works on one run, and this one is read from 2 files"):
            call()


API_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collect": rf.collect,
    "verify": rf.verify,
    "evaluate": rf.evaluate,
    "bench": rf.bench,
    "probe": rf.Run.probe,
    "metrics": rf.Run.metrics,
    "profile": rf.Run.profile,
    "write_profile": rf.Run.write_profile,
    "check": rf.Run.check,
    "prepare": rf.Run.prepare,
    "show": rf.Run.show,
    "experiences": rf.Run.experiences,
}
SHARES_KEYWORDS_OF = {"bench": "evaluate", "write_profile": "profile"}


def test_every_function_with_keywords_is_in_the_tables() -> None:
    assert {*KEYWORDS, *PARAMETERS} == set(API_FUNCTIONS) and set(PARAMETERS) == set(SHARES_KEYWORDS_OF)


@pytest.mark.parametrize("name", sorted(API_FUNCTIONS))
def test_a_misspelt_parameter_is_answered_with_its_name(name: str) -> None:
    command, function = SHARES_KEYWORDS_OF.get(name, name), name if name in PARAMETERS else None
    parameters = {
        parameter.name
        for parameter in inspect.signature(API_FUNCTIONS[name]).parameters.values()
        if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert parameters == set(PARAMETERS[name] if function else KEYWORDS[command].parameters)
    for parameter in parameters:
        with pytest.raises(UsageError, match=f"{name} has no option .*; did you mean .*'{parameter}'"):
            resolve(command, {f"{parameter}x": 1}, function=function)


def test_a_parameter_of_a_sister_function_is_refused_like_any_unknown_one(run: rf.Run) -> None:
    asked: Any = {"out": "never", "progress": "none"}
    with pytest.raises(UsageError, match="bench has no option 'model'; did you mean 'models'"):
        rf.bench(rows(), models=["a=simulated"], model="simulated", **asked)
    with pytest.raises(UsageError, match="evaluate has no option 'models'; did you mean 'model'"):
        rf.evaluate(rows(), model="simulated", models=["a"], **asked)
    with pytest.raises(UsageError, match="profile has no option 'parquet'"):
        run.profile(parquet=True)  # type: ignore[call-arg]


def test_keywords_of_the_command_line_and_its_short_forms_work(tmp_path: Path) -> None:
    given = resolve(
        "collect", {"deadline": "2m", "concurrency": 8, "tools": "a.py", "probe": 0.5, "config": "main"}
    )
    assert given == {
        "deadline_s": 120.0,
        "concurrency": "8",
        "tools": ("a.py",),
        "probe": "0.5",
        "hub_config": "main",
    }
    with pytest.raises(UsageError, match="say the same thing"):
        resolve("collect", {"deadline": 1, "deadline_s": 2})
    with pytest.raises(UsageError, match="samples and k"):
        rf.collect(rows(), model="simulated", samples=3, k=2, out=tmp_path / "run")
    with pytest.raises(UsageError, match="no option 'temprature'; did you mean 'temperature'"):
        rf.collect(rows(), model="simulated", out=tmp_path / "run", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="progress='loud'"):
        rf.collect(rows(), model="simulated", out=tmp_path / "run", progress="loud")  # type: ignore[arg-type]


def test_request_parameters_reach_the_tasks(run: rf.Run) -> None:
    first = json.loads(run.files.tasks.read_text().splitlines()[0])
    assert first["responses_create_params"]["temperature"] == 0.7


def test_progress_in_a_log_is_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rollforge.interactive.progress import make_progress

    shown = make_progress("plain", lambda: "half\x1b[2J")
    shown.show()
    assert not capsys.readouterr().err
    time.sleep(2.1)
    shown.show()
    shown.show()
    assert capsys.readouterr().err.count("half") == 1


def test_a_group_verifier_judges_at_the_end(tmp_path: Path) -> None:
    def verify_group(task: rf.Task, responses: list[rf.Response]) -> list[float]:
        longest = max(len(one.text) for one in responses)
        return [float(len(one.text) == longest) for one in responses]

    with warnings.catch_warnings():
        warnings.simplefilter("error", rf.RunWarning)
        done = rf.collect(rows(), model="simulated", verifier=verify_group, k=3, out=tmp_path / "run")
    assert done.metrics().counts.judged == 18


def test_the_fingerprint_of_a_function_does_not_depend_on_where_it_stands() -> None:
    from rollforge.verifiers.base import load_verifier

    text = "def verify(task, response):\n    return max([len(word) for word in response.text.split()], default=0)\n"
    made = []
    for name in ("/tmp/ipykernel_1/1.py", "/tmp/ipykernel_2/2.py"):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), names)
        made.append(load_verifier(names["verify"]).fingerprint)
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["terminal", "plain", "notebook"])
def test_a_display_that_fails_does_not_end_the_run(kind: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.interactive.progress.FIRST_S", -1.0)
    asked: list[str] = []

    def line() -> str:
        asked.append(kind)
        raise ValueError("a line that cannot be made")

    shown = make_progress(kind, line)
    shown.show()
    shown.close()
    assert asked or kind == "notebook", "the display never asked for its line"


def test_tasks_from_memory_are_written_whole_and_only_if_they_changed(tmp_path: Path) -> None:
    from rollforge.interactive.in_memory import write_tasks

    target = write_tasks([{"prompt": "1+1?"}], tmp_path / "run" / "rollouts_input.jsonl")
    before = target.stat()
    write_tasks([{"prompt": "1+1?"}], target)
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(UsageError):
        write_tasks([{"prompt": "2+2?"}, 7], target)
    assert target.stat().st_ino == before.st_ino
    write_tasks([{"prompt": "2+2?"}], target)
    assert json.loads(target.read_text())["prompt"] == "2+2?"
    assert [path.name for path in target.parent.iterdir()] == [target.name]
