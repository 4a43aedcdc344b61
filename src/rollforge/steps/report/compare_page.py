"""The report of several runs: side by side, with each one's paired difference from the first and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from rollforge.charts import Interval, Point, Series, interval_chart, line_chart
from rollforge.steps.report.figures import MOST_ROWS, Figure, between, coverage, cut, number
from rollforge.steps.report.findings import VERDICTS, trust
from rollforge.steps.report.inputs import CheckFacts, MetricsFacts, PairedFacts, ProfileFacts
from rollforge.steps.report.page import Section, document, figures
from rollforge.steps.report.reward_figures import difficulty_figure, k_ticks
from rollforge.text_safety.markup import Html, join, table, tag

COLOURS = ("1", "2", "3", "4")

MOST_NAME = 40
"""Longest name of a run in a chart."""


class SideInputs(Struct, frozen=True, kw_only=True):
    """Report data of one compared run."""

    run: str
    metrics: MetricsFacts
    check: CheckFacts
    profile: ProfileFacts
    paired: PairedFacts | None = None
    """Its paired difference from the first run; None for the first."""


def report_comparison(sides: Sequence[SideInputs]) -> bytes:
    """Several runs as one HTML file; each is compared with the first."""
    first = sides[0]
    labels = labels_of([side.run for side in sides])
    names = ", ".join(cut(label) for label in labels)
    verdicts = [tag("li", tag("b", side.run), ": ", side.paired.verdict) for side in sides[1:] if side.paired]
    head = join(
        [
            tag("h1", f"{len(sides)} runs compared"),
            tag(
                "p",
                f"Each against {first.run}, task by task: pairing takes out how hard the tasks are.",
                css="soft",
            ),
            tag("div", tag("strong", "Which is better?"), tag("ul", *verdicts), css="verdict"),
        ]
    )
    sections = [
        Section("trust", "Can they be trusted?", _trust(sides)),
        Section(
            "rewards",
            "Rewards",
            figures([_means(sides, labels), _differences(sides, labels), _curves(sides, labels)]),
        ),
        Section(
            "tasks",
            "Tasks",
            figures(
                [
                    _bands(side, label, position)
                    for position, (side, label) in enumerate(zip(sides, labels, strict=True))
                ]
            ),
        ),
        Section("numbers", "All numbers", _numbers(sides)),
    ]
    return document(f"rollforge report: {names}", head, sections)


def _trust(sides: Sequence[SideInputs]) -> Html:
    rows = []
    for side in sides:
        judgement = trust(side.check, side.metrics)
        fit = ", ".join(f"{name} {VERDICTS[one.verdict][0]}" for name, one in side.check.recipes.items())
        rows.append([side.run, judgement.title, fit, coverage(side.metrics)])
    return table(("run", "rewards", "fit for", "over"), rows, numeric=False)


def _means(sides: Sequence[SideInputs], labels: Sequence[str]) -> Figure:
    items = []
    for position, side in enumerate(sides):
        field = side.metrics.fields["reward"]
        low, high = field.ci or (None, None)
        words = f"{number(field.mean)} ({between(field.ci)})"
        items.append(
            Interval(
                label=labels[position],
                value=field.mean,
                low=low,
                high=high,
                words=words,
                css=COLOURS[position % len(COLOURS)],
            )
        )
    return Figure(
        name="means",
        heading="Mean reward",
        scene=interval_chart(
            items, x_title="mean reward", title="Mean reward of each run",
            description="; ".join(f"{item.label}: {item.words}" for item in items),
        ),
        caption="95 % intervals clustered by task, each run by itself. Overlap of two intervals says little: see the "
        f"paired differences. {_coverages(sides, labels)}",
        headers=("run", "mean reward", "95 % interval", "n"),
        rows=[
            [side.run, number(side.metrics.fields["reward"].mean), between(side.metrics.fields["reward"].ci),
             f"{side.metrics.fields['reward'].n:,}"]
            for side in sides
        ],
    )  # fmt: skip


def _differences(sides: Sequence[SideInputs], labels: Sequence[str]) -> Figure | None:
    items, rows = [], []
    for position, side in enumerate(sides[1:], 1):
        field = side.paired.fields.get("reward") if side.paired else None
        if side.paired is None or field is None:
            continue
        low, high = field.ci or (None, None)
        words = f"{field.difference:+.3f}" if field.difference is not None else "–"
        items.append(
            Interval(
                label=labels[position], value=field.difference, low=low, high=high, words=words,
                css=COLOURS[position % len(COLOURS)],
            )
        )  # fmt: skip
        rows.append(
            [
                side.run,
                words,
                between(field.ci),
                f"{field.tasks:,}",
                f"{field.differing:,}",
                side.paired.paired_by,
            ]
        )
    if not items:
        return None
    return Figure(
        name="differences",
        heading=f"Paired difference from {labels[0]}",
        scene=interval_chart(
            items, x_title="difference of the mean reward", reference=0.0, title="Paired differences",
            description="; ".join(f"{item.label}: {item.words}" for item in items),
        ),
        caption="Run minus first run over the tasks both have, 95 % interval over tasks. An interval that holds 0 shows no "
        f"difference. n = {', '.join(row[3] for row in rows)} shared tasks with a judged rollout in both.",
        headers=("run", "difference", "95 % interval", "tasks", "tasks that differ", "paired by"),
        rows=rows,
    )  # fmt: skip


def _curves(sides: Sequence[SideInputs], labels: Sequence[str]) -> Figure | None:
    series, rows = [], []
    for position, side in enumerate(sides):
        points = []
        for name, value in side.metrics.at_k.items():
            if name.startswith("pass@") and value.value is not None:
                k = int(name.removeprefix("pass@"))
                points.append(Point(k, value.value, value.ci, title=f"{side.run} {name}"))
                rows.append([side.run, name, number(value.value), between(value.ci), f"{value.tasks:,}"])
        if len(points) > 1:
            points.sort(key=lambda point: point.x)
            series.append(Series(name=labels[position], points=points, css=COLOURS[position % len(COLOURS)]))
    if not series:
        return None
    ks = sorted({point.x for one in series for point in one.points})
    return Figure(
        name="curves",
        heading="pass@k",
        scene=line_chart(
            series, x_title="k samples per task", y_title="share of tasks", y_range=(0, 1), x_ticks=k_ticks(ks),
            title="pass@k of each run",
            description=", ".join(f"{one.name} ends at {number(one.points[-1].y)}" for one in series),
        ),
        caption="Exact expectation over all choices of k samples; bands are 95 % intervals over tasks. The table has "
        f"n. {_coverages(sides, labels)}",
        headers=("run", "at k", "value", "95 % interval", "tasks"),
        rows=rows,
    )  # fmt: skip


def _coverages(sides: Sequence[SideInputs], labels: Sequence[str]) -> str:
    """What the numbers of each run are over."""
    each = (f"{label}: {coverage(side.metrics)}" for side, label in zip(sides, labels, strict=True))
    return "; ".join(each) + "."


def _bands(side: SideInputs, label: str, position: int) -> Figure:
    return msgspec.structs.replace(
        difficulty_figure(side.metrics, side.profile), name=f"bands-{position}", heading=label
    )


def labels_of(runs: Sequence[str]) -> list[str]:
    """Names of runs in charts: their paths without the folders that all share."""
    parts = [Path(run).parts for run in runs]
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    return [
        cut(str(Path(*one[shared:])), MOST_NAME) if one else run for one, run in zip(parts, runs, strict=True)
    ]


def _numbers(sides: Sequence[SideInputs]) -> Html:
    names = list(dict.fromkeys(name for side in sides for name in side.metrics.fields))
    rows = []
    for name in names[:MOST_ROWS]:
        cells = [cut(name)]
        for side in sides:
            field = side.metrics.fields.get(name)
            cells.append(f"{number(field.mean)} ({between(field.ci)})" if field else "–")
        rows.append(cells)
    return table(("field", *(side.run for side in sides)), rows)
