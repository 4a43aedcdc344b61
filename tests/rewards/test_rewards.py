"""A verifier as a trainer's reward: rows and answers in, rewards out, and what happens without a verdict."""

from __future__ import annotations

import json
import os
import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.cli import main
from rollforge.errors import DataError, UsageError
from rollforge.rewards import (
    Unjudged,
    compute_score,
    compute_score_async,
    make_reward_func,
    reward,
    reward_func,
)
from rollforge.rewards.openrlhf import UnjudgedStop
from rollforge.rewards.trainer_rows import answer_in, make_response, make_task
from rollforge.simulate import example_tasks

VERIFIER = """
import os
import time

needs = ("want",)

def verify(task, response):
    if response.text == "hang":
        time.sleep(60)
    if response.text == "crash":
        os._exit(3)
    if response.text == "silent":
        return None
    return {"reward": float(response.text == task["want"]), "pid": os.getpid()}
"""


@pytest.fixture
def verifier(tmp_path: Path) -> str:
    (tmp_path / "my_verifier.py").write_text(VERIFIER)
    return f"{tmp_path / 'my_verifier.py'}:verify"


def test_a_reward_takes_columns_by_name_and_texts_or_messages(verifier: str) -> None:
    scored = reward(verifier)
    completions = ["yes", [{"role": "assistant", "content": "yes"}], "no"]
    assert scored(prompts=["q"] * 3, completions=completions, want=["yes"] * 3) == [1.0, 1.0, 0.0]
    scored.close()


def test_a_column_of_another_name_is_mapped_and_a_missing_one_is_named(verifier: str) -> None:
    scored = reward(verifier, fields={"want": "solution"})
    assert scored(prompts=["q"], completions=["yes"], solution=["yes"]) == [1.0]
    scored.close()
    with pytest.raises(UsageError, match="needs the field 'want'; the row has: solution"):
        reward(verifier)(prompts=["q"], completions=["yes"], solution=["yes"])
    with pytest.raises(DataError, match="no column 'answer'"):
        reward(verifier, fields={"want": "answer"})(prompts=["q"], completions=["yes"], solution=["yes"])


def test_hanging_crashing_and_silent_verifiers_give_none_and_are_counted_in_the_trainers_log(
    verifier: str,
) -> None:
    logged: dict[str, float] = {}
    scored = reward(verifier, timeout_s=1, retries=0)
    texts = ["hang", "crash", "silent", "yes"]
    rewards = scored(
        prompts=["q"] * 4,
        completions=texts,
        want=["yes"] * 4,
        log_metric=logged.__setitem__,
        trainer_state=object(),
    )
    assert rewards == [None, None, None, 1.0]
    assert logged == {"rollforge/unjudged": 3.0}
    assert scored.scorer.unjudged == 3 and scored.scorer.judged == 1
    scored.close()


def test_the_verifier_runs_outside_this_process_and_equal_answers_share_a_call(verifier: str) -> None:
    scored = reward(verifier)
    judged = scored.judge(["q"] * 5, ["yes"] * 5, {"want": ["yes"] * 5})
    assert {one.numbers["pid"] for one in judged} != {os.getpid()}
    assert scored.scorer._judge is not None and scored.scorer._judge.counters.judged == 1
    scored.close()


