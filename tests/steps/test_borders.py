"""Steps: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rollforge.adaptive.design import DESIGN, SamplingDesign
from rollforge.errors import Failure, UsageError
from rollforge.index import open_index
from rollforge.index.row_facts import AnswerFacts
from rollforge.recipes.base import RecipeOptions
from rollforge.recipes.recipe_columns import facts_of
from rollforge.rollouts import RolloutReader
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.check.other_verdicts import other_rewards
from rollforge.steps.check.readiness import CheckOptions
from rollforge.steps.collect import cost_meter, plan
from rollforge.steps.collect.batch.results import _keep
from rollforge.steps.collect.batch.rounds import BatchRounds
from rollforge.steps.collect.collect_options import Allowance, CollectOptions
from rollforge.steps.collect.goal import goal_schedule
from rollforge.steps.collect.goal.from_options import make_design, prepare_words
from rollforge.steps.collect.goal.goal_options import GoalOptions
from rollforge.steps.collect.goal.setup import design_of
from rollforge.steps.collect.live import Live
from rollforge.steps.collect.step import Collection
from rollforge.steps.collect.task_writer import BadTaskLine, BadTasks
from rollforge.steps.metrics.against import FieldDifference, _verdict
from rollforge.steps.metrics.flags import find_flags
from rollforge.steps.metrics.run_metrics import MetricsOptions, summarize_run
from rollforge.steps.prepare.dataset_manifest import DatasetStatistics, _files_of_shards
from rollforge.steps.prepare.describe import _repeats, red_flags
from rollforge.steps.prepare.overlap import SignatureIndex, signature, similarity
from rollforge.steps.prepare.read_back import _count_newlines
from rollforge.steps.prepare.rollout_pool import _groups
from rollforge.steps.prepare.settings import SelectionSettings
from rollforge.steps.verify.choice import grouped
from rollforge.steps.verify.flips import _Side, compare, flip_keys
from rollforge.store import Manifest, RunFiles
from tests.builders import make_rollout, write_rows
from tests.steps.test_collect import write_tasks


def test_a_goal_pairs_by_the_same_gap_as_prepare() -> None:
    assert GoalOptions().min_gap == RecipeOptions().min_gap == 0.2
    design = make_design(GoalOptions(goal="dpo=5"), samples=8, audit=0.0, seed=1)
    assert (design.min_gap, design.first, design.whole, design.most) == (0.2, 2, 8, 8)


def test_samples_are_bounded_at_a_million() -> None:
    CollectOptions(input="t.jsonl", out="run", model="simulated", samples=1_000_000).check()
    with pytest.raises(UsageError, match="samples"):
        CollectOptions(input="t.jsonl", out="run", model="simulated", samples=1_000_001).check()


def test_five_pairs_are_too_few_and_six_are_enough() -> None:
    def said(tasks: int) -> str:
        return _verdict(
            FieldDifference(
                value=1.0, against=0.5, difference=0.5, ci=[0.4, 0.6], tasks=tasks, differing=tasks
            )
        )

    assert said(5).startswith("too few") and said(6).startswith("better")


def test_repeats_have_the_same_task_and_the_same_answer() -> None:
    assert _repeats(np.array([0, 0, 0, 1]), np.array([5, 5, 6, 5])) == 1


def test_newlines_are_counted() -> None:
    assert [_count_newlines(text) for text in (b"", b"a", b"a\n", b"\n\nb\n")] == [0, 0, 1, 3]


def test_one_sample_a_task_is_the_default_and_half_a_reward_is_a_success() -> None:
    assert CollectOptions(input="t.jsonl", out="run", model="simulated").samples == 1
    assert MetricsOptions().threshold == 0.5


def test_a_side_is_picked_by_mode_or_by_fingerprint() -> None:
    side = _Side("math@strict")
    assert side.takes("math", "abc", "strict") and side.takes("math", "strict1", None)
    assert not side.takes("math", "abc", "lenient") and not side.takes("exact", "abc", "strict")


def test_groups_are_numbered_in_the_order_in_which_they_appear() -> None:
    columns = {"task": np.array([9, 9, 4, 7, 4]), "prompt_hash": np.zeros(5, dtype=np.int64)}
    settings = SimpleNamespace(apart=False)
    assert _groups(columns, np.zeros(5, dtype=np.int64), cast("Any", settings)).tolist() == [0, 0, 1, 2, 1]


def test_a_goal_begins_fewer_tasks_than_it_seems_to_need() -> None:
    assert goal_schedule.CAUTION < 1 <= cost_meter.CAUTION


async def test_a_collection_says_how_fast_it_was(tmp_path: Path) -> None:
    tasks, run = str(write_tasks(tmp_path, 2)), str(tmp_path / "run")
    async with SimulatedServer(SimulateOptions()) as server:
        options = CollectOptions(
            input=tasks, out=run, model="simulated", base_urls=(server.base_url,), samples=3
        )
        result = await Collection(options).run()
    assert result.elapsed_s > 0 and result.fresh == 6
    assert result.rollouts_per_s == pytest.approx(6 / result.elapsed_s)
    assert result.tokens_per_s is not None and result.tokens_per_s > result.rollouts_per_s


def test_a_mean_reward_below_three_tenths_is_flagged(tmp_path: Path) -> None:
    for right, is_flagged in ((2, True), (3, False), (9, False)):
        rows = [make_rollout(task, 0, float(task < right)) for task in range(10)]
        write_rows(tmp_path / f"{right}.jsonl", rows)
        found = find_flags(summarize_run(tmp_path / f"{right}.jsonl"))
        assert ("low-mean" in [flag.id for flag in found]) is is_flagged


def test_rollouts_are_listed_by_the_way_in_which_two_verifiers_differ(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, 0, reward, _rf={"verifier": "a"})
        for task, reward in enumerate((0.0, 1.0, 1.0, 0.0))
    ]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    later = [
        {"_ng_task_index": task, "_ng_rollout_index": 0, "verifier": "b", "reward": reward}
        for task, reward in enumerate((1.0, 0.0, 1.0, 1.0))
    ]
    write_rows(tmp_path / "rollouts_verdicts.jsonl", later)
    found = {kind: flip_keys(tmp_path, "a", "b", kind) for kind in ("0→1", "1→0", "changed")}
    assert found == {"0→1": [(0, 0), (3, 0)], "1→0": [(1, 0)], "changed": []}


def test_a_group_is_judged_in_the_order_of_its_samples_whatever_the_order_of_the_lines(
    tmp_path: Path,
) -> None:
    keys = [(1, 2), (0, 1), (1, 0), (0, 0), (1, 1)]
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, sample) for task, sample in keys])
    found = [[one.key for one in group] for group in grouped(RolloutReader(tmp_path / "rollouts.jsonl"))]
    assert found == [[(1, 0), (1, 1), (1, 2)], [(0, 0), (0, 1)]]


@pytest.mark.parametrize(("largest", "is_flagged"), [(10.0, False), (10.5, True)])
def test_a_reward_above_ten_is_an_outlier(tmp_path: Path, largest: float, is_flagged: bool) -> None:
    rows = [make_rollout(task, 0, largest if task == 3 else float(task % 2)) for task in range(10)]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    flags = [flag.id for flag in find_flags(summarize_run(tmp_path))]
    assert any("outlier" in name for name in flags) is is_flagged


@pytest.mark.parametrize(("judged", "is_flagged"), [(17, True), (18, False)])
def test_fewer_than_nine_judged_in_ten_are_flagged(tmp_path: Path, judged: int, is_flagged: bool) -> None:
    rows = [make_rollout(task, 0, float(task % 2) if task < judged else None) for task in range(20)]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    flags = [flag.id for flag in find_flags(summarize_run(tmp_path))]
    assert ("low-coverage" in flags) is is_flagged and "unjudged" in flags


@pytest.mark.parametrize(("rollouts", "doubt"), [(19, "too few"), (20, "may be broken")])
def test_twenty_equal_rewards_are_worth_a_doubt(tmp_path: Path, rollouts: int, doubt: str) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(rollouts)])
    [flag] = [one for one in find_flags(summarize_run(tmp_path)) if one.id == "identical-rewards"]
    assert doubt in flag.text


def test_at_most_a_hundred_bad_lines_are_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0)])
    with (tmp_path / "rollouts.jsonl").open("a") as file:
        file.write("no json\n" * 101)
    assert len(summarize_run(tmp_path).bad_lines) == 100


@pytest.mark.parametrize(("letters", "groups"), [(39, 0), (40, 1)])
def test_equal_answers_of_forty_characters_are_no_coincidence(
    tmp_path: Path, letters: int, groups: int
) -> None:
    rows = [make_rollout(task, sample, 1.0, text="x" * letters) for task in range(1) for sample in range(2)]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    equal = summarize_run(tmp_path).equal_groups
    assert (equal.groups if equal else 0) == groups


def test_ten_ids_of_a_kind_are_named() -> None:
    names: list[str] = []
    for number in range(12):
        _keep(names, str(number))
    assert names == [str(number) for number in range(10)]


@pytest.mark.parametrize(("rows", "is_few"), [(99, True), (100, False)])
def test_fewer_than_a_hundred_examples_are_few(rows: int, is_few: bool) -> None:
    flags = [flag.id for flag in red_flags("ppo", rows, DatasetStatistics(tasks=rows))]
    assert ("few-examples" in flags) is is_few


def test_five_distinct_reasons_of_a_verifier_are_kept_and_counted() -> None:
    live = Live(expected=10, finished=0)
    for number in range(7):
        live.verifier_failed(str(number))
    live.verifier_failed("2")
    assert live.verifier_failures == {"0": 1, "1": 1, "2": 2, "3": 1, "4": 1, "other reasons": 2}


def test_twenty_kinds_of_bad_lines_are_shown() -> None:
    lines = [BadTaskLine("t.jsonl", number, f"wrong in way {number}") for number in range(22)]
    text = str(BadTasks(lines))
    assert text.count("t.jsonl:") == 20 and "and 2 more" in text


def test_a_share_of_failures_means_nothing_below_fifty_rollouts() -> None:
    half = Allowance.parse("50%")
    assert not half.is_exceeded(49, 49) and half.is_exceeded(26, 50) and not half.is_exceeded(25, 50)
    assert Allowance.parse("3").is_exceeded(4, 4) and not Allowance.parse("3").is_exceeded(3, 3)


def test_the_verdicts_of_eight_other_verifiers_are_read(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "verifier": f"v{number}", "reward": 1.0}
        for number in range(10)
    ]
    write_rows(tmp_path / "verdicts.jsonl", rows)
    table = pa.table({"task": [0], "rollout": [0], "verifier": ["v0"]})
    assert list(other_rewards(tmp_path / "verdicts.jsonl", table)) == [f"v{number}" for number in range(1, 8)]


def test_a_finding_names_twenty_places() -> None:
    assert CheckOptions().places_limit == 20


WORDS = [f"word{number}" for number in range(60)]


def test_texts_are_near_duplicates_by_their_word_triples() -> None:
    text = " ".join(WORDS)
    swapped = " ".join([*WORDS[:30], "other", *WORDS[31:]])
    assert similarity(signature(text), signature(text.upper() + "!")) == 1.0
    assert 0.8 <= similarity(signature(text), signature(swapped)) < 1.0  # 55 of 61 triples are shared
    assert similarity(signature(text), signature(" ".join(WORDS[::-1]))) < 0.1
    assert len(signature(text)) == 64
    index = SignatureIndex(SelectionSettings().near)
    assert [index.has_near(signature(one)) for one in (text, swapped, " ".join(WORDS[::-1]))] == [
        False,
        True,
        False,
    ]


def test_nearly_all_pairs_at_the_threshold_share_a_band() -> None:
    rng = np.random.default_rng(5)
    near = 0
    for _ in range(100):
        words = [f"w{number}" for number in rng.integers(0, 10_000, 100)]
        index = SignatureIndex(0.6)
        index.has_near(signature(" ".join(words)))
        for place in (20, 50, 80):
            words[place] = "another"
        near += index.has_near(signature(" ".join(words)))
    assert near >= 98, "bands of 16 entries would find two thirds of them"


def test_a_few_examples_of_each_flip_are_shown_with_the_end_of_their_texts(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, 0, 0.0, text="a" * 400 + f"{task}", _rf={"verifier": "a"}) for task in range(5)
    ]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    later = [
        {"_ng_task_index": task, "_ng_rollout_index": 0, "verifier": "b", "reward": 0.5 if task else 0.49}
        for task in range(5)
    ]
    write_rows(tmp_path / "rollouts_verdicts.jsonl", later)
    diff = compare(tmp_path, "a", "b")
    shown = [one for one in diff.examples if one.flip == "0→1"]
    assert len(shown) == 3 and all(len(one.answer) == 300 for one in shown)
    assert all(one.answer.endswith(str(one.task)) for one in shown)
    assert [one.task for one in diff.examples if one.flip == "changed"] == [0]


def test_the_end_records_of_shards_are_named_in_order_after_the_plan(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    for name in ("00002/e1.end", "00001/e2.end", "00001/e1.end"):
        (files.shards / name).parent.mkdir(parents=True, exist_ok=True)
        (files.shards / name).write_text("{}")
    names = [str(path.relative_to(files.shards)) for path in islice(_files_of_shards(files), 4)]
    assert names == ["plan.json", "00001/e1.end", "00001/e2.end", "00002/e1.end"]


@pytest.mark.parametrize(
    ("choice", "is_kept"), [({}, True), ({"split": "train"}, True), ({"split": "test"}, False)]
)
def test_a_resumed_run_keeps_the_commit_of_its_split(
    monkeypatch: pytest.MonkeyPatch, choice: dict[str, str], is_kept: bool
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(
        plan, "open_tasks", lambda path, *, part, earlier_choice, shown: opened.append(earlier_choice)
    )
    name = "hf://datasets/org/name"
    hub = {"repo": "org/name", "commit": "abc", "split": "train", "files": []}
    old = SimpleNamespace(input=SimpleNamespace(hub=hub, path=name))
    options = CollectOptions(input=name, out="run", model="simulated", **cast("Any", choice))
    plan._open_source(options, cast("Any", old), None)
    assert (opened[0] is not None) is is_kept


def test_texts_that_differ_in_every_band_of_four_are_not_compared() -> None:
    first = np.arange(64, dtype=np.uint64)
    everywhere, but_one = first.copy(), first.copy()
    everywhere[::4] += 100
    but_one[4::4] += 100
    for other, is_near in ((everywhere, False), (but_one, True)):
        index = SignatureIndex(0.7)
        assert not index.has_near(first) and index.has_near(other) is is_near


@pytest.mark.parametrize(("failing", "calls"), [(7, 8), (8, 8)])
async def test_a_call_to_the_provider_is_tried_eight_times(failing: int, calls: int) -> None:
    rounds: Any = object.__new__(BatchRounds)
    rounds._is_stopping = lambda: False
    rounds._engine = SimpleNamespace(notice="")
    made: list[int] = []

    async def pause(seconds: float) -> None:
        pass

    async def call() -> str:
        made.append(1)
        if len(made) <= failing:
            raise Failure("model", "transient", "busy", status=503)
        return "done"

    rounds._pause = pause
    if failing < 8:
        assert await rounds._retried(call) == "done"
    else:
        with pytest.raises(Failure, match="busy"):
            await rounds._retried(call)
    assert len(made) == calls


def test_the_rollouts_of_a_task_are_its_own_whatever_the_order_of_the_lines(tmp_path: Path) -> None:
    keys = [(2, 0), (0, 0), (1, 1), (2, 1), (0, 1), (1, 0)]
    rows = [make_rollout(task, sample, float(task == 1)) for task, sample in keys]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    with open_index(tmp_path / "run") as index:
        recorded = goal_schedule.Recorded(index, earlier=3)
        for task, earlier in ((0, {0}), (1, {1}), (2, {0})):
            own = recorded.of(task)
            assert {facts.reward for facts in own.facts.values()} == {float(task == 1)}
            assert (set(own.facts), own.earlier) == ({0, 1}, earlier)


@pytest.mark.parametrize(
    ("state", "goal", "top_up", "base"),
    [
        ("done", None, "mean_reward < 1", 4),
        ("interrupted", None, "mean_reward < 1", 4),
        ("done", "grpo=5", None, 4),
        ("interrupted", "grpo=5", None, 0),
        ("done", None, None, None),
        (None, "grpo=5", None, 0),
        (None, None, "mean_reward < 1", "there is none"),
    ],
)
def test_a_design_begins_with_the_samples_that_every_task_has(
    state: str | None, goal: str | None, top_up: str | None, base: int | str | None
) -> None:
    old: Any = Manifest(rollforge="0", state=cast("Any", state), samples=4) if state is not None else None
    options = CollectOptions(
        input="t.jsonl", out="run", model="simulated", samples=8, goal=goal, top_up=top_up
    )
    if isinstance(base, str):
        with pytest.raises(UsageError, match=base):
            design_of(options, old)
    else:
        design = design_of(options, old)
        assert (design and design.base) == base


@pytest.mark.parametrize(
    ("recipe", "more", "words"),
    [
        ("sft", {}, ""),
        ("sft", {"min_gap": 0.5, "min_spread": 0.1, "min_reward": 0.5}, "--min-reward 0.5"),
        ("dpo", {}, ""),
        ("dpo", {"min_gap": 0.5, "min_spread": 0.1}, "--min-gap 0.5"),
        ("rm", {"min_gap": 0.0}, "--min-gap 0"),
        ("grpo", {"min_gap": 0.5}, ""),
        ("grpo", {"min_spread": 0.1, "band": (0.25, 0.75)}, "--min-spread 0.1 --band 0.25-0.75"),
    ],
)
def test_prepare_is_given_the_options_that_its_recipe_counts_by(
    recipe: str, more: dict[str, Any], words: str
) -> None:
    assert prepare_words(SamplingDesign(recipe=recipe, first=2, whole=8, most=8, **more)) == words


def test_facts_of_a_written_row_are_those_of_its_answer() -> None:
    def facts(**answer: Any) -> Any:
        return facts_of(3, AnswerFacts(**answer), reward=None, is_masked=False)

    assert facts(is_empty=True).empty and not facts(is_empty=True, is_refusal=True).empty
    assert not facts(is_empty=False).empty and not facts(is_refusal=True).empty
    assert facts(finish_reason="content_filter").filtered and not facts(finish_reason="stop").filtered
    known = facts(answer_hash=7, answer_chars=5, tool_calls=2, is_truncated=True, error_text=True)
    assert known.has_answer and (known.answer_hash, known.answer_chars, known.tool_calls) == (7, 5, 2)
    assert known.truncated and known.error_text
    unknown = facts()
    assert not unknown.has_answer and (unknown.answer_hash, unknown.answer_chars, unknown.tool_calls) == (
        0,
        0,
        0,
    )
    assert np.isnan(unknown.reward) and not unknown.truncated and not unknown.error_text


@pytest.mark.parametrize(
    ("samples", "before", "is_refused"),
    [(3, None, True), (4, None, True), (5, None, False), (4, "mean_reward < 1", False), (4, "mean_reward < 0.5", True)],
)  # fmt: skip
def test_a_top_up_needs_more_samples_than_every_task_has_unless_it_goes_on(
    samples: int, before: str | None, is_refused: bool
) -> None:
    old = Manifest(rollforge="0", state="done", samples=4)
    if before is not None:
        design = SamplingDesign(first=4, whole=4, most=4, base=4, top_up=before)
        old.extra[DESIGN] = msgspec.to_builtins(design)
    options = CollectOptions(
        input="t.jsonl", out="run", model="simulated", samples=samples, top_up="mean_reward < 1"
    )
    if is_refused:
        with pytest.raises(UsageError, match=f"has 4 samples already, and -k is {samples}"):
            design_of(options, old)
    else:
        made = design_of(options, old)
        assert made is not None and (made.first, made.whole, made.most, made.base) == (4, samples, samples, 4)
