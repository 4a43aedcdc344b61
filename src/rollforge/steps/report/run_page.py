"""The report of one run: the verdict first, then pictures, then how the run was made."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from rollforge.charts import MarkedStretch
from rollforge.index import Index
from rollforge.statistics.counts import count_of
from rollforge.steps.report.bins import RunBins, Timeline
from rollforge.steps.report.exemplars import Exemplars
from rollforge.steps.report.figures import MOST_ROWS, Figure, coverage, cut, number, title_of
from rollforge.steps.report.findings import (
    Trust,
    condition_of,
    finding_list,
    manifest_table,
    top,
    trust,
    without_quotes,
)
from rollforge.steps.report.inputs import (
    CheckFacts,
    FlipFacts,
    MetricsFacts,
    ProbeFacts,
    ProfileFacts,
    RecipeFacts,
    SelectingFinding,
)
from rollforge.steps.report.money import money
from rollforge.steps.report.operation_figures import (
    failures_figure,
    flips_figure,
    length_figure,
    probe_figure,
    time_figures,
    tokens_figure,
)
from rollforge.steps.report.page import Section, command, document, figures, tiles
from rollforge.steps.report.reward_figures import (
    at_k_figure,
    difficulty_figure,
    reward_figure,
    signal_figure,
    strip_figure,
)
from rollforge.text_safety.markup import Html, join, table, tag


class DatasetFacts(Struct, frozen=True, kw_only=True):
    """A dataset made from the run."""

    path: str
    recipe: str
    to: str
    rows: int
    is_forced: bool


class RunInputs(Struct, frozen=True, kw_only=True):
    """Report data of a run besides its index."""

    run: str
    """Name of the run in commands."""
    metrics: MetricsFacts
    check: CheckFacts
    profile: ProfileFacts
    bins: RunBins
    flips: Sequence[FlipFacts] = ()
    probe: ProbeFacts | None = None
    """Result of probing the verifier; None if it was never probed in this version."""
    manifest: Sequence[tuple[str, str]] = ()
    datasets: Sequence[DatasetFacts] = ()
    model: str | None = None
    with_texts: bool = True


class FigureSection(Struct, frozen=True, kw_only=True):
    """A group of related charts."""

    name: str
    heading: str
    figures: Sequence[Figure]


class Overview(Struct, frozen=True, kw_only=True):
    """A report as data for the viewer: verdict, findings and charts."""

    subtitle: str
    trust: Trust
    recipes: dict[str, RecipeFacts]
    findings: Sequence[SelectingFinding]
    sections: Sequence[FigureSection]
    manifest: Sequence[tuple[str, str]]


def run_figures(index: Index, inputs: RunInputs) -> Overview:
    """Verdict, findings and charts of a run's report, as data."""
    sections = (
        ("rewards", "Rewards", _reward_charts(index, inputs)),
        ("tasks", "Tasks", _task_charts(index, inputs)),
        ("time", "Over time", _time_charts(index, inputs)),
        ("verifier", "Verifier", _verifier_charts(inputs)),
        ("cost", "Tokens, money and failures", _cost_charts(inputs)),
    )
    return Overview(
        subtitle=_subtitle(inputs),
        trust=trust(inputs.check, inputs.metrics),
        recipes=inputs.check.recipes,
        findings=[
            SelectingFinding(**msgspec.structs.asdict(one), condition=condition_of(one.where))
            for one in inputs.check.findings
        ],
        sections=[
            FigureSection(name=name, heading=heading, figures=[one for one in charts if one is not None])
            for name, heading, charts in sections
        ],
        manifest=inputs.manifest,
    )


