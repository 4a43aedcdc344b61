"""A run holds exactly tasks × samples, whatever the server does; failures are data."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from rollforge.errors import DataError, Exit, ResumeRefused, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from rollforge.steps.collect import BadTasks, Collection, CollectOptions, CollectResult
from rollforge.steps.status import read_status
from rollforge.store import RunFiles, read_manifest

Rows = list[dict[str, Any]]


def write_tasks(folder: Path, count: int = 12) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(count, 0, "math")))
    return path


def read_rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keys(rows: Rows) -> list[tuple[int, int]]:
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


def grid(tasks: int, samples: int) -> list[tuple[int, int]]:
    return [(task, sample) for task in range(tasks) for sample in range(samples)]


async def collect(folder: Path, server: SimulatedServer | None = None, **more: Any) -> CollectResult:
    settings: dict[str, Any] = {
        "input": str(folder / "tasks.jsonl"),
        "out": str(folder / "run"),
        "model": "simulated",
        "base_urls": (server.base_url,) if server else ("http://127.0.0.1:9/v1",),
        "verifier": "exact",
        "concurrency": "16",
        **more,
    }
    return await Collection(CollectOptions(**settings)).run()


async def test_every_task_gets_its_samples_and_the_files_of_a_run_are_there(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, samples=3)
    files = RunFiles(tmp_path / "run")
    rows = read_rows(files.rollouts)
    assert (result.ending, result.exit_code, result.finished) == ("done", Exit.DONE, 36)
    assert keys(rows) == grid(12, 3)
    assert {row["reward"] for row in rows} <= {0.0, 1.0} and 0 < sum(row["reward"] for row in rows) < 36
    assert all(row["response"]["usage"]["total_tokens"] > 0 for row in rows)
    assert all(row["agent_ref"] == {"name": "model_call"} for row in rows)
    assert [row["_ng_task_index"] for row in read_rows(files.tasks)] == list(range(12))
    manifest = read_manifest(files)
    assert manifest is not None and manifest.state == "done" and manifest.expected == 36


@pytest.mark.parametrize("api", ["auto", "responses", "chat"])
async def test_both_apis_store_the_same_shape(tmp_path: Path, api: str) -> None:
    write_tasks(tmp_path, 4)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, api=api)
    for row in read_rows(tmp_path / "run" / "rollouts.jsonl"):
        assert row["response"]["object"] == "response"
        assert row["response"]["output"][-1]["content"][0]["type"] == "output_text"
        assert set(row["response"]["usage"]) >= {"input_tokens", "output_tokens", "total_tokens"}


async def test_logprobs_and_token_ids_are_kept_when_asked_for(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, logprobs=True)
    for row in read_rows(tmp_path / "run" / "rollouts.jsonl"):
        item = row["response"]["output"][-1]
        assert len(item["generation_token_ids"]) == len(item["generation_log_probs"]) > 0
        assert item["prompt_token_ids"]


async def test_a_hostile_server_costs_retries_but_no_rollout(tmp_path: Path) -> None:
    write_tasks(tmp_path, 40)
    faults = ("500=0.1", "torn=0.05", "reset=0.05", "content-type=0.05")
    async with SimulatedServer(SimulateOptions(faults=faults)) as server:
        result = await collect(tmp_path, server, samples=4)
    assert keys(read_rows(tmp_path / "run" / "rollouts.jsonl")) == grid(40, 4)
    assert result.exit_code == Exit.DONE


async def test_a_context_overflow_is_a_terminal_failure_and_never_a_reward(tmp_path: Path) -> None:
    write_tasks(tmp_path, 20)
    async with SimulatedServer(SimulateOptions(faults=("overflow=0.3",))) as server:
        result = await collect(tmp_path, server, samples=2)
        finished = keys(read_rows(tmp_path / "run" / "rollouts.jsonl"))
        again = await collect(tmp_path, server, samples=2)
    failures = read_rows(tmp_path / "run" / "rollouts_failures.jsonl")
    assert result.exit_code == again.exit_code == Exit.INCOMPLETE
    assert {row["class"] for row in failures} == {"context-overflow"}
    assert all(row["_ng_failure_terminal"] and row["boundary"] == "model" for row in failures)
    assert sorted(finished + keys(failures)) == grid(20, 2)
    assert again.fresh == 0, "a terminal failure is not tried again"
    assert result.failed == {"context-overflow": len(failures)}


async def test_empty_and_truncated_answers_are_rollouts_that_say_what_they_are(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    async with SimulatedServer(SimulateOptions(faults=("empty=0.3", "truncated=0.3"))) as server:
        result = await collect(tmp_path, server)
    rows = read_rows(tmp_path / "run" / "rollouts.jsonl")
    assert result.finished == 30
    reasons = Counter((row["response"]["incomplete_details"] or {}).get("reason") for row in rows)
    assert reasons["max_output_tokens"] > 0


async def test_failed_attempts_are_retried_up_to_the_limit_over_resumes_too(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    quick = {"request_timeout_s": 0.2, "retries": 0, "attempts": 2, "max_failures": "100%"}
    async with SimulatedServer(SimulateOptions(faults=("hang=1.0",))) as server:
        first = await collect(tmp_path, server, **quick)
        second = await collect(tmp_path, server, **quick)
    failures = read_rows(tmp_path / "run" / "rollouts_failures.jsonl")
    assert first.exit_code == second.exit_code == Exit.INCOMPLETE
    assert Counter(keys(failures)) == {(task, 0): 2 for task in range(3)}
    assert sorted(row["attempt"] for row in failures) == [0, 0, 0, 1, 1, 1]
    assert {row["class"] for row in failures} == {"timeout"}
    async with SimulatedServer(SimulateOptions()) as server:
        third = await collect(tmp_path, server, **quick | {"attempts": 3})
    rows = read_rows(tmp_path / "run" / "rollouts.jsonl")
    assert third.exit_code == Exit.DONE and {row["_ng_attempt_index"] for row in rows} == {2}


async def test_a_wrong_key_stops_the_run_at_once_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(tmp_path, 50)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-this-one")
    async with SimulatedServer(SimulateOptions(api_key="right")) as server:
        with pytest.raises(UsageError, match="refuses the key") as caught:
            await collect(tmp_path, server)
        assert server.stats.requests <= 16
    assert "$OPENAI_API_KEY is set, but not accepted" in (caught.value.hint or "")
    assert "sk-not-this-one" not in (tmp_path / "run" / "rollouts_run.json").read_text()


async def test_an_unknown_model_stops_the_run_at_once(tmp_path: Path) -> None:
    write_tasks(tmp_path, 50)
    async with SimulatedServer(SimulateOptions(models=("other",))) as server:
        with pytest.raises(UsageError, match="does not know the model") as caught:
            await collect(tmp_path, server)
    assert "-m simulated" in (caught.value.hint or "")


async def test_a_server_that_only_fails_costs_few_requests_and_ends_with_exit_3(tmp_path: Path) -> None:
    write_tasks(tmp_path, 500)
    async with SimulatedServer(SimulateOptions(faults=("500=1.0",))) as server:
        result = await collect(tmp_path, server, samples=8, api="responses", concurrency="64")
        assert server.stats.requests < 300
    assert result.ending == "outage" and result.exit_code == Exit.INCOMPLETE
    assert result.owed == 4000


async def test_a_verifier_that_fails_leaves_the_rollout_unjudged_and_never_regenerates_it(
    tmp_path: Path,
) -> None:
    write_tasks(tmp_path, 6)
    (tmp_path / "picky.py").write_text(
        "def verify(task, response):\n"
        "    if task.index % 3 == 0:\n        raise KeyError('gold')\n"
        "    return None if task.index % 3 == 1 else 1.0\n"
    )
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, verifier=f"{tmp_path}/picky.py:verify")
        again = await collect(tmp_path, server, verifier=f"{tmp_path}/picky.py:verify")
    rows = read_rows(tmp_path / "run" / "rollouts.jsonl")
    failures = read_rows(tmp_path / "run" / "rollouts_failures.jsonl")
    reward_by_task = {row["_ng_task_index"]: row["reward"] for row in rows}
    assert reward_by_task == {0: None, 1: None, 2: 1.0, 3: None, 4: None, 5: 1.0}
    assert [(row["class"], row["boundary"]) for row in failures] == [("verifier", "verifier")] * 2
    assert all("KeyError: 'gold'" in row["message"] for row in failures)
    assert (result.exit_code, result.unjudged) == (Exit.INCOMPLETE, 4)
    assert (again.fresh, again.exit_code) == (0, Exit.INCOMPLETE)


async def test_without_a_verifier_rewards_are_null_and_the_run_is_done(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, verifier=None)
    assert result.exit_code == Exit.DONE
    assert {row["reward"] for row in read_rows(tmp_path / "run" / "rollouts.jsonl")} == {None}


async def test_resume_makes_only_what_is_missing_and_k_may_grow(tmp_path: Path) -> None:
    write_tasks(tmp_path, 10)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, samples=2, limit=5)
        path = tmp_path / "run" / "rollouts.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(reversed(lines[3:])))
        second = await collect(tmp_path, server, samples=3, limit=8)
        third = await collect(tmp_path, server, samples=3, limit=None)
    assert second.fresh == 8 * 3 - 7 and third.fresh == 2 * 3
    assert keys(read_rows(path)) == grid(10, 3)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"overrides": {"temperature": 0.1}}, "responses_create_params.temperature"),
        ({"model": "another"}, "model"),
        ({"samples": 1}, "samples"),
        ({"verifier": None}, "verifier"),
        ({"limit": 2}, "limit"),
        ({"shuffle": True, "seed": 1}, "shuffle"),
    ],
)
async def test_resume_under_changed_settings_is_refused_and_names_them(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    write_tasks(tmp_path, 3)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, samples=2)
        before = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
        with pytest.raises(ResumeRefused) as caught:
            await collect(tmp_path, server, **{"samples": 2, **change})
    assert key in caught.value.keys
    assert (tmp_path / "run" / "rollouts.jsonl").read_bytes() == before


async def test_resume_with_a_changed_input_or_verifier_source_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    verifier = tmp_path / "mine.py"
    verifier.write_text("def verify(task, response):\n    return 1\n")
    spec = f"{verifier}:verify"
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, verifier=spec)
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text(tasks.read_text().replace("What is", "How much is"))
        with pytest.raises(ResumeRefused) as caught:
            await collect(tmp_path, server, verifier=spec)
    assert caught.value.keys == ("input",)


async def test_a_task_file_that_has_grown_is_resumed_and_old_rows_stay(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, samples=2)
        before = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
        write_tasks(tmp_path, 5)
        result = await collect(tmp_path, server, samples=2)
        after = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
        assert result.exit_code == Exit.DONE and result.fresh == 4
        assert after.startswith(before) and keys(read_rows(tmp_path / "run" / "rollouts.jsonl")) == grid(5, 2)
        write_tasks(tmp_path, 4)
        with pytest.raises(ResumeRefused) as caught:
            await collect(tmp_path, server, samples=2)
    assert caught.value.keys == ("input",), "a file that has shrunk is another one"


async def test_fresh_moves_the_old_run_aside(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server)
        old = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
        await collect(tmp_path, server, fresh=True, samples=2)
    (aside,) = (path for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert (aside / "rollouts.jsonl").read_bytes() == old
    assert keys(read_rows(tmp_path / "run" / "rollouts.jsonl")) == grid(2, 2)


@pytest.mark.parametrize("bad", [{"input": "nosuch.jsonl"}, {"prompt_template": "nosuch.yaml"}, {}])
async def test_fresh_leaves_the_old_run_where_it_is_when_the_new_one_cannot_begin(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server)
        before = sorted((tmp_path / "run").iterdir())
        (tmp_path / "tasks.jsonl").write_text("{}\n")
        with pytest.raises(UsageError):
            await collect(tmp_path, server, fresh=True, **bad)
    assert sorted((tmp_path / "run").iterdir()) == before


async def test_a_file_that_is_no_run_of_ours_is_left_alone(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rollouts.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="not collected by rollforge"):
        await collect(tmp_path)
    assert (tmp_path / "run" / "rollouts.jsonl").read_text() == "{}\n"


async def test_every_bad_line_is_reported_before_the_first_request(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    good = '{"prompt": "hi", "expected_answer": "1"}\n'
    path.write_text(good + "nope\n" + good + "[1]\n{}\n" + '{"prompt": "no gold"}\n')
    async with SimulatedServer(SimulateOptions()) as server:
        with pytest.raises(BadTasks) as caught:
            await collect(tmp_path, server)
        assert server.stats.requests == 0
        assert [bad.line for bad in caught.value.lines] == [2, 4, 5, 6]
        assert "expected_answer" in caught.value.lines[-1].what
        assert not list((tmp_path / "run").glob("*tasks*"))
        result = await collect(tmp_path, server, skip_bad=True)
    assert (result.finished, result.bad_lines) == (2, 4)
    assert keys(read_rows(tmp_path / "run" / "rollouts.jsonl")) == [(0, 0), (2, 0)]


@pytest.mark.parametrize("budget", [{"max_total_tokens": 300}, {"deadline_s": 0.3}])
async def test_budgets_stop_between_groups_with_exit_6(tmp_path: Path, budget: dict[str, Any]) -> None:
    write_tasks(tmp_path, 60)
    async with SimulatedServer(SimulateOptions(latency=0.05)) as server:
        result = await collect(tmp_path, server, samples=4, concurrency="8", **budget)
    per_task = Counter(task for task, _ in keys(read_rows(tmp_path / "run" / "rollouts.jsonl")))
    assert result.exit_code == Exit.BUDGET_REACHED
    assert 0 < len(per_task) < 60 and set(per_task.values()) == {4}


async def test_a_pilot_forecasts_the_rest_and_counts_towards_the_run(tmp_path: Path) -> None:
    write_tasks(tmp_path, 50)
    async with SimulatedServer(SimulateOptions(latency=0.01)) as server:
        pilot = await collect(tmp_path, server, samples=2, pilot=20)
        rest = await collect(tmp_path, server, samples=2)
    assert pilot.exit_code == Exit.DONE and 20 <= pilot.finished < 60
    assert pilot.forecast is not None and pilot.forecast.rollouts == 100 - pilot.finished
    assert pilot.forecast.tokens is not None and pilot.forecast.tokens.low is not None
    assert pilot.forecast.tokens.low < pilot.forecast.tokens.value
    assert rest.fresh == 100 - pilot.finished


async def test_too_many_failures_end_a_hopeless_run(tmp_path: Path) -> None:
    write_tasks(tmp_path, 400)
    slower_than_the_disk = SimulateOptions(faults=("overflow=0.8",), latency=0.05)
    async with SimulatedServer(slower_than_the_disk) as server:
        result = await collect(tmp_path, server, max_failures="10%", concurrency="4")
    assert (result.ending, result.exit_code) == ("failures", Exit.INCOMPLETE)
    assert result.owed > 200


async def test_several_endpoints_share_the_load_and_a_dead_one_is_left_alone(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    async with (
        SimulatedServer(SimulateOptions(latency=0.01)) as one,
        SimulatedServer(SimulateOptions(latency=0.01)) as two,
    ):
        urls = (one.base_url, two.base_url, "http://127.0.0.1:9/v1")
        result = await collect(tmp_path, samples=4, base_urls=urls)
        assert min(one.stats.requests, two.stats.requests) > 60
    assert result.exit_code == Exit.DONE
    manifest = read_manifest(RunFiles(tmp_path / "run"))
    assert manifest is not None and manifest.endpoints[2].breaker != "closed"


async def test_a_rate_limit_is_honoured_and_cuts_the_limit(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    faults = ("429=burst,every=0.4,length=0.2,retry_after=0.3",)
    async with SimulatedServer(SimulateOptions(latency=0.05, faults=faults)) as server:
        result = await collect(tmp_path, server, samples=4, concurrency="auto")
    assert result.exit_code == Exit.DONE
    manifest = read_manifest(RunFiles(tmp_path / "run"))
    assert manifest is not None
    assert any("429" in change.reason for change in manifest.concurrency.history)


async def test_shuffle_draws_the_same_tasks_for_the_same_seed(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    drawn = []
    async with SimulatedServer(SimulateOptions()) as server:
        for name in ("a", "b"):
            await collect(tmp_path, server, out=str(tmp_path / name), shuffle=True, seed=7, limit=6)
            drawn.append(keys(read_rows(tmp_path / name / "rollouts.jsonl")))
    assert drawn[0] == drawn[1] and len(drawn[0]) == 6
    assert drawn[0] != grid(6, 1)


async def test_the_callers_own_task_indices_are_kept(tmp_path: Path) -> None:
    rows: Callable[[int], str] = lambda index: json.dumps({"_ng_task_index": index, "prompt": "x"}) + "\n"  # noqa: E731
    (tmp_path / "tasks.jsonl").write_text(rows(900) + rows(17))
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server, verifier=None, samples=2)
        again = await collect(tmp_path, server, verifier=None, samples=2)
        assert again.fresh == 0
        (tmp_path / "tasks.jsonl").write_text(rows(900) + rows(900))
        with pytest.raises(BadTasks, match="already that of an earlier line"):
            await collect(tmp_path, server, verifier=None, out=str(tmp_path / "other"))
    assert keys(read_rows(tmp_path / "run" / "rollouts.jsonl")) == [(17, 0), (17, 1), (900, 0), (900, 1)]


async def test_probes_sprinkled_in_find_a_verifier_that_rewards_everything(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    (tmp_path / "kind.py").write_text("def verify(task, response):\n    return 1.0\n")
    (tmp_path / "silent.py").write_text("def verify(task, response):\n    return None\n")
    async with SimulatedServer(SimulateOptions()) as server:
        honest = await collect(tmp_path, server, probe="50%", out=str(tmp_path / "honest"))
        broken = await collect(tmp_path, server, probe="50%", verifier=f"{tmp_path}/kind.py:verify")
        silent = await collect(
            tmp_path,
            server,
            probe="50%",
            verifier=f"{tmp_path}/silent.py:verify",
            out=str(tmp_path / "silent"),
        )
    assert silent.exit_code == Exit.BROKEN_VERIFICATION
    assert honest.exit_code == Exit.DONE and honest.probe is not None and not honest.probe.is_broken
    assert broken.exit_code == Exit.BROKEN_VERIFICATION and broken.finished == 60


async def test_a_failed_probe_stands_until_the_verifier_changes(tmp_path: Path) -> None:
    """Neither resuming a finished run, nor a probe of the few rollouts that were owed, acquits it."""
    write_tasks(tmp_path, 60)
    kind = tmp_path / "kind.py"
    kind.write_text(
        "def verify(task, response):\n    return float(str(task['expected_answer']) in response.text)\n"
    )
    words = {"verifier": f"{kind}:verify", "probe": "100%", "stop_on": "never"}
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    async with SimulatedServer(SimulateOptions()) as server:
        first = await collect(tmp_path, server, **words)
        again = await collect(tmp_path, server, **words)
        unasked = await collect(tmp_path, server, **{**words, "probe": None})
        lines = rollouts.read_text().splitlines(keepends=True)
        rollouts.write_text("".join(lines[:-1]))
        one_more = await collect(tmp_path, server, **words)
        words |= {"samples": 2, "goal": "sft=5", "out": str(tmp_path / "goal")}
        goal = await collect(tmp_path, server, **words)
        assert goal.goal is not None and goal.goal.is_reached
    assert first.probe is not None and first.probe.is_broken
    assert again.probe is None and "the verifier was asked nothing" in " ".join(again.notes)
    results = (first, again, unasked, one_more, goal)
    assert [result.exit_code for result in results] == [Exit.BROKEN_VERIFICATION] * 5
    assert all("a probe found this verifier broken" in result.message for result in results)
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    assert manifest["extra"]["probe"]["is_broken"]


@pytest.mark.parametrize("kind", ["plain", "gzip", "parquet"])
async def test_stdin_may_be_packed_like_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = write_tasks(tmp_path, 3).read_bytes()
    if kind == "gzip":
        data = gzip.compress(data)
    elif kind == "parquet":
        parquet.write_table(
            pa.Table.from_pylist([json.loads(row) for row in data.splitlines()]), tmp_path / "p"
        )
        data = (tmp_path / "p").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, input="-")
    assert result.finished == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"base_urls": ("http://user:pw98765432109876543@127.0.0.1:9/v1",)},
        {"base_urls": ("http://127.0.0.1:9/v1?api_key=pw98765432109876543",)},
        {"gym_resources": "http://user:pw98765432109876543@127.0.0.1:9"},
        {"api_key_env": "sk-pw98765432109876543"},
        {"api_key_env": "hf_pw98765432109876543"},
    ],
)
async def test_a_secret_on_the_command_line_is_refused_and_repeated_nowhere(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    write_tasks(tmp_path, 2)
    with pytest.raises(UsageError) as caught:
        await collect(tmp_path, **settings)
    assert "pw987" not in f"{caught.value} {caught.value.hint}"
    assert "variable" in (caught.value.hint or "") and not (tmp_path / "run").exists()


async def test_a_key_with_a_line_break_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tasks(tmp_path, 2)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds a line break"):
        await collect(tmp_path)


@pytest.mark.parametrize("cut", [1, 2, 30, "line"])
async def test_a_damaged_tasks_file_is_told_and_made_again_from_its_input(
    tmp_path: Path, cut: int | str
) -> None:
    write_tasks(tmp_path, 6)
    files = RunFiles(tmp_path / "run")
    async with SimulatedServer(SimulateOptions()) as server:
        await collect(tmp_path, server)
        whole, rollouts = files.tasks.read_bytes(), files.rollouts.read_bytes()
        size = len(whole.splitlines(keepends=True)[-1]) if isinstance(cut, str) else cut
        files.tasks.write_bytes(whole[:-size])
        if cut != 1:
            with pytest.raises(DataError, match="5 of 6 tasks can be read"):
                read_status(tmp_path / "run")
        result = await collect(tmp_path, server, samples=2)
    assert (result.expected, result.finished, result.fresh) == (12, 12, 6)
    assert files.rollouts.read_bytes().startswith(rollouts)
    assert cut == 1 or files.tasks.read_bytes() == whole


async def test_the_reward_of_a_status_says_whether_it_is_over_the_whole_run(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    async with SimulatedServer(SimulateOptions()) as server:
        seen = []
        for samples in (1, 1, 2):
            await collect(tmp_path, server, samples=samples)
            reward = read_status(tmp_path / "run").reward
            assert reward is not None
            seen.append((reward.n, reward.is_whole))
    assert seen == [(6, True), (6, True), (6, False)]
