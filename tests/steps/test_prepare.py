"""Prepare, from a run on disk to a data set on disk."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollforge.errors import DataError, UsageError
from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import load_exporter
from rollforge.exporters.trl import TrlExporter
from rollforge.recipes import RECIPES
from rollforge.steps.prepare import prepare, prepare_again, read_manifest, trace
from rollforge.steps.prepare.settings import SETTING_NAMES
from rollforge.steps.prepare.write_rows import ContractBroken
from rollforge.testing import Shape, healthy_run
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import TOOL, call, mixed_run, read_lines, reasoning, result, text, with_output

NAN = float("nan")
EVERY = [(recipe, name) for name in EXPORTERS.names() for recipe in load_exporter(name).recipes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"))


def small_run(folder: Path, rows: list[Row]) -> Path:
    write_rows(folder / "rollouts.jsonl", rows)
    return folder


@pytest.mark.parametrize(("recipe", "name"), EVERY)
def test_every_recipe_and_exporter_writes_what_its_manifest_says(
    recipe: str, name: str, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    made = prepare(recipe, run, to=name, out=out, min_reward=0.4, split=(0.75, 0.25))
    assert made.files and all(file.rows for file in made.files)
    assert read_manifest(out) == made
    rollouts = dict(made.counts["rollouts"])
    assert rollouts.pop("in") == sum(rollouts.values()) == 144
    assert made.counts["examples"]["written"] == sum(file.rows for file in made.files)
    for file in made.files:
        assert (out / file.path).stat().st_size == file.bytes
    assert (out / "README.md").read_text().startswith("---\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [(r, n) for n in EXPORTERS.names() for r in RECIPES.names() if r not in load_exporter(n).recipes],
)
def test_a_recipe_that_a_trainer_cannot_take_is_refused_with_those_it_can(
    recipe: str, name: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"it takes {load_exporter(name).recipes[0]}") as refused:
        prepare(recipe, run, to=name, out=tmp_path / "data")
    assert "chat" in str(refused.value.hint)


def test_the_same_bytes_come_from_the_same_options_and_from_the_manifest(run: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "to": "trl",
        "min_gap": 0.3,
        "split": (0.8, 0.2),
        "order": "shuffled",
        "limit": 30,
        "seed": 5,
    }
    first = prepare("dpo", run, out=tmp_path / "a", **options)
    prepare("dpo", run, out=tmp_path / "b", **options)
    prepare_again(tmp_path / "a" / "manifest.json", out=tmp_path / "c")
    for name in [file.path for file in first.files] + [
        "manifest.json",
        "README.md",
        "lineage.parquet",
        "fates.parquet",
    ]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    other = prepare("dpo", run, out=tmp_path / "d", **options | {"seed": 6})
    assert [file.sha256 for file in other.files] != [file.sha256 for file in first.files]


def test_a_changed_run_is_not_made_again_from_its_manifest(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", [make_rollout(0, 0, 1.0)])
    prepare("sft", run, to="chat", out=tmp_path / "a")
    small_run(run, [make_rollout(0, 0, 1.0), make_rollout(0, 1, 1.0)])
    with pytest.raises(DataError, match=r"changed.*rollouts\.jsonl"):
        prepare_again(tmp_path / "a", out=tmp_path / "b")


def test_a_manifest_names_the_run_by_its_digest(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", [make_rollout(0, 0, 1.0)])
    made = prepare("sft", run, to="chat", out=tmp_path / "a")
    rollouts = run / "rollouts.jsonl"
    digest = hashlib.sha256(rollouts.read_bytes()).hexdigest()
    assert [(given.file, given.sha256) for given in made.inputs] == [(rollouts.name, digest)]


def test_no_prompt_is_in_two_splits(run: Path, tmp_path: Path) -> None:
    made = prepare("sft", run, to="chat", out=tmp_path / "data", min_reward=0.0, split=(0.6, 0.2, 0.2))
    assert list(made.splits) == ["train", "validation", "test"]
    users = [
        {
            next(m["content"] for m in row["messages"] if m["role"] == "user")
            for row in read_lines(tmp_path / "data" / f"{name}.jsonl")
        }
        for name in made.splits
    ]
    assert all(users)
    assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]


def test_shards_hold_every_row_once_in_order(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="chat", out=tmp_path / "one", min_reward=0.5)
    made = prepare("sft", run, to="chat", out=tmp_path / "many", min_reward=0.5, shards=3)
    assert [file.path for file in made.files] == [f"train-0000{i}-of-00003.jsonl" for i in range(3)]
    joined = b"".join((tmp_path / "many" / file.path).read_bytes() for file in made.files)
    assert joined == (tmp_path / "one" / "train.jsonl").read_bytes()


def test_gym_rows_are_the_bytes_they_were(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="gym", out=tmp_path / "data", where="reward >= 0.9", min_reward=0.0)
    lines = (run / "rollouts.jsonl").read_bytes().splitlines()
    wanted = [line for line in lines if json.loads(line)["reward"] >= 0.9]
    assert (tmp_path / "data" / "train.jsonl").read_bytes().splitlines() == wanted


@pytest.mark.parametrize("recipe", ["sft", "dpo", "kto"])
def test_gym_rows_are_the_same_from_packed_and_from_several_runs(recipe: str, tmp_path: Path) -> None:
    rows = [
        make_rollout(
            task, sample, float(sample % 3 == 0), text=f"{task} {sample} " + "ä" * (700_000 * (task == 1))
        )
        for task in range(4)
        for sample in range(3)
    ]
    plain = write_rows(tmp_path / "plain" / "rollouts.jsonl", rows)
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / "rollouts.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    halves = [
        write_rows(tmp_path / "first" / "rollouts.jsonl", rows[:6]).parent,
        write_rows(tmp_path / "second" / "rollouts.jsonl", rows[6:]).parent,
    ]
    made = []
    for number, source in enumerate((plain.parent, packed, halves)):
        prepare(recipe, source, to="gym", out=tmp_path / str(number))
        made.append((tmp_path / str(number) / "train.jsonl").read_bytes())
    assert made[0] == made[1] == made[2]
    lines = set(plain.read_bytes().splitlines())
    wrapped = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in made[0].splitlines()]
    names = {"dpo": ("chosen", "rejected"), "kto": ("rollout",)}.get(recipe)
    if names is None:
        assert set(made[0].splitlines()) <= lines
    else:
        assert all(bytes(row[name]) in lines for row in wrapped for name in names)


def test_where_speaks_of_any_metric(tmp_path: Path) -> None:
    rows = [make_rollout(0, k, 1.0, text=f"t{k}", set_overlap=k / 10) for k in range(11)]
    run = small_run(tmp_path / "run", rows)
    made = prepare("sft", run, to="chat", out=tmp_path / "data", where="reward == 1.0 and set_overlap >= 0.9")
    assert made.counts["rollouts"] == {"in": 11, "kept": 2, "where does not hold": 9}
    with pytest.raises(UsageError, match="did you mean 'set_overlap'"):
        prepare("sft", run, to="chat", out=tmp_path / "data", where="set_overlapp > 1")


def test_unjudged_and_truncated_rollouts_are_counted_and_left_out(tmp_path: Path) -> None:
    cut = make_rollout(1, 0, 1.0)
    cut["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    run = small_run(tmp_path / "run", [make_rollout(0, 0, 1.0), make_rollout(0, 1, None), cut])
    made = prepare("sft", run, to="chat", out=tmp_path / "data")
    assert made.counts["rollouts"] == {"in": 3, "kept": 1, "unjudged": 1, "truncated": 1}


def test_a_dry_run_counts_at_several_thresholds_and_writes_nothing(run: Path, tmp_path: Path) -> None:
    made = prepare("sft", run, to="trl", dry_run=True, min_reward=0.5)
    counts = {row["min_reward"]: row["examples"] for row in made.outlook}
    assert list(counts) == sorted(counts, reverse=True), "the strictest first"
    assert made.dry_run and counts[0.0] == 144 and counts[0.5] == made.counts["rollouts"]["kept"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_left_is_an_error_that_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", [make_rollout(0, 0, 0.0)])
    with pytest.raises(UsageError, match="1 below threshold"):
        prepare("sft", run, to="trl", out=tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_broken_contract_leaves_no_half_made_data_set(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("sft", run, to="trl", out=tmp_path / "data", min_reward=0.5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}

    def broken(self: TrlExporter, *_: object) -> Row:
        return {"messages": [], "tools": None}

    monkeypatch.setattr(TrlExporter, "row", broken)
    with pytest.raises(ContractBroken, match="messages is empty"):
        prepare("sft", run, to="trl", out=tmp_path / "data", min_reward=0.6)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("recipe", "name"), [("sft", "trl"), ("dpo", "nemo-rl"), ("kto", "trl"), ("grpo", "openrlhf")]
)
def test_a_line_is_traced_to_the_rollouts_behind_it(
    recipe: str, name: str, run: Path, tmp_path: Path
) -> None:
    prepare(recipe, run, to=name, out=tmp_path / "data", min_reward=0.5, order="shuffled")
    rollouts = {
        (row["_ng_task_index"], row["_ng_rollout_index"]): row for row in read_lines(run / "rollouts.jsonl")
    }
    found = trace(f"{tmp_path / 'data' / 'train.jsonl'}:3")
    assert len(found.origins) == (2 if recipe == "dpo" else 1)
    line = json.dumps(read_lines(tmp_path / "data" / "train.jsonl")[2], ensure_ascii=False)
    for origin in found.origins:
        row = rollouts[origin.task, origin.rollout]  # type: ignore[index]
        assert row["reward"] == origin.reward and str(run) == origin.run
        if recipe in ("sft", "kto"):
            assert row["response"]["output"][-1]["content"][0]["text"] in line
    with pytest.raises(UsageError, match="no line 9999"):
        trace(f"{tmp_path / 'data' / 'train.jsonl'}:9999")


def test_two_runs_are_pooled_by_task_and_prompt_or_kept_apart(tmp_path: Path) -> None:
    good = small_run(
        tmp_path / "good",
        [make_rollout(0, 0, 1.0, text="right"), make_rollout(1, 0, 1.0, text="x", prompt="other")],
    )
    bad = small_run(
        tmp_path / "bad", [make_rollout(0, 0, 0.0, text="wrong"), make_rollout(1, 0, 0.0, text="y")]
    )
    pooled = prepare("dpo", [good, bad], to="chat", out=tmp_path / "pooled")
    assert (
        pooled.counts["examples"]["written"] == 1
    )  # task 1 has another prompt in the other run: no pair across prompts
    row = read_lines(tmp_path / "pooled" / "train.jsonl")[0]
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("right", "wrong")
    with pytest.raises(UsageError, match="no partner"):
        prepare("dpo", [good, bad], to="chat", out=tmp_path / "apart", apart=True)


def test_across_prompts_is_for_unpaired_methods_only(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unpaired"):
        prepare("dpo", run, to="trl", out=tmp_path / "data", across_prompts=True)
    assert prepare("kto", run, to="trl", out=tmp_path / "data", across_prompts=True).files


def test_evaluation_prompts_are_kept_out(tmp_path: Path) -> None:
    words = "how many primes are there below one hundred and what is the sum of them all"
    rows = [
        make_rollout(0, 0, 1.0, prompt=f"Please tell: {words.upper()}?"),
        make_rollout(1, 0, 1.0, prompt="something else entirely"),
    ]
    run = small_run(tmp_path / "run", rows)
    for number, line in enumerate([{"question": f"{words}!"}, {"responses_create_params": {"input": words}}]):
        write_rows(tmp_path / f"eval{number}.jsonl", [line])
        made = prepare(
            "sft",
            run,
            to="chat",
            out=tmp_path / "data",
            decontaminate=[str(tmp_path / f"eval{number}.jsonl")],
        )
        assert made.counts["rollouts"] == {"in": 2, "kept": 1, "prompt overlaps an evaluation": 1}


def test_near_duplicates_of_answers_and_prompts_are_found(tmp_path: Path) -> None:
    long = "the quick brown fox jumps over the lazy dog while seven wizards brew potions under a pale winter moon tonight"
    rows = [
        make_rollout(0, 0, 1.0, text=long, prompt=long),
        make_rollout(0, 1, 1.0, text=long.upper() + " !", prompt=long),
        make_rollout(0, 2, 1.0, text="quite another answer", prompt=long),
        make_rollout(1, 0, 1.0, text=long, prompt=long + "?"),
    ]
    run = small_run(tmp_path / "run", rows)
    near = prepare("sft", run, to="chat", out=tmp_path / "a", dedupe="near")
    assert near.counts["rollouts"] == {"in": 4, "kept": 3, "near duplicate": 1}
    prompts = prepare("sft", run, to="chat", out=tmp_path / "b", dedupe_prompts="near")
    assert prompts.counts["rollouts"] == {"in": 4, "kept": 3, "duplicate prompt": 1}


def save_tokenizer(folder: Path) -> str:
    """A tokenizer to which every word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_token_limits_need_a_tokenizer_and_count_with_it(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0, text="short"), make_rollout(0, 1, 1.0, text="word " * 50)]
    run = small_run(tmp_path / "run", rows)
    tokenizer = save_tokenizer(tmp_path)
    made = prepare("sft", run, to="chat", out=tmp_path / "data", max_tokens=20, tokenizer=tokenizer)
    assert made.counts["rollouts"] == {"in": 2, "kept": 1, "too many tokens": 1}
    with pytest.raises(UsageError, match="--tokenizer"):
        prepare("sft", run, to="chat", out=tmp_path / "data", max_tokens=20)


