"""Layout of a run's metrics for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollforge.cli.render.numbers import (
    bar,
    clipped,
    interval,
    mean_text,
    percent,
    percent_interval,
    short,
    signed,
)
from rollforge.cli.render.table import GAP, Grid, TableColumn, put, terminal_width
from rollforge.statistics.counts import count_of
from rollforge.store.costs import cost_text, dollars

if TYPE_CHECKING:
    from rollforge.steps.metrics import RunComparison, RunMetrics
    from rollforge.steps.metrics.metric_records import Field

MAX_FIELDS = 40
WIDE = 100
"""Terminal width from which every column fits; also assumed for a pipe."""
SHORTEST_NAME = 17
"""Fewest characters of a name column, on any terminal."""


def print_run_metrics(metrics: RunMetrics) -> None:
    """Print counts, fields, success, at k, histogram and flags."""
    put(metrics.run, "bold")
    put(counts_line(metrics))
    if metrics.where is not None:
        put(f"only rollouts where {metrics.where}")
    put()
    _fields(metrics.fields).put()
    if len(metrics.fields) > MAX_FIELDS:
        put(f"… {len(metrics.fields) - MAX_FIELDS} more with --json")
    if len(metrics.agents) > 1:
        put()
        _agents(metrics).put()
    put()
    _print_headlines(metrics)
    if metrics.at_k:
        put()
        _at_k(metrics).put()
    if metrics.histogram.counts:
        put()
        _histogram(metrics).put()
    if metrics.flags:
        put()
    for flag in metrics.flags:
        put(f"! {flag.id}: {flag.text}", "warning")


def counts_line(metrics: RunMetrics) -> str:
    """Write the counts behind the metrics in one line."""
    counts = metrics.counts
    finished = count_of(counts.finished, "rollout")
    if counts.expected is not None:
        finished = f"{counts.finished:,} of {count_of(counts.expected, 'rollout')}"
    parts = [
        f"{finished} of {count_of(counts.tasks, 'task')}",
        f"{counts.judged:,} judged",
    ]
    for number, text in (
        (counts.unjudged, f"{counts.unjudged:,} unjudged"),
        (counts.failed, f"{counts.failed:,} failed"),
        (counts.rejected_lines, f"{count_of(counts.rejected_lines, 'line')} rejected"),
        (counts.noted_lines, count_of(counts.noted_lines, "odd row")),
        (counts.duplicates, count_of(counts.duplicates, "duplicate")),
    ):
        if number:
            parts.append(text)
    parts.append(f"coverage {percent(metrics.coverage)}")
    if metrics.verifier:
        parts.append(f"verifier {metrics.verifier}")
    return " · ".join(parts)


def _fields(fields: dict[str, Field]) -> Grid:
    """Make the table of fields, with as many columns as fit the terminal; --json has all."""
    width = terminal_width()
    is_wide = width is None or width >= WIDE
    names = ["mean", "95 % interval", "std", "min", *(["median"] if is_wide else []), "max", "n"]
    if is_wide or any(field.missing for field in fields.values()):
        names.append("missing" if is_wide else "miss")
    row_by_name = {}
    for name, field in list(fields.items())[:MAX_FIELDS]:
        missing = f"{field.missing:,}"
        cells = {
            "mean": mean_text(field.mean), "95 % interval": interval(field.ci), "std": mean_text(field.std),
            "min": short(field.min), "median": short(field.median), "max": short(field.max), "n": f"{field.n:,}",
            "missing": missing, "miss": missing,
        }  # fmt: skip
        row_by_name[name] = [cells[column] for column in names]
    return _by_field(names, row_by_name)


def _grid(first: str, numbers: Sequence[str]) -> Grid:
    return Grid(TableColumn(first), *(TableColumn(name, is_right=True) for name in numbers))


def _by_field(headings: Sequence[str], row_by_name: dict[str, list[str]]) -> Grid:
    """Make a table with one row per field; names are clipped to the width that the numbers leave."""
    table, width = _grid("field", headings), terminal_width()
    taken = sum(
        len(GAP) + max(map(len, column)) for column in zip(headings, *row_by_name.values(), strict=True)
    )
    for name, cells in row_by_name.items():
        table.add(name if width is None else clipped(name, max(SHORTEST_NAME, width - taken)), *cells)
    return table


def _agents(metrics: RunMetrics) -> Grid:
    table = _grid("agent", ("mean reward", "95 % interval", "judged", "rollouts"))
    for name, agent in metrics.agents.items():
        reward = agent.fields.get("reward")
        mean, ci = (reward.mean, reward.ci) if reward is not None else (None, None)
        table.add(name, mean_text(mean), interval(ci), f"{agent.judged:,}", f"{agent.n:,}")
    return table


def _print_headlines(metrics: RunMetrics) -> None:
    success, speed = metrics.success, metrics.throughput
    put(
        f"success (reward ≥ {success.threshold:g}): {percent(success.value)}  "
        f"[{percent_interval(success.ci)}]  over {success.n:,} judged rollouts"
    )
    if metrics.failures_as_zero is not None:
        zero = metrics.failures_as_zero
        put(
            f"mean reward with failures as 0: {mean_text(zero.mean)} over {zero.n:,} judged or failed rollouts"
        )
    if speed.rollouts_per_s is not None:
        tokens = f", {speed.tokens_per_s:,.0f} output tokens/s" if speed.tokens_per_s is not None else ""
        put(f"throughput: {speed.rollouts_per_s:,.1f} rollouts/s{tokens} while collecting")
    if metrics.cost is not None:
        cost = metrics.cost
        put(f"cost: {cost_text(cost)}")
        if cost.per_rollout is not None:
            group = f", {dollars(cost.per_usable_group)} per usable group" if cost.per_usable_group else ""
            put(
                f"  {dollars(cost.per_rollout)} per rollout{group} ({cost.usable_groups:,} with unequal rewards)"
            )


def _at_k(metrics: RunMetrics) -> Grid:
    widest = max(int(name.split("@")[1]) for name in metrics.at_k if name.startswith("pass@"))
    steps = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < widest] + [widest]
    table = _grid("at k", [str(k) for k in steps])
    for kind in ("pass@", "pass^", "best@", "worst@", "majority@"):
        values = [metrics.at_k.get(f"{kind}{k}") for k in steps]
        if any(values):
            table.add(f"{kind}k", *(mean_text(value.value) if value else "–" for value in values))
    table.add("tasks", *(f"{metrics.at_k[f'pass@{k}'].tasks:,}" for k in steps))
    return table


def _histogram(metrics: RunMetrics) -> Grid:
    edges, counts = metrics.histogram.edges, metrics.histogram.counts
    table = Grid(TableColumn("reward"), TableColumn("rollouts", is_right=True), TableColumn(""))
    last, most, whole = len(counts) - 1, max(counts), sum(counts)
    position = 0
    while position <= last:
        empty = next((later for later in range(position, last + 1) if counts[later]), last + 1) - position
        end = position + empty if empty > 2 else position + 1  # a long empty stretch is one row
        closing = "]" if end == last + 1 else ")"
        count = sum(counts[position:end])
        drawn = f"{bar(count, most)} {percent(count / whole)}" if count else ""
        table.add(f"[{edges[position]:.3g}, {edges[end]:.3g}{closing}", f"{count:,}", drawn)
        position = end
    return table


def print_comparison(comparison: RunComparison) -> None:
    """Print the paired differences and the verdict."""
    put()
    put(f"against {comparison.against}", "bold")
    put(
        f"{comparison.shared_tasks:,} shared tasks (paired by {comparison.paired_by}); "
        f"{comparison.only_run:,} only here, {comparison.only_against:,} only there"
    )
    row_by_name = {
        name: [
            mean_text(field.value),
            mean_text(field.against),
            "–" if field.difference is None else f"{field.difference:+.3f}",
            signed(field.ci),
            f"{field.tasks:,}",
        ]
        for name, field in list(comparison.fields.items())[:MAX_FIELDS]
    }
    table = _by_field(("here", "there", "difference", "95 % interval", "tasks"), row_by_name)
    table.put()
    put(comparison.verdict, "bold")
