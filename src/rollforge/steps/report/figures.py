"""The figures of a run's report: each a chart, its caption with n, coverage and interval, and its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from rollforge.charts import (
    Bar,
    MarkedStretch,
    Point,
    Scene,
    Series,
    bar_chart,
    clock,
    clock_ticks,
    column_chart,
    line_chart,
    percent,
    rounded_up,
    sample_strip,
    short,
)
from rollforge.steps.report.bins import LengthBin, Strip, Timeline, TokenBins, Window
from rollforge.steps.report.inputs import AtKFacts, FlipFacts, MetricsFacts, ProfileFacts

AT_K = (("pass@", "1", "at least one of k"), ("majority@", "3", "majority vote"), ("pass^", "2", "all of k"))
"""Prefixes drawn over k, the colour of each, and what it means."""

BANDS = {
    "never solved": ("band-0", "too hard, or a broken verifier"),
    "hard": ("band-1", "up to ¼ solved"),
    "mixed": ("band-2", "best for GRPO and DPO"),
    "easy": ("band-3", "¾ solved or more"),
    "always solved": ("band-4", "nothing left to learn"),
}

MISSING = "unjudged"


class Figure(Struct, frozen=True, kw_only=True):
    """One chart with all that belongs to it."""

    name: str
    heading: str
    scene: Scene
    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table: 0.498 · 27.35 · 121.6 · 1,234 · – when there is none."""
    if value is None or value != value:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size < 0.001:
        return f"{value:.2g}"
    return f"{value:,.{max(0, digits - (0 if size < 10 else 1 if size < 100 else 2))}f}"


def between(ci: Sequence[float] | None) -> str:
    """An interval in words."""
    return f"{number(ci[0])} … {number(ci[1])}" if ci else "–"


def coverage(metrics: MetricsFacts) -> str:
    """What the numbers of a run are over."""
    counts = metrics.counts
    of = counts.expected or counts.finished + counts.failed
    share = percent(round(metrics.coverage, 4)) if metrics.coverage is not None else "unknown"
    return f"{counts.judged:,} judged of {of:,} rollouts, coverage {share}, {counts.tasks:,} tasks"


def reward_figure(metrics: MetricsFacts) -> Figure | None:
    """How the rewards are distributed; unjudged rollouts are a column of their own."""
    edges, counts = metrics.histogram.edges, metrics.histogram.counts
    if not counts:
        return None
    bars = [
        Bar(label=f"reward {_bin(edges, place)}", count=count, where=_condition("reward", edges, place))
        for place, count in enumerate(counts)
    ]
    unjudged = metrics.counts.unjudged
    missing = Bar(label=MISSING, count=unjudged, css="unjudged", where="reward IS NULL") if unjudged else None
    field = metrics.fields["reward"]
    success = metrics.success
    words = f"mean {number(field.mean)}, 95 % interval {between(field.ci)}"
    solved = (
        f"{percent(round(success.value, 4))} reach {success.threshold:g}" if success.value is not None else ""
    )
    rows = [[_bin(edges, place), f"{count:,}"] for place, count in enumerate(counts)]
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


def _bin(edges: Sequence[float], place: int) -> str:
    closing = "]" if place == len(edges) - 2 else ")"
    return f"[{short(edges[place])}, {short(edges[place + 1])}{closing}"


def _condition(column: str, edges: Sequence[float], place: int) -> str:
    below = "<=" if place == len(edges) - 2 else "<"
    return f"{column} >= {edges[place]!r} AND {column} {below} {edges[place + 1]!r}"


def at_k_figure(metrics: MetricsFacts) -> Figure | None:
    """pass@k and its kin over k."""
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
    shown = [k for k in ks if len(ks) <= 8 or k == 1 or (int(k) & (int(k) - 1)) == 0 or k == ks[-1]]
    return Figure(
        name="at-k",
        heading="Samples per task",
        scene=line_chart(
            series, x_title="k samples per task", y_title="share of tasks", x_ticks=shown, y_range=(0, 1),
            title="pass@k, majority@k and pass^k",
            description=f"pass@1 {number(series[0].points[0].y)}, pass@{int(last.x)} {number(last.y)}.",
        ),
        caption=f"Exact expectation over all choices of k samples; bands are 95 % intervals over tasks. "
        f"{_tasks_at(metrics, int(last.x))} tasks have {int(last.x)} judged samples. {coverage(metrics)}.",
        headers=("at k", "value", "95 % interval", "tasks", "meaning"),
        rows=rows,
    )  # fmt: skip