def report_run(index: Index, inputs: RunInputs) -> bytes:
    """The report as one HTML file; the same run gives the same bytes."""
    metrics = inputs.metrics
    check = inputs.check if inputs.with_texts else without_quotes(inputs.check)
    exemplars = Exemplars(index, check.findings, with_texts=inputs.with_texts)
    subtitle = _subtitle(inputs)
    sections = [
        Section("findings", "Findings", finding_list(check, exemplars, inputs.run)),
        Section("rewards", "Rewards", _rewards(index, inputs)),
        Section("tasks", "Tasks", _tasks(index, inputs)),
        Section("time", "Over time", _time(index, inputs)),
        Section("verifier", "Verifier", _verifier(inputs)),
        Section("cost", "Tokens, money and failures", _cost(inputs)),
        Section("made", "How it was made", _made(inputs)),
    ]
    title = title_of(inputs.run)
    return document(f"rollforge report: {title}", top(title, subtitle, check, metrics, inputs.run), sections)


def _subtitle(inputs: RunInputs) -> str:
    by = f" from {inputs.model}" if inputs.model else ""
    judge = inputs.metrics.verifier
    return f"{coverage(inputs.metrics)}{by}" + (f", judged by {judge}" if judge else "")


def _rewards(index: Index, inputs: RunInputs) -> Html:
    metrics = inputs.metrics
    reward = metrics.fields["reward"]
    interval = (
        f"mean reward, 95 % interval {number(reward.ci[0])} … {number(reward.ci[1])}"
        if reward.ci
        else "mean reward"
    )
    shown = [(number(reward.mean), f"{interval}, n = {reward.n:,}")]
    shown += [
        (number(metrics.at_k[name].value), f"{name}, over {count_of(metrics.at_k[name].tasks, 'task')}")
        for name in _first_and_last(metrics)
    ]
    shown.append((f"{metrics.counts.unjudged:,}", "unjudged rollouts, in no mean"))
    return join([_stage_note(inputs), tiles(shown), figures(_reward_charts(index, inputs))])


def _stage_note(inputs: RunInputs) -> Html:
    """Note on the effect of adaptive sampling; empty for a uniform run."""
    texts = [flag.text for flag in inputs.metrics.flags if flag.id in ("adaptive-run", "adaptive-biased")]
    return join([tag("p", text, css="soft") for text in texts])


def _reward_charts(index: Index, inputs: RunInputs) -> list[Figure | None]:
    stage = index.first_stage
    return [
        reward_figure(inputs.metrics, stage),
        at_k_figure(inputs.metrics),
        length_figure(inputs.bins.lengths, inputs.metrics, inputs.profile, stage),
    ]


def _first_and_last(metrics: MetricsFacts) -> list[str]:
    names = [
        name for name in metrics.at_k if name.startswith("pass@") and metrics.at_k[name].value is not None
    ]
    names.sort(key=lambda name: int(name.removeprefix("pass@")))
    return names if len(names) < 3 else [names[0], names[-1]]


def _tasks(index: Index, inputs: RunInputs) -> Html:
    return join([_stage_note(inputs), figures(_task_charts(index, inputs))])


def _task_charts(index: Index, inputs: RunInputs) -> list[Figure | None]:
    strip = inputs.bins.strip
    return [
        difficulty_figure(inputs.metrics, inputs.profile, index.first_stage),
        signal_figure(inputs.metrics, inputs.profile),
        strip_figure(inputs.metrics, strip, index.first_stage) if strip else None,
    ]


def _time(index: Index, inputs: RunInputs) -> Html:
    charts = _time_charts(index, inputs)
    if not charts:
        return tag(
            "p",
            "The rows do not say when rollouts started, so there is nothing to draw over time.",
            css="soft",
        )
    return figures(charts)


def _time_charts(index: Index, inputs: RunInputs) -> list[Figure | None]:
    line = inputs.bins.timeline
    if line is None:
        return []
    return [*time_figures(line, _stretches(index, line, inputs.check), inputs.metrics)]


