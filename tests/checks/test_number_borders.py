"""Numbers inside checks that decide: each at its border, and one step beside it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from rollforge.checks.answers import _unless_rewarded
from rollforge.checks.building_blocks.chance import (
    best_split,
    chance_all_flat,
    chance_all_same,
    chance_of_more,
    rank_correlation_within,
)
from rollforge.checks.building_blocks.coded_columns import TextCodes, about_text, ends_of
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Share, more_needed, settle_text, share
from rollforge.checks.building_blocks.order import most_at_end, same_name, sorted_tasks
from rollforge.checks.change import Step
from rollforge.checks.distribution import _is_middle_peak, mean_too_high, mean_too_low, volume
from rollforge.checks.drift import token_drift
from rollforge.checks.fields import _beginning
from rollforge.checks.health import _mismatch
from rollforge.checks.identical import identical_rewards
from rollforge.checks.labelled import labelled_errors
from rollforge.checks.missingness import _by_difficulty, _by_sample
from rollforge.checks.opinions import _kappa
from rollforge.checks.policy import ppo_empty_bins, ppo_narrow_spread
from rollforge.checks.sampling import _asked_models, missing_usage
from rollforge.checks.sft import duplicates
from rollforge.checks.undeserved import rewarded_empty

NAN = float("nan")


def run(**columns: Any) -> Any:
    fields = {
        "name": "run", "range": SimpleNamespace(note="", low=0.0, high=1.0), "lines": lambda mask: [], "tasks": lambda mask: [],
        "status": "rollforge status run", "verify": lambda words: f"rollforge verify run {words}",
    }  # fmt: skip
    return SimpleNamespace(**fields | columns)


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


# building blocks


def test_the_chance_of_equal_rewards_counts_tasks_with_rollouts() -> None:
    counts = np.array([3, 0, 5])
    assert chance_all_same(counts, 0.5, 0.2) == chance_all_same(counts[[0, 2]], 0.5, 0.2) < 0.5
    assert chance_all_same(np.zeros(2, dtype=int), 0.5, 0.2) == 1.0
    assert [chance_all_same(counts, rate, 0.2) for rate in (0.0, 1.0)] == [1.0, 0.0]
    assert chance_all_flat(np.array([3, 1]), 0.5, 0.2) == pytest.approx(
        chance_all_flat(np.array([3]), 0.5, 0.2)
    )
    assert 0 < chance_all_flat(np.array([3]), 0.5, 0.2) < 1
    assert [chance_all_flat(counts, rate, 0.2) for rate in (0.0, 1.0)] == [1.0, 1.0]


def test_more_than_the_usual_share_is_as_unlikely_as_its_bound() -> None:
    assert [chance_of_more(value, n, 0.5) for value, n in ((0.5, 9), (0.4, 9), (0.9, 0))] == [1.0, 1.0, 1.0]
    assert chance_of_more(1.0, 10, 0.5) == pytest.approx(0.5**10)
    assert 0 < chance_of_more(0.6, 10, 0.5) < 1


def test_a_correlation_is_over_two_tasks_that_vary() -> None:
    x, y = np.array([1.0, 2.0, 1.0, 2.0, 3.0, 3.0]), np.array([5.0, 6.0, 7.0, 8.0, 1.0, 9.0])
    group = np.array([0, 0, 1, 1, 2, 2])
    made = rank_correlation_within(x, y, group)
    assert made is not None and (made.tasks, made.n) == (2, 4) and made.value == pytest.approx(1.0)
    assert rank_correlation_within(x[:2], y[:2], group[:2]) is None
    assert rank_correlation_within(x[[0, 1, 4, 5]], y[[0, 1, 4, 5]], np.array([0, 0, 1, 1])) is None
    known = rank_correlation_within(np.append(x, NAN), np.append(y, 1.0), np.append(group, 2))
    assert known is not None and known.value == pytest.approx(1.0)


def test_a_split_needs_four_margins() -> None:
    assert best_split(np.repeat([0.0, 1.0], 8))[0] == 8 and best_split(np.repeat([0.0, 1.0], 8))[1] > 1
    assert best_split(np.repeat([0.0, 1.0], 8)[:15]) == (7, 0.0)


def test_a_rare_reward_is_a_success_where_hardly_any_other_comes_near_one() -> None:
    rare = [5.0] * 15
    assert ends_of(np.array([0.9] * 985 + rare)) == (0.9, 0.9)
    assert ends_of(np.array([0.89] * 985 + rare)) == (0.89, 5.0)
    assert about_text({"a": 2_000, "b": 1, "c": 1}) == "a (2,000), b (1), c (1)"
    assert about_text({"a": 1, "b": 1, "c": 1, "d": 1}).endswith("c (1), …")


@pytest.mark.parametrize(
    ("count", "low", "warning", "error", "level"),
    [
        (5, 0.0, 0.04, 0.05, "note"), (5, 0.0, 0.05, 0.5, None), (6, 0.0, 0.04, 0.05, "warning"), (5, 0.04, 0.04, 0.5, "note"),
        (5, 0.041, 0.04, 0.5, "warning"), (0, 0.5, 0.01, 0.02, None),
    ],
)  # fmt: skip
def test_a_share_at_its_limit_is_no_worse(
    count: int, low: float, warning: float, error: float, level: str | None
) -> None:
    assert Share(count, 100, low, 0.9).level_above(warning=warning, error=error) == level


@pytest.mark.parametrize(
    ("count", "high", "level"),
    [(50, 0.7, "note"), (49, 0.7, "warning"), (55, 0.6, "note"), (55, 0.59, "warning"), (60, 0.7, None)],
)
def test_a_low_share_at_its_limit_is_no_worse(count: int, high: float, level: str | None) -> None:
    assert Share(count, 100, 0.3, high).level_below(warning=0.6, error=0.5) == level


def test_more_rollouts_settle_only_what_is_open() -> None:
    third = Share(30, 100, 0.2, 0.4)
    assert [bool(settle_text(third, "warning", limit)) for limit in (0.19, 0.2, 0.25, 0.4, 0.41)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert settle_text(third, "error", 0.25) == settle_text(third, None, 0.25) == ""
    assert more_needed(0.5, 0.5, 10) is None and more_needed(0.5, 0.4, 0) is None
    assert share(0, 0) == Share(0, 0, 0.0, 1.0)


def test_a_drift_is_drawn_on_from_three_tasks_on() -> None:
    assert most_at_end(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 2.0])) == pytest.approx(1.0)
    assert most_at_end(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == 0.5
    assert most_at_end(np.array([0.2, 0.4, 0.6]), np.ones(3)) == pytest.approx(0.4)
    assert most_at_end(np.array([1.0, 0.5, 0.0]), np.array([0.0, 1.0, 2.0])) == 0.5


@pytest.mark.parametrize(
    ("own", "strays", "is_named"), [(20, 0, True), (19, 0, False), (20, 1, False), (0, 0, False)]
)
def test_a_stretch_is_of_an_agent_where_nearly_all_of_it_and_hardly_another_is(
    own: int, strays: int, is_named: bool
) -> None:
    names = (
        ["a"] * (20 - strays) + ["b"] * strays + (["b"] * own + ["a"] * (20 - own) if own else [None] * 20)
    )
    one = run(agent=TextCodes(pa.chunked_array([pa.array(names, pa.string())])), family_fields=[])
    assert same_name(one, np.arange(20, 40), np.arange(20)) == (
        "they are all of agent 'b'" if is_named else ""
    )


def test_tasks_that_get_harder_towards_a_stretch_are_sorted() -> None:
    one = run(group=np.arange(40), groups=40, scaled=np.linspace(1.0, 0.0, 40))
    side = np.arange(40)
    assert sorted_tasks(one, side, True, 3.0) and not sorted_tasks(one, side, False, 3.0)
    one.scaled = np.ones(40)
    assert sorted_tasks(one, side, True, 3.0) == "the rewards beside them are all alike too"


@pytest.mark.parametrize(
    ("after", "is_collapse"), [(0.05, False), (0.049, True), (0.94, False), (0.96, True)]
)
def test_a_collapse_ends_below_a_twentieth(after: float, is_collapse: bool) -> None:
    assert Step(100, 0.5, after, 9.0).is_collapse is is_collapse


@pytest.mark.parametrize(
    ("present", "least", "share_", "begins"),
    [
        ("0000011111", 5, 0.9, 5), ("1111100000", 5, 0.9, 4), ("0000111111", 5, 0.9, None), ("0000011111", 6, 0.9, None),
        ("00000111110111100000", 5, 0.9, None), ("000001111101111", 5, 0.9, 5), ("000001110101111", 5, 0.9, None),
    ],
)  # fmt: skip
def test_a_field_begins_or_ends_once(present: str, least: int, share_: float, begins: int | None) -> None:
    assert _beginning(np.array([one == "1" for one in present]), least, share_) == begins


@pytest.mark.parametrize(
    ("ids", "logprobs", "counted", "kind"),
    [
        ([1, 2, 3], [0.1] * 3, 5, ""), ([1, 2, 3], [0.1] * 3, 6, "usage"), ([1, 2, 3], [0.1] * 3, 1, ""),
        ([1, 2, 3], [0.1] * 3, 0, ""),
        ([1, 2, 3, 4], [0.1] * 4, 1, "usage"), ([1, 2, 3], [0.1] * 2, 3, "logprobs"), ([1, 2, 3], [], 3, ""),
        ([1, 2, 3], None, None, ""),
    ],
)  # fmt: skip
def test_a_servers_count_may_be_two_beside_the_tokens(
    ids: list[int], logprobs: object, counted: object, kind: str
) -> None:
    item = {"generation_token_ids": ids, "generation_log_probs": logprobs}
    line = {"response": {"output": [item], "usage": {"output_tokens": counted}}}
    assert _mismatch(json.dumps(line).encode()) == kind
    two = {
        "response": {
            "output": [item | {"generation_log_probs": None}] * 2,
            "usage": {"output_tokens": counted},
        }
    }
    assert _mismatch(json.dumps(two).encode()) == "" == _mismatch(b"{}") == _mismatch(b"torn")


@pytest.mark.parametrize(
    ("ours", "theirs", "kappa"),
    [
        ("1100", "1100", 1.0),
        ("1100", "1010", 0.0),
        ("1100", "0011", -1.0),
        ("11", "11", 1.0),
        ("00", "00", 1.0),
    ],
)
def test_agreement_is_beyond_chance(ours: str, theirs: str, kappa: float) -> None:
    assert _kappa(*(np.array([one == "1" for one in side]) for side in (ours, theirs))) == pytest.approx(
        kappa
    )


@pytest.mark.parametrize(
    ("counts", "is_peak"),
    [
        ([0, 0, 5, 30, 40, 15, 10, 0, 0, 0], True), ([15, 0, 0, 20, 30, 15, 5, 0, 0, 15], False),
        ([0, 0, 15, 20, 30, 15, 5, 15, 0, 0], False),
        ([0, 5, 0, 30, 40, 15, 10, 0, 0, 0], True), ([5, 0, 5, 0, 80, 5, 3, 2, 0, 0], False),
    ],
)  # fmt: skip
def test_an_unsure_judge_answers_in_the_middle(counts: list[int], is_peak: bool) -> None:
    assert _is_middle_peak(np.array(counts)) is is_peak


# checks


def rate(value: float, ci: list[float] | None = None, n: int = 50) -> Any:
    return SimpleNamespace(value=value, n=n, ci=ci or [0.0, 1.0])


@pytest.mark.parametrize(
    ("value", "low", "level"),
    [
        (0.3, 0.151, "error"), (0.3, 0.15, "warning"), (0.15, 0.051, "warning"), (0.15, 0.05, "note"), (0.151, 0.0, "warning"),
        (0.05, 0.0, None), (0.051, 0.0, "note"),
    ],
)  # fmt: skip
def test_people_who_disagree_are_an_error_if_surely_above_the_limit(
    value: float, low: float, level: str | None
) -> None:
    labels = SimpleNamespace(
        error=rate(value, [low, 0.9]), precision=rate(0.5), recall=SimpleNamespace(value=None)
    )
    found = labelled_errors.run(
        run(about=SimpleNamespace(labels=labels)), {"warn_share": 0.05, "max_share": 0.15}
    )
    assert levels(found) == ([level] if level else [])
    assert not found or ("precision 50%" in found[0].text and "recall" not in found[0].text)
    assert not labelled_errors.run(run(about=SimpleNamespace(labels=None)), {})


@pytest.mark.parametrize(
    ("turns", "level"), [([0.0, 0.0, NAN], None), ([1.0, 0.0], "warning"), ([NAN, NAN], None)]
)
def test_a_turn_that_drifted_is_named(turns: list[float], level: str | None) -> None:
    one = run(
        source=SimpleNamespace(numbers=["drift_turns"]), number=lambda name: np.array(turns), n=len(turns)
    )
    found = token_drift.run(one, {"max_share": 0.4})
    assert levels(found) == ([level] if level else [])
    assert levels(token_drift.run(one, {"max_share": 0.5})) == (["note"] if level else [])
    one.source.numbers = []
    assert token_drift.run(one, {"max_share": 0.4}) == []


@pytest.mark.parametrize(("examples", "is_found"), [(19, False), (20, True)])
def test_twenty_examples_tell_of_duplicates(examples: int, is_found: bool) -> None:
    nowhere, code = np.zeros(examples, dtype=bool), np.zeros(examples, dtype=int)
    one = run(
        scaled=np.ones(examples), answer_code=code, is_empty=nowhere, error_text=nowhere, is_binary=False
    )
    assert bool(duplicates.run(one, {"min_reward": 0.95, "max_share": 0.3})) is is_found


@pytest.mark.parametrize(
    ("known", "level"),
    [
        ([1.0] * 100, None),
        ([1.0] * 99 + [NAN], None),
        ([1.0] * 98 + [NAN] * 2, "warning"),
        ([NAN] * 2, "note"),
        ([], None),
    ],
)
def test_missing_token_counts_are_a_note_where_all_are_missing(known: list[float], level: str | None) -> None:
    source = SimpleNamespace(numbers=["total_tokens"], whole_numbers=[])
    one = run(source=source, number=lambda name: np.array(known), n=len(known))
    assert levels(missing_usage.run(one, {"warn_share": 0.01})) == ([level] if level else [])


def test_models_that_were_asked_are_named_in_order() -> None:
    samples = [SimpleNamespace(asked=name) for name in ("b", "a", None, "b", "")]
    assert _asked_models(run(spread_samples=samples)) == ["a", "b"]


@pytest.mark.parametrize(("judged", "is_found"), [(1, False), (2, True)])
def test_two_rewards_tell_of_a_narrow_spread(judged: int, is_found: bool) -> None:
    one = run(judged_n=judged, scaled=np.full(judged, 0.5), judged=np.ones(judged, dtype=bool))
    assert bool(ppo_narrow_spread.run(one, {"min_std": 0.1, "good_std": 0.15})) is is_found


@pytest.mark.parametrize(
    ("judged", "fifths", "is_found"), [(49, [49, 0, 0, 0, 0], False), (50, [50, 0, 0, 0, 0], True),
    (100, [97, 1, 1, 1, 0], True), (100, [96, 2, 2, 0, 0], False)]
)  # fmt: skip
def test_a_fifth_is_used_by_more_than_one_in_a_hundred(
    judged: int, fifths: list[int], is_found: bool
) -> None:
    one = run(judged_n=judged, fifths=np.array(fifths), is_binary=False)
    assert bool(ppo_empty_bins.run(one, {"min_bins": 3})) is is_found


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (9, "fewer than the 10"),
        (10, "enough for a quick"),
        (99, "enough for a quick"),
        (100, "what training usually"),
        (1000, "scale of production"),
    ],
)
def test_a_run_is_as_large_as_its_limits_say(n: int, words: str) -> None:
    [finding] = volume.run(run(judged_n=n), {"quick": 10, "typical": 100, "large": 1000})
    assert words in finding.text


@pytest.mark.parametrize(
    ("value", "low", "high", "too_low", "too_high"),
    [
        (0.3, 0.2, 0.4, [], []), (0.29, 0.2, 0.3, ["note"], []), (0.29, 0.2, 0.299, ["warning"], []), (0.9, 0.8, 0.95, [], []),
        (0.91, 0.9, 0.95, [], ["note"]), (0.91, 0.901, 0.95, [], ["warning"]),
    ],
)  # fmt: skip
def test_a_mean_is_low_or_high_beyond_its_limit(
    value: float, low: float, high: float, too_low: list[str], too_high: list[str]
) -> None:
    profile = SimpleNamespace(n=np.array([2, 2]), min=np.array([0.0, 1.0]), max=np.array([0.0, 1.0]))
    mean = SimpleNamespace(value=value, low=low, high=high, ci=[low, high])
    one = run(judged_n=1000, mean=mean, profile=profile, scaled_profile=profile, success_at=1.0)
    assert levels(mean_too_low.run(one, {"min_mean": 0.3})) == too_low
    assert levels(mean_too_high.run(one, {"max_mean": 0.9})) == too_high


@pytest.mark.parametrize(
    ("judged", "tasks", "level"),
    [
        (1, 1, None),
        (2, 1, "note"),
        (99, 20, "note"),
        (100, 19, "note"),
        (100, 20, "warning"),
        (3000, 1000, "error"),
    ],
)
def test_equal_rewards_are_a_warning_from_a_hundred_of_twenty_tasks_on(
    judged: int, tasks: int, level: str | None
) -> None:
    counts = np.bincount(np.arange(judged) % tasks, minlength=tasks)
    one = run(
        judged_n=judged, levels=np.zeros(1), judged=np.ones(judged, dtype=bool), per_group=lambda mask: counts,
        profile=SimpleNamespace(n=counts), about=SimpleNamespace(declared=None),
    )  # fmt: skip
    assert levels(identical_rewards.run(one, {"min_rate": 0.01, "chance": 0.01})) == (
        [level] if level else []
    )


@pytest.mark.parametrize(("rewarded", "level"), [(0, None), (2, "warning"), (3, "error")])
def test_three_rewards_of_empty_answers_are_an_error(rewarded: int, level: str | None) -> None:
    n = 5
    one = run(
        n=n, is_empty=np.ones(n, dtype=bool), is_unrecorded=np.zeros(n, dtype=bool), judged=np.ones(n, dtype=bool),
        succeeded=np.arange(n) < rewarded, tool_calls=np.zeros(n), answer_chars=np.zeros(n), independent=lambda mask: float(n),
        reward=(np.arange(n) < rewarded).astype(float), scaled=(np.arange(n) < rewarded).astype(float), success_at=1.0,
    )  # fmt: skip
    assert levels(rewarded_empty.run(one, {"max_share": 0.05, "max_silent": 0.3})) == (
        [level] if level else []
    )


def test_a_fault_that_is_mostly_rewarded_is_a_warning() -> None:
    n = 100
    one = run(
        judged=np.ones(n, dtype=bool), succeeded=np.ones(n, dtype=bool), independent=lambda mask: float(n)
    )
    among = np.ones(n, dtype=bool)

    def said(level: Any, limit: float) -> str:
        return _unless_rewarded(one, among, Finding(level=level, text="a", value=1.0, next=""), limit).level

    sure = share(n, n, independent=float(n)).low
    assert [said("error", limit) for limit in (sure - 1e-9, sure)] == ["warning", "error"]
    assert said("note", 0.1) == "note"


def test_rewards_that_go_with_missing_ones_need_ten_tasks_of_thirty() -> None:
    def told(tasks: int, with_some: int) -> object:
        missing = np.array([2] * with_some + [0] * (tasks - with_some))
        means = np.where(missing > 0, 0.1, 0.9) + np.linspace(0, 0.01, tasks)
        one = run(profile=SimpleNamespace(n=np.full(tasks, 4)), scaled_profile=SimpleNamespace(mean=means))
        return _by_difficulty(one, missing, {"z": 4.0})

    assert told(30, 10) is not None and told(29, 10) is None and told(30, 9) is None
    part = cast("Any", told(40, 20))
    assert part[0].startswith("tasks with missing rollouts score 0.1") and part[1] < 0


@pytest.mark.parametrize(
    ("samples", "tasks", "is_found"),
    [(2, 20, True), (2, 19, False), (1, 50, False), (256, 20, True), (257, 20, False)],
)
def test_a_sample_number_that_is_missing_is_named(samples: int, tasks: int, is_found: bool) -> None:
    rollout = np.tile(np.arange(samples), tasks)
    one = run(samples=samples, groups=tasks, rollout=rollout, judged=rollout != 1)
    told = _by_sample(one, {"z": 1.0})
    assert (told is not None) is is_found and (
        told is None or told[0].startswith("sample 1 is there for 0 tasks")
    )


def test_groups_that_an_adaptive_run_filled_have_the_whole_size() -> None:
    for design, filled in ((None, [True] * 3), (SimpleNamespace(whole=8), [False, True, True])):
        one = run(about=SimpleNamespace(design=design), sizes=np.array([7, 8, 9]), groups=3)
        assert cast("Any", Evidence).filled.fget(one).tolist() == filled
