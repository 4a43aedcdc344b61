"""Figures of a run's report about length, time, failures, tokens, flips and probes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollforge.charts import (
    Bar,
    Interval,
    MarkedStretch,
    Point,
    Series,
    bar_chart,
    clock,
    clock_ticks,
    column_chart,
    interval_chart,
    line_chart,
    percent,
    rounded_up,
    short,
)
from rollforge.statistics.counts import count_of
from rollforge.steps.report.bins import LengthBin, Timeline, TokenBins, Window
from rollforge.steps.report.figures import (
    Figure,
    between,
    bin_condition,
    bin_label,
    coverage,
    number,
    share_and_interval,
    slug,
    within,
)
from rollforge.steps.report.inputs import FlipFacts, MetricsFacts, ProbeFacts, ProfileFacts


def length_figure(
    bins: Sequence[LengthBin], metrics: MetricsFacts, profile: ProfileFacts, stage: str | None = None
) -> Figure | None:
    """Chart: mean reward by answer length; `stage` limits an adaptive run to its first stage."""
    if sum(one.mean is not None for one in bins) < 2:
        return None
    points = [
        Point(
            one.middle, one.mean, one.ci,
            title=f"{short(one.low)}–{short(one.high)} characters: {number(one.mean)} ({between(one.ci)}), n = {one.judged:,}",
            where=within(
                f"answer_chars >= {one.low!r} AND answer_chars {'<=' if one is bins[-1] else '<'} {one.high!r}", stage
            ),
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
            x_ticks=_whole_ticks([one.middle for one in bins]),
            y_range=(min(0.0, *lows), rounded_up(max(tops))) if max(tops) > 0 else (min(lows), 0.0),
            title="Mean reward by answer length", description=f"Mean reward in {len(bins)} bins of answer length; {words}.",
        ),
        caption=f"Mean reward in {_bins_of(bins)}, 95 % intervals clustered by task; {words}. "
        f"n = {sum(one.judged for one in bins):,} judged rollouts; {sum(one.n - one.judged for one in bins):,} unjudged left out. "
        f"{coverage(metrics)}.",
        headers=("characters", "rollouts", "judged", "mean reward", "95 % interval"),
        rows=[
            [f"{short(one.low)} – {short(one.high)}", f"{one.n:,}", f"{one.judged:,}", number(one.mean), between(one.ci)]
            for one in bins
        ],
    )  # fmt: skip


def _whole_ticks(lengths: Sequence[float]) -> list[float] | None:
    """Every whole number of a short axis: there are no half characters. None where the usual ticks are whole."""
    low, high = math.ceil(min(lengths)), math.floor(max(lengths))
    whole = [float(number) for number in range(low, high + 1)] if high - low < 6 else []
    return whole or None


def _bins_of(bins: Sequence[LengthBin]) -> str:
    """How the bins were cut: quantiles, unless many answers have the same few lengths."""
    sizes = [one.n for one in bins]
    return f"{len(bins)} bins of {'about equal count' if max(sizes) <= 2 * min(sizes) else 'length'}"


def time_figures(line: Timeline, stretches: Sequence[MarkedStretch], metrics: MetricsFacts) -> list[Figure]:
    """Charts over the run's active time: reward, speed, requests in flight, failures."""
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
            title=f"{number(one.reward)} ({between(one.ci)}), {one.started:,} started",
            where=one.where,
        )
        for one in windows
    ]
    rates = [one.finished / max(one.end - one.start, 1e-9) for one in windows]
    speed = [
        Point(_middle(one), rate, title=f"{number(rate, 1)} per second", where=one.where)
        for one, rate in zip(windows, rates, strict=True)
    ]
    flying = [
        Point(_middle(one), one.in_flight, title=f"{one.in_flight:.0f} in flight", where=one.where)
        for one in windows
    ]
    over = f" {coverage(metrics)}."
    counted = " Counted, not estimated: no interval."
    failed = [Point(_middle(one), one.failed) for one in windows]
    made = [
        ("time-reward", "Reward over time", "mean reward", rewards, "1",
         f"Mean reward of the rollouts started in each window, 95 % intervals over tasks, n = {judged:,}.{over}{pause}{marked}"),
        ("time-speed", "Speed over time", "rollouts per second", speed, "3",
         f"Rollouts finished per second in each window, n = {sum(one.finished for one in windows):,}.{counted}{over}{pause}"),
        ("time-flight", "In flight over time", "rollouts in flight", flying, "4",
         f"Rollouts in flight at the middle of each window, n = {len(windows)} windows.{counted}{over}{pause}"),
    ]  # fmt: skip
    if any(one.failed for one in windows):
        made.append(
            ("time-failed", "Failed attempts over time", "failed attempts", failed, "2",
             f"Attempts that failed in each window, n = {sum(one.failed for one in windows):,}; attempts that were "
             f"tried again count too.{counted}{over}{pause}")
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
                is_count=name in ("time-flight", "time-failed"),
            ),
        )
        for name, heading, y_title, points, css, caption in made
        if judged or name != "time-reward"
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
    """Chart: rollouts that never finished, by failure class."""
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
        caption=f"n = {count_of(metrics.counts.failed, 'rollout')} failed for good. A failure has no reward and is in "
        "no mean. The table has "
        f"the share of all rollouts with its 95 % interval. {coverage(metrics)}.",
        headers=("class", "rollouts", "share", "95 % interval"),
        rows=[
            [name, f"{count:,}", *share_and_interval(count, metrics.counts.finished + metrics.counts.failed)]
            for name, count in ordered
        ],
    )  # fmt: skip


