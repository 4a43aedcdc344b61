"""What prepare promises about its counts, its files and its way back, seen from untidy runs."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollforge.cli import run as command
from rollforge.errors import UsageError
from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import load_exporter
from rollforge.steps.prepare import prepare, prepare_again, trace
from rollforge.steps.validate import validate_files
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import TOOL, call, mixed_run, read_lines, reasoning, result, text, with_output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"))


def run_of(folder: Path, *rows: Row) -> Path:
    return write_rows(folder / "rollouts.jsonl", rows).parent


@pytest.mark.parametrize("recipe", ["sft", "dpo", "kto", "rm", "ppo", "grpo"])
def test_kept_rollouts_are_those_behind_a_written_row(recipe: str, run: Path, tmp_path: Path) -> None:
    made = prepare(recipe, run, to="trl", out=tmp_path / "data", min_reward=0.4, limit=7)
    counts = dict(made.counts["rollouts"])
    assert counts.pop("in") == sum(counts.values()) == 144
    assert counts["beyond the limit"] > 0
    if recipe in ("ppo", "grpo"):
        assert counts["kept"] == 6 * 7
    else:
        lines = range(1, made.counts["examples"]["written"] + 1)
        origins = [o for line in lines for o in trace(f"{tmp_path}/data/train.jsonl:{line}").origins]
        assert counts["kept"] == len({(o.task, o.rollout) for o in origins})


def test_pairs_that_cannot_be_expressed_do_not_count_their_rollouts_as_kept(tmp_path: Path) -> None:
    rows = [make_rollout(0, k, float(k), text=f"t{k}") for k in range(2)]
    rows += [
        with_output(make_rollout(1, k, float(k)), {"type": "web_search_call"}, text(f"t{k}"))
        for k in range(2)
    ]
    made = prepare("dpo", run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data")
    assert made.counts["rollouts"] == {
        "in": 4,
        "kept": 2,
        "cannot be expressed: item type web_search_call": 2,
    }


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ([], "empty output"),
        ([text(" ")], "empty output"),
        ([reasoning("hm")], "ends in bare reasoning"),
        ([[text("nested")]], "response.output is not a list of Responses items"),
    ],
)
def test_an_answer_that_says_nothing_is_counted_with_what_it_is_instead(
    output: list[Any], reason: str, tmp_path: Path
) -> None:
    odd = make_rollout(1, 0, 1.0)
    odd["response"]["output"] = output
    made = prepare(
        "sft", run_of(tmp_path / "run", make_rollout(0, 0, 1.0), odd), to="trl", out=tmp_path / "data"
    )
    assert made.counts["rollouts"] == {"in": 2, "kept": 1, f"cannot be expressed: {reason}": 1}


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    refused = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "I cannot."}],
    }
    made = prepare(
        "sft", run_of(tmp_path / "run", with_output(make_rollout(), refused)), to="trl", out=tmp_path / "d"
    )
    assert read_lines(tmp_path / "d" / "train.jsonl")[0]["completion"][-1]["content"] == "I cannot."
    assert made.untidy == {"refusal kept as text": 1}


def test_task_rows_go_out_whatever_messages_could_say_of_them(tmp_path: Path) -> None:
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}]
    rows = [
        with_output(make_rollout(task, k, float(k), prompt=f"q{task}"), text(f"t{k}"), **params)
        for task, params in enumerate(({"input": image}, {"tools": [{"type": "web_search"}]}, {"input": ""}))
        for k in range(2)
    ]
    folder = run_of(tmp_path / "run", *rows)
    for name in ("gym", "nemo-rl"):
        made = prepare("grpo", folder, to=name, out=tmp_path / name)
        assert made.counts["examples"]["written"] == 2
        assert made.counts["examples"]["cannot be expressed: no responses_create_params.input"] == 1


def test_a_task_without_an_agent_costs_only_its_own_row(tmp_path: Path) -> None:
    rows = [make_rollout(t, k, float(k), agent="a" if t else None) for t in range(2) for k in range(2)]
    made = prepare("grpo", run_of(tmp_path / "run", *rows), to="nemo-rl", out=tmp_path / "data")
    assert made.counts["examples"] == {
        "planned": 2, "cannot be expressed: no agent_ref.name": 1, "written": 1,
    }  # fmt: skip


def test_a_labelled_answer_never_holds_a_tool_result(tmp_path: Path) -> None:
    rows = [
        with_output(make_rollout(0, k, float(k)), call(0, f'{{"a": {k}}}'), result(0), tools=[TOOL])
        for k in range(2)
    ]
    made = prepare("kto", run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data")
    for row in read_lines(tmp_path / "data" / "train.jsonl"):
        assert [message["role"] for message in row["completion"]] == ["assistant"]
    assert made.untidy["tool results after the labelled message left out"] == 2


def test_a_group_whose_written_rollouts_have_one_reward_has_no_signal(tmp_path: Path) -> None:
    rows = [make_rollout(0, k, 1.0, text=f"t{k}") for k in range(2)] + [with_output(make_rollout(0, 2, 0.0))]
    rows += [make_rollout(1, k, float(k), text=f"t{k}") for k in range(2)]
    made = prepare("grpo", run_of(tmp_path / "run", *rows), to="chat", out=tmp_path / "data", shape="groups")
    assert made.counts["rollouts"]["group without signal"] == 2
    assert [row["advantage_dr_grpo"] for row in read_lines(tmp_path / "data" / "train.jsonl")] == [-0.5, 0.5]


def test_the_band_from_0_to_1_leaves_out_tasks_that_always_or_never_pass(tmp_path: Path) -> None:
    rewards = [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)]
    rows = [make_rollout(t, k, r) for t, both in enumerate(rewards) for k, r in enumerate(both)]
    made = prepare("ppo", run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data", band=(0.0, 1.0))
    assert made.counts["rollouts"] == {"in": 6, "kept": 2, "outside the difficulty band": 4}


@pytest.mark.parametrize(
    "name", ["verl", "openrlhf", "nemo-rl", "axolotl", "llama-factory", "trl", "chat", "gym"]
)
def test_the_card_names_every_shard_and_its_settings_are_yaml(name: str, run: Path, tmp_path: Path) -> None:
    made = prepare("sft", run, to=name, out=tmp_path / "data", min_reward=0.4, split=(0.8, 0.2), shards=2)
    card = (tmp_path / "data" / "README.md").read_text(encoding="utf-8")
    load = card.partition("## Load it")[2].partition("## What")[0]
    if name == "llama-factory":
        entries = json.loads((tmp_path / "data" / "dataset_info.json").read_bytes())
        assert {entry["file_name"] for entry in entries.values()} == {file.path for file in made.files}
        assert "train_0,train_1" in load
    else:
        assert all(file.path in load for file in made.files if file.split == "train")
    for block in re.findall(r"```yaml\n(.*?)```", load, re.DOTALL):
        assert isinstance(yaml.safe_load(block), dict)
    assert yaml.safe_load(card.split("---")[1])["configs"]


@pytest.mark.parametrize(
    ("recipe", "name", "option", "value"),
    [
        ("sft", "verl", "arguments", "object"), ("sft", "verl", "tools", "list"), ("rm", "verl", "reasoning", "field"),
        ("sft", "openrlhf", "tools", "string"), ("dpo", "openrlhf", "arguments", "string"),
        ("sft", "llama-factory", "arguments", "string"), ("sft", "llama-factory", "reasoning", "field"),
        ("dpo", "axolotl", "arguments", "object"), ("dpo", "nemo-rl", "tools", "list"), ("sft", "gym", "keys", "uniform"),
    ],
)  # fmt: skip
def test_a_form_that_would_lose_calls_schemas_or_reasoning_is_refused(
    recipe: str, name: str, option: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"--{option} {value}: rows of {name} cannot carry it"):
        prepare(recipe, tmp_path / "no run is opened", to=name, out=tmp_path / "data", **{option: value})


@pytest.mark.parametrize("name", ["trl", "axolotl", "chat"])
def test_tools_can_be_a_list_where_the_loader_takes_one(name: str, run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to=name, out=tmp_path / "data", min_reward=0.4, tools="list")
    assert {type(row["tools"]) for row in read_lines(tmp_path / "data" / "train.jsonl")} == {list, type(None)}


def test_a_moved_run_is_made_again_and_the_same_bytes_come_out(run: Path, tmp_path: Path) -> None:
    first = mixed_run(tmp_path / "first")
    before = prepare("dpo", first, to="trl", out=tmp_path / "a")
    first.rename(tmp_path / "second")
    with pytest.raises(UsageError, match="not there any more") as refused:
        prepare_again(tmp_path / "a", out=tmp_path / "b")
    assert "--from MANIFEST RUN" in str(refused.value.hint)
    command(["prepare", "--from", f"{tmp_path}/a/manifest.json", f"{tmp_path}/second", "-o", f"{tmp_path}/b"])
    for file in before.files:
        assert (tmp_path / "a" / file.path).read_bytes() == (tmp_path / "b" / file.path).read_bytes()


def test_a_run_named_from_where_one_stood_is_found_from_elsewhere_and_after_both_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed_run(tmp_path / "work" / "runs" / "math")
    monkeypatch.chdir(tmp_path / "work")
    before = prepare("dpo", "runs/math", to="trl", out="data/dpo")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").rename(tmp_path / "moved")
    assert trace(f"{tmp_path}/moved/data/dpo/train.jsonl:1").origins[0].run == f"{tmp_path}/moved/runs/math"
    again = prepare_again(tmp_path / "moved" / "data" / "dpo" / "manifest.json", out=tmp_path / "again")
    assert again.files == before.files


@pytest.mark.parametrize("words", [["sft"], ["--min-gap", "0.5"], ["--to", "trl"], ["--dry-run"]])
def test_from_takes_no_other_choice_than_the_manifest(words: list[str], run: Path, tmp_path: Path) -> None:
    prepare("dpo", run, to="trl", out=tmp_path / "a")
    with pytest.raises(UsageError, match="from the manifest"):
        command(["prepare", "--from", f"{tmp_path}/a/manifest.json", "-o", f"{tmp_path}/b", *words])


def test_a_changed_template_is_a_changed_input(run: Path, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    prepare("sft", run, to="openrlhf", out=tmp_path / "a", min_reward=0.4, template=str(template))
    prepare_again(tmp_path / "a", out=tmp_path / "b")
    template.write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}")
    with pytest.raises(UsageError, match=r"plain\.jinja"):
        prepare_again(tmp_path / "a", out=tmp_path / "c")


def test_what_described_an_earlier_data_set_goes_with_it(run: Path, tmp_path: Path) -> None:
    prepare("dpo", run, to="llama-factory", out=tmp_path / "data")
    prepare("dpo", run, to="trl", out=tmp_path / "data")
    assert not (tmp_path / "data" / "dataset_info.json").exists()


def test_an_example_of_rows_without_numbers_is_found_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_rollout(None, None, 1.0, prompt=f"q{k}", text=f"answer {k}") for k in range(9)]
    folder = run_of(tmp_path / "run", *rows)
    prepare("sft", folder, to="trl", out=tmp_path / "data", order="file")
    command(["show", "--example", f"{tmp_path}/data/train.jsonl:7"])
    shown = capsys.readouterr().out
    assert "answer 6" in shown and "answer 5" not in shown


def test_best_takes_a_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", str(run), "--best", "2"], ["show", "--best", "2", str(run)]):
        command([*words, "--json"])
        assert len(json.loads(capsys.readouterr().out)["rollouts"]) == 2


def test_every_row_is_one_line_for_every_reader(tmp_path: Path) -> None:
    said = "a\u2028b\u2029c\x85d"
    prepare(
        "sft", run_of(tmp_path / "run", make_rollout(0, 0, 1.0, text=said)), to="trl", out=tmp_path / "data"
    )
    (row,) = (tmp_path / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(row)["completion"][-1]["content"] == said


def test_a_full_disk_is_told_without_a_traceback_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "prepare", "sft", str(run), "-o", str(tmp_path / "data"), "--to", "trl",
         "--min-reward", "0.1", "--force"],
        capture_output=True, text=True, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_prompts_that_differ_in_white_space_alone_stay_in_one_split(tmp_path: Path) -> None:
    rows = [
        make_rollout(2 * t + v, 0, 1.0, prompt=f"what  is\n{t}?" if v else f"what is {t}?")
        for t in range(20)
        for v in (0, 1)
    ]
    prepare("sft", run_of(tmp_path / "run", *rows), to="chat", out=tmp_path / "data", split=(0.5, 0.5))
    asked = [
        {
            " ".join(row["messages"][0]["content"].split())
            for row in read_lines(tmp_path / "data" / f"{name}.jsonl")
        }
        for name in ("train", "validation")
    ]
    assert len(asked[0]) == len(asked[1]) == 10 and not asked[0] & asked[1]


def test_answers_with_equal_calls_are_duplicates(tmp_path: Path) -> None:
    rows = [
        with_output(
            make_rollout(0, k, 1.0), call(0, f'{{"a": {k // 2}}}'), result(0), text("so"), tools=[TOOL]
        )
        for k in range(4)
    ]
    made = prepare("sft", run_of(tmp_path / "run", *rows), to="chat", out=tmp_path / "data", dedupe="exact")
    assert made.counts["rollouts"] == {"in": 4, "kept": 2, "duplicate": 2}


def test_images_do_not_go_into_a_column_of_texts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no place for images"):
        prepare("sft", tmp_path, to="chat", out=tmp_path / "data", images="pass", format="parquet")


def test_messages_that_differ_in_reasoning_alone_are_shared_where_reasoning_is_left_out(
    tmp_path: Path,
) -> None:
    rows = [
        with_output(
            make_rollout(0, k, float(k)),
            reasoning(f"hm {k}"),
            call(0),
            result(0),
            text(f"t{k}"),
            tools=[TOOL],
        )
        for k in range(2)
    ]
    folder = run_of(tmp_path / "run", *rows)
    with pytest.raises(UsageError, match="first differ in reasoning alone"):
        prepare("dpo", folder, to="trl", out=tmp_path / "kept")
    prepare("dpo", folder, to="trl", out=tmp_path / "dropped", reasoning="drop")
    (row,) = read_lines(tmp_path / "dropped" / "train.jsonl")
    assert [m["role"] for m in row["prompt"]] == ["user", "assistant", "tool"]
    assert row["chosen"][0]["content"] == "t1" and row["rejected"][0]["content"] == "t0"


@pytest.mark.parametrize("order", ["file", "shuffled", "easy-first"])
def test_groups_are_whole_and_together_in_any_order_and_sample(order: str, tmp_path: Path) -> None:
    rows = [make_rollout(t, k, float(k % 2), text=f"t{k}") for k in range(4) for t in range(9)]
    options: dict[str, Any] = {"shape": "groups", "order": order, "limit": 14, "seed": 3}
    prepare("grpo", run_of(tmp_path / "run", *rows), to="chat", out=tmp_path / "data", **options)
    tasks = [row["task_id"] for row in read_lines(tmp_path / "data" / "train.jsonl")]
    assert len(tasks) == 12 and len(set(tasks)) == 3
    assert all(len(set(tasks[start : start + 4])) == 1 for start in (0, 4, 8))


@pytest.mark.parametrize("name", EXPORTERS.names())
def test_what_prepare_writes_validate_accepts(name: str, run: Path, tmp_path: Path) -> None:
    for recipe in load_exporter(name).recipes:
        made = prepare(recipe, run, to=name, out=tmp_path / recipe, min_reward=0.4)
        report = validate_files([tmp_path / recipe / file.path for file in made.files])
        assert report.ok, [bad.text for file in report.files for bad in file.bad][:3]


@pytest.mark.parametrize("asked", ["", " ", [], [{"role": "user", "content": ""}]])
@pytest.mark.parametrize("recipe", ["dpo", "kto", "grpo"])
def test_a_prompt_that_asks_nothing_is_no_prompt(recipe: str, asked: Any, tmp_path: Path) -> None:
    rows = [make_rollout(0, k, float(k), text=f"t{k}") for k in range(2)]
    rows += [with_output(make_rollout(1, k, float(k)), text(f"t{k}"), input=asked) for k in range(2)]
    made = prepare(recipe, run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data")
    assert made.counts["rollouts"] == {"in": 4, "kept": 2, "cannot be expressed: empty prompt": 2}


@pytest.mark.parametrize(
    ("fields", "fidelity"),
    [
        ({}, "text-only"),
        (
            {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]},
            "token-exact",
        ),
        ({"prompt_token_ids": [1], "generation_token_ids": [2]}, "text-only"),
        ({"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": None}, "text-only"),
        ({"prompt_token_ids": None, "generation_token_ids": None, "generation_log_probs": None}, "text-only"),
    ],
)
def test_tokens_are_exact_only_when_every_model_call_has_all_of_them(
    fields: Row, fidelity: str, tmp_path: Path
) -> None:
    whole = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    rows = [
        with_output(
            make_rollout(0, k, float(k)), call(0) | whole, result(0), text(f"t{k}") | fields, tools=[TOOL]
        )
        for k in range(2)
    ]
    prepare("grpo", run_of(tmp_path / "run", *rows), to="chat", out=tmp_path / "data", shape="groups")
    assert {row["fidelity"] for row in read_lines(tmp_path / "data" / "train.jsonl")} == {fidelity}


@pytest.mark.parametrize("shares", [(0.9, 0.2), (0.5, 0.2), (9, 1), (0.5,), (float("inf"), 1.0), (1.0, 1e-5)])
def test_shares_that_do_not_sum_to_one_are_refused(
    shares: tuple[float, ...], run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the shares sum to"):
        prepare("sft", run, to="chat", out=tmp_path / "data", split=shares)
    assert not (tmp_path / "data").exists()


def test_shares_may_miss_one_by_what_decimals_cannot_say(run: Path, tmp_path: Path) -> None:
    made = prepare("sft", run, to="chat", out=tmp_path / "data", min_reward=0.0, split=(0.7, 0.2, 0.1))
    assert list(made.splits) == ["train", "validation", "test"]


@pytest.mark.parametrize(
    ("recipe", "used", "fitting"),
    [
        ("sft", "--min-reward 0.95", {"min_reward": 8}),
        ("kto", "--high 0.7 and --low 0.4", {"high": 8, "low": 2}),
        ("grpo", "--min-reward 0.95", {"min_reward": 8}),
    ],
)
def test_a_default_threshold_on_rewards_of_another_scale_is_flagged(
    recipe: str, used: str, fitting: dict[str, Any], tmp_path: Path
) -> None:
    rows = [make_rollout(t, k, 2.0 + 4 * k, text=f"t{t}.{k}") for t in range(3) for k in range(3)]
    run = run_of(tmp_path / "run", *rows)
    made = prepare(recipe, run, to="trl", out=tmp_path / "data")
    (flag,) = [flag for flag in made.flags if flag["id"] == "reward-scale"]
    assert f"from 2 to 10, but {used}" in flag["text"]
    assert flag["text"] in (tmp_path / "data" / "README.md").read_text()
    made = prepare(recipe, run, to="trl", out=tmp_path / "data", **fitting)
    assert "reward-scale" not in {flag["id"] for flag in made.flags}


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_rewards_of_which_the_best_is_one_are_no_other_scale(wrong: float, tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0), make_rollout(0, 1, wrong, text="no"), make_rollout(1, 0, None)]
    made = prepare("sft", run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data")
    assert [flag["id"] for flag in made.flags] == ["few-examples"]


@pytest.mark.parametrize(("name", "place"), [("verl", "string"), ("chat", "string"), ("openrlhf", "system")])
def test_the_card_of_a_prompt_set_says_where_tool_schemas_are(
    name: str, place: str, run: Path, tmp_path: Path
) -> None:
    made = prepare("grpo", run, to=name, out=tmp_path / "data")
    assert made.form["tools"] == place
    assert f"tool schemas: {place};" in (tmp_path / "data" / "README.md").read_text()


@pytest.mark.parametrize(
    ("check", "is_told"), [({"ok": False, "forced": True}, True), ({"ok": True, "forced": True}, False)]
)
def test_the_card_says_that_errors_were_overruled(
    check: Row, is_told: bool, run: Path, tmp_path: Path
) -> None:
    prepare("sft", run, to="trl", out=tmp_path / "data", min_reward=0.1, check=check)
    assert ("made with --force" in (tmp_path / "data" / "README.md").read_text()) is is_told