@pytest.mark.parametrize("content", ["a host", "{}", ""])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(content: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(content)
    options = {"max_tokens": 20, "tokenizer": str(tmp_path / "vocab.txt")}
    with pytest.raises(UsageError, match=r"vocab\.txt: not a tokenizer") as refused:
        prepare("sft", run, to="chat", out=tmp_path / "data", **options)
    assert "tokenizer.json" in str(refused.value.hint)


LONG = "word " * 50
SPOKEN: dict[str, tuple[list[Row], Row]] = {
    "answer": ([text(LONG)], {}),
    "thought": ([reasoning(LONG), text("short")], {}),
    "call": ([call(0, json.dumps({"at": LONG})), result(0), text("short")], {}),
    "tool result": ([call(0), result(0, LONG), text("short")], {}),
    "user in between": ([text("ask"), {"role": "user", "content": LONG}, text("short")], {}),
    "tool schema": ([text("short")], {"tools": [TOOL | {"description": LONG}]}),
    "instructions": ([text("short")], {"instructions": LONG}),
    "earlier call": (
        [text("short")],
        {"input": [{"role": "user", "content": "ask"}, call(0, json.dumps({"at": LONG})), result(0)]},
    ),
}


@pytest.mark.parametrize("where", SPOKEN)
def test_token_limits_count_all_that_a_template_shows(where: str, tmp_path: Path) -> None:
    items, params = SPOKEN[where]
    rows = [make_rollout(0, 0, 1.0, text="short"), with_output(make_rollout(1, 0, 1.0), *items, **params)]
    options = {"max_tokens": 40, "tokenizer": save_tokenizer(tmp_path)}
    made = prepare("sft", small_run(tmp_path / "run", rows), to="chat", out=tmp_path / "data", **options)
    assert made.counts["rollouts"] == {"in": 2, "kept": 1, "too many tokens": 1}


UNTIDY = {
    "ends in a tool result": [call(0), result(0)],
    "ends in an unanswered call": [text("first"), call(0)],
    "ends in bare reasoning": [text("first"), {"role": "user", "content": "go on"}, reasoning("hm")],
    "empty output": [],
}


@pytest.mark.parametrize("name", [n for n in EXPORTERS.names() if n != "gym"])
@pytest.mark.parametrize("situation", list(UNTIDY))
def test_untidy_rollouts_have_a_policy_and_a_count(name: str, situation: str, tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0), with_output(make_rollout(0, 1, 1.0), *UNTIDY[situation])]
    if situation == "empty output":
        rows[1]["response"]["output"] = [reasoning("only a thought"), text("  ")]
    run = small_run(tmp_path / "run", rows)
    made = prepare("sft", run, to=name, out=tmp_path / "data")
    output = json.dumps([made.counts["rollouts"], made.untidy])
    assert "ends in" in output or "empty" in output or "alternate" in output
    refused = prepare("sft", run, to=name, out=tmp_path / "strict", untidy="refuse")
    assert refused.counts["examples"]["written"] == 1