def _stretches(index: Index, line: Timeline, check: CheckFacts) -> list[MarkedStretch]:
    """Parts of the run marked by findings, in active time."""
    stretches = []
    for finding in check.findings:
        for example in finding.where:
            times = example.first_at, example.last_at
            if example.first_line is not None and example.last_line is not None:
                times = _times(index, example.first_line, example.last_line)
            if finding.level != "note" and times[0] is not None and times[1] is not None:
                stretches.append(MarkedStretch(line.active(times[0]), line.active(times[1]), finding.id))
    return stretches


def _times(index: Index, first: int, last: int) -> tuple[float | None, float | None]:
    row = index.select(
        f"SELECT min(started) AS low, max(started) AS high FROM rollouts WHERE line IN ({first}, {last})"
    ).to_pylist()[0]
    return row["low"], row["high"]


def _verifier(inputs: RunInputs) -> Html:
    charts = _verifier_charts(inputs)
    parts: list[Html] = [figures(charts)] if charts else []
    if not inputs.metrics.counts.judged:
        parts.append(
            tag(
                "p",
                "No verifier has judged this run yet. Judge it: ",
                command(f"rollforge verify {inputs.run} --verifier NAME"),
                css="soft",
            )
        )
    elif not inputs.flips:
        parts.append(
            tag(
                "p",
                "One verifier judged this run. A second opinion: ",
                command(f"rollforge verify {inputs.run} --verifier OTHER"),
                css="soft",
            )
        )
    if inputs.probe is None:
        name = inputs.metrics.verifier or "NAME"
        parts.append(
            tag(
                "p",
                "The verifier was not probed. Ask it what it must know: ",
                command(f"rollforge verify {inputs.run} --verifier {name} --probe"),
                css="soft",
            )
        )
    return join(parts)


def _verifier_charts(inputs: RunInputs) -> list[Figure | None]:
    charts: list[Figure | None] = [flips_figure(one, inputs.metrics) for one in inputs.flips]
    return [*charts, probe_figure(inputs.probe, inputs.metrics)] if inputs.probe else charts


def _cost_charts(inputs: RunInputs) -> list[Figure | None]:
    tokens = inputs.bins.tokens
    return [
        tokens_figure(tokens, inputs.metrics, inputs.profile)
        if tokens and "output_tokens" in inputs.metrics.fields
        else None,
        failures_figure(inputs.metrics),
    ]


def _cost(inputs: RunInputs) -> Html:
    fields = {**inputs.metrics.fields, **inputs.metrics.facts}
    facts = [
        [
            cut(name),
            number(field.mean),
            f"{number(field.ci[0])} … {number(field.ci[1])}" if field.ci else "–",
            number(field.min),
            number(field.max),
            f"{field.n:,}",
            f"{field.missing:,}",
        ]
        for name, field in list(fields.items())[:MOST_ROWS]
    ]
    label = (
        f"all fields ({len(fields):,})"
        if len(fields) <= MOST_ROWS
        else f"{MOST_ROWS} of {len(fields):,} fields"
    )
    numbers = table(("field", "mean", "95 % interval", "min", "max", "n", "missing"), facts)
    none = tag("p", "No rollout failed for good.", css="soft") if not inputs.metrics.failures else None
    return join(
        [
            money(inputs.metrics.cost),
            figures(_cost_charts(inputs)),
            none,
            tag("details", tag("summary", label), numbers),
        ]
    )


def _made(inputs: RunInputs) -> Html:
    parts = [
        manifest_table(inputs.manifest)
        if inputs.manifest
        else tag("p", "The run has no manifest: rollforge did not collect it.", css="soft")
    ]
    parts.append(tag("h3", "Datasets made from it"))
    if inputs.datasets:
        rows = [
            [one.path, one.recipe, one.to, f"{one.rows:,}", "yes" if one.is_forced else ""]
            for one in inputs.datasets
        ]
        parts.append(table(("folder", "recipe", "for", "rows", "forced"), rows, numeric=False))
    else:
        parts.append(tag("p", "None was found beside the run.", css="soft"))
    return join(parts)