def _of_prefix(values: dict[str, AtKFacts], prefix: str) -> Iterator[tuple[int, AtKFacts]]:
    for name, value in values.items():
        if name.startswith(prefix) and name.removeprefix(prefix).isdigit():
            yield int(name.removeprefix(prefix)), value


def _tasks_at(metrics: MetricsFacts, k: int) -> str:
    found = metrics.at_k.get(f"pass@{k}")
    return f"{found.tasks:,}" if found else "no"


def difficulty_figure(profile: ProfileFacts) -> Figure:
    """How many tasks are never, sometimes and always solved."""
    bars = [
        Bar(label=name, count=profile.bands.get(name, 0), css=css, note=note)
        for name, (css, note) in BANDS.items()
    ]
    if profile.unjudged_tasks:
        bars.append(Bar(label=MISSING, count=profile.unjudged_tasks, css="unjudged", note="no reward yet"))
    signal = profile.no_signal
    share = percent(round(signal.share, 3)) if signal.share is not None else "–"
    return Figure(
        name="difficulty",
        heading="Difficulty",
        scene=bar_chart(
            bars, title="Tasks by pass rate",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"{profile.tasks:,} tasks; a rollout solves its task at reward ≥ {profile.threshold:g}. "
        f"{signal.tasks:,} of {signal.of:,} groups ({share}) have equal rewards: nothing to learn by comparison.",
        headers=("band", "tasks", "meaning"),
        rows=[[bar.label, f"{bar.count:,}", bar.note] for bar in bars],
    )  # fmt: skip


def signal_figure(profile: ProfileFacts) -> Figure | None:
    """Which k would give groups with unequal rewards."""
    known = [one for one in profile.group_yield if one.value is not None]
    if len(known) < 2:
        return None
    exact = [one for one in known if one.is_exact]
    points = [
        Point(one.k, one.value, title=f"k = {one.k}: {percent(round(one.value or 0, 3))}") for one in known
    ]
    series = [Series(name="extrapolated", points=points, css="muted")]
    if exact:
        series.append(Series(name="measured", points=points[: len(exact)], css="1"))
    last = known[-1]
    return Figure(
        name="signal",
        heading="Learning signal",
        scene=line_chart(
            series, x_title="k samples per task", y_title="groups with unequal rewards", y_range=(0, 1),
            x_ticks=[one.k for one in known if one.k >= 4 or one.k == known[0].k], write_y=percent,
            title="Share of groups with unequal rewards over k",
            description=f"From {percent(round(known[0].value or 0, 3))} at k = {known[0].k} to "
            f"{percent(round(last.value or 0, 3))} at k = {last.k}.",
        ),
        caption=f"Expected share of groups of k with more than one reward, over {known[0].tasks:,} tasks with at least two "
        "judged samples. Values beyond the samples taken are extrapolated (beta-binomial fit over all tasks).",
        headers=("k", "groups with signal", "how"),
        rows=[
            [str(one.k), percent(round(one.value or 0, 4)), "measured" if one.is_exact else "extrapolated"] for one in known
        ],
    )  # fmt: skip


def strip_figure(strip: Strip) -> Figure:
    """Tasks × samples, hardest task first."""
    some = (
        f"{len(strip.shown):,} tasks evenly spaced among {strip.of:,}"
        if strip.of > len(strip.shown)
        else "all tasks"
    )
    unjudged = sum(one is None for task in strip.shown for one in task.rewards)
    legend = {"shade-0": f"reward {strip.low:g}", "shade-7": f"reward {strip.high:g}"}
    if unjudged:
        legend["unjudged"] = MISSING
    return Figure(
        name="strip",
        heading="Tasks × samples",
        scene=sample_strip(
            [task.rewards for task in strip.shown], samples=strip.samples, legend=legend,
            tooltips=[f"task {task.task}: mean {number(task.mean)}, {task.judged} judged" for task in strip.shown],
            title="Heat strip of tasks and samples",
            description=f"One column a task, one cell a sample, from the hardest to the easiest task; {some}.",
        ),
        caption=f"One column a task, one cell a sample; {some}, ordered by mean reward. {unjudged:,} of the cells shown are "
        f"unjudged. At most {strip.samples} samples of a task are drawn.",
        headers=("task", "judged", "mean reward", "samples"),
        rows=[
            [str(task.task), str(task.judged), number(task.mean), str(len(task.rewards))]
            for task in strip.shown[:: max(1, len(strip.shown) // 40)]
        ],
    )  # fmt: skip


def length_figure(bins: Sequence[LengthBin], profile: ProfileFacts) -> Figure | None:
    """Mean reward over the length of the answer."""
    if sum(one.mean is not None for one in bins) < 2:
        return None
    points = [
        Point(
            (one.low + one.high) / 2, one.mean, one.ci,
            title=f"{short(one.low)}–{short(one.high)} characters: {number(one.mean)} ({between(one.ci)}), n = {one.judged:,}",
        )
        for one in bins
    ]  # fmt: skip
    tops = [one.ci[1] if one.ci else one.mean or 0.0 for one in bins]
    lows = [one.ci[0] if one.ci else one.mean or 0.0 for one in bins]
    inside = profile.reward_against_length
    words = (
        f"correlation inside tasks {inside:+.2f}"
        if inside is not None
        else "correlation inside tasks unknown"
    )
    return Figure(
        name="length",
        heading="Reward against length",
        scene=line_chart(
            [Series(name="mean reward", points=points)], x_title="characters in the answer", y_title="mean reward",
            y_range=(min(0.0, *lows), rounded_up(max(tops))) if max(tops) > 0 else (min(lows), 0.0),
            title="Mean reward by answer length", description=f"Mean reward in {len(bins)} bins of answer length; {words}.",
        ),
        caption=f"Mean reward in {len(bins)} bins of equal count, 95 % intervals clustered by task; {words}. "
        f"n = {sum(one.judged for one in bins):,} judged rollouts; {sum(one.n - one.judged for one in bins):,} unjudged left out.",
        headers=("characters", "rollouts", "judged", "mean reward", "95 % interval"),
        rows=[
            [f"{short(one.low)} – {short(one.high)}", f"{one.n:,}", f"{one.judged:,}", number(one.mean), between(one.ci)]
            for one in bins
        ],
    )  # fmt: skip


def time_figures(line: Timeline, stretches: Sequence[MarkedStretch]) -> list[Figure]:
    """Reward, speed, requests in flight and failures over the run's active time."""
    windows = line.windows
    pause = f" {line.pauses} pauses ({clock(line.paused_s)} in all) are cut out." if line.pauses else ""
    judged = sum(one.judged for one in windows)
    rows = [
        [clock(one.start), f"{one.started:,}", f"{one.finished:,}", number(one.reward), between(one.ci),
         number(one.in_flight, 0), f"{one.failed:,}", number(one.seconds, 2)]
        for one in windows
    ]  # fmt: skip
    headers = (
        "from",
        "started",
        "finished",
        "mean reward",
        "95 % interval",
        "in flight",
        "failed",
        "median s",
    )
    marked = f" Shaded: {'; '.join(one.title for one in stretches)}." if stretches else ""
    rewards = [
        Point(
            _middle(one),
            one.reward,
            one.ci,
            title=f"{number(one.reward)} ({between(one.ci)})",
        )
        for one in windows
    ]
    speed = [Point(_middle(one), one.finished / max(one.end - one.start, 1e-9)) for one in windows]
    flying = [Point(_middle(one), one.in_flight) for one in windows]
    failed = [Point(_middle(one), one.failed) for one in windows]
    made = [
        ("time-reward", "Reward over time", "mean reward", rewards, "1",
         f"Mean reward of the rollouts started in each window, 95 % intervals clustered by task, n = {judged:,}.{pause}{marked}"),
        ("time-speed", "Speed over time", "rollouts per second", speed, "3",
         f"Rollouts finished per second in each window, n = {sum(one.finished for one in windows):,}.{pause}"),
        ("time-flight", "In flight over time", "rollouts in flight", flying, "4",
         f"Rollouts in flight at the middle of each window, over {len(windows)} windows.{pause}"),
    ]  # fmt: skip
    if any(one.failed for one in windows):
        made.append(
            ("time-failed", "Failed attempts over time", "failed attempts", failed, "2",
             f"Attempts that failed in each window, {sum(one.failed for one in windows):,} in all; attempts that were "
             f"tried again count too.{pause}")
        )  # fmt: skip
    ends = windows[-1].end
    return [
        Figure(
            name=name, heading=heading, caption=caption, headers=headers, rows=rows,
            scene=line_chart(
                [Series(name=y_title, points=points, css=css, has_dots=name == "time-reward" and len(points) < 30)],
                x_title="active time", y_title=y_title, x_ticks=clock_ticks(ends), write_x=clock, title=heading,
                description=f"{y_title} in {len(points)} windows over {clock(ends)} of active time.", height=190,
                stretches=stretches if name == "time-reward" else (),
                y_range=_reward_range(points) if name == "time-reward" else None,
            ),
        )
        for name, heading, y_title, points, css, caption in made
    ]  # fmt: skip


def _middle(window: Window) -> float:
    return (window.start + window.end) / 2


def _reward_range(points: Sequence[Point]) -> tuple[float, float]:
    lows = [point.ci[0] if point.ci else point.y for point in points if point.y is not None]
    highs = [point.ci[1] if point.ci else point.y for point in points if point.y is not None]
    top = max((high for high in highs if high is not None), default=1.0)
    return min(0.0, min((low for low in lows if low is not None), default=0.0)), rounded_up(
        top
    ) if top > 0 else 0.0


def failures_figure(metrics: MetricsFacts) -> Figure | None:
    """Rollouts that never finished, by the class of the failure."""
    if not metrics.failures:
        return None
    ordered = sorted(metrics.failures.items(), key=lambda item: (-item[1], item[0]))
    bars = [Bar(label=name, count=count, css="fill-2") for name, count in ordered]
    return Figure(
        name="failures",
        heading="Failures",
        scene=bar_chart(
            bars, unit="rollouts", title="Failed rollouts by class",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"{metrics.counts.failed:,} rollouts failed for good. A failure has no reward and is in no mean.",
        headers=("class", "rollouts"),
        rows=[[name, f"{count:,}"] for name, count in ordered],
    )  # fmt: skip


def tokens_figure(tokens: TokenBins, metrics: MetricsFacts, profile: ProfileFacts) -> Figure:
    """What the answers cost."""
    field = metrics.fields["output_tokens"]
    bars = [
        Bar(label=f"{_bin(tokens.edges, place)} tokens", count=count, css="fill-3",
            where=_condition("output_tokens", tokens.edges, place))
        for place, count in enumerate(tokens.counts)
    ]  # fmt: skip
    missing = Bar(label="unknown", count=tokens.missing, css="unjudged") if tokens.missing else None
    per = profile.tokens_per_success
    speed = metrics.throughput
    words = [
        f"mean {number(field.mean, 1)} output tokens, 95 % interval {between(field.ci)}, n = {field.n:,}"
    ]
    if per is not None:
        words.append(f"{number(round(per))} output tokens per success")
    if speed.rollouts_per_s is not None and speed.active_s is not None:
        words.append(
            f"{number(round(speed.rollouts_per_s, 1), 1)} rollouts/s over {clock(speed.active_s)} of active time"
        )
    return Figure(
        name="tokens",
        heading="Tokens and throughput",
        scene=column_chart(
            tokens.edges, bars, missing=missing, x_title="output tokens", title="Output tokens per rollout",
            description=words[0] + ".",
        ),
        caption="; ".join(words) + ".",
        headers=("output tokens", "rollouts"),
        rows=[[_bin(tokens.edges, place), f"{count:,}"] for place, count in enumerate(tokens.counts)],
    )  # fmt: skip


def flips_figure(flips: FlipFacts) -> Figure:
    """Where two verifiers agree and which way they differ."""
    bars = [
        Bar(label="agree", count=flips.agree, css="fill-3"),
        Bar(label="0 → 1", count=flips.up, css="fill-1", note=f"{flips.b} passes, {flips.a} fails"),
        Bar(label="1 → 0", count=flips.down, css="fill-2", note=f"{flips.a} passes, {flips.b} fails"),
        Bar(label="changed", count=flips.changed, css="fill-4", note="same side, other reward"),
    ]
    return Figure(
        name=f"flips-{slug(flips.a)}-{slug(flips.b)}",
        heading=f"{flips.a} against {flips.b}",
        scene=bar_chart(
            bars, unit="rollouts", title=f"Verdicts of {flips.a} and {flips.b}",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"n = {flips.n:,} rollouts that both judged.",
        headers=("verdicts", "rollouts", "meaning"),
        rows=[[bar.label, f"{bar.count:,}", bar.note] for bar in bars],
    )  # fmt: skip


def slug(text: str) -> str:
    """The text as part of an element's id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