def test_pairs_are_steps_where_the_trainer_would_learn_tool_results(tmp_path: Path) -> None:
    shared = [call(0, '{"a": 1}'), result(0, "tool said")]
    rows = [
        with_output(make_rollout(0, 0, 1.0), *shared, text("right")),
        with_output(make_rollout(0, 1, 0.0), call(5, '{"a": 1}'), result(5, "tool said"), text("wrong")),
    ]
    run = small_run(tmp_path / "run", rows)
    prepare("dpo", run, to="trl", out=tmp_path / "step")
    row = read_lines(tmp_path / "step" / "train.jsonl")[0]
    assert [m["role"] for m in row["prompt"]] == ["user", "assistant", "tool"]
    assert [m["content"] for m in row["chosen"] + row["rejected"]] == ["right", "wrong"]
    prepare("dpo", run, to="trl", out=tmp_path / "whole", pairs="whole")
    row = read_lines(tmp_path / "whole" / "train.jsonl")[0]
    assert [m["role"] for m in row["chosen"]] == ["assistant", "tool", "assistant"]


def test_pairs_that_say_the_same_are_counted_and_dropped(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, 1.0, text="the same"),
        make_rollout(0, 1, 0.0, text=" the\n same "),
        make_rollout(1, 0, 1.0),
        make_rollout(1, 1, 0.0, text="n"),
    ]
    made = prepare("dpo", small_run(tmp_path / "run", rows), to="trl", out=tmp_path / "data")
    assert made.counts["examples"] == {
        "planned": 2, "cannot be expressed: same answer after normalisation": 1, "written": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "shape", "written"),
    [("dpo", "auto", 1), ("kto", "auto", 2), ("rm", "scored", 2), ("grpo", "groups", 2)],
)
def test_a_rollout_without_a_prompt_costs_only_its_own_example(
    tmp_path: Path, recipe: str, shape: str, written: int
) -> None:
    rows = [make_rollout(task, n, float(n), text=f"{task} {n}") for task in (0, 1) for n in (0, 1)]
    for row in rows[:2]:
        row["responses_create_params"]["input"] = []
    made = prepare(recipe, small_run(tmp_path / "run", rows), to="chat", out=tmp_path / "data", shape=shape)
    examples = made.counts["examples"]
    assert examples["written"] == examples["cannot be expressed: empty prompt"] == written


