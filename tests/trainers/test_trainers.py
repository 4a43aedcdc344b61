"""The trainers' own loaders read what prepare writes: every row, every number, and two real optimiser steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollforge.steps.prepare import prepare
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import TOOL, call, mixed_run, read_lines, result, text, with_output

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-trainers" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (HERE.parents[1] / ".venv-trainers" / ".ready").exists(),
        reason="scripts/trainers.sh makes the environment",
    ),
]

WANTED = {
    "trl": ("sft", "dpo", "kto", "rm", "grpo"),
    "verl": ("sft", "rm", "grpo"),
    "openrlhf": ("sft", "dpo", "rm", "ppo"),
    "axolotl": ("sft", "dpo"),
    "llama-factory": ("sft", "dpo", "kto"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("prepared")
    run = mixed_run(made / "run")
    for exporter, recipes in WANTED.items():
        for recipe in recipes:
            prepare(
                recipe, run, to=exporter, out=made / f"{recipe}-{exporter}", min_reward=0.4, split=(0.8, 0.2)
            )
    return made


def seen_by(script: str, folder: Path, *words: str) -> Any:
    """What a script in the trainers' environment reports."""
    done = subprocess.run(
        [PYTHON, HERE / script, folder, *words], capture_output=True, text=True, timeout=280, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def test_trl_trains_two_steps_on_every_recipe_and_sees_every_number_unchanged(folder: Path) -> None:
    seen = seen_by("load_trl.py", folder, *WANTED["trl"])
    for recipe, found in seen.items():
        rows = len(read_lines(folder / f"{recipe}-trl" / "train.jsonl"))
        assert found["splits"]["train"] == found["prepared"] == rows, recipe
        assert found["exact"], f"{recipe}: the loader changed something"
        assert found["steps"] == 2
        assert all(loss == loss for loss in found["losses"])


def test_verl_dataset_classes_read_every_row_and_train_only_on_the_assistant(folder: Path) -> None:
    import pyarrow.parquet as pq

    seen = seen_by("load_verl.py", folder)
    for recipe in WANTED["verl"]:
        assert seen[recipe]["rows"] == pq.read_metadata(folder / f"{recipe}-verl" / "train.parquet").num_rows
    assert seen["grpo"]["ground_truth"] and all(
        isinstance(truth, str) for truth in seen["grpo"]["ground_truth"]
    )
    assert len(set(seen["grpo"]["index"])) == len(seen["grpo"]["index"])
    assert any('"arguments": {"city": "Oslo", "at": 0.3}' in text for text in seen["sft"]["trained"])
    assert not any("9 C" in text for text in seen["sft"]["trained"])


def test_openrlhf_dataset_classes_read_every_row_with_its_margin_and_label(folder: Path) -> None:
    seen = seen_by("load_openrlhf.py", folder)
    for recipe in WANTED["openrlhf"]:
        rows = read_lines(folder / f"{recipe}-openrlhf" / "train.jsonl")
        assert seen[recipe]["rows"] == len(rows)
        if recipe == "rm":
            assert seen["rm"]["extra"] == pytest.approx([row["margin"] for row in rows])
        if recipe == "ppo":
            assert seen["ppo"]["labels"] == [row["label"] for row in rows]
    assert seen["dpo"]["differ"] and seen["rm"]["differ"]


def test_axolotl_reads_calls_and_tools_as_they_were(folder: Path) -> None:
    seen = seen_by("load_axolotl.py", folder)
    assert seen["sft"]["rows"] == len(read_lines(folder / "sft-axolotl" / "train.jsonl"))
    assert seen["sft"]["numbers"]
    assert seen["dpo"]["rows"] == len(read_lines(folder / "dpo-axolotl" / "train.jsonl"))
    assert seen["dpo"]["differ"]


def test_llama_factory_skips_no_row_and_changes_no_number(folder: Path) -> None:
    seen = seen_by("load_llama_factory.py", folder, *WANTED["llama-factory"])
    for recipe in WANTED["llama-factory"]:
        rows = len(read_lines(folder / f"{recipe}-llama-factory" / "train.jsonl"))
        assert seen[recipe]["rows"] == seen[recipe]["kept"] == rows
        assert seen[recipe]["numbers"] and seen[recipe]["tools"]
    assert seen["sft"]["sides"] == [1] and seen["dpo"]["sides"] == seen["kto"]["sides"] == [2]


ARGUMENTS = {
    "dates": ['{"day": "2024-01-31"}', '{"day": "2024-02-29"}'],
    "repeated-key": ['{"a": "x"}', '{"a": "x", "a": "y"}'],
    "ragged-list": ['{"a": [{"b": 0.3}, {"c": 6.674e-11}]}', '{"a": [{"b": 0.1}]}'],
    "empty-object": ['{"a": {}, "b": 0.3}', '{"a": {}, "b": 0.6}'],
    "several-types": ['{"a": "0.3"}', '{"a": {"b": 1}}'],
    "large-integers": ['{"a": 9223372036854775808}', '{"a": 18446744073709551616}'],
    "different-keys": ['{"a": "x", "n": 9007199254740993}', '{"b": true}'],
    "not-json": ['{"a": "x"}', "{nothing"],
}


def call_run(folder: Path, arguments: list[str]) -> Path:
    rows = [
        with_output(make_rollout(task, k, float(k)), call(0, written), result(0), text(f"t{k}"), tools=[TOOL])
        for task, written in enumerate(arguments)
        for k in range(2)
    ]
    return write_rows(folder / "rollouts.jsonl", rows).parent


def test_the_loader_changes_nothing_whatever_the_arguments_and_texts_look_like(tmp_path: Path) -> None:
    for name, arguments in ARGUMENTS.items():
        run = call_run(tmp_path / "runs" / name, arguments)
        for exporter, recipe in (("trl", "sft"), ("trl", "dpo"), ("axolotl", "sft"), ("nemo-rl", "dpo")):
            prepare(recipe, run, to=exporter, out=tmp_path / "made" / f"{name}-{recipe}-{exporter}")
    dated: list[Row] = [
        make_rollout(task, k, float(k), text=f"2024-0{task + 1}-0{k + 1}", expected_answer="2024-01-01")
        for task in range(3)
        for k in range(2)
    ]
    run = write_rows(tmp_path / "runs" / "dated" / "rollouts.jsonl", dated).parent
    for exporter, recipe in (("trl", "dpo"), ("trl", "grpo"), ("openrlhf", "ppo"), ("llama-factory", "dpo")):
        prepare(recipe, run, to=exporter, out=tmp_path / "made" / f"dated-{recipe}-{exporter}")
    rows = [make_rollout(task, 0, 1.0, text=f"t{task}") for task in range(12)]
    rows += [with_output(make_rollout(12, 0, 1.0), call(0), result(0), text("t"), tools=[TOOL])]
    run = write_rows(tmp_path / "runs" / "split" / "rollouts.jsonl", rows).parent
    for seed in range(4):
        prepare("sft", run, to="trl", out=tmp_path / "made" / f"split-{seed}", split=(0.5, 0.5), seed=seed)
    seen = seen_by("load_datasets.py", tmp_path / "made")
    assert seen and {name: what for name, what in seen.items() if what != "exact"} == {}


OTHER_TOOL = {
    "type": "function",
    "name": "convert",
    "description": "Units",
    "parameters": {"type": "object", "properties": {"by": {"enum": [0.7071057811879616, 0.3, 6.674e-11]}}},
    "strict": True,
}


def many_shapes_run(folder: Path) -> Path:
    """Messages, tools and arguments of different shapes, beside numbers that ten digits do not hold."""
    rows: list[Row] = []
    for task in range(6):
        for k in range(3):
            row = make_rollout(task, k, (0.0, 1.0, 1 / 3)[k], text=f"t{k}", expected_answer=str(task))
            if task % 2:
                tool = (TOOL, OTHER_TOOL)[task // 2 % 2]
                said = call(0, '{"by": 0.7071057811879616}', tool["name"])
                asked = [{"role": "user", "content": f"question {task}"}, call(9), result(9)]
                row = with_output(row, said, result(0), text(f"t{k}"), tools=[tool], input=asked)
            rows.append(row)
    return write_rows(folder / "rollouts.jsonl", rows).parent


def test_the_loading_lines_of_plain_chat_data_change_no_number(tmp_path: Path) -> None:
    run = many_shapes_run(tmp_path / "run")
    wanted = {
        "sft": {},
        "dpo": {},
        "kto": {},
        "grpo": {},
        "rm": {"shape": "scored"},
        "ppo": {"shape": "groups"},
    }
    for recipe, options in wanted.items():
        for form in ("jsonl", "parquet"):
            out = tmp_path / "made" / f"{recipe}-{form}"
            prepare(recipe, run, to="chat", out=out, format=form, split=(0.5, 0.5), min_reward=0.3, **options)
    seen = seen_by("load_card.py", tmp_path / "made")
    assert len(seen) == 12 and {name: what for name, what in seen.items() if what != "exact"} == {}


def test_the_loader_changes_nothing_whatever_form_was_asked_for(tmp_path: Path) -> None:
    run = many_shapes_run(tmp_path / "run")
    forms: dict[str, dict[str, str]] = {
        "tools": {"tools": "list"},
        "keys": {"keys": "present"},
        "both": {"tools": "list", "keys": "present"},
        "strings": {"tools": "list", "keys": "present", "arguments": "string"},
        "objects": {"tools": "list", "arguments": "object"},
    }
    for name, form in forms.items():
        for exporter, recipe in (
            ("trl", "sft"),
            ("trl", "dpo"),
            ("trl", "kto"),
            ("trl", "grpo"),
            ("axolotl", "sft"),
        ):
            out = tmp_path / "made" / f"{name}-{recipe}-{exporter}"
            prepare(recipe, run, to=exporter, out=out, min_reward=0.3, **form)
    seen = seen_by("load_datasets.py", tmp_path / "made")
    assert len(seen) == 25 and {name: what for name, what in seen.items() if what != "exact"} == {}


def test_every_card_of_trl_runs_as_printed_with_a_template_without_generation_markers(tmp_path: Path) -> None:
    rows = []
    for task in range(8):
        asked = [
            {"role": "user", "content": f"hello {task}"},
            {"role": "assistant", "content": "an earlier turn"},
            {"role": "user", "content": f"2 + {task}?"},
        ]
        for k in range(2):
            rows.append(
                with_output(make_rollout(task, k, float(k)), text(f"it is {task + 2 * k}"), input=asked)
            )
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    write_rows(
        run / "rollouts_tasks.jsonl",
        [
            {
                "_ng_task_index": task,
                "expected_answer": str(task + 2),
                "responses_create_params": row["responses_create_params"],
            }
            for task, row in enumerate(rows[::2])
        ],
    )
    for recipe in ("sft", "dpo", "kto", "rm", "ppo", "grpo"):
        prepare(recipe, run, to="trl", out=tmp_path / "made" / f"{recipe}-trl")
    seen = seen_by("run_card.py", tmp_path / "made")
    assert {name: found for name, found in seen.items() if found.get("steps") != 1} == {}
    assert all(
        "it is" in text and "earlier" not in text and "hello" not in text
        for text in seen["sft-trl"]["trained"]
    )


@pytest.mark.parametrize("exporter", ["openrlhf", "axolotl", "llama-factory"])
def test_the_lines_of_a_card_load_every_row_as_printed(exporter: str, tmp_path: Path) -> None:
    """The trainer's own parser, config and loader, up to the first batch."""
    rows = [
        make_rollout(task, k, float(k), text=f"answer {k}", expected_answer=str(task))
        for task in range(4)
        for k in range(2)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    recipes = {
        **WANTED,
        "llama-factory": ("sft", "dpo", "kto", "rm"),
        "openrlhf": ("sft", "dpo", "rm", "ppo", "grpo"),
    }
    wanted = {}
    for recipe in recipes[exporter]:
        out = tmp_path / "made" / f"{recipe}-{exporter}"
        prepare(recipe, run, to=exporter, out=out)
        wanted[out.name] = len(read_lines(out / "train.jsonl"))
    assert seen_by("run_card_commands.py", tmp_path / "made", exporter) == wanted


def test_the_command_of_a_verl_card_is_one_that_verl_accepts(tmp_path: Path) -> None:
    """The shell line as printed, up to the point where training would need a GPU: verl resolves its config and stops."""
    rows = [make_rollout(task, k, float(k), expected_answer=str(task)) for task in range(4) for k in range(2)]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    out = tmp_path / "made"
    prepare("grpo", run, to="verl", out=out)
    card = (out / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```sh\n(python -m verl\.trainer\.main_ppo.*?)```", card, re.DOTALL)
    assert found, "the card has a command"
    places = f"{PYTHON.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["/bin/sh", "-c", found[1].rstrip() + " --cfg job"], cwd=out, env=os.environ | {"PATH": places},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train_files: train.parquet" in done.stdout and "prompt_key: prompt" in done.stdout
