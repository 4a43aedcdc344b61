"""Probes: planted broken verifiers are found, honest ones pass, and every rate says what it is over."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.records import Response, Task
from rollforge.simulate.tasks import example_tasks
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.probes import Probe, Prober, ProbeReport, SprinkledProbes, wilson
from rollforge.verifiers.probes.known_answers import gold_of, renderings, respaced
from rollforge.verifiers.probes.report import finding_of
from rollforge.verifiers.running.ready_verifier import make_judge


def sums(count: int = 80) -> list[tuple[Task, Response | None]]:
    """Additions with their answers, two thirds of them right, some long-winded."""
    dice = random.Random(1)
    found: list[tuple[Task, Response | None]] = []
    for index in range(count):
        a, b = dice.randrange(100, 900), dice.randrange(100, 900)
        row = {
            "responses_create_params": {"input": f"What is {a}+{b}? Put it in a box."},
            "expected_answer": str(a + b),
        }
        answer = a + b if dice.random() < 0.67 else a + b + dice.choice([-10, 1, 10])
        text = f"Let me add {a} and {b}.\nIt is \\boxed{{{answer}}}."
        found.append((Task(row, index), Response.from_text(text)))
    return found


def choices(count: int = 80) -> list[tuple[Task, Response | None]]:
    """Multiple choice with four options."""
    dice = random.Random(2)
    found: list[tuple[Task, Response | None]] = []
    for index in range(count):
        letters = "ABCD"
        options = [{letter: f"thing {dice.randrange(10_000)}"} for letter in letters]
        listed = "\n".join(
            f"{letter}: {next(iter(option.values()))}"
            for letter, option in zip(letters, options, strict=True)
        )
        row = {
            "responses_create_params": {
                "input": f"Which is thing number {index}?\n{listed}\nAnswer with \\boxed{{letter}}."
            },
            "options": options,
            "expected_answer": dice.choice(letters),
        }
        said = Response.from_text(f"I would say \\boxed{{{dice.choice(letters)}}}")
        found.append((Task(row, index), said))
    return found


async def report_on(
    verifier: Any, material: list[tuple[Task, Response | None]], **options: Any
) -> ProbeReport:
    judge = make_judge(load_verifier(verifier, options), workers=0)
    await judge.start()
    prober = Prober(judge)
    for task, response in material:
        await prober.ask(task, response)
    await judge.close()
    return prober.report()


def found_by(report: ProbeReport) -> set[str]:
    return {probe.name for probe in report.probes if probe.finding == "broken"}


def last_boxed(text: str) -> str | None:
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1].strip() if found else None


def always_one(task: Task, response: Response) -> float:
    return 1.0


def always_zero(task: Task, response: Response) -> float:
    return 0.0


def never_judges(task: Task, response: Response) -> None:
    return None


def substring(task: Task, response: Response) -> bool:
    return task["expected_answer"] in response.text


def rewards_empty(task: Task, response: Response) -> bool:
    return not response.text.strip() or last_boxed(response.text) == task["expected_answer"]


def at_random(task: Task, response: Response) -> float:
    return float(random.random() < 0.5)


def space_sensitive(task: Task, response: Response) -> bool:
    return response.text in (task["expected_answer"], f"\\boxed{{{task['expected_answer']}}}")


def ascii_only(task: Task, response: Response) -> bool:
    response.text.encode("ascii")
    return last_boxed(response.text) == task["expected_answer"]


def of_another_task(task: Task, response: Response) -> bool:
    return last_boxed(response.text) == str(int(task["expected_answer"]) + 1)


def any_box(task: Task, response: Response) -> bool:
    return last_boxed(response.text) is not None


def needs_no_reading(task: Task, response: Response) -> bool:
    """Passes whatever is long enough: a length heuristic that was left in."""
    return len(response.text) > 20


BROKEN = [
    (always_one, {"empty", "refusal", "swapped gold", "echo", "hedge"}),
    (always_zero, {"gold"}),
    (never_judges, {"gold", "errors"}),
    (substring, {"hedge"}),
    (rewards_empty, {"empty"}),
    (at_random, {"twice", "empty"}),
    (space_sensitive, {"spacing"}),
    (ascii_only, {"errors"}),
    (of_another_task, {"gold"}),
    (any_box, {"swapped gold", "swapped response", "hedge"}),
    (needs_no_reading, {"refusal", "echo"}),
]


@pytest.mark.parametrize(("verifier", "at_least"), BROKEN, ids=[one[0].__name__ for one in BROKEN])
async def test_a_broken_verifier_is_found_by_the_question_it_gets_wrong(
    verifier: Any, at_least: set[str]
) -> None:
    report = await report_on(verifier, sums())
    assert report.is_broken
    assert at_least <= found_by(report)
    for probe in report.probes:
        if probe.finding == "broken" and probe.kind != "error":
            assert probe.examples
            assert probe.ci is not None and probe.ci[0] > probe.limit + probe.chance


def boxed_equal(task: Task, response: Response) -> bool:
    return last_boxed(response.text) == task["expected_answer"]


def last_number(task: Task, response: Response) -> dict[str, float]:
    found = re.findall(r"-?\d+", response.text)
    return {"reward": float(bool(found) and found[-1] == task["expected_answer"]), "numbers": len(found)}


def ten_points(task: Task, response: Response) -> float:
    """Another scale: 1 for trying, 10 for the right answer."""
    return 10.0 if boxed_equal(task, response) else 1.0


def minus_one(task: Task, response: Response) -> float:
    return 1.0 if boxed_equal(task, response) else -1.0


def a_third(task: Task, response: Response) -> float:
    return 0.3 * boxed_equal(task, response)


def below_zero(task: Task, response: Response) -> float:
    return -0.5 if boxed_equal(task, response) else -1.0


def or_none(task: Task, response: Response) -> float | None:
    """Says that it cannot judge where there is no box."""
    return None if last_boxed(response.text) is None else float(boxed_equal(task, response))


async def over_the_network(task: Task, response: Response) -> bool:
    return boxed_equal(task, response)


@pytest.mark.parametrize(
    "verifier",
    [
        boxed_equal,
        last_number,
        ten_points,
        minus_one,
        a_third,
        below_zero,
        or_none,
        over_the_network,
        "exact",
    ],
    ids=lambda verifier: getattr(verifier, "__name__", verifier),
)
async def test_an_honest_verifier_passes(verifier: Any) -> None:
    report = await report_on(verifier, sums())
    assert found_by(report) == set()
    assert not report.is_broken
    assert report.false_negative.rate == 0.0


@pytest.mark.parametrize(
    ("verifier", "kind"), [("exact", "math"), ("mcqa", "mcqa"), ("multineedle", "tools")]
)
async def test_the_ready_verifiers_pass_on_the_example_tasks(verifier: str, kind: Any) -> None:
    tasks = [Task(row, index) for index, row in enumerate(example_tasks(60, kind=kind))]
    report = await report_on(verifier, [(task, None) for task in tasks])
    assert not report.is_broken
    assert (report.false_negative.rate, report.false_negative.n) == (0.0, 60)


@pytest.mark.parametrize("verifier", [boxed_equal, "mcqa"], ids=["boxed_equal", "mcqa"])
async def test_multiple_choice_is_right_by_chance_and_that_is_tolerated(verifier: Any) -> None:
    report = await report_on(verifier, choices())
    assert not report.is_broken
    swapped = {probe.name: probe for probe in report.probes}["swapped response"]
    assert swapped.bad > 0
    assert 0.2 < swapped.chance < 0.35


async def test_a_verifier_that_takes_any_letter_is_broken_on_multiple_choice_too() -> None:
    def any_mention(task: Task, response: Response) -> bool:
        return task["expected_answer"] in response.text

    assert "hedge" in found_by(await report_on(any_mention, choices()))


async def test_without_real_responses_the_tasks_alone_tell_much() -> None:
    material = [(task, None) for task, _ in sums()]
    report = await report_on(boxed_equal, material)
    not_asked = {probe.name: probe.reason for probe in report.probes if probe.finding == "not asked"}
    assert not report.is_broken
    assert not_asked == {"swapped response": "there are no real responses; give a run"}
    assert "gold" in found_by(await report_on(always_zero, material))


async def test_without_right_answers_the_rest_is_asked_and_the_gap_is_named() -> None:
    material = [
        (Task({"responses_create_params": task.params, "hidden": 1}, task.index), said)
        for task, said in sums()
    ]
    report = await report_on(always_one, material)
    gold = report.probes[0]
    assert (gold.name, gold.finding, gold.n) == ("gold", "not asked", 0)
    assert {"empty", "refusal", "swapped response"} <= found_by(report)
    assert report.false_negative.rate is None


async def test_a_verifier_that_never_judges_is_broken_without_right_answers_too() -> None:
    material = [(Task({"responses_create_params": {"input": f"Say {n}"}}, n), None) for n in range(5)]
    assert found_by(await report_on(never_judges, material)) == {"errors"}


async def test_a_verifier_that_hangs_is_broken_after_a_few_calls() -> None:
    async def hangs(task: Task, response: Response) -> float:
        await asyncio.sleep(100)
        return 1.0

    judge = make_judge(load_verifier(hangs), timeout=0.01)
    await judge.start()
    prober = Prober(judge)
    for task, response in sums():
        await prober.ask(task, response)
    await judge.close()
    report = prober.report()
    assert found_by(report) == {"errors"}
    assert report.calls < 10


async def test_a_few_tasks_are_shown_but_not_judged() -> None:
    def misses_one(task: Task, response: Response) -> bool:
        return boxed_equal(task, response) and task.index != 0

    report = await report_on(misses_one, sums(5))
    gold = report.probes[0]
    assert (gold.bad, gold.n, gold.finding) == (1, 5, "unclear")
    assert gold.examples[0].task == 0
    assert not report.is_broken


async def test_a_verifier_may_name_its_right_answers_and_the_questions_that_do_not_fit() -> None:
    def polite(task: Task, response: Response) -> bool:
        return "please" in response.text

    polite.gold = lambda task: "please"  # type: ignore[attr-defined]
    polite.skip_probes = ("hedge", "swapped gold", "swapped response")  # type: ignore[attr-defined]
    report = await report_on(polite, sums())
    assert not report.is_broken
    assert {probe.name for probe in report.probes if probe.finding == "not asked"} == set(polite.skip_probes)  # type: ignore[attr-defined]


async def test_a_declared_dice_thrower_may_differ_more_often() -> None:
    dice = random.Random(3)

    def noisy(task: Task, response: Response) -> bool:
        return boxed_equal(task, response) != (dice.random() < 0.03)

    noisy.is_deterministic = False  # type: ignore[attr-defined]
    report = await report_on(noisy, sums())
    twice = next(probe for probe in report.probes if probe.name == "twice")
    assert twice.limit == 0.20
    assert twice.finding != "broken"


async def test_sprinkled_probes_take_their_share_and_find_the_same() -> None:
    judge = make_judge(load_verifier(always_one), workers=0)
    await judge.start()
    probes = SprinkledProbes(judge, 0.25)
    taken = 0
    for _ in range(2):
        for task, response in sums(200):
            assert response is not None
            taken += probes.offer(task, response)
            await judge.judge(task, response)
    report = await probes.finish()
    await judge.close()
    assert 25 <= taken == report.tasks <= 75
    assert report.is_broken


@given(st.integers(0, 400), st.integers(1, 400))
def test_the_wilson_interval_holds_the_rate_and_narrows_with_n(bad: int, n: int) -> None:
    bad = min(bad, n)
    low, high = wilson(bad, n)
    assert 0 <= low <= bad / n <= high <= 1
    wide, narrow = wilson(bad, n), wilson(bad * 10, n * 10)
    assert narrow[1] - narrow[0] <= wide[1] - wide[0] + 1e-12


def test_the_wilson_interval_agrees_with_published_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611252), abs=1e-6)


def test_a_finding_is_broken_only_when_the_whole_interval_clears_the_limit() -> None:
    assert finding_of(0, 50, 0.05, 0.0) == "ok"
    assert finding_of(4, 50, 0.05, 0.0) == "unclear"
    assert finding_of(20, 50, 0.05, 0.0) == "broken"
    assert finding_of(13, 50, 0.10, 0.25) == "ok"
    assert finding_of(0, 0, 0.05, 0.0) == "not asked"


def test_the_right_answer_is_written_in_every_usual_form() -> None:
    task = Task({"responses_create_params": {"input": "?"}, "options": [{"A": "Circle"}, {"B": "Square"}]})
    texts = {
        response.text
        for _, response in renderings(task, gold_of(Task({**task, "expected_answer": "Square"})))
    }
    assert {
        "Square",
        "\\boxed{Square}",
        "\\boxed{B}",
        "The answer is B.",
        "Answer: Square",
        '{"answer": "Square"}',
    } <= texts


@given(st.text(min_size=1))
def test_respacing_changes_nothing_but_space_and_dollar_signs(text: str) -> None:
    original = Response.from_text(text)
    for _, changed in respaced(original):
        assert changed.text != text
        assert re.sub(r"[\s$]", "", changed.text) == re.sub(r"[\s$]", "", text)
    assert original.text == text


def test_every_probe_has_a_question_that_a_person_understands() -> None:
    from rollforge.verifiers.probes.questions import QUESTIONS

    assert all(question.text.endswith("?") and len(question.text) <= 48 for question in QUESTIONS.values())
    assert Probe.__struct_fields__[:2] == ("name", "question")