def test_groups_carry_rewards_advantages_and_token_ids(tmp_path: Path) -> None:
    item = text("a") | {
        "prompt_token_ids": [1],
        "generation_token_ids": [2, 3],
        "generation_log_probs": [-0.5, -0.25],
    }
    rows = [with_output(make_rollout(0, 0, 1.0), item), make_rollout(0, 1, 0.0)]
    run = small_run(tmp_path / "run", rows)
    prepare("grpo", run, to="chat", out=tmp_path / "data", shape="groups")
    first, second = read_lines(tmp_path / "data" / "train.jsonl")
    assert (first["advantage_dr_grpo"], first["advantage_rloo"], first["fidelity"]) == (
        0.5,
        1.0,
        "token-exact",
    )
    assert first["generation_token_ids"] == [[2, 3]] and first["generation_log_probs"] == [[-0.5, -0.25]]
    assert second["fidelity"] == "text-only" and second["generation_token_ids"] == []
    made = prepare("grpo", run, to="chat", out=tmp_path / "parquet", shape="groups", format="parquet")
    assert made.files[0].path == "train.parquet"
    with pytest.raises(UsageError, match="reads no scored rollouts"):
        prepare("grpo", run, to="trl", out=tmp_path / "no", shape="groups")


def test_prompt_sets_carry_ground_truth_and_difficulty_in_curriculum_order(run: Path, tmp_path: Path) -> None:
    prepare("grpo", run, to="trl", out=tmp_path / "data", order="easy-first")
    rows = read_lines(tmp_path / "data" / "train.jsonl")
    difficulties = [row["difficulty"] for row in rows]
    assert difficulties == sorted(difficulties)
    assert all(row["ground_truth"] == str(int(row["task_id"]) * 2) for row in rows)
    assert all(row["n_rollouts"] == 6 for row in rows)


