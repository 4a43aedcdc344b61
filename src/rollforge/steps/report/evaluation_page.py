"""The report of `eval` and `bench` results: curves over steps, models side by side, verdicts in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rollforge.charts import Interval, Point, Series, interval_chart, line_chart, percent
from rollforge.statistics.counts import count_of
from rollforge.steps.report.figures import Figure, between, number, slug
from rollforge.steps.report.inputs import AtKFacts, BenchFacts, LoggedStep
from rollforge.steps.report.page import Section, document, figures
from rollforge.text_safety.markup import Html, join, table, tag

COLOURS = ("1", "2", "3", "4")
SHOWN = ("mean@", "pass@", "best@", "maj@")
"""Statistics to draw, in order of preference."""


def report_evaluation(name: str, bench: BenchFacts, logged: Sequence[LoggedStep] = ()) -> bytes:
    """An evaluation, or several models on the same task sets, as one HTML file.

    `logged` are earlier steps of the evaluation from its metrics file, without intervals.
    """
    verdicts = [tag("li", f"{one.taskset}: {one.verdict}") for one in bench.differences]
    title = (
        f"{count_of(len(bench.models), 'model')} compared"
        if len(bench.models) > 1
        else f"Evaluation of {_only(bench)}"
    )
    head = join(
        [
            tag("h1", title),
            tag("p", name, css="soft"),
            tag("div", tag("strong", "Which is better?"), tag("ul", *verdicts), css="verdict")
            if verdicts
            else None,
        ]
    )
    tasksets = list(dict.fromkeys(taskset for model in bench.models.values() for taskset in model.tasksets))
    sections = [
        Section(f"set-{slug(taskset)}", taskset, _taskset(bench, taskset, logged)) for taskset in tasksets
    ]
    sections.append(Section("numbers", "All numbers", _numbers(bench)))
    return document(f"rollforge report: {name}", head, sections)


def _only(bench: BenchFacts) -> str:
    label, model = next(iter(bench.models.items()))
    return model.model or label


def _taskset(bench: BenchFacts, taskset: str, logged: Sequence[LoggedStep]) -> Html:
    names = list(
        dict.fromkeys(
            metric
            for model in bench.models.values()
            if taskset in model.tasksets
            for metric in model.tasksets[taskset].metrics
        )
    )
    metrics = sorted(
        (name for name in names if not name.startswith("time/")), key=lambda name: (name != "reward", name)
    )
    drawn: list[Figure | None] = []
    for metric in metrics:
        drawn += [_curve(bench, taskset, metric, logged), _side_by_side(bench, taskset, metric)]
    return join([tag("p", _coverages(bench, taskset), css="soft"), figures(drawn)])


def _coverages(bench: BenchFacts, taskset: str) -> str:
    """What the numbers of each model are over."""
    each = [
        f"{label}: {facts.judged:,} judged of {facts.runs:,} runs, coverage {percent(round(facts.coverage, 4))}, "
        f"{count_of(facts.tasks, 'task')}"
        for label, model in bench.models.items()
        if (facts := model.tasksets.get(taskset)) is not None
    ]
    return "; ".join(each) + "."


def _are_steps(bench: BenchFacts) -> bool:
    """Whether the models are steps of one: a single model with a log, or labels that end in their steps."""
    numbers = [re.search(r"\d+$", label) for label in bench.models]
    if len(numbers) == 1:
        return True
    steps = [model.step for model in bench.models.values()]
    return [int(number[0]) if number else None for number in numbers] == steps


def _statistics(bench: BenchFacts, label: str, taskset: str, metric: str) -> dict[str, AtKFacts]:
    model = bench.models[label]
    facts = model.tasksets.get(taskset)
    return facts.metrics.get(metric, {}) if facts else {}


def _chosen(statistics: dict[str, AtKFacts]) -> list[str]:
    """Statistics to draw: the mean first, then the largest k of each kind."""
    chosen = []
    for prefix in SHOWN:
        names = [name for name in statistics if name.startswith(prefix)]
        if names:
            chosen.append(max(names, key=lambda name: int(name.removeprefix(prefix))))
    return chosen or list(statistics)[:1]


def _curve(bench: BenchFacts, taskset: str, metric: str, logged: Sequence[LoggedStep]) -> Figure | None:
    """A metric over steps; None with fewer than two steps, or if the models are no steps of one."""
    if not _are_steps(bench):
        return None
    first = next(
        (statistics for label in bench.models if (statistics := _statistics(bench, label, taskset, metric))),
        {},
    )
    series: list[Series] = []
    rows: list[list[str]] = []
    for position, name in enumerate(_chosen(first)):
        points: dict[int, Point] = {}
        for one in logged:
            key = next((key for key in one.metrics if key.endswith(f"/{taskset}/{metric}/{name}")), None)
            if key is not None and one.metrics[key] is not None:
                points[one.step] = Point(
                    one.step, one.metrics[key], title=f"step {one.step}: {number(one.metrics[key])}"
                )
        for label, model in bench.models.items():
            value = _statistics(bench, label, taskset, metric).get(name)
            if value is not None:
                words = f"step {model.step}: {number(value.value)} ({between(value.ci)})"
                points[model.step] = Point(model.step, value.value, value.ci, title=words)
        ordered = [points[step] for step in sorted(points)]
        if len(ordered) > 1:
            values = [(one.x, one.y) for one in ordered]
            alike = next((one for one in series if [(at.x, at.y) for at in one.points] == values), None)
            if alike is None:
                series.append(Series(name=name, points=ordered, css=COLOURS[position % len(COLOURS)]))
            else:  # pass@4 and best@4 of rewards 0 and 1: one line would hide the other
                series[series.index(alike)] = msgspec.structs.replace(alike, name=f"{alike.name}, {name}")
            rows += [[name, str(int(one.x)), number(one.y), between(one.ci)] for one in ordered]
    if not series:
        return None
    steps = sorted({point.x for one in series for point in one.points})
    tasks = first[rows[0][0]].tasks
    return Figure(
        name=f"curve-{slug(taskset)}-{slug(metric)}",
        heading=f"{metric} over steps",
        scene=line_chart(
            series, x_title="step", y_title=metric, x_ticks=steps if len(steps) <= 8 else None,
            title=f"{metric} on {taskset} over steps",
            description="; ".join(f"{one.name} goes from {number(one.points[0].y)} to {number(one.points[-1].y)}" for one in series),
        ),
        caption=f"{len(steps)} steps, n = {count_of(tasks, 'task')} each; bands are 95 % intervals over tasks where they are known. "
        f"{_coverages(bench, taskset)}",
        headers=("statistic", "step", "value", "95 % interval"),
        rows=rows,
    )  # fmt: skip


def _side_by_side(bench: BenchFacts, taskset: str, metric: str) -> Figure | None:
    items, rows = [], []
    for position, label in enumerate(bench.models):
        statistics = _statistics(bench, label, taskset, metric)
        names = _chosen(statistics)
        if not names:
            continue
        value = statistics[names[0]]
        low, high = value.ci or (None, None)
        words = f"{number(value.value)} ({between(value.ci)})"
        items.append(
            Interval(
                label=label,
                value=value.value,
                low=low,
                high=high,
                words=words,
                css=COLOURS[position % len(COLOURS)],
            )
        )
        rows += [
            [label, name, number(one.value), between(one.ci), f"{one.tasks:,}"]
            for name, one in statistics.items()
        ]
    if not items:
        return None
    return Figure(
        name=f"models-{slug(taskset)}-{slug(metric)}",
        heading=f"{metric} by model",
        scene=interval_chart(
            items, x_title=metric, title=f"{metric} on {taskset}",
            description="; ".join(f"{item.label}: {item.words}" for item in items),
        ),
        caption=f"{rows[0][1]} with its 95 % interval over tasks, each model by itself; n = {rows[0][4]} tasks. "
        f"{_coverages(bench, taskset)}",
        headers=("model", "statistic", "value", "95 % interval", "tasks"),
        rows=rows,
    )  # fmt: skip


def _numbers(bench: BenchFacts) -> Html:
    rows = [
        [label, taskset, metric, name, number(one.value), between(one.ci), f"{one.tasks:,}"]
        for label, model in bench.models.items()
        for taskset, facts in model.tasksets.items()
        for metric, statistics in facts.metrics.items()
        for name, one in statistics.items()
    ]
    return table(("model", "task set", "metric", "statistic", "value", "95 % interval", "tasks"), rows)
