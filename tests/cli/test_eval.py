"""`rollforge eval` and `rollforge bench`: several task sets in one resumable run, intervals, paired verdicts, curves."""

import json
import math

import numpy as np
import pytest

from rollforge.assembly.evaluations import parse_contestants
from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.sinks.jsonl import read_metrics
from rollforge.statistics import intervals
from rollforge.steps.evaluation import Evaluation, compare, judge_claims, parse_claims, parse_taskset
from rollforge.steps.evaluation.compare import verdict
from rollforge.steps.evaluation.evaluate import _results


def rollforge(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


@pytest.fixture
def tasksets(tmp_path):
    for name, count in (("sums", 6), ("products", 4)):
        sign = "+" if name == "sums" else "*"
        rows = [
            {
                "prompt": f"What is {i + 3} {sign} 12? Use \\boxed{{}}.",
                "expected_answer": str(eval(f"{i + 3}{sign}12")),
            }
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["-i", f"sums={tmp_path}/sums.jsonl", "-i", f"products={tmp_path}/products.jsonl"]


@pytest.mark.slow
def test_an_evaluation_is_one_run_that_resumes_and_is_logged_at_its_step(tasksets, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["eval", *tasksets, "-m", "simulated", "-k", 4, "--verifier", "exact", "-o", run, "--json"]
    assert rollforge(*words, "--step", 100, "--detailed-stats") == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["tasksets"]) == {"sums", "products"}
    sums = shown["tasksets"]["sums"]
    assert (sums["tasks"], sums["runs"], sums["coverage"]) == (6, 24, 1.0)
    low, high = sums["metrics"]["reward"]["mean@4"]["ci"]
    assert low <= sums["metrics"]["reward"]["mean@4"]["value"] <= high
    assert shown["metrics"]["eval/sums/reward/mean@4/mean"] == pytest.approx(
        sums["metrics"]["reward"]["mean@4"]["value"]
    )
    assert {
        f"eval/products/reward/{name}/mean" for name in ("std@4", "best@2", "worst@4", "pass@4", "maj@4")
    } <= set(shown["metrics"])
    assert shown["metrics"]["time/eval"] > 0
    assert len((run / "rollouts.jsonl").read_bytes().splitlines()) == 40
    assert rollforge(*words, "--step", 100) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["tasksets"] == shown["tasksets"]
    assert "nothing was asked of simulated" in said.err
    assert len((run / "rollouts.jsonl").read_bytes().splitlines()) == 40
    steps = list(read_metrics(run / "rollouts_metrics.jsonl"))
    assert [line["step"] for line in steps] == [100, 100]
    assert "eval/sums/reward/mean@4" in steps[1]["metrics"]


QUESTIONS = "question,answer\n" + "".join(f"What is {n} + 1?,Add. #### {n + 1}\n" for n in range(4))
MAP = 'prompt=question,expected_answer="answer|after:####"'


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["eval", "bench"])
def test_a_map_makes_the_tasks_of_every_task_set_and_binds_the_run(verb, tmp_path, capsys):
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(QUESTIONS)
    words = [verb, "-i", tmp_path / "one.csv", "-i", f"second={tmp_path}/two.csv", "-m", "simulated"]
    words += ["-o", tmp_path / "out", "--json"]
    assert rollforge(*words, "--map", MAP) == 0  # every task has an expected_answer: no verifier is needed
    shown = json.loads(capsys.readouterr().out)
    tasksets = shown["models"]["simulated"]["tasksets"] if verb == "bench" else shown["tasksets"]
    assert {name: one["tasks"] for name, one in tasksets.items()} == {"one": 4, "second": 4}
    run = tmp_path / "out" / "simulated" if verb == "bench" else tmp_path / "out"
    tasks = [json.loads(line) for line in (run / "rollouts_tasks.jsonl").read_text().splitlines()]
    assert [task["expected_answer"] for task in tasks] == ["1", "2", "3", "4"] * 2
    fingerprint = json.loads((run / "rollouts_run.json").read_text())["fingerprint"]
    assert fingerprint["tasksets.one.map"] == 'prompt=question,expected_answer="answer|after:####"'.replace(
        '"', ""
    )
    assert fingerprint["tasksets.second.map"] == fingerprint["tasksets.one.map"]
    assert rollforge(*words, "--map", MAP) == 0
    assert "nothing was asked" in capsys.readouterr().err
    assert rollforge(*words, "--map", f"{MAP},extra=answer") == 7
    assert "tasksets.one.map" in capsys.readouterr().err


def test_a_row_that_the_map_cannot_read_is_named_by_its_own_file(tmp_path, capsys):
    (tmp_path / "one.csv").write_text(QUESTIONS + "What is left?,nobody knows\n")
    words = ["eval", "-i", tmp_path / "one.csv", "-m", "simulated", "-o", tmp_path / "run"]
    assert rollforge(*words, "--map", MAP) == 2
    said = capsys.readouterr().err
    assert "one.csv:5" in said and "the text has no '####'" in said
    assert not (tmp_path / "run").exists()
    assert rollforge(*words, "--split", "test") == 2
    assert "--split chooses among the files of a whole dataset on the Hub" in capsys.readouterr().err


def test_a_config_file_has_the_map_of_an_evaluation(tmp_path, capsys):
    (tmp_path / "one.csv").write_text(QUESTIONS)
    (tmp_path / "run.toml").write_text(f"[eval]\nmap = ['{MAP}']\n")
    words = ["eval", "-i", tmp_path / "one.csv", "-m", "simulated", "-o", tmp_path / "run", "--json"]
    assert rollforge(*words, "--config", tmp_path / "run.toml") == 0
    assert json.loads(capsys.readouterr().out)["tasksets"]["one"]["tasks"] == 4


@pytest.mark.slow
def test_the_rollouts_of_one_step_are_never_logged_as_those_of_another(tasksets, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["eval", *tasksets, "-m", "simulated", "--verifier", "exact", "-o", run, "--json"]
    assert rollforge(*words, "--step", 100) == 0
    before = (run / "rollouts.jsonl").read_bytes()
    assert rollforge(*words, "--step", 200) == 0
    assert "moved aside" in capsys.readouterr().err
    after = (run / "rollouts.jsonl").read_bytes()
    assert before != after and len(before.splitlines()) == len(after.splitlines())
    assert [line["step"] for line in read_metrics(run / "rollouts_metrics.jsonl")] == [100, 200]
    assert rollforge(*words, "--step", 200) == 0
    assert (run / "rollouts.jsonl").read_bytes() == after
    assert rollforge(*words, "--step", 300, "--fresh") == 0
    assert [line["step"] for line in read_metrics(run / "rollouts_metrics.jsonl")] == [300]


@pytest.mark.slow
def test_each_task_set_may_have_its_own_verifier(tasksets, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def verify(task, response):\n    return 0.25\n")
    code = rollforge(
        *["eval", *tasksets, "-m", "simulated", "-o", tmp_path / "run", "--json"],
        *["--verifier", "sums=exact", "--verifier", f"products={tmp_path}/mine.py:verify"],
    )
    assert code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["metrics"]["eval/products/reward/mean@1"] == 0.25
    assert shown["metrics"]["eval/sums/reward/mean@1"] != 0.25


def test_verifier_options_may_be_of_one_task_set():
    from rollforge.assembly.evaluations import EvalSettings, choose_verifier
    from rollforge.records import Response, Task
    from rollforge.steps.evaluation import JoinedTasksets
    from rollforge.verifiers.by_taskset import ByTaskset, ByTasksetOptions

    given = {"expected": None, "sums": {"pattern": "[0-9]"}, "products": {"pattern": "none of this"}}
    settings = EvalSettings(verifier=["regex"], verifier_set=given)
    name, options, _ = choose_verifier(settings, JoinedTasksets({"sums": 1, "products": 1}, True))
    assert name.endswith("ByTaskset") and options["options"] == {"expected": None}
    dispatching = ByTaskset(ByTasksetOptions(**options))
    rewards = [
        dispatching.verify(Task({"taskset": one}), Response.from_text("it is 15"))["reward"]
        for one in ("sums", "products")
    ]
    assert rewards == [1.0, 0.0]
    settings = EvalSettings(verifier=["regex"], verifier_set={"pattern": "x"})
    other = choose_verifier(settings, JoinedTasksets({"sums": 1}, True))
    assert (other.verifier, other.options) == ("regex", {"pattern": "x"})


@pytest.mark.slow
def test_numbers_of_a_verifier_with_a_suffix_are_reduced_by_it(tasksets, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "def verify(task, response):\n    return {'reward': 1.0, 'words:sum': 3, 'depth:mean': 2}\n"
    )
    verifier = f"{tmp_path}/mine.py:verify"
    words = ["eval", *tasksets, "-m", "simulated", "-o", tmp_path / "run", "-k", 2, "--json"]
    assert rollforge(*words, "--verifier", verifier) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["metrics"]["eval/sums/words/sum"] == 36
    assert shown["tasksets"]["sums"]["metrics"]["words"] == {"sum": {"value": 36, "ci": None, "tasks": 6}}
    assert shown["tasksets"]["sums"]["metrics"]["depth"]["mean@2"]["value"] == 2


@pytest.mark.slow
def test_a_number_whose_name_is_no_metric_costs_only_itself(tasksets, tmp_path, capsys, caplog):
    (tmp_path / "mine.py").write_text(
        "def verify(task, response):\n    return {'reward': 1.0, 'my number ': 3, '': 4, 'fine': 5}\n"
    )
    verifier = ["--verifier", f"{tmp_path}/mine.py:verify"]
    assert rollforge("eval", *tasksets, "-m", "simulated", "-o", tmp_path / "run", *verifier, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["eval/sums/fine/mean@1"] == 5
    assert not any("my number" in name for name in metrics)
    assert sum("'my number '" in record.getMessage() for record in caplog.records) == 1
    words = ["collect", "-i", tmp_path / "sums.jsonl", "-o", tmp_path / "steps", "-m", "simulated", *verifier]
    assert rollforge(*words, "--step-size", 6, "--stop-on", "never", "--progress", "none") == 0
    (line,) = read_metrics(tmp_path / "steps" / "rollouts_metrics.jsonl")
    assert line["metrics"]["rollout/fine/mean"] == 5


@pytest.mark.slow
def test_a_benchmark_compares_models_task_by_task_and_says_so_in_words(tasksets, tmp_path, capsys):
    words = [
        "bench",
        *tasksets,
        "-m",
        "step1=simulated",
        "-m",
        "step2=simulated",
        "-k",
        2,
        "--verifier",
        "exact",
    ]
    assert rollforge(*words, "-o", tmp_path / "bench", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["models"]) == {"step1", "step2"}
    assert [model["step"] for model in shown["models"].values()] == [1, 2]
    assert "bench/sums/reward/mean@2" in shown["models"]["step1"]["metrics"]
    assert [difference["taskset"] for difference in shown["differences"]] == ["sums", "products", "all"]
    assert "step2 and step1 are the same" in shown["differences"][0]["verdict"]
    assert json.loads((tmp_path / "bench" / "bench.json").read_text()) == shown


@pytest.mark.slow
def test_a_metric_nobody_has_is_told_before_the_second_model_is_asked(tasksets, tmp_path, capsys):
    words = ["bench", *tasksets, "-m", "a=simulated", "-m", "b=simulated", "--verifier", "exact"]
    assert rollforge(*words, "-o", tmp_path / "bench", "--metric", "rewrd", "--progress", "none") == 2
    assert "did you mean 'reward'" in capsys.readouterr().err
    assert not (tmp_path / "bench" / "b").exists()


def test_a_sink_that_cannot_start_stops_before_any_model_call(tasksets, tmp_path, capsys):
    run = tmp_path / "run"
    code = rollforge(
        "eval", *tasksets, "-m", "simulated", "-o", run, "--verifier", "exact", "--sink", "console=loud"
    )
    assert code == 2
    assert not (run / "rollouts.jsonl").exists()
    assert "console" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--verifier", "other=exact"], "no task set 'other'"),
        (["--verifier", "sums=exact"], "no verifier for 'products'"),
        (["-k", "0"], "at least 1"),
        (["-i", "sums=again.jsonl"], "called 'sums'"),
    ],
)
def test_mistakes_are_told_in_a_line(tasksets, tmp_path, capsys, words, message):
    assert rollforge("eval", *tasksets, "-m", "simulated", "-o", tmp_path / "run", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_whose_runs_all_fail_ends_as_incomplete_and_says_so(tasksets, tmp_path, capsys):
    words = ["eval", *tasksets, "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "-o", tmp_path / "run"]
    code = rollforge(
        *words,
        "--verifier",
        "exact",
        "--outage-patience",
        "1s",
        "--retries",
        0,
        "--attempts",
        1,
        "--progress",
        "none",
    )
    assert code == 3
    assert "nothing to evaluate" in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_set_without_a_finished_run_stays_in_the_table_with_a_coverage_of_zero(
    tasksets, tmp_path, capsys
):
    refused = {"responses_create_params": {"input": "?", "temperature": "hot"}, "expected_answer": "1"}
    (tmp_path / "refused.jsonl").write_text(json.dumps(refused) + "\n")
    words = ["eval", *tasksets, "-i", f"refused={tmp_path}/refused.jsonl", "-m", "simulated", "-k", 2]
    words += ["-o", tmp_path / "run", "--verifier", "exact", "--progress", "none"]
    assert rollforge(*words) == 3
    assert [
        line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("refused")
    ] == [["reward", "0/1", "0", "%"]]
    (line,) = read_metrics(tmp_path / "run" / "rollouts_metrics.jsonl")
    numbers = {
        name: line["metrics"][f"eval/refused/reward/{name}"] for name in ("coverage@2", "runs", "missing")
    }
    assert numbers == {"coverage@2": 0, "runs": 0, "missing": 2}


def test_a_task_set_is_a_name_and_a_file():
    assert parse_taskset("gsm8k=a/b.jsonl").name == "gsm8k"
    assert parse_taskset("data/mmlu.jsonl.gz").name == "mmlu"
    assert parse_taskset("hf://datasets/openai/gsm8k@refs/pr/3").name == "gsm8k"
    assert parse_taskset("hf://datasets/openai/gsm8k@main/main/test.parquet").name == "test"
    with pytest.raises(UsageError):
        parse_taskset("a/b=c.jsonl")


def test_models_have_labels_addresses_and_steps():
    before, after = parse_contestants(["before=qwen@http://a/v1", "qwen-2"])
    assert (before.label, before.model, before.url, before.step) == ("before", "qwen", "http://a/v1", 1)
    assert (after.label, after.model, after.url, after.step) == ("qwen-2", "qwen-2", None, 2)
    assert [c.step for c in parse_contestants(["global_step_100=m", "global_step_200=m"])] == [100, 200]
    for same in (["m", "m"], ["org/a=m", "org-a=m"]):
        with pytest.raises(UsageError, match="same label"):
            parse_contestants(same)
    for nowhere in ("..=m", ".=m", "=m"):
        with pytest.raises(UsageError, match="names no directory"):
            parse_contestants([nowhere])


def test_no_task_set_takes_the_name_of_all_together(tasksets, tmp_path, capsys):
    words = [
        "bench",
        *tasksets,
        "-i",
        f"all={tmp_path}/sums.jsonl",
        "-m",
        "simulated",
        "-o",
        tmp_path / "bench",
    ]
    assert rollforge(*words) == 2
    assert "'all'" in capsys.readouterr().err


def evaluation(**task_means):
    means = {taskset: {"reward": values} for taskset, values in task_means.items()}
    return Evaluation(run="r", k=1, tasksets={}, metrics={}, task_means=means)


def test_differences_are_paired_over_shared_tasks():
    means = {0: 0.0, 1: 0.5, 2: 1.0, 10: 0.1, 11: 0.2, 12: 0.3, 13: 0.4}
    gaps = dict(zip(means, (0.2, 0.1, 0.3, 0.2, 0.2, 0.15, 0.25), strict=True))
    one = evaluation(a=means | {3: 1.0}, b={5: 1.0})
    two = evaluation(a={task: mean + gaps[task] for task, mean in means.items()} | {9: 0.0}, b={5: 1.2})
    on_a, on_b, overall = compare({"one": one, "two": two})
    assert (on_a.tasks, on_b.tasks, overall.tasks) == (7, 1, 8)
    assert on_a.difference == pytest.approx(0.2)
    assert "two is better than one" in on_a.verdict
    assert "too few" in on_b.verdict


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (intervals.Estimate(-0.2, -0.3, -0.1, 50), "new is worse than old"),
        (intervals.Estimate(0.0, -0.1, 0.1, 50), "no difference shown"),
        (intervals.Estimate(0.0, 0.0, 0.0, 50), "are the same"),
        (intervals.Estimate(None, None, None, 0), "nothing can be said"),
        (intervals.Estimate(1.0, 0.9, 1.0, 3), "too few tasks to tell"),
    ],
)
def test_the_verdict_says_what_the_interval_allows(estimate, words):
    assert words in verdict("new", "old", "reward", estimate)
    assert not math.isnan(estimate.groups)


def test_where_one_task_in_hundreds_passes_the_interval_is_as_wide_as_so_few_answers_allow():
    reward = np.zeros(200 * 8)
    reward[0] = 1.0
    by_statistic = {
        "pass@8": np.r_[1.0, np.zeros(199)],
        "mean@8": np.r_[0.125, np.zeros(199)],
        "std@8": np.r_[0.35, np.zeros(199)],
    }
    found = _results("reward", reward, by_statistic)
    assert found["pass@8"].ci == intervals.mean_of(by_statistic["pass@8"], most=200).ci
    assert found["mean@8"].ci == intervals.mean_of(by_statistic["mean@8"], most=1600).ci
    assert found["std@8"].ci == intervals.mean_of(by_statistic["std@8"]).ci


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ("two > one", True),
        ("two > one + 0.05", True),
        ("two > one + 0.5", False),
        ("one > two", False),
        ("one >= two - 0.5", True),
        ("few > one", False),
    ],
)
def test_a_required_claim_holds_only_if_the_whole_paired_interval_does(claim, holds):
    means = {task: 0.1 * (task % 5) for task in range(40)}
    better = {task: mean + 0.2 + 0.01 * (task % 3) for task, mean in means.items()}
    models = {
        "one": evaluation(a=means),
        "two": evaluation(a=better),
        "few": evaluation(a={0: 1.0, 1: 1.0}),
    }
    (result,) = judge_claims(parse_claims([claim], list(models)), models, "reward")
    assert (result.claim, result.holds) == (claim, holds)


@pytest.mark.parametrize(
    ("claim", "what"),
    [
        ("two", "not understood"),
        ("two > on", "did you mean 'one'"),
        ("> one", "not understood"),
        ("one > one", "itself"),
    ],
)
def test_a_claim_about_nobody_is_refused_before_any_model_is_asked(claim, what):
    with pytest.raises(UsageError, match=what):
        parse_claims([claim], ["one", "two"])


@pytest.mark.slow
def test_a_benchmark_that_does_not_show_what_is_required_ends_as_a_failed_gate(tasksets, tmp_path, capsys):
    words = [
        "bench",
        *tasksets,
        "-m",
        "base=simulated",
        "-m",
        "trained=simulated",
        "-k",
        2,
        "--verifier",
        "exact",
    ]
    assert rollforge(*words, "-o", tmp_path / "b", "--json", "--require", "trained > base") == 4
    shown = json.loads(capsys.readouterr().out)
    assert shown["exit_code"] == 4 and [one["holds"] for one in shown["required"]] == [False]
    assert rollforge(*words, "-o", tmp_path / "b", "--require", "trained >= base - 0.4") == 0
    assert "holds: trained >= base - 0.4" in capsys.readouterr().err