def test_a_failed_call_is_repeated_before_the_policy_decides(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def fails_once(task: rf.Task, response: rf.Response) -> float:
        if not mark.exists():
            mark.touch()
            raise ConnectionError("try again")
        return 1.0

    scored = reward(fails_once, on_unjudged="raise", retries=1)
    assert scored(prompts=["q"], completions=["a"]) == [1.0]
    scored.close()


def test_outside_trl_no_verdict_stops_the_job_unless_a_number_was_said(verifier: str) -> None:
    with pytest.raises(Unjudged, match="gave no verdict"):
        compute_score("x", "silent", None, {"want": "yes"}, verifier=verifier)
    given = compute_score("x", "silent", None, {"want": "yes"}, verifier=verifier, on_unjudged="value=-1")
    assert given == {"score": -1.0, "rollforge/unjudged": 1.0}
    with pytest.raises(UnjudgedStop, match="gave no verdict"):
        make_reward_func(verifier)(["qsilent"], ["q"], ['{"want": "yes"}'])
    for wrong in ("none", "zero", "value=nan"):
        with pytest.raises(UsageError, match="on_unjudged"):
            compute_score("x", "a", None, {"want": "yes"}, verifier=verifier, on_unjudged=wrong)


def test_no_exception_handler_for_exceptions_swallows_the_stop() -> None:
    assert not issubclass(UnjudgedStop, Exception)


async def test_verls_async_form_gives_the_same_score(verifier: str) -> None:
    sync = compute_score("x", "yes", None, {"want": "yes"}, verifier=verifier)
    assert await compute_score_async("x", "yes", None, {"want": "yes"}, verifier=verifier) == sync


def test_a_misspelt_argument_of_verls_configuration_is_refused(verifier: str) -> None:
    with pytest.raises(UsageError, match="no option 'timeout'; did you mean 'timeout_s'"):
        compute_score("x", "yes", None, {}, verifier=verifier, timeout=3)
    with pytest.raises(UsageError, match="no verifier is named"):
        compute_score("x", "yes", "yes", {})


def test_openrlhfs_queries_lose_their_prompt_and_end_tokens(verifier: str) -> None:
    prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    found = reward_func(
        [f"{prompt}yes<|im_end|>", f"{prompt}no</s>"],
        [prompt] * 2,
        ['{"want": "yes"}'] * 2,
        verifier=verifier,
    )
    assert found == {
        "rewards": [1.0, 0.0],
        "scores": [1.0, 0.0],
        "extra_logs": {"rollforge/unjudged": [0.0, 0.0]},
    }
    assert answer_in("t beginning was cut: x", "a prompt whose long first beginning was cut: "[-19:]) == "x"
    with pytest.raises(DataError, match="does not begin with its prompt"):
        answer_in("something else", "the prompt")


def test_a_plain_label_or_ground_truth_is_the_expected_answer() -> None:
    assert make_task({"ground_truth": "4"})["expected_answer"] == "4"
    found = reward_func(["q\\boxed{4}"], ["q"], ["4"], verifier="math")
    assert found["rewards"] == 1.0


def test_a_prompt_sets_row_is_the_task_that_collect_judged() -> None:
    row = {"prompt": "other", "mean_reward": 0.5, "task_fields": json.dumps({"expected_answer": {"a": [1]}})}
    assert make_task(row, prompt="p") == {
        "expected_answer": {"a": [1]},
        "responses_create_params": {"input": "p"},
    }
    with pytest.raises(DataError, match="task_fields is not JSON"):
        make_task({"task_fields": "{"})


def test_tool_calls_and_reasoning_of_a_completion_reach_the_verifier() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    response = make_response(
        [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": "<think>sum</think>\nIt is 3."},
        ],
        splits_reasoning=True,
    )
    assert response.text == "It is 3." and response.reasoning == "sum"
    assert [(one.name, one.parsed(), one.output) for one in response.tool_calls] == [("add", {"a": 1}, "3")]
    assert make_response("<think>x</think>y").text == "<think>x</think>y"


def test_a_reward_survives_pickling_and_a_fork(verifier: str) -> None:
    scored = reward(verifier, timeout_s=5)
    assert scored(prompts=["q"], completions=["yes"], want=["yes"]) == [1.0]
    copy = pickle.loads(pickle.dumps(scored))
    assert copy(prompts=["q"], completions=["no"], want=["yes"]) == [0.0]
    assert copy.__name__ == scored.__name__
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        again = pool.apply(_in_a_child, (scored,))
    assert again == [1.0]
    scored.close()
    copy.close()


def _in_a_child(scored: Any) -> list[float | None]:
    found: list[float | None] = scored(prompts=["q"], completions=["yes"], want=["yes"])
    scored.close()
    return found


def test_a_group_verifier_is_refused() -> None:
    def verify_group(task: rf.Task, responses: list[rf.Response]) -> list[float]:
        return [0.0 for _ in responses]

    with pytest.raises(UsageError, match="scores the samples of a task together"):
        reward(verify_group)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("dataset")
    (folder / "verifiers").mkdir()
    (folder / "verifiers" / "mine.py").write_text(
        "def verify(task, response, weight: float = 1.0):\n"
        "    return weight * float(str(task['expected_answer']) in response.text)\n"
    )
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(40, 0, "math")))
    before = Path.cwd()
    os.chdir(folder)
    try:
        run = rf.collect(
            "tasks.jsonl",
            model="simulated",
            verifier="verifiers/mine.py:verify",
            verifier_options={"weight": 0.5},
            samples=4,
            out="runs/mine",
        )
        run.prepare("grpo", to="trl", out="data/grpo")
    finally:
        os.chdir(before)
    return folder / "data" / "grpo"


