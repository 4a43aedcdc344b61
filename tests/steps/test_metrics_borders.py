"""Metrics: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollforge.statistics import at_k
from rollforge.steps.metrics import votes
from rollforge.steps.metrics.against import FieldDifference, _verdict
from rollforge.steps.metrics.flags import _percent, find_flags
from rollforge.steps.metrics.run_metrics import _joined, _over_tasks, describe, successes
from rollforge.steps.metrics.stages import _aligned
from rollforge.steps.metrics.votes import majority
from tests.steps.made_groups import grouped

NAN = float("nan")


def metrics(**more: Any) -> Any:
    counts = {
        "finished": 100, "judged": 100, "unjudged": 0, "masked": 0, "failed": 0, "expected": None, "rejected_lines": 0,
        "noted_lines": 0, "duplicates": 0,
    }  # fmt: skip
    reward = {"n": 100, "mean": 0.5, "min": 0.0, "max": 1.0} | more.pop("reward", {})
    fields = {
        "counts": SimpleNamespace(**counts | more.pop("counts", {})), "fields": {"reward": SimpleNamespace(**reward)},
        "facts": {}, "equal_groups": None, "coverage": 1.0, "failures": {}, "mixed_types": {}, "adaptive": None, "at_k": {},
        "where": None,
    }  # fmt: skip
    return SimpleNamespace(**fields | more)


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({}, []), ({"reward": {"n": 1, "mean": 1.0, "min": 1.0}}, []),
        ({"reward": {"n": 2, "mean": 1.0, "min": 1.0}}, ["identical-rewards"]),
        ({"reward": {"mean": 0.3}}, []), ({"reward": {"mean": 0.29}}, ["low-mean"]), ({"reward": {"mean": 0.1, "min": -0.1}}, []),
        ({"reward": {"max": 10.0}}, []), ({"reward": {"max": 10.1}}, ["outlier-rewards"]),
        ({"reward": {"min": -10.1}}, ["outlier-rewards"]),
        ({"equal_groups": SimpleNamespace(groups=4, of=4)}, []),
        ({"equal_groups": SimpleNamespace(groups=5, of=5)}, ["identical-samples"]),
        ({"equal_groups": SimpleNamespace(groups=1, of=5)}, []), ({"coverage": 0.9}, []), ({"coverage": 0.89}, ["low-coverage"]),
        ({"coverage": None}, []), ({"counts": {"expected": 100}}, []), ({"counts": {"expected": 101}}, ["incomplete"]),
        ({"counts": {"expected": 102, "failed": 2}}, ["failed"]), ({"counts": {"unjudged": 1}}, ["unjudged"]),
        ({"counts": {"masked": 1}}, ["masked"]), ({"counts": {"rejected_lines": 1}}, ["rejected-lines"]),
        ({"counts": {"noted_lines": 1}}, ["odd-lines"]), ({"counts": {"duplicates": 1}}, ["duplicates"]),
        ({"facts": {"is_empty": SimpleNamespace(mean=0.05)}}, []),
        ({"facts": {"is_empty": SimpleNamespace(mean=0.051)}}, ["empty-answers"]),
        ({"facts": {"is_empty": SimpleNamespace(mean=None)}}, []), ({"mixed_types": {"score": 3}}, ["mixed-types"]),
        ({"counts": {"finished": 0}}, ["empty-run"]), ({"counts": {"judged": 0}, "reward": {"n": 0}}, ["none-judged"]),
        ({"counts": {"judged": 0, "unjudged": 100}, "coverage": 0.0, "reward": {"n": 0}}, ["none-judged"]),
    ],
)  # fmt: skip
def test_what_is_suspicious_is_flagged_beyond_its_border(more: dict[str, Any], flags: list[str]) -> None:
    assert [flag.id for flag in find_flags(metrics(**more))] == flags


@pytest.mark.parametrize(("n", "word"), [(19, "only"), (20, "too hard")])
def test_twenty_low_rewards_say_something_about_the_tasks(n: int, word: str) -> None:
    [flag] = find_flags(metrics(reward={"n": n, "mean": 0.1}))
    assert word in flag.text


@pytest.mark.parametrize(
    ("turns", "is_of_tasks"),
    [(None, True), (SimpleNamespace(max=0, mean=0.0), True), (SimpleNamespace(max=1, mean=1.0), False)],
)
def test_rows_without_a_turn_are_perhaps_tasks(turns: Any, is_of_tasks: bool) -> None:
    facts = {} if turns is None else {"turns": turns}
    [flag] = find_flags(metrics(reward={"n": 0}, facts=facts))
    assert ("is this a file of tasks?" in flag.text) is is_of_tasks


@pytest.mark.parametrize(
    ("runs", "k", "left_out", "words"),
    [
        (1, 2, {}, "2 samples of each of 9 begun tasks"), (1, 3, {}, "k above 2 stands on 4 audited tasks"),
        (2, 2, {}, "2 of these runs were sampled adaptively"), (1, 2, {"at_k": "x"}, "1 of these runs were sampled adaptively"),
        (1, 2, {"pass@10": "b", "pass@9": "a", "best@9": "c"}, "pass@9 … pass@10 are left out: b"),
    ],
)  # fmt: skip
def test_adaptive_sampling_is_flagged_with_what_the_numbers_stand_on(
    runs: int, k: int, left_out: dict[str, str], words: str
) -> None:
    facts = SimpleNamespace(runs=runs, left_out=left_out, rollouts=18, tasks=9, goal=None, first=2, audited=4)
    [flag] = find_flags(metrics(adaptive=facts, at_k={f"pass@{k}": None, "best@5": None}))
    assert words in flag.text and ("audited" in flag.text) is (k == 3)
    assert [one.id for one in find_flags(metrics(), is_uncorrected=True)] == ["adaptive-biased"]


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 %"), (0.9995, "> 99.9 %"), (0.9994, "99.9 %"), (0.05, "5.0 %")]
)
def test_a_hundred_percent_is_exact(share: float, text: str) -> None:
    assert _percent(share) == text


def test_a_reward_at_the_threshold_is_a_success() -> None:
    assert successes(np.array([0.5, 0.49, NAN]), 0.5).tolist()[:2] == [1.0, 0.0]


@pytest.mark.parametrize(("values", "low"), [([0.0, 0.0, 0.3], 0.0), ([-0.1, 0.0, 0.3], None)])
def test_an_interval_of_what_is_never_negative_is_not_negative(
    values: list[float], low: float | None
) -> None:
    field = describe(grouped(1, 1, 1), "seconds", np.array(values))
    assert field.ci is not None and (field.ci[0] == 0.0 if low == 0.0 else field.ci[0] < -0.1)


def test_times_that_touch_are_one_and_a_pause_parts_them() -> None:
    begins, ends = _joined(np.array([5.0, 0.0, 1.0, 6.5]), np.array([6.0, 1.0, 5.0, 7.0]))
    assert (begins.tolist(), ends.tolist()) == ([0.0, 6.5], [6.0, 7.0])
    assert _joined(np.zeros(0), np.zeros(0))[0].tolist() == []


def test_tasks_with_exactly_k_rollouts_count_as_much_as_any() -> None:
    values, judged = np.array([1.0, 1.0, 1.0, NAN]), np.array([2.0, 2.0, 2.0, 1.0])
    few, many = (_over_tasks(values, 2, one) for one in (judged, judged + 9))
    assert few == many and few.tasks == 3


def test_a_value_at_k_is_that_of_the_same_task() -> None:
    table = np.array([[0.1, 0.2], [0.3, 0.4]])
    tasks, others = np.array([3, 5, 7]), np.array([3, 7])
    assert _aligned(tasks, others, table, 2).tolist() == pytest.approx([0.2, NAN, 0.4], nan_ok=True)
    assert np.isnan(_aligned(tasks, others, table, 3)).all()


class Ballot(SimpleNamespace):
    """Rollouts with an answer each."""

    def numbered(self, field: str) -> tuple[Any, Any]:
        return self.answers.copy(), None


@pytest.mark.parametrize("most", [4, 3])
def test_a_majority_is_that_of_every_k_rollouts_of_tasks_that_have_so_many(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_k, "MOST_FOR_EVERY_K", most)
    rows: Any = Ballot(
        sizes=np.array([4, 2, 2, 1]), starts=np.array([0, 4, 6, 8]), index=SimpleNamespace(name_by_column={}),
        answers=np.array([1, 2, 2, 2, 5, 5, 7, 0, 1]),
    )  # fmt: skip
    hits = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, NAN])
    made = {k: values.tolist() for k, values in majority(rows, hits, "answer", 4).items()}
    assert made[1] == pytest.approx([0.25, 1.0, 0.5]) and made[2] == pytest.approx([0.25, 1.0, 1.0])
    assert made[4] == pytest.approx([0.0], abs=1e-12) and sorted(made) == (
        [1, 2, 3, 4] if most == 4 else [1, 2, 4]
    )
    assert majority(rows, hits, "answer", 0) == {}
    assert votes._spelled(2.0) == "2" and votes._spelled(2.5) == "2.5" and votes._spelled([1]) == "[1]"


@pytest.mark.parametrize(
    ("ci", "word"), [([-0.2, 0.0], "no difference"), ([-0.2, -1e-9], "worse"), ([0.0, 0.2], "no difference"), ([1e-9, 0.2], "better")]
)  # fmt: skip
def test_a_run_is_better_or_worse_only_if_the_whole_interval_is(ci: list[float], word: str) -> None:
    reward = FieldDifference(value=0.5, against=0.5, difference=0.1, ci=ci, tasks=500, differing=9)
    assert _verdict(reward).startswith(word)