def test_balance_by_a_field_of_the_task(run: Path, tmp_path: Path) -> None:
    prepare("grpo", run, to="trl", out=tmp_path / "data", balance="topic", min_spread=0.7)
    topics = [
        json.loads(row["task_fields"])["topic"] for row in read_lines(tmp_path / "data" / "train.jsonl")
    ]
    assert topics and topics.count("even") == topics.count("odd")


def test_what_check_said_and_force_are_in_the_manifest(run: Path, tmp_path: Path) -> None:
    said = {"ran": True, "ok": False, "errors": ["identical-rewards"], "forced": True}
    prepare("sft", run, to="chat", out=tmp_path / "data", min_reward=0.5, check=said)
    assert read_manifest(tmp_path / "data").check == said


def test_bytes_that_are_not_utf8_cost_one_rollout_and_not_the_data_set(tmp_path: Path) -> None:
    bad = (
        json.dumps(with_output(make_rollout(1, 0, 1.0), reasoning("MARK"), text("fine")))
        .encode()
        .replace(b"MARK", b"\xff")
    )
    run = small_run(tmp_path / "run", [make_rollout(0, 0, 1.0), bad])
    made = prepare("sft", run, to="trl", out=tmp_path / "data")
    assert made.counts["examples"]["written"] == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("near", 2.0),
        ("near", 0.0),
        ("min_gap", NAN),
        ("min_gap", -1.0),
        ("min_spread", NAN),
        ("min_reward", NAN),
        ("high", NAN),
        ("low", float("-inf")),
        ("length_ratio", 0.5),
        ("limit", 0),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(
    option: str, value: float, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} {value}: must be"):
        prepare("sft", run, to="trl", out=tmp_path / "data", **{option: value})


