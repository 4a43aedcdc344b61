"""Figures of a run's report about rewards: their distribution, pass@k, difficulty, signal and samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollforge.charts import (
    Bar,
    Point,
    Series,
    bar_chart,
    column_chart,
    line_chart,
    percent,
    sample_strip,
)
from rollforge.statistics import intervals
from rollforge.statistics.counts import count_of
from rollforge.steps.report.bins import Strip
from rollforge.steps.report.figures import (
    BANDS,
    Figure,
    between,
    bin_condition,
    bin_label,
    coverage,
    number,
    share_and_interval,
    within,
)
from rollforge.steps.report.inputs import AtKFacts, MetricsFacts, ProfileFacts

AT_K = (("pass@", "1", "at least one of k"), ("majority@", "3", "majority vote"), ("pass^", "2", "all of k"))
"""Statistic prefix → its colour and meaning, for curves over k."""

MISSING = "unjudged"

_RATES = {
    "never solved": ("= 0",),
    "hard": ("> 0", "<= 0.25"),
    "mixed": ("> 0.25", "< 0.75"),
    "easy": (">= 0.75", "< 1"),
    "always solved": ("= 1",),
}
"""Conditions on the pass rate for each difficulty band of `profile`."""


def reward_figure(metrics: MetricsFacts, stage: str | None = None) -> Figure | None:
    """Chart: distribution of rewards, with unjudged rollouts as a separate column; `stage` limits an adaptive run to its
    first stage.
    """
    edges, counts = metrics.histogram.edges, metrics.histogram.counts
    if not counts:
        return None
    bars = [
        Bar(
            label=f"reward {bin_label(edges, bin_number)}",
            count=count,
            where=within(bin_condition("reward", edges, bin_number), stage),
        )
        for bin_number, count in enumerate(counts)
    ]
    unjudged = metrics.counts.unjudged
    missing = Bar(label=MISSING, count=unjudged, css="unjudged", where="reward IS NULL") if unjudged else None
    field = metrics.fields["reward"]
    success = metrics.success
    words = f"mean {number(field.mean)}, 95 % interval {between(field.ci)}"
    solved = (
        f"{percent(round(success.value, 4))} reach {success.threshold:g}" if success.value is not None else ""
    )
    rows = [[bin_label(edges, bin_number), f"{count:,}"] for bin_number, count in enumerate(counts)]
    return Figure(
        name="reward",
        heading="Reward",
        scene=column_chart(
            edges, bars, missing=missing, x_title="reward", title="Reward distribution",
            description=f"Histogram of {metrics.counts.judged:,} rewards: {words}; {unjudged:,} unjudged.",
        ),
        caption=f"{words}; {solved}. {coverage(metrics)}. Intervals are clustered by task.",
        headers=("reward", "rollouts"),
        rows=[*rows, [MISSING, f"{unjudged:,}"]],
    )  # fmt: skip


def at_k_figure(metrics: MetricsFacts) -> Figure | None:
    """Chart: pass@k and related statistics over k."""
    series, rows = [], []
    for prefix, css, meaning in AT_K:
        values = sorted(_of_prefix(metrics.at_k, prefix))
        points = [
            Point(
                k,
                one.value,
                one.ci,
                title=f"{prefix}{k}: {number(one.value)} ({between(one.ci)})",
            )
            for k, one in values
        ]
        if len([point for point in points if point.y is not None]) > 1:
            series.append(Series(name=f"{prefix}k", points=points, css=css))
            rows += [
                [f"{prefix}{k}", number(one.value), between(one.ci), f"{one.tasks:,}", meaning]
                for k, one in values
            ]
    if not series:
        return None
    ks = [point.x for point in series[0].points]
    last = series[0].points[-1]
    return Figure(
        name="at-k",
        heading="Samples per task",
        scene=line_chart(
            series, x_title="k samples per task", y_title="share of tasks", x_ticks=k_ticks(ks), y_range=(0, 1),
            title="pass@k, majority@k and pass^k",
            description=f"pass@1 {number(series[0].points[0].y)}, pass@{int(last.x)} {number(last.y)}.",
        ),
        caption=f"Exact expectation over all choices of k samples; bands are 95 % intervals over tasks. "
        f"{_tasks_at(metrics, int(last.x))} tasks have {int(last.x)} judged samples. {coverage(metrics)}.",
        headers=("at k", "value", "95 % interval", "tasks", "meaning"),
        rows=rows,
    )  # fmt: skip


def k_ticks(ks: Sequence[float]) -> list[float]:
    """The k that an axis names: all of a few, else powers of two and the last."""
    return [k for k in ks if len(ks) <= 8 or (int(k) & (int(k) - 1)) == 0 or k == ks[-1]]


def _of_prefix(values: dict[str, AtKFacts], prefix: str) -> Iterator[tuple[int, AtKFacts]]:
    for name, value in values.items():
        if name.startswith(prefix) and name.removeprefix(prefix).isdigit():
            yield int(name.removeprefix(prefix)), value


def _tasks_at(metrics: MetricsFacts, k: int) -> str:
    estimate = metrics.at_k.get(f"pass@{k}")
    return f"{estimate.tasks:,}" if estimate else "no"


def difficulty_figure(metrics: MetricsFacts, profile: ProfileFacts, stage: str | None = None) -> Figure:
    """Chart: tasks that are never, sometimes and always solved; `stage` limits an adaptive run to its first stage."""
    bars = [
        Bar(
            label=name,
            count=profile.bands.get(name, 0),
            css=css,
            note=note,
            where=_of_band(name, profile.threshold, stage),
        )
        for name, (css, note) in BANDS.items()
    ]
    judged = sum(bar.count for bar in bars)
    absent = min(profile.unjudged_tasks, max(0, profile.tasks - metrics.counts.tasks))
    if profile.unjudged_tasks:
        bars.append(
            Bar(
                label=MISSING,
                count=profile.unjudged_tasks,
                css="unjudged",
                note=f"no reward yet, {absent:,} of them no rollout" if absent else "no reward yet",
                where="task IN (SELECT task FROM rollouts GROUP BY task HAVING count(reward) = 0)",
            )
        )
    signal = profile.no_signal
    share = percent(round(signal.share, 3)) if signal.share is not None else "–"
    return Figure(
        name="difficulty",
        heading="Difficulty",
        scene=bar_chart(
            bars, title="Tasks by pass rate",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"n = {count_of(profile.tasks, 'task')}; a rollout solves its task at reward ≥ {profile.threshold:g}. "
        f"{signal.tasks:,} of {count_of(signal.of, 'group')} ({share}) have equal rewards: nothing to learn by comparison. "
        f"The table has 95 % intervals. {coverage(metrics)}.",
        headers=("band", "tasks", "share", "95 % interval", "meaning"),
        rows=[
            [bar.label, f"{bar.count:,}", *(share_and_interval(bar.count, judged) if bar.css != "unjudged" else ("–", "–")), bar.note]
            for bar in bars
        ],
    )  # fmt: skip


def _of_band(name: str, threshold: float, stage: str | None) -> str:
    """SQL condition for rollouts of tasks in a difficulty band."""
    rate = f"avg(CASE WHEN reward >= {threshold!r} THEN 1.0 WHEN reward IS NOT NULL THEN 0.0 END)"
    limited = f" WHERE {stage}" if stage else ""
    held = " AND ".join(f"{rate} {limit}" for limit in _RATES[name])
    return f"task IN (SELECT task FROM rollouts{limited} GROUP BY task HAVING {held})"


def signal_figure(metrics: MetricsFacts, profile: ProfileFacts) -> Figure | None:
    """Chart: share of groups with unequal rewards, by k."""
    yields = [one for one in profile.group_yield if one.value is not None]
    if len(yields) < 2:
        return None
    exact = [one for one in yields if one.is_exact]
    points = [
        Point(one.k, one.value, title=f"k = {one.k}: {percent(round(one.value or 0, 3))}") for one in yields
    ]
    series = [Series(name="extrapolated", points=points, css="muted")]
    if exact:
        series.append(Series(name="measured", points=points[: len(exact)], css="1"))
    last = yields[-1]
    return Figure(
        name="signal",
        heading="Learning signal",
        scene=line_chart(
            series, x_title="k samples per task", y_title="groups with unequal rewards", y_range=(0, 1),
            x_ticks=[one.k for one in yields if one.k >= 4 or one.k == yields[0].k], write_y=percent,
            title="Share of groups with unequal rewards over k",
            description=f"From {percent(round(yields[0].value or 0, 3))} at k = {yields[0].k} to "
            f"{percent(round(last.value or 0, 3))} at k = {last.k}.",
        ),
        caption=f"Expected share of groups of k with more than one reward, n = {count_of(yields[0].tasks, 'task')} with at least two "
        "judged samples. Values beyond the samples taken are extrapolated (beta-binomial fit over all tasks). The table has "
        f"95 % intervals of the measured ones. {coverage(metrics)}.",
        headers=("k", "groups with signal", "95 % interval", "how"),
        rows=[
            [
                str(one.k),
                percent(round(one.value or 0, 4)),
                _around(one.value, one.tasks) if one.is_exact else "–",
                "measured" if one.is_exact else "extrapolated",
            ]
            for one in yields
        ],
    )  # fmt: skip


def _around(share: float | None, tasks: int) -> str:
    """Interval for a mean over tasks of probabilities; never wider than for yes/no values."""
    if share is None or not tasks:
        return "–"
    low, high = intervals.wilson(share, tasks, intervals.normal_quantile(0.975))
    return f"{percent(round(low, 3))} … {percent(round(high, 3))}"


def strip_figure(metrics: MetricsFacts, strip: Strip, stage: str | None = None) -> Figure:
    """Chart: tasks × samples, hardest task first; `stage` limits an adaptive run to its first stage."""
    some = (
        f"{count_of(len(strip.shown), 'task')} evenly spaced among {strip.of:,}"
        if strip.of > len(strip.shown)
        else "all tasks"
    )
    unjudged = sum(one is None for task in strip.shown for one in task.rewards)
    legend = {"shade-0": f"reward {strip.low:g}", "shade-7": f"reward {strip.high:g}"}
    if unjudged:
        legend["unjudged"] = MISSING
    absent = sum(max(0, strip.samples - len(task.rewards)) for task in strip.shown)
    if absent:
        legend["absent"] = "no rollout"
    dots = f" {absent:,} are dots: their tasks have fewer rollouts." if absent else ""
    return Figure(
        name="strip",
        heading="Tasks × samples",
        scene=sample_strip(
            [task.rewards for task in strip.shown], samples=strip.samples, legend=legend,
            conditions=[within(f"task = {task.task}", stage) for task in strip.shown],
            tooltips=[f"task {task.task}: mean {number(task.mean)}, {task.judged} judged" for task in strip.shown],
            title="Heat strip of tasks and samples",
            description=f"One column a task, one cell a sample, from the hardest to the easiest task; {some}.",
        ),
        caption=f"One column a task, one cell a sample; {some}, ordered by mean reward. {unjudged:,} of the cells shown are "
        f"unjudged. At most {count_of(strip.samples, 'sample')} of a task are drawn: every cell is one measurement, without "
        f"interval.{dots} "
        f"{coverage(metrics)}.",
        headers=("task", "judged", "mean reward", "samples"),
        rows=[
            [str(task.task), str(task.judged), number(task.mean), str(len(task.rewards))]
            for task in strip.shown[:: max(1, len(strip.shown) // 40)]
        ],
    )  # fmt: skip