def test_from_dataset_needs_no_second_configuration(dataset: Path) -> None:
    rows = [json.loads(line) for line in (dataset / "train.jsonl").read_text().splitlines()]
    scored = reward.from_dataset(dataset)
    answer = json.loads(rows[0]["task_fields"])["expected_answer"]
    columns = {name: [rows[0][name]] for name in rows[0] if name != "prompt"}
    assert scored(prompts=[rows[0]["prompt"]], completions=[f"It is {answer}."], **columns) == [0.5]
    scored.close()
    assert 'reward.from_dataset(".")' in (dataset / "README.md").read_text()


def test_a_changed_verifier_is_refused_or_warned_about(
    dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = dataset.parents[1] / "verifiers" / "mine.py"
    text = source.read_text()
    source.write_text(text + "\n# changed\n")
    try:
        with pytest.raises(UsageError, match="has changed since"):
            reward.from_dataset(dataset)
        reward.from_dataset(dataset, on_change="warn")
        assert "has changed since" in caplog.text
    finally:
        source.write_text(text)
    with pytest.raises(UsageError, match="no such manifest"):
        reward.from_dataset(tmp_path)


@pytest.mark.parametrize(
    "name", ["evil.py:verify", "../data/evil.py:verify", "{folder}/evil.py:verify", "link.py:verify"]
)
def test_code_that_came_with_a_dataset_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef verify(task, response): return 1.0\n"
    )
    (folder / "link.py").symlink_to("evil.py")
    source = {"run": "r", "verifiers": [name.format(folder=folder)]}
    (folder / "manifest.json").write_text(json.dumps({"sources": [source]}))
    for place in (tmp_path, folder):
        monkeypatch.chdir(place)
        with pytest.raises(UsageError, match=r"came with the dataset|cannot be loaded"):
            reward.from_dataset(folder)
    assert not (tmp_path / "ran").exists()


def test_a_dataset_does_not_switch_the_sandbox_off(tmp_path: Path) -> None:
    source = {"run": "r", "verifiers": ["code"], "verifier_options": {"sandbox": "off"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"sources": [source]}))
    with pytest.raises(UsageError, match="without a sandbox, which only you can allow"):
        reward.from_dataset(tmp_path)


def test_a_dataset_judged_by_nobody_known_names_no_verifier(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"sources": [{"run": "r"}]}')
    with pytest.raises(UsageError, match="names no verifier"):
        reward.from_dataset(tmp_path)
    two = [{"run": "a", "verifiers": ["math"]}, {"run": "b", "verifiers": ["exact"]}]
    (tmp_path / "manifest.json").write_text(json.dumps({"sources": two}))
    with pytest.raises(UsageError, match="judged in several ways"):
        reward.from_dataset(tmp_path)


def run_command(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def test_the_command_prints_the_adapters_path_and_files_that_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("rewards", "--path", "verl") == 0
    path = Path(capsys.readouterr().out.strip())
    assert "def compute_score(" in path.read_text()
    for trainer in ("trl", "verl", "openrlhf"):
        assert run_command("rewards", "--write", trainer, "math", "--on-unjudged", "value=0") == 0
        names: dict[str, Any] = {}
        exec(capsys.readouterr().out, names)
        made = names["compute_score" if trainer == "verl" else "reward_func"]
        assert callable(made)
    assert run_command("rewards", "--write", "nemo-rl", "math") == 0
    assert "rollforge serve-verifier math" in capsys.readouterr().out
    assert run_command("rewards", "--write", "trl", "math", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trainer"] == "trl"


def test_the_command_refuses_what_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        ((), "say what to print"),
        (("--write", "verl"), "which verifier?"),
        (("--write", "verl", "mth"), "did you mean 'math'"),
        (("--write", "verl", "math", "--on-unjudged", "none"), "has no missing reward"),
        (("--write", "verl", "math", "--dataset", "x"), "names the verifier"),
    ):
        assert run_command("rewards", *words) == 2
        assert text in capsys.readouterr().err


def test_the_configuration_for_nemo_rl_names_the_files_that_serve_verifier_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    assert run_command("rewards", "--write", "nemo-rl", "mcqa", "--verifier-set", "gym=0.7") == 0
    text = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    command = next(line for line in text.splitlines() if "--write-server" in line).partition("rollforge ")[2]
    assert run_command(*shlex.split(command)) == 0
    own = yaml.safe_load(text)["env"]["nemo_gym"]["config_paths"][0]
    assert (tmp_path / own).is_file()
    assert "mcqa" in (tmp_path / own).read_text()