def test_an_unknown_option_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="min_gapp"):
        prepare("dpo", run, to="trl", out=tmp_path / "data", min_gapp=0.3)


@pytest.fixture
def rows_of(run: Path, tmp_path: Path) -> Iterator[Any]:
    def make(recipe: str, name: str, **options: Any) -> list[Row]:
        made = prepare(recipe, run, to=name, out=tmp_path / "rows", min_reward=0.4, **options)
        return read_lines(tmp_path / "rows" / made.files[0].path)

    yield make


def test_the_llama_factory_entry_names_the_columns(rows_of: Any, tmp_path: Path) -> None:
    rows = rows_of("dpo", "llama-factory")
    info = msgspec.json.decode((tmp_path / "rows" / "dataset_info.json").read_bytes())
    assert info["train"]["ranking"] is True and set(info["train"]["columns"].values()) <= set(rows[0])


@pytest.mark.parametrize("recipe", ["sft", "dpo", "kto", "grpo"])
def test_what_failed_was_not_verified_or_is_masked_is_never_trained_on(recipe: str, tmp_path: Path) -> None:
    rows = [make_rollout(task, n, float(n % 2), text=f"answer {n}") for task in range(4) for n in range(6)]
    marked = [rows[0], rows[1], rows[8], rows[9], rows[16], rows[17]]
    for row, mark in zip(
        marked,
        [{"verification_skipped": True}, {"mask_sample": True}, {"_ng_failure_class": "x"}] * 2,
        strict=True,
    ):
        row |= mark
    rows[4]["response"]["status"] = "failed"
    made = prepare(recipe, small_run(tmp_path, rows), to="chat", out=tmp_path / "data")
    fates = made.counts["rollouts"]
    assert (fates["unjudged"], fates["masked (mask_sample)"], fates["the model call failed"]) == (4, 2, 1)
    assert sum(fates.values()) - fates["in"] == len(rows)


