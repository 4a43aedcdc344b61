"""Reports: the numbers are those of the other commands, nothing runs, nothing grows without bound."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rollforge as rf
from rollforge.assembly.reports import run_inputs, write_report
from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.steps.report import (
    BenchFacts,
    EvaluationFacts,
    LoggedStep,
    read_bins,
    report_evaluation,
    report_run,
)
from rollforge.steps.report.compare_page import labels_of
from rollforge.steps.report.inputs import AtKFacts, FindingFacts, FindingLocation, TasksetFacts
from rollforge.testing import Shape, healthy_run, sick_run
from tests.builders import make_rollout, write_rows
from tests.hostile_texts import TEXTS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    healthy_run(Shape(tasks=60, samples=4), seed=3).write(folder)
    return folder


def read(path: str | Path) -> str:
    return Path(path).read_text("utf-8")


def words(page: str) -> str:
    """What a reader sees: no tags, no style."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_the_page_leads_with_the_verdict_and_shows_the_numbers_of_metrics_check_and_profile(
    run: Path, tmp_path: Path
) -> None:
    page = read(write_report([run], tmp_path / "r.html").path)
    found = rf.open_run(run)
    metrics, report, profile = found.metrics(), found.check(), found.profile().summary
    shown = words(page)
    assert f"{metrics.fields['reward'].mean:.3f}" in shown
    assert f"{metrics.counts.judged:,} judged of" in shown
    for finding in report.findings:
        assert html.unescape(finding.text) in shown
    for name, count in profile.bands.items():
        assert re.search(rf"{name}\s+{count:,}", shown)
    assert shown.index("rewards") < shown.index("Findings")


def test_tasks_in_the_strip_do_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, [0.1, 0.2, 0.3, None][(task + sample) % 4])
        for task in range(300)
        for sample in range(6)
    ]
    write_rows(tmp_path / "a" / "rollouts.jsonl", rows)
    write_rows(tmp_path / "b" / "rollouts.jsonl", rows[::-1])
    strips = []
    for name in "ab":
        with open_index(tmp_path / name) as index:
            strips.append(read_bins(index).strip)
    assert strips[0] is not None and strips[0] == strips[1]


@pytest.mark.parametrize(
    "rewards", [(0.0, 1e308, -1e308), (1e308, 1e308, 0.0), (0.0, 5e-324), (1e-320, 0.0, 1.0)]
)
def test_rewards_of_any_size_are_drawn(tmp_path: Path, rewards: tuple[float, ...]) -> None:
    rows = [
        make_rollout(task, sample, rewards[(task + sample) % len(rewards)])
        for task in range(20)
        for sample in range(4)
    ]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    page = read(write_report([tmp_path], tmp_path / "r.html").path)
    assert not re.search(r"[ ,\"](nan|inf)[ ,\"h]", page)


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    first = Path(write_report([run], tmp_path / "a.html").path).read_bytes()
    shutil.rmtree(run / "rollouts_index")
    assert Path(write_report([run], tmp_path / "b.html").path).read_bytes() == first


def test_every_figure_has_a_caption_a_table_and_a_text_alternative(run: Path, tmp_path: Path) -> None:
    page = read(write_report([run], tmp_path / "r.html").path)
    figures = re.findall(r"<figure .*?</figure>", page, flags=re.S)
    assert len(figures) >= 8
    for figure in figures:
        assert "<figcaption>" in figure
        assert "<table>" in figure
        assert re.search(r'<svg role="img" [^>]*aria-labelledby="(\S+)-t \1-d">', figure)


def test_a_report_has_no_script_and_names_no_address(run: Path, tmp_path: Path) -> None:
    page = read(write_report([run], tmp_path / "r.html").path)
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_texts_none_leaves_out_every_word_of_prompts_and_answers(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, 1.0, text="" if sample else "ZEBRAWORD", prompt=f"QUAGGAWORD {task}")
        for task in range(30)
        for sample in range(4)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    some = read(write_report([tmp_path / "run"], tmp_path / "some.html").path)
    none = read(write_report([tmp_path / "run"], tmp_path / "none.html", texts="none").path)
    assert "QUAGGAWORD" in some
    assert "QUAGGAWORD" not in none
    assert "ZEBRAWORD" not in none


def test_a_report_stays_below_two_megabytes_whatever_the_texts_are(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, float(sample % 2), text=TEXTS[(task + sample) % len(TEXTS)] + "x" * 60_000)
        for task in range(60)
        for sample in range(4)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", [json.dumps(row).encode() for row in rows])
    written = write_report([tmp_path / "run"], tmp_path / "r.html")
    assert written.bytes < 2_000_000