def tokens_figure(tokens: TokenBins, metrics: MetricsFacts, profile: ProfileFacts) -> Figure:
    """Chart: output tokens of the answers."""
    field = metrics.fields["output_tokens"]
    bars = [
        Bar(label=f"{bin_label(tokens.edges, bin_number)} tokens", count=count, css="fill-3",
            where=bin_condition("output_tokens", tokens.edges, bin_number))
        for bin_number, count in enumerate(tokens.counts)
    ]  # fmt: skip
    missing = (
        Bar(label="unknown", count=tokens.missing, css="unjudged", where="output_tokens IS NULL")
        if tokens.missing
        else None
    )
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
        caption="; ".join(words) + f". {coverage(metrics)}.",
        headers=("output tokens", "rollouts"),
        rows=[[bin_label(tokens.edges, bin_number), f"{count:,}"] for bin_number, count in enumerate(tokens.counts)],
    )  # fmt: skip


def flips_figure(flips: FlipFacts, metrics: MetricsFacts) -> Figure:
    """Chart: agreement of two verifiers, and the directions in which they differ."""
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
        caption=f"n = {count_of(flips.n, 'rollout')} that both judged; {flip_verdict(flips)}. "
        f"{coverage(metrics)}.",
        headers=("verdicts", "rollouts", "share", "meaning"),
        rows=[[bar.label, f"{bar.count:,}", share_and_interval(bar.count, flips.n)[0], bar.note] for bar in bars],
    )  # fmt: skip


def flip_verdict(flips: FlipFacts) -> str:
    """What the paired difference of two verifiers says, in words."""
    gap = flips.difference
    if gap is None or gap.mean is None:
        return "no paired difference"
    over = f"{flips.b} − {flips.a} {gap.mean:+.3f}"
    if gap.ci is None:
        return f"too few tasks to tell: {over}"
    low, high = gap.ci
    over += f", 95 % interval {low:+.3f} to {high:+.3f}, paired by rollout, clustered by task"
    if low > 0:
        return f"{flips.b} rewards more: {over}"
    if high < 0:
        return f"{flips.b} rewards less: {over}"
    return f"no difference of the means shown: {over}"


def probe_figure(probe: ProbeFacts, metrics: MetricsFacts) -> Figure | None:
    """Chart: the verifier's error rates on answers with a known verdict."""
    questions = [one for one in probe.questions if one.n]
    if not questions:
        return None
    colours = {"broken": "2", "unclear": "4"}
    items = [
        Interval(
            label=one.question,
            value=one.rate,
            low=one.ci[0] if one.ci else None,
            high=one.ci[1] if one.ci else None,
            css=colours.get(one.finding, "3"),
            words=f"{one.bad:,} of {one.n:,}: {one.finding}",
        )
        for one in questions
    ]
    wrong = sum(one.finding == "broken" for one in questions)
    judged = (
        f"{wrong} of {count_of(len(questions), 'question')} say that it is broken"
        if wrong
        else "none says that it is broken"
    )
    return Figure(
        name="probe",
        heading=f"{probe.verifier}, probed",
        scene=interval_chart(
            items, title=f"Wrong verdicts of {probe.verifier} on known answers", x_title="share of wrong verdicts",
            description=f"{count_of(len(questions), 'question')} about {count_of(probe.tasks, 'task')}; {judged}.", write=percent,
            x_range=(0.0, 1.0),
        ),
        caption=f"Share of wrong verdicts on answers whose verdict is known, "
        f"n = {count_of(probe.tasks, 'task')}, 95 % intervals (Wilson); "
        f"{judged}. {coverage(metrics)}.",
        headers=("question", "asked", "wrong", "rate", "95 % interval", "tolerated", "finding"),
        rows=[
            [one.question, f"{one.n:,}", f"{one.bad:,}", number(one.rate), between(one.ci), percent(round(one.limit, 3)),
             one.finding]
            for one in probe.questions
        ],
    )  # fmt: skip
