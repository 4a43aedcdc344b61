"""Verifying a run later and again: what is owed, what is written, what survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import DataError, UsageError
from rollforge.index import open_index
from rollforge.rollouts import RolloutReader, TaskFields
from rollforge.steps.verify import Verification, VerifyOptions, VerifySummary, compare, use_verifier
from rollforge.store import RunFiles, RunLock

ROLLFORGE = [sys.executable, "-c", "from rollforge.cli import main; main()"]

EQUAL = """
needs = ("expected_answer",)
def verify(task, response):
    return {"reward": float(response.text == task["expected_answer"]), "chars": len(response.text)}
"""


def row(task: int, sample: int, text: str, **more: Any) -> dict[str, Any]:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": sample,
        "agent_ref": {"name": "model_call"},
        "reward": None,
        "responses_create_params": {"input": [{"role": "user", "content": f"task {task}"}]},
        "response": {"id": f"resp_{task}_{sample}", "status": "completed", "output": [message]},
        "_rf": {"started": 1.0, "seconds": 1.0},
        **more,
    }


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def task_row(index: int, **more: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": f"task {index}"}]}
    return {"_ng_task_index": index, "responses_create_params": params, "expected_answer": str(index), **more}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten tasks of four samples: samples 0 and 1 are right, 2 is wrong, 3 is `hard`."""
    directory = tmp_path / "run"
    texts = {0: "{}", 1: "{}", 2: "no", 3: "hard"}
    rows = [row(task, sample, text.format(task)) for sample, text in texts.items() for task in range(10)]
    write_lines(directory / "rollouts.jsonl", rows)
    write_lines(directory / "rollouts_tasks.jsonl", [task_row(index) for index in range(10)])
    return directory


def verifier(path: Path, text: str = EQUAL) -> str:
    path.write_text(textwrap.dedent(text))
    return f"{path}:verify"


def verify(run: Path, name: str, **options: Any) -> VerifySummary:
    options.setdefault("workers", 0)
    return asyncio.run(Verification(VerifyOptions(run=run, verifier=name, **options)).run())


def verdicts(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "rollouts_verdicts.jsonl")