def test_an_answer_that_a_content_filter_cut_off_is_left_out_of_answers_only(tmp_path: Path) -> None:
    rows = [make_rollout(task, n, float(n % 2), text=f"answer {n}") for task in range(4) for n in range(4)]
    rows[1]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    run = small_run(tmp_path, rows)
    sft = prepare("sft", run, to="chat", out=tmp_path / "sft")
    assert sft.counts["rollouts"]["cut off by a content filter"] == 1
    grpo = prepare("grpo", run, to="chat", out=tmp_path / "grpo")
    assert grpo.counts["rollouts"]["kept"] == len(rows)


def test_every_option_is_in_the_manifest_given_or_not(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="chat", out=tmp_path / "data", min_reward=0.5)
    saved = json.loads((tmp_path / "data" / "manifest.json").read_bytes())["options"]
    assert set(saved) == set(SETTING_NAMES) and saved["min_reward"] == 0.5 and saved["ngram"] == 13


@pytest.mark.parametrize("recipe", ["dpo", "grpo", "sft"])
def test_a_file_in_which_no_row_has_a_reward_is_refused_with_the_reason(recipe: str, tmp_path: Path) -> None:
    small_run(tmp_path / "run", [{"id": number, "text": "hello"} for number in range(5)])
    with pytest.raises(UsageError, match="5 unjudged"):
        prepare(recipe, tmp_path / "run", to="chat", out=tmp_path / "data")


@pytest.mark.parametrize("recipe", ["sft", "dpo", "kto", "rm", "grpo", "ppo"])
def test_the_fates_of_rollouts_add_up_to_the_counts_of_the_manifest(tmp_path: Path, recipe: str) -> None:
    import pyarrow.parquet as pq

    run = tmp_path / "run"
    healthy_run(Shape(tasks=40, samples=4), seed=2).write(run)
    made = prepare(
        recipe, run, to="chat" if recipe in ("sft", "dpo", "kto") else "trl", out=tmp_path / "out", limit=10
    )
    fates = Counter(pq.read_table(tmp_path / "out" / "fates.parquet").column("fate").to_pylist())
    counted = {
        name: count for name, count in made.counts.rollouts.items() if name not in ("in", "kept") and count
    }
    assert dict(fates) == counted


@pytest.mark.parametrize(
    ("recipe", "options", "flag"),
    [
        ("sft", {"min_reward": 2.0}, "below threshold (--min-reward 2)"),
        ("sft", {"where": "reward == 7"}, "where does not hold (--where 'reward == 7')"),
        ("sft", {"max_chars": 1}, "answer too long (--max-chars 1)"),
        ("dpo", {"min_gap": 3.0}, "gap too small (--min-gap 3)"),
        ("kto", {"high": 5.0, "low": -1.0}, "between the tiers (--high 5, --low -1)"),
        ("grpo", {"band": (0.0, 0.001)}, "outside the difficulty band (--band 0-0.001)"),
        ("grpo", {"min_spread": 4.0}, "group without signal (--min-spread 4)"),
    ],
)
def test_when_no_example_is_left_the_message_names_the_flag(
    tmp_path: Path, recipe: str, options: dict[str, Any], flag: str
) -> None:
    rows = [
        make_rollout(task, sample, sample / 3, text=f"{task} {sample}")
        for task in range(4)
        for sample in range(4)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    with pytest.raises(UsageError) as raised:
        prepare(recipe, run, to="trl", out=tmp_path / "out", **options)
    assert flag in str(raised.value)
    assert flag.partition("(")[2].split()[0] in str(raised.value.hint)


def test_an_unknown_field_to_balance_by_is_answered_with_a_query_of_the_run(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "my run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    with pytest.raises(UsageError) as raised:
        prepare("sft", run, to="trl", out=tmp_path / "out", balance="no_such_field")
    assert f"rollforge query '{tmp_path / 'my run'}' " in str(raised.value.hint)