def test_unjudged_rollouts_are_a_mark_of_their_own(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, None if sample == 3 else 1.0) for task in range(20) for sample in range(4)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    page = read(write_report([tmp_path / "run"], tmp_path / "r.html").path)
    assert re.search(r'class="unjudged"><title>unjudged: 20 \(25 %\)', page)


def test_a_run_without_any_reward_says_so(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, None, _rf={"started": 1e9 + task, "seconds": 1.0}) for task in range(5)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    page = read(write_report([tmp_path / "run"], tmp_path / "r.html").path)
    assert "No rollout has a reward yet." in page
    assert "No verifier has judged this run yet" in page
    assert "One verifier judged this run" not in page
    assert "Speed over time" in page
    assert "Reward over time" not in page, "a chart without a mark"


def test_two_runs_are_compared_task_by_task(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    healthy_run(Shape(tasks=60, samples=4, mean=0.8), seed=4).write(other)
    page = words(read(write_report([run, other], tmp_path / "r.html").path))
    assert "shared tasks" in page
    assert "2 runs compared" in page


def test_a_dataset_folder_gets_its_own_report(run: Path, tmp_path: Path) -> None:
    rf.open_run(run).prepare("dpo", to="trl", out=tmp_path / "dpo", force=True)
    page = words(read(write_report([tmp_path / "dpo"], tmp_path / "r.html").path))
    manifest = json.loads((tmp_path / "dpo" / "manifest.json").read_text())
    for fate, count in manifest["counts"]["rollouts"].items():
        if fate != "in":
            assert re.search(rf"{re.escape(fate)}\s+{count:,}", page)
    assert page.count("trace it") == 10
    assert manifest["inputs"][0]["sha256"] in page
    counts = manifest["statistics"]["difficulty_histogram"]["counts"]
    assert sum(counts) == sum(file["rows"] for file in manifest["files"])
    assert re.search(rf"0\.4 – 0\.6\s+{counts[2]:,}", page[page.index("Difficulty of the task") :])


def test_datasets_made_from_a_run_are_named_in_its_report(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "runs" / "one"
    shutil.copytree(run, home)
    rf.open_run(home).prepare("sft", to="trl", out=tmp_path / "home" / "data" / "sft", force=True)
    assert "sft  trl" in words(read(write_report([home], tmp_path / "r.html").path)).replace("\n", " ")


def test_mistakes_are_said_in_words(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(UsageError):
        write_report([tmp_path / "nothing"], tmp_path / "r.html")
    rf.open_run(run).prepare("sft", to="trl", out=tmp_path / "sft", force=True)
    with pytest.raises(UsageError, match="is not a run"):
        write_report([run, tmp_path / "sft"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_verifier_that_judged_nothing_does_not_keep_a_run_from_its_report(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    for words in (
        ["simulate", "--write-tasks", str(tasks), "-n", "6"],
        ["collect", "-i", str(tasks), "-o", str(tmp_path / "run"), "-m", "simulated", "--verifier", "exact", "--progress", "none"],
        ["verify", str(tmp_path / "run"), "--verifier", "regex"],
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", "rollforge", *words], capture_output=True, check=False)
    assert (tmp_path / "run" / "rollouts_verdicts.jsonl").exists()
    assert write_report([tmp_path / "run"], tmp_path / "report.html").kind == "run"


def test_a_report_of_a_run_without_later_verdicts_loads_no_http_client(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from rollforge.assembly.reports import write_report; "
        f"write_report([{str(run)!r}], {str(tmp_path / 'report.html')!r}); print('aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_samples_that_a_task_lacks_are_told_apart_from_reward_0(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, 0.0 if sample else 1.0)
        for task in range(9)
        for sample in range(4 - task % 2)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    page = words(read(write_report([tmp_path / "run"], tmp_path / "r.html").path))
    assert "no rollout" in page and "4 are dots: their tasks have fewer rollouts" in page


def test_texts_none_leaves_out_prompts_in_settings_and_names_that_a_model_invented(tmp_path: Path) -> None:
    invented = sick_run("invented-tools", seed=2)
    invented.write(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    manifest.setdefault("config", {})["overrides"] = {"instructions": "Be a QUAGGAWORD", "temperature": 0.5}
    manifest["config"]["verifier_options"] = {"rubric": ["OKAPIWORD"]}
    manifest["fingerprint"] = {"responses_create_params.instructions": "Be a QUAGGAWORD"}
    (tmp_path / "run" / "rollouts_run.json").write_text(json.dumps(manifest))
    some = read(write_report([tmp_path / "run"], tmp_path / "some.html").path)
    none = read(write_report([tmp_path / "run"], tmp_path / "none.html", texts="none").path)
    for word in ("QUAGGAWORD", "OKAPIWORD", "browse_the_web"):
        assert word in some
        assert word not in none
    assert "unknown-tools" in words(none)
    assert '"temperature":0.5' in html.unescape(none)


@pytest.mark.parametrize("defect", ["flips-a-coin", "breaks-halfway", "groups-torn"])
def test_the_command_below_a_finding_shows_the_rollouts_it_points_at(tmp_path: Path, defect: str) -> None:
    """Single rollouts, stretches of lines, whole tasks."""
    run = tmp_path / "run"
    sick_run(defect, seed=2).write(run)
    page = read(write_report([run], tmp_path / "r.html").path)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", one)) for one in re.findall(r"read them: (.*?)</p>", page)]
    pointing = [one for one in rf.open_run(run).check().findings if one.where]
    commands = [shlex.split(one) for one in shown]
    assert len(commands) == len(pointing)
    with open_index(run) as index:
        keys = []
        for words_ in commands:
            condition = index.checked(words_[words_.index("--where") + 1])
            rows = index.select(f"SELECT task, rollout, line FROM rollouts WHERE {condition}").to_pylist()
            keys.append(rows)
    for finding in pointing:
        assert any(_are_those(rows, finding.where) for rows in keys), finding.id


def _are_those(rows: list[dict[str, int]], where: list[dict[str, Any]]) -> bool:
    first = where[0]
    if "first_line" in first:
        return [row["line"] for row in rows] == list(range(first["first_line"], first["last_line"] + 1))
    if "rollout" in first:
        pointed = {(one["task"], one["rollout"]) for one in where[:20]}
        return {(row["task"], row["rollout"]) for row in rows} == pointed
    return {row["task"] for row in rows} == {one["task"] for one in where[:20]}


def test_a_dataset_of_many_files_has_ten_examples_too(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "kto"
    rf.open_run(run).prepare("kto", to="trl", out=out, force=True, shards=3)
    assert len(json.loads((out / "manifest.json").read_text())["files"]) == 3
    assert words(read(write_report([out], tmp_path / "r.html").path)).count("trace it") == 10


def test_a_setting_of_zero_is_a_setting(run: Path, tmp_path: Path) -> None:
    rf.open_run(run).prepare("dpo", to="trl", out=tmp_path / "dpo", force=True)
    page = words(read(write_report([tmp_path / "dpo"], tmp_path / "r.html").path))
    assert re.search(r"\bseed\s+0\b", page)


def test_lengths_in_a_dataset_say_how_many_answers_each_is_over(run: Path, tmp_path: Path) -> None:
    rf.open_run(run).prepare("dpo", to="trl", out=tmp_path / "dpo", force=True)
    page = words(read(write_report([tmp_path / "dpo"], tmp_path / "r.html").path))
    for name in ("pool_chars", "chosen_chars"):
        n = json.loads((tmp_path / "dpo" / "manifest.json").read_text())["statistics"][name]["n"]
        assert re.search(rf"{name.replace('_', ' ')}.*?, n = {n:,}\b", page, re.S)


def test_what_lies_in_the_working_directory_has_its_folders_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rf.open_run(run).prepare("dpo", to="trl", out=tmp_path / "pairs", force=True)
    for folder, name in ((run, run.name), (tmp_path / "pairs", "pairs")):
        monkeypatch.chdir(folder)
        page = read(write_report(["."], tmp_path / "r.html").path)
        assert f"<title>rollforge report: {name}</title>" in page
        assert f"{name}" in words(page)


@pytest.mark.parametrize("character", ["<", "&", "\u202e", "\x01"])
def test_texts_whose_markup_is_longer_keep_a_report_below_two_megabytes(
    tmp_path: Path, character: str
) -> None:
    """A hundred findings, each with five rollouts of characters that take up to twelve bytes."""
    rows = [
        make_rollout(task, sample, float(sample % 2), text=character * 20_000, prompt=character * 5_000)
        for task in range(125)
        for sample in range(4)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    findings = [
        FindingFacts(
            level="warning",
            id=f"my-{number}",
            area="collection",
            text=character * 50_000,
            where=[FindingLocation(task=number + 25 * part, rollout=number // 25) for part in range(5)],
        )
        for number in range(100)
    ]
    with open_index(tmp_path / "run") as index:
        inputs = run_inputs(index)
        check = msgspec.structs.replace(inputs.check, findings=findings)
        page = report_run(index, msgspec.structs.replace(inputs, check=check))
    assert 1_000_000 < len(page) < 2_000_000
    assert b"more bytes are left out" in page


def test_names_and_turns_without_end_keep_reports_below_two_megabytes(tmp_path: Path) -> None:
    row = make_rollout(
        0, 0, 0.5, agent="<" * 100_000, **{f"{'&' * 3000}{field}": field for field in range(200)}
    )
    silent = [{"type": "reasoning", "summary": []}] * 5_000
    call = {"type": "function_call", "name": "<" * 20_000, "arguments": "{}", "call_id": "1"}
    row["response"]["output"] = [call, *silent]
    rows = [row | {"_ng_task_index": task, "reward": None} for task in range(30)]
    for name in ("one", "two"):
        write_rows(tmp_path / name / "rollouts.jsonl", rows)
    for paths in (["one"], ["one", "two"]):
        written = write_report([tmp_path / path for path in paths], tmp_path / "r.html")
        assert written.bytes < 2_000_000


def test_tasks_without_a_verdict_are_a_mark_of_their_own_in_a_comparison_too(
    run: Path, tmp_path: Path
) -> None:
    rows = [make_rollout(task, sample, None) for task in range(20) for sample in range(2)]
    write_rows(tmp_path / "null" / "rollouts.jsonl", rows)
    page = words(read(write_report([run, tmp_path / "null"], tmp_path / "r.html").path))
    assert "20 (100 %)  no reward yet" in page
    assert "no estimate" in page


def test_runs_are_named_without_the_folders_that_they_share() -> None:
    assert labels_of(["/data/runs/a", "/data/runs/b"]) == ["a", "b"]
    assert labels_of(["runs/a/x", "runs/b/x"]) == ["a/x", "b/x"]
    assert labels_of(["runs/a", "runs/a"]) == ["a", "a"]
    assert labels_of([".", "runs/a"]) == [".", "runs/a"]
    assert labels_of(["/data/runs", "/data/runs/b"]) == ["runs", "runs/b"]


def _bench(*models: tuple[str, int], best: float = 0.75) -> BenchFacts:
    values = {"mean@4": 0.5, "pass@4": 0.75, "best@4": best}
    metrics = {
        "reward": {name: AtKFacts(value=value, ci=[0.1, 0.9], tasks=60) for name, value in values.items()}
    }
    facts = TasksetFacts(tasks=60, runs=240, judged=230, coverage=230 / 240, metrics=metrics)
    return BenchFacts(
        models={
            label: EvaluationFacts(model="m", step=step, k=4, tasksets={"math": facts})
            for label, step in models
        }
    )


def test_curves_are_over_steps_and_not_over_models() -> None:
    logged = [LoggedStep(step=0, metrics={"eval/math/reward/mean@4": 0.25})]
    assert "reward over steps" in report_evaluation("ev", _bench(("m", 100)), logged).decode()
    assert "reward over steps" in report_evaluation("b", _bench(("step50", 50), ("step100", 100))).decode()
    models = report_evaluation(
        "b", _bench(("qwen", 1), ("llama", 2))
    ).decode()  # no step in a label: positions
    assert "over steps" not in models
    assert "reward by model" in models


def test_every_chart_of_an_evaluation_says_what_it_is_over() -> None:
    page = report_evaluation("b", _bench(("step50", 50), ("step100", 100))).decode()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) == 2
    for caption in captions:
        assert "step50: 230 judged of 240 runs, coverage 95.83 %, 60 tasks" in caption
        assert "95 % interval" in caption


def test_no_curve_is_hidden_by_one_of_the_same_values() -> None:
    """best@k of rewards 0 and 1 is pass@k."""
    alike = report_evaluation("b", _bench(("step50", 50), ("step100", 100))).decode()
    assert ">pass@4, best@4</text>" in alike
    apart = report_evaluation("b", _bench(("step50", 50), ("step100", 100), best=0.8)).decode()
    assert ">pass@4</text>" in apart and ">best@4</text>" in apart


def test_bins_of_length_are_of_equal_count_only_where_they_are(run: Path, tmp_path: Path) -> None:
    assert "12 bins of about equal count" in words(read(write_report([run], tmp_path / "r.html").path))
    rows = [
        make_rollout(task, sample, float(sample % 2), text="x" * (5 if task or sample else 3))
        for task in range(30)
        for sample in range(4)
    ]
    write_rows(tmp_path / "short" / "rollouts.jsonl", [*rows, make_rollout(31, 0, 1.0, text="x" * 9)])
    page = words(read(write_report([tmp_path / "short"], tmp_path / "s.html").path))
    assert "equal count" not in page
    assert re.search(r"\b3 +4 +5\b", page) and "3.5" not in page, "no half characters on the axis"