def keys(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((one["_ng_task_index"], one["_ng_rollout_index"]) for one in rows)


def test_every_rollout_gets_a_verdict_with_name_fingerprint_and_time(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    before = (run / "rollouts.jsonl").read_bytes()
    summary = verify(run, name)
    rows = verdicts(run)
    assert keys(rows) == [(task, sample) for task in range(10) for sample in range(4)]
    assert set(rows[0]) == {
        "_ng_task_index", "_ng_rollout_index", "verifier", "fingerprint", "mode", "at", "seconds", "shared",
        "reward", "chars", "error",
    }  # fmt: skip
    assert {one["verifier"] for one in rows} == {name}
    assert {one["fingerprint"] for one in rows} == {summary.fingerprint}
    assert all(abs(one["at"] - time.time()) < 600 for one in rows)
    assert (summary.state, summary.judged, summary.coverage) == ("done", 40, 1.0)
    assert summary.reward.mean == 0.5
    assert (summary.reward.n, summary.reward.tasks) == (40, 10)
    assert (run / "rollouts.jsonl").read_bytes() == before


def test_equal_answers_cost_one_call_and_say_how_often_it_served(run: Path, tmp_path: Path) -> None:
    summary = verify(run, verifier(tmp_path / "equal.py"))
    assert summary.calls == 30
    assert (summary.shared, summary.lookups, summary.hit_rate) == (10, 40, 0.25)
    for task in range(10):
        shared = [one["shared"] for one in verdicts(run) if one["_ng_task_index"] == task]
        assert sorted(shared) == [1, 1, 1, 2]


def test_verifying_again_owes_only_what_has_no_verdict(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    verify(run, name)
    lines = (run / "rollouts_verdicts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rollouts_verdicts.jsonl").write_bytes(b"".join(lines[:25]) + lines[25][:30])
    summary = verify(run, name)
    assert (summary.already, summary.judged, summary.reward.mean) == (25, 40, 0.5)
    assert keys(verdicts(run)) == [(task, sample) for task in range(10) for sample in range(4)]
    again = verify(run, name)
    assert (again.already, again.calls, again.reward) == (40, 0, summary.reward)
    assert len(verdicts(run)) == 40


def test_another_fingerprint_or_fresh_judges_again_and_keeps_both(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "options.py", "def verify(task, response, bonus=0.0):\n    return 1 + bonus\n")
    first = verify(run, name)
    second = verify(run, name, options={"bonus": 1.0})
    third = verify(run, name, is_fresh=True)
    assert first.fingerprint == third.fingerprint != second.fingerprint
    assert (second.reward.mean, third.reward.mean) == (2.0, 1.0)
    assert len(verdicts(run)) == 120


FAILING = """
import os
from pathlib import Path
HERE = Path(__file__).parent
def verify(task, response):
    if response.text == "hard" and (HERE / "broken").exists():
        if task["_ng_task_index"] == 3:
            os.abort()
        raise ValueError("too hard")
    if response.text == "no":
        return None
    return 1
"""


def test_failures_are_recorded_never_zero_and_can_be_judged_alone(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "failing.py", FAILING)
    (tmp_path / "broken").touch()
    summary = verify(run, name, workers=1)
    assert (summary.state, summary.judged, summary.unjudged, summary.failed) == ("incomplete", 20, 10, 10)
    assert summary.reward.mean == 1.0
    assert summary.coverage == 0.5
    failed = [one for one in verdicts(run) if one["error"]]
    assert len(failed) == 10
    assert all(one["reward"] is None for one in failed)
    rows = read_lines(run / "rollouts_failures.jsonl")
    assert len(rows) == 10
    assert {(one["class"], one["boundary"], one["_ng_failure_class"]) for one in rows} == {
        ("verifier", "verifier", "verifier")
    }
    by_task = {one["_ng_task_index"]: one["message"] for one in rows}
    assert "SIGABRT" in by_task[3]
    assert "ValueError: too hard" in by_task[4] and "failing.py:" in by_task[4]

    (tmp_path / "broken").unlink()
    again = verify(run, name, is_failed_only=True)
    assert (again.rollouts, again.judged, again.failed) == (10, 10, 0)
    assert verify(run, name, is_failed_only=True).rollouts == 0
    newest = {(one["_ng_task_index"], one["_ng_rollout_index"]): one for one in verdicts(run)}
    assert sum(one["reward"] == 1 for one in newest.values()) == 30


def test_the_newest_verdict_counts_also_when_it_is_a_failure(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "failing.py", FAILING)
    verify(run, name, workers=1)
    (tmp_path / "broken").touch()
    assert verify(run, name, workers=1, is_fresh=True).failed == 10
    assert compare(run, name, name).n == 20
    (tmp_path / "broken").unlink()
    again = verify(run, name, workers=1)
    assert (again.already, again.judged, again.calls) == (30, 30, 10)


def test_failed_only_takes_what_collect_could_not_judge(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    rows = read_lines(run / "rollouts.jsonl")
    for one in rows:
        one["reward"] = None if one["_ng_rollout_index"] == 3 else 1.0
        one["_rf"]["verifier"] = name
    write_lines(run / "rollouts.jsonl", rows)
    summary = verify(run, name, is_failed_only=True)
    assert keys(verdicts(run)) == [(task, 3) for task in range(10)]
    assert summary.rollouts == 10


def test_a_sample_is_the_same_every_time_and_has_the_size_asked_for(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    verify(run, name, sample="7")
    first = keys(verdicts(run))
    assert len(first) == 7
    verify(run, name, sample="7", is_fresh=True)
    assert keys(verdicts(run)) == sorted(first + first)
    share = verify(run, name, sample="50%", is_fresh=True)
    assert 8 <= share.rollouts <= 32


@pytest.mark.parametrize("sample", ["0", "0%", "-3", "150%", "many", "%"])
def test_a_sample_that_is_none_is_refused(run: Path, tmp_path: Path, sample: str) -> None:
    with pytest.raises(UsageError, match="neither a count nor a share"):
        verify(run, verifier(tmp_path / "equal.py"), sample=sample)


def test_where_picks_rollouts_by_columns_of_the_index(run: Path, tmp_path: Path) -> None:
    verify(run, verifier(tmp_path / "equal.py"), where="task < 3 and rollout = 1")
    assert keys(verdicts(run)) == [(0, 1), (1, 1), (2, 1)]


def test_bad_lines_are_counted_and_named_and_do_not_stop_the_rest(run: Path, tmp_path: Path) -> None:
    with (run / "rollouts.jsonl").open("a") as file:
        file.write('not json\n\n{"no": "response"}\n')
    summary = verify(run, verifier(tmp_path / "equal.py"))
    assert (summary.judged, summary.rejected_lines, summary.state) == (40, 2, "incomplete")
    assert [line for line, _ in summary.bad_lines] == [41, 43]


def test_tasks_come_from_nemo_gyms_materialized_inputs(tmp_path: Path) -> None:
    directory = tmp_path / "gym"
    rows = [row(task, sample, str(task)) for task in range(3) for sample in range(2)]
    for one in rows:
        del one["_rf"]
    write_lines(directory / "out.jsonl", rows)
    inputs = [{**task_row(task), "_ng_rollout_index": sample} for task in range(3) for sample in range(2)]
    write_lines(directory / "out_materialized_inputs.jsonl", inputs)
    summary = verify(directory / "out.jsonl", verifier(tmp_path / "equal.py"))
    assert (summary.judged, summary.reward.mean) == (6, 1.0)
    assert len(read_lines(directory / "out_verdicts.jsonl")) == 6


def test_rows_without_indices_are_numbered_by_prompt_and_bring_their_own_fields(tmp_path: Path) -> None:
    directory = tmp_path / "old"
    rows = [{**row(task, 0, str(task)), "expected_answer": str(task)} for _ in range(2) for task in range(3)]
    for one in rows:
        for key in ("_ng_task_index", "_ng_rollout_index", "agent_ref", "_rf"):
            del one[key]
    write_lines(directory / "rollouts.jsonl", rows)
    summary = verify(directory, verifier(tmp_path / "equal.py"))
    assert keys(verdicts(directory)) == [(task, sample) for task in range(3) for sample in range(2)]
    assert (summary.reward.mean, summary.reward.tasks) == (1.0, 3)


def test_a_verdict_stands_beside_the_answer_it_is_about_in_rows_without_indices(tmp_path: Path) -> None:
    directory = tmp_path / "odd"
    texts = ("right", "wrong", "right", "right", "wrong")
    rows = [row(0, sample, text, expected_answer="right") for sample, text in enumerate(texts)]
    for one in rows:
        for key in ("_ng_task_index", "_ng_rollout_index", "_rf"):
            del one[key]
    rows[0]["response"] = None
    rows[1]["responses_create_params"]["temperature"] = 1.0
    rows[2]["responses_create_params"]["input"][0]["content"] = "another prompt"
    rows[4] |= {"_ng_task_index": 0, "_ng_rollout_index": 0}
    write_lines(directory / "rollouts.jsonl", rows)
    verify(directory, verifier(tmp_path / "equal.py"))
    with open_index(directory) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [None, 0.0, 1.0, 1.0, 0.0]


def test_a_run_whose_tasks_lack_the_needed_field_is_refused_before_the_first_verdict(
    run: Path, tmp_path: Path
) -> None:
    name = verifier(tmp_path / "needy.py", "needs = ('rubric',)\ndef verify(task, response):\n    return 1\n")
    with pytest.raises(UsageError, match="no field 'rubric'") as caught:
        verify(run, name)
    assert caught.value.hint and "--tasks" in caught.value.hint
    rich = tmp_path / "rich.jsonl"
    write_lines(rich, [task_row(index, rubric="be nice") for index in range(10)])
    assert verify(run, name, tasks=rich).judged == 40


def test_a_second_verification_of_the_same_run_is_refused(run: Path, tmp_path: Path) -> None:
    with RunLock(RunFiles(run).verdicts_lock), pytest.raises(UsageError, match="another process"):
        verify(run, verifier(tmp_path / "equal.py"))


def test_a_group_verifier_sees_all_samples_of_a_task_in_order(run: Path, tmp_path: Path) -> None:
    text = """
    def verify_group(task, responses):
        texts = [response.text for response in responses]
        return [{"reward": texts.count(text) / len(texts), "of": len(texts)} for text in texts]
    """
    (tmp_path / "majority.py").write_text(textwrap.dedent(text))
    summary = verify(run, f"{tmp_path / 'majority.py'}:verify_group")
    assert summary.judged == 40
    rewards = {(one["_ng_task_index"], one["_ng_rollout_index"]): one["reward"] for one in verdicts(run)}
    assert [rewards[4, sample] for sample in range(4)] == [0.5, 0.5, 0.25, 0.25]
    assert verify(run, f"{tmp_path / 'majority.py'}:verify_group").calls == 0


def test_a_verifiers_own_field_never_replaces_one_of_the_rows(run: Path, tmp_path: Path) -> None:
    name = verifier(
        tmp_path / "names.py", "def verify(t, r):\n    return {'reward': 1, 'seconds': 77, 'mode': 'x'}\n"
    )
    verify(run, name)
    one = verdicts(run)[0]
    assert (one["mode"], one["verdict.seconds"], one["verdict.mode"]) == (None, 77, "x")


def test_the_mode_that_judged_is_in_the_verdict(run: Path, tmp_path: Path) -> None:
    name = verifier(
        tmp_path / "modes.py", "def verify(t, r, fast_mode=False):\n    return 0.5 if fast_mode else 1\n"
    )
    verify(run, name, mode="fast")
    verify(run, name)
    assert [(one["mode"], one["reward"]) for one in verdicts(run)[::40]] == [("fast", 0.5), ("precise", 1.0)]
    table = compare(run, f"{name}@fast", f"{name}@precise")
    assert (table.mean_a.mean, table.mean_b.mean) == (0.5, 1.0)


def test_verifiers_that_agree_on_everything_may_differ_either_way(run: Path, tmp_path: Path) -> None:
    strict, same = verifier(tmp_path / "strict.py"), verifier(tmp_path / "same.py")
    verify(run, strict)
    verify(run, same)
    difference = compare(run, strict, same).difference
    assert difference.mean == 0 and difference.ci is not None
    assert difference.ci[0] == pytest.approx(-difference.ci[1]) and difference.ci[1] > 0


def test_the_flip_table_counts_each_way_with_paired_interval_and_examples(run: Path, tmp_path: Path) -> None:
    strict = verifier(tmp_path / "strict.py")
    loose = verifier(
        tmp_path / "loose.py",
        """
        def verify(task, response):
            if response.text == "hard":
                return {"reward": 1.0, "why": "it tried"}
            if response.text == "0":
                return 0
            return None if task["_ng_task_index"] == 9 else float(response.text == task["expected_answer"])
        """,
    )
    verify(run, strict)
    verify(run, loose)
    table = compare(run, strict, loose)
    assert (table.n, table.agree, table.up, table.down, table.changed) == (37, 25, 10, 2, 0)
    assert (table.only_a, table.only_b, table.neither) == (3, 0, 0)
    assert table.difference.mean == pytest.approx(8 / 37)
    assert table.difference.ci is not None and table.difference.ci[0] < 8 / 37 < table.difference.ci[1]
    assert [one.flip for one in table.examples] == ["0→1"] * 3 + ["1→0"] * 2
    first = table.examples[0]
    assert (first.answer, first.expected, first.details_b["why"]) == ("hard", str(first.task), "it tried")
    assert len({one.task for one in table.examples[:3]}) == 3


def test_the_reward_in_the_run_itself_can_be_compared(run: Path, tmp_path: Path) -> None:
    rows = read_lines(run / "rollouts.jsonl")
    for one in rows:
        one["reward"] = 1.0
    write_lines(run / "rollouts.jsonl", rows)
    name = verifier(tmp_path / "equal.py")
    verify(run, name)
    table = compare(run, "recorded", name)
    assert (table.agree, table.down) == (20, 20)
    with pytest.raises(UsageError, match="no verdict in this run is by 'nobody'"):
        compare(run, "nobody", name)


def test_rewards_that_nobody_recorded_cannot_be_compared(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    verify(run, name)
    with pytest.raises(UsageError, match="no rollout has a reward of its own"):
        compare(run, "recorded", name)


def test_a_run_that_nobody_judged_is_judged_before_it_is_compared(run: Path) -> None:
    with pytest.raises(UsageError, match="no rollout has a reward of its own") as refused:
        compare(run, "recorded", "exact")
    assert refused.value.hint == f"judge it first: rollforge verify {run} --verifier NAME"


def test_use_names_the_verdict_of_record_and_keeps_the_rest_of_the_manifest(
    run: Path, tmp_path: Path
) -> None:
    name = verifier(tmp_path / "equal.py")
    verify(run, name)
    (run / "rollouts_run.json").write_text(
        '{"rollforge": "0.1.0", "state": "done", "of_a_newer_version": [1]}'
    )
    use_verifier(run, name)
    manifest = json.loads((run / "rollouts_run.json").read_text())
    assert (manifest["verdict_of_record"], manifest["of_a_newer_version"]) == (name, [1])
    with pytest.raises(UsageError, match="did you mean"):
        use_verifier(run, name[:-1])
    use_verifier(run, "recorded")
    assert json.loads((run / "rollouts_run.json").read_text())["verdict_of_record"] == "recorded"
    with RunLock(RunFiles(run).lock), pytest.raises(UsageError, match="still being collected"):
        use_verifier(run, name)


async def test_follow_judges_while_another_process_collects(run: Path, tmp_path: Path) -> None:
    name = verifier(tmp_path / "equal.py")
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rollouts.jsonl").write_bytes(b"".join(lines[:10]) + lines[10][:50])
    lock = RunLock(RunFiles(run).lock)
    lock.__enter__()
    verification = Verification(VerifyOptions(run=run, verifier=name, workers=1, is_following=True))
    work = asyncio.create_task(verification.run())
    while verification.snapshot().done < 10:
        await asyncio.sleep(0.02)
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(lines[10][50:] + b"".join(lines[11:]))
    while verification.snapshot().done < 40:
        await asyncio.sleep(0.02)
    assert not work.done()
    lock.__exit__(None, None, None)
    summary = await work
    assert (summary.judged, summary.state) == (40, "done")
    assert len(verdicts(run)) == 40


async def test_stopping_finishes_what_is_being_judged_and_resumes(run: Path, tmp_path: Path) -> None:
    name = verifier(
        tmp_path / "slow.py", "import time\ndef verify(t, r):\n    time.sleep(0.02)\n    return 1\n"
    )
    verification = Verification(VerifyOptions(run=run, verifier=name, workers=1))
    work = asyncio.create_task(verification.run())
    while verification.snapshot().done < 3:
        await asyncio.sleep(0.01)
    verification.stop()
    summary = await work
    written = len(verdicts(run))
    assert summary.state == "interrupted"
    assert summary.judged == written
    again = await Verification(VerifyOptions(run=run, verifier=name, workers=1)).run()
    assert (again.already, again.judged, len(verdicts(run))) == (written, 40, 40)


@pytest.mark.parametrize("after", [1, 25])
def test_kill_minus_nine_loses_no_acknowledged_verdict_and_doubles_none(
    run: Path, tmp_path: Path, after: int
) -> None:
    name = verifier(
        tmp_path / "slow.py", "import time\ndef verify(t, r):\n    time.sleep(0.01)\n    return 1\n"
    )
    command = [
        *ROLLFORGE,
        "verify",
        str(run),
        "--verifier",
        name,
        "--verify-workers",
        "1",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = run / "rollouts_verdicts.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < after):
        time.sleep(0.005)
    process.kill()
    process.wait()
    seen = path.read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(seen[: seen.rfind(b"\n") + 1])
    assert keys(verdicts(run)) == [(task, sample) for task in range(10) for sample in range(4)]


def test_ctrl_c_drains_says_how_to_resume_and_exits_130(run: Path, tmp_path: Path) -> None:
    name = verifier(
        tmp_path / "slow.py", "import time\ndef verify(t, r):\n    time.sleep(0.1)\n    return 1\n"
    )
    command = [
        *ROLLFORGE,
        "verify",
        str(run),
        "--verifier",
        name,
        "--verify-workers",
        "1",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    path = run / "rollouts_verdicts.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < 1):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to every process in the foreground
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "resumes: rollforge verify" in said
    rows = verdicts(run)
    assert 1 <= len(rows) < 40
    assert all(one["error"] is None for one in rows)


def test_a_task_file_is_read_at_random_whatever_its_container(tmp_path: Path) -> None:
    import gzip

    rows = [{"prompt": f"task {index}", "expected_answer": str(index)} for index in range(50)]
    write_lines(tmp_path / "tasks.jsonl", rows)
    packed = tmp_path / "tasks.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "tasks.jsonl").read_bytes()))
    for path in (tmp_path / "tasks.jsonl", packed):
        tasks = TaskFields(RunFiles(tmp_path / "none"), path)
        found = [tasks.get(index) for index in (49, 0, 17)]
        assert [one and one["expected_answer"] for one in found] == ["49", "0", "17"]
        assert tasks.get(50) is None
        assert found[0] is not None and found[0].prompt == "task 49"


def test_tasks_that_a_collecting_process_adds_are_found(tmp_path: Path) -> None:
    tasks = TaskFields(RunFiles(tmp_path))
    assert tasks.get(0) is None
    write_lines(tmp_path / "rollouts_tasks.jsonl", [task_row(0)])
    assert tasks.get(0) is not None and tasks.get(1) is None
    with (tmp_path / "rollouts_tasks.jsonl").open("a") as file:
        file.write(json.dumps(task_row(1)) + "\n")
    found = tasks.get(1)
    assert found is not None and found["expected_answer"] == "1"


def test_a_group_with_a_new_sample_is_judged_again_as_a_whole(run: Path, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("def verify_group(t, rs):\n    return [len(rs)] * len(rs)\n")
    name = f"{tmp_path / 'count.py'}:verify_group"
    verify(run, name)
    with (run / "rollouts.jsonl").open("a") as file:
        file.write(json.dumps(row(4, 4, "late")) + "\n")
    summary = verify(run, name)
    assert (summary.rollouts, summary.already, summary.judged, summary.owed) == (41, 36, 41, 0)
    newest = {(one["_ng_task_index"], one["_ng_rollout_index"]): one["reward"] for one in verdicts(run)}
    assert [newest[4, sample] for sample in range(5)] == [5.0] * 5
    assert newest[3, 0] == 4.0


def test_a_damaged_archive_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    path.write_bytes(b"\x1f\x8b" + b"junk" * 20)
    with pytest.raises(DataError):
        list(RolloutReader(path))
