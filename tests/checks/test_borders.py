"""Checks: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from rollforge.checks import identical
from rollforge.checks.building_blocks.coded_columns import TextCodes, ends_of
from rollforge.checks.building_blocks.evidence_source import ProbeOutcome
from rollforge.checks.building_blocks.finding import Finding, Share
from rollforge.checks.building_blocks.stream import Watch
from rollforge.checks.building_blocks.text_samples import names, repeats
from rollforge.checks.change import Step
from rollforge.checks.consistency import inconsistent_verdicts
from rollforge.checks.health import is_loop
from rollforge.checks.opinions import failed_probe
from rollforge.checks.pairs import all_pairs, small_gaps
from rollforge.checks.sampling import unknown_tools
from rollforge.steps.check import CheckOptions, check_evidence
from rollforge.testing import Shape, healthy_run


def test_a_unit_that_ends_an_answer_six_times_is_a_loop() -> None:
    unit = "the same forty characters, again again. "
    assert is_loop("first " + unit * 6)
    assert not is_loop("first " + unit * 5)


def test_only_fields_with_at_most_fifty_values_name_families(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(run: object, families: Any, field: str, limits: object) -> list[Finding]:
        asked.append(len(families.names))
        return []

    monkeypatch.setattr(identical, "_flat_families", note)
    for count in (1, 2, 50, 51):
        families = SimpleNamespace(names=[str(number) for number in range(count)])
        run = SimpleNamespace(
            levels=[0.0, 1.0], judged_n=100, family_fields=["subject"], family=lambda _, it=families: it
        )
        identical.flat_family.run(cast("Any", run), {})
    assert asked == [2, 50]


@pytest.mark.parametrize(("short", "level"), [(0, None), (5, None), (60, "warning")])
def test_a_few_groups_may_lack_a_rollout_and_many_are_warned_of(short: int, level: str | None) -> None:
    run = healthy_run(Shape(tasks=100, samples=8, unjudged=0.0, failed=0.0, form="collected"), seed=1)
    run.keep(~((run.columns["task"] < short) & (run.columns["rollout"] == 7)))
    report = check_evidence(run.evidence(), CheckOptions(recipe="grpo"))
    assert [one.level for one in report.findings if one.id == "partial-groups"] == ([level] if level else [])


def test_examples_of_few_tasks_are_counted_by_the_tasks_that_give_one() -> None:
    run = healthy_run(Shape(tasks=100, samples=8, unjudged=0.0, failed=0.0), seed=1)
    run.columns["reward"] = np.where(run.columns["task"] < 10, 1.0, 0.0)
    report = check_evidence(run.evidence(), CheckOptions(recipe="sft"))
    finding = next(one for one in report.findings if one.id == "sft-narrow")
    assert "from 10 of 100 tasks (10%)" in finding.text, finding


def test_a_window_begins_no_earlier_than_its_session() -> None:
    watch = Watch()
    for number in range(4):
        watch.observe(number, float(number % 2), at=100.0 + number)
    assert (watch.window().first_at, watch.window().rollouts) == (100.0, 4)


@pytest.mark.parametrize(("slower", "is_calm"), [(1.2, True), (2.5, False)])
def test_verdicts_are_calm_up_to_a_fifth_of_the_pace_that_is_a_signal(slower: float, is_calm: bool) -> None:
    watch = Watch()
    for number in range(640):
        pace = 1.0 if number < 448 else slower
        watch.observe(number, float(number % 2), verify_seconds=0.01 * pace, at=float(number))
    assert watch.light == "green"
    assert (watch.window().rollouts == 0) is is_calm
    assert is_calm or watch.window().first_at == 447


def test_a_loop_repeats_at_most_200_characters_and_fills_at_least_200() -> None:
    def unit(size: int) -> str:
        return "".join(chr(97 + place * place % 23) for place in range(size - 1)) + "."

    assert is_loop("x" + unit(200) * 6) and not is_loop("x" + unit(201) * 6)
    assert is_loop("x" + unit(20) * 10) and not is_loop("x" + unit(20) * 9)
    assert is_loop("x" * 5_000 + unit(200) * 6)
    assert not is_loop("a" * 2_000), "one letter is no unit"


@pytest.mark.parametrize(
    ("before", "after", "is_collapse"),
    [(0.5, 0.04, True), (0.04, 0.5, True), (0.5, 0.06, False), (0.5, 0.96, True), (0.5, 0.94, False),
     (0.31, 0.04, True), (0.29, 0.04, False), (0.71, 0.04, False)],
)  # fmt: skip
def test_rewards_collapse_from_an_ordinary_mean_to_an_end(
    before: float, after: float, is_collapse: bool
) -> None:
    assert Step(100, before, after, 9.0).is_collapse is is_collapse


@pytest.mark.parametrize(("strays", "ends"), [(20, (0.0, 1.0)), (21, (0.0, 50.0))])
def test_two_percent_of_rewards_may_be_strays(strays: int, ends: tuple[float, float]) -> None:
    values = np.array([50.0] * strays + [float(number % 2) for number in range(1_000 - strays)])
    assert ends_of(values) == ends


def test_a_reward_of_ten_is_within_the_usual_range() -> None:
    ordinary = [float(number % 2) * 9.0 for number in range(999)]
    assert ends_of(np.array([*ordinary, 10.0])) == (0.0, 10.0)
    assert ends_of(np.array([*ordinary, 10.5])) == (0.0, 9.0)


@pytest.mark.parametrize(
    ("low", "level"), [(0.051, "error"), (0.05, "warning"), (0.011, "warning"), (0.01, None)]
)
def test_a_share_is_an_error_only_if_its_whole_interval_is_above(low: float, level: str | None) -> None:
    value = 0.06 if level else 0.01
    assert Share(int(value * 100), 100, low, 0.2).level_above(warning=0.01, error=0.05) == level


@pytest.mark.parametrize(("high", "level"), [(0.49, "error"), (0.5, "warning"), (0.61, "warning")])
def test_a_share_is_too_low_only_if_its_whole_interval_is_below(high: float, level: str) -> None:
    assert Share(40, 100, 0.3, high).level_below(warning=0.6, error=0.5) == level


@pytest.mark.parametrize(("tasks", "is_signal"), [(440, False), (520, True)])
def test_rewards_that_never_differ_are_a_signal_once_one_in_a_hundred_would_have_succeeded(
    tasks: int, is_signal: bool
) -> None:
    watch = Watch()
    for number in range(tasks):
        watch.observe(number, 0.0, at=float(number))
    assert ("rewards" in watch.signals) is is_signal  # 0.99 ** 459 is below 1 %


@pytest.mark.parametrize(("verdicts", "is_signal"), [(49, False), (64, True)])
def test_failing_verdicts_are_a_signal_after_fifty(verdicts: int, is_signal: bool) -> None:
    watch = Watch()
    for number in range(verdicts):
        has_failure = number >= verdicts - 30
        watch.observe(number, None if has_failure else 1.0, has_failure=has_failure, at=float(number))
        if has_failure:
            assert is_signal or "failures" not in watch.signals


@pytest.mark.parametrize(("different", "is_signal"), [(10, False), (11, True)])
def test_equal_answers_judged_differently_are_a_signal_if_surely_above_a_twentieth(
    different: int, is_signal: bool
) -> None:
    watch = Watch()
    for number in range(96):
        reward = float(number % 2)
        again = 1 - reward if number < different else reward
        for given in (reward, again):
            watch.observe(number, given, answer_hash=7, at=float(number))
    said = f"{different} of 96 repeated answers were judged differently"
    assert watch.signals == ({"consistency": said} if is_signal else {})


def test_names_come_with_the_most_frequent_first() -> None:
    names = TextCodes(pa.chunked_array([["b", "a", "c", "a", None, "c", "a"]]))
    assert list(names.counts().items()) == [("a", 3), ("c", 2), ("b", 1)]


def test_four_hundred_rollouts_spread_over_the_run_are_read() -> None:
    run = healthy_run(Shape(tasks=100, samples=8), seed=1).evidence()
    assert len(run.spread) == 400 and run.spread[0] == 0 and run.spread[-1] == run.n - 1
    few = healthy_run(Shape(tasks=20, samples=8), seed=1).evidence()
    assert len(few.spread) == few.n


def test_pairs_are_the_best_with_the_worst_then_inwards() -> None:
    run: Any = SimpleNamespace(
        by_reward=np.array([2, 0, 1, 3, 4, 5]),
        scaled=np.array([0.5, 0.75, 0.0, 1.0, 0.25, 0.5]),
        profile=SimpleNamespace(n=np.array([4, 2])),
        shared={},
    )
    pairs = all_pairs(run)
    assert sorted(zip(pairs.gaps.tolist(), *(column.tolist() for column in pairs[1:]), strict=True)) == [
        (0.25, 0, 1, 0), (0.25, 1, 5, 4), (1.0, 0, 3, 2)]  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.05] * 10 + [0.2] * 5 + [0.3] * 5, "mean gap of 20 pairs is 0.15; 50% are below 0.1, 25% at least 0.3"),
        ([0.05] * 10 + [0.1] * 5 + [0.4] * 5, "mean gap of 20 pairs is 0.15; 50% are below 0.1, 25% at least 0.3"),
        ([0.05] * 10 + [0.2] * 4 + [0.3] * 5, None),  # too few pairs to say
        ([0.2] * 20, None),
        ([0.09] * 17 + [0.9] * 3, "mean gap of 20 pairs is 0.21; 85% are below 0.1, 15% at least 0.3"),
        ([0.09] * 13 + [0.9] * 7, None),  # 65 % of 20 need not be more than half
    ],
)  # fmt: skip
def test_small_gaps_are_told_by_their_mean_or_by_how_many_are_unclear(
    gaps: list[float], said: str | None
) -> None:
    run: Any = SimpleNamespace(
        by_reward=np.arange(2 * len(gaps)),
        scaled=np.array([reward for gap in gaps for reward in (0.0, gap)]),
        profile=SimpleNamespace(n=np.full(len(gaps), 2)),
        shared={},
        range=SimpleNamespace(note=""),
        name="run",
    )
    found = small_gaps.run(run, {"min_mean": 0.2, "unclear": 0.1, "max_unclear": 0.5})
    assert [one.text.removeprefix("the ") for one in found] == ([said] if said else [])


@pytest.mark.parametrize(("mean", "is_likely"), [(0.0, True), (1.0, True), (0.5, False)])
def test_tasks_are_flat_by_chance_only_at_the_ends_of_the_range(mean: float, is_likely: bool) -> None:
    flat = np.ones(10, dtype=bool)
    profile = SimpleNamespace(mean=np.full(10, mean), n=np.full(10, 4))
    run: Any = SimpleNamespace(scaled_profile=profile, profile=profile)
    assert (identical._chance_flat(run, flat, 0.2) > 0.01) is is_likely


def test_tools_that_were_not_offered_are_named_in_order() -> None:
    calls = [
        SimpleNamespace(calls=[name, "sh"], tools=("sh",)) for name in ("write", "open", "read", "seek") * 50
    ]
    run: Any = SimpleNamespace(
        tool_calls=np.ones(200), draw=lambda mask, most: np.flatnonzero(mask), read=lambda drawn: calls, name="run",
        lines=lambda drawn: [], line=np.arange(200),
    )  # fmt: skip
    [finding] = unknown_tools.run(run, {"warn_share": 0.01, "max_share": 0.05})
    assert finding.text.endswith("open, read, seek") and finding.level == "error"


def test_correlations_are_over_four_thousand_tasks_whose_rewards_differ() -> None:
    shape = Shape(tasks=6_000, samples=8, alike=0.1, unjudged=0.0, failed=0.0)
    run = healthy_run(shape, seed=1).evidence()
    assert int((run.profile.std > 0).sum()) > 4_000
    assert len(np.unique(run.group[run.mixed_positions])) == 4_000


def test_of_answers_judged_differently_the_first_of_the_file_are_named() -> None:
    run = healthy_run(
        Shape(tasks=40, samples=4, unjudged=0.0, failed=0.0, empty=0.0, has_tools=False), seed=3
    )
    task, sample = run.columns["task"], run.columns["rollout"]
    run.columns["answer_hash"] = 7 + task
    run.columns["reward"] = (sample == 0).astype(float)
    report = check_evidence(run.evidence(), CheckOptions())
    (finding,) = [one for one in report.findings if one.id == "inconsistent-verdicts"]
    assert len({place["task"] for place in finding.where[:4]}) == 1
    lines = [place["line"] for place in finding.where[:4]]
    assert lines[0] == 1 and lines == sorted(lines)


def test_what_to_do_next_ends_with_its_command() -> None:
    """A report sets everything from the word rollforge on as a command to paste, so no sentence may follow it."""
    sources = Path(identical.__file__).parent.glob("*.py")
    steps = [step for path in sources for step in re.findall(r'next=f?"([^"]*)"', path.read_text("utf-8"))]
    assert len(steps) > 40
    for step in steps:
        _, program, line = step.partition("rollforge ")
        _, computed, rest = step.rpartition("{run.status}")
        assert not program or not re.search(r"; | does |`", line), step
        assert not computed or not rest, step


PROMPT = "How many apples are left after Mary gave three of her seven apples away?"


@pytest.mark.parametrize(
    ("answer", "prompt", "is_echo"),
    [
        (PROMPT, PROMPT, True),
        (PROMPT.upper() + " **Four.**", PROMPT, True),
        (PROMPT + " She has seven and gives three away, so four are left.", PROMPT, False),
        ("Four apples are left.", PROMPT, False),
        (PROMPT[:40], PROMPT, False),
        (PROMPT[:100] * 2, PROMPT * 2, True),
        ("2 + 2 = ?", "2 + 2 = ?", False),  # too short to tell
    ],
)
def test_an_echo_is_the_prompt_and_hardly_anything_else(answer: str, prompt: str, is_echo: bool) -> None:
    assert repeats(answer, prompt) is is_echo


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("it is 17", True), ("it is 17.", True), ("$17$", True), ("(17)", True), ("17, then 3", True),
        ("it is 175", False), ("it is 317", False), ("it is 3.17", False), ("it is -17", False), ("it is 17.5", False),
        ("it is x_17", False), ("it is 17_x", False), ("it is 17,5", False), ("first 170, then 17", True),
        ("first 17, then 170", True), ("", False),
    ],
)  # fmt: skip
def test_an_expected_answer_is_named_as_a_word_of_its_own(text: str, is_named: bool) -> None:
    assert names(text, " $17 ") is is_named
    assert not names(text, " ")


@pytest.mark.parametrize(
    ("reasons", "judged", "is_found"), [(["a"], 5, True), ([], 5, False), (["a"], 0, False), (None, 5, False)]
)
def test_a_failed_probe_is_an_error_where_something_was_judged(
    reasons: list[str] | None, judged: int, is_found: bool
) -> None:
    probe = None if reasons is None else ProbeOutcome(reasons=reasons, is_broken=bool(reasons))
    run: Any = SimpleNamespace(probe=probe, judged_n=judged, verify=lambda words: f"rollforge verify {words}")
    assert [one.level for one in failed_probe.run(run, {})] == (["error"] if is_found else [])


@pytest.mark.parametrize(("different", "level"), [(0, None), (2, "warning"), (3, "error")])
def test_two_answers_judged_differently_are_a_warning_and_three_of_few_an_error(
    different: int, level: str | None
) -> None:
    code = np.repeat(np.arange(4), 2)
    run: Any = SimpleNamespace(
        judged=np.ones(8, dtype=bool), answer_chars=np.full(8, 9), tool_calls=np.zeros(8), answer_code=code,
        scaled=np.where((np.arange(8) % 2 == 1) & (code < different), 1.0, 0.0),
        lines=lambda positions: [], verify=lambda words: f"rollforge verify {words}",
    )  # fmt: skip
    found = inconsistent_verdicts.run(run, {"gap": 0.1, "max_share": 0.05})
    assert [one.level for one in found] == ([level] if level else [])


@pytest.mark.parametrize(
    ("right", "silent", "wrong", "words"),
    [
        (200, 0, 200, "of 400 answers 200 end in the expected one and 200 do not name it"),
        (400, 0, 0, ""),
        (0, 0, 400, ""),
        (200, 200, 0, ""),
        (10, 0, 9, ""),
    ],
)
def test_rewards_ignore_answers_of_which_some_are_right_and_others_do_not_name_the_result(
    right: int, silent: int, wrong: int, words: str
) -> None:
    texts = ["the answer is 17"] * right + ["17 it is not"] * silent + ["I do not know"] * wrong
    some = np.ones(len(texts), dtype=bool)
    run: Any = SimpleNamespace(
        judged=some, is_empty=~some, is_truncated=~some, answer_chars=some.astype(int),
        draw=lambda mask, most: np.flatnonzero(mask),
        read=lambda drawn: [SimpleNamespace(answer=texts[one], expected="17") for one in drawn],
        independent=lambda flags: float(flags.sum()), flags=lambda positions: some[positions],
    )  # fmt: skip
    said = identical._alike_text(run)
    assert words in said and bool(said) is bool(words)
