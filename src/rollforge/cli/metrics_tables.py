"""This module lays out a run's metrics for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rollforge.cli.figures import bar, clipped, interval, mean_text, percent, percent_interval, short, signed
from rollforge.cli.output import out

if TYPE_CHECKING:
    from rollforge.steps.metrics import Comparison, RunMetrics
    from rollforge.steps.metrics.records import Field

MAX_FIELDS = 40


def print_run_metrics(metrics: RunMetrics) -> None:
    """The whole summary: what it is over, the fields, success, at k, histogram, flags."""
    console = out()
    console.print(Text(metrics.run, style="bold"))
    console.print(Text(counts_line(metrics)))
    console.print()
    console.print(_fields_table(metrics.fields))
    if len(metrics.agents) > 1:
        console.print()
        console.print(_agents_table(metrics))
    console.print()
    _print_headlines(metrics)
    if metrics.at_k:
        console.print()
        console.print(_at_k_table(metrics))
    if metrics.histogram.counts:
        console.print()
        console.print(_histogram_table(metrics))
    if metrics.flags:
        console.print()
    for flag in metrics.flags:
        console.print(Text.assemble(("! ", "bold yellow"), (f"{flag.id}: ", "yellow"), flag.text))


def counts_line(metrics: RunMetrics) -> str:
    """What the numbers are over, in one line."""
    counts = metrics.counts
    of = f" of {counts.expected:,}" if counts.expected is not None else ""
    parts = [f"{counts.finished:,}{of} rollouts of {counts.tasks:,} tasks", f"{counts.judged:,} judged"]
    for number, word in (
        (counts.unjudged, "unjudged"),
        (counts.failed, "failed"),
        (counts.rejected_lines, "lines rejected"),
        (counts.noted_lines, "odd rows"),
        (counts.duplicates, "duplicates"),
    ):
        if number:
            parts.append(f"{number:,} {word}")
    parts.append(f"coverage {percent(metrics.coverage)}")
    if metrics.verifier:
        parts.append(f"verifier {metrics.verifier}")
    return " · ".join(parts)


def _fields_table(fields: dict[str, Field]) -> Table:
    """As many columns as the terminal holds: the mean and what it is over come first, the rest is in --json."""
    is_wide = out().width >= 100
    has_missing = any(field.missing for field in fields.values())
    columns = ["mean", "95 % interval", "std", "min", *(["median"] if is_wide else []), "max", "n"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("field", no_wrap=True)
    for name in [*columns, *(["missing" if is_wide else "miss"] if has_missing else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for name, field in list(fields.items())[:MAX_FIELDS]:
        cells = {
            "mean": mean_text(field.mean), "95 % interval": interval(field.ci), "std": mean_text(field.std),
            "min": short(field.min), "median": short(field.median), "max": short(field.max), "n": f"{field.n:,}",
        }  # fmt: skip
        missing = [f"{field.missing:,}" if field.missing else ""] if has_missing else []
        table.add_row(
            Text(clipped(name, 34 if is_wide else 17)), *(cells[column] for column in columns), *missing
        )
    if len(fields) > MAX_FIELDS:
        table.add_row(f"… {len(fields) - MAX_FIELDS} more with --json")
    return table


def _agents_table(metrics: RunMetrics) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("agent")
    for name in ("mean reward", "95 % interval", "judged", "rollouts"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, agent in metrics.agents.items():
        reward = agent.fields.get("reward")
        mean, ci = (reward.mean, reward.ci) if reward is not None else (None, None)
        table.add_row(Text(name), mean_text(mean), interval(ci), f"{agent.judged:,}", f"{agent.n:,}")
    return table


def _print_headlines(metrics: RunMetrics) -> None:
    console, success, speed = out(), metrics.success, metrics.throughput
    console.print(
        f"success (reward ≥ {success.threshold:g}): {percent(success.value)}  "
        f"\\[{percent_interval(success.ci)}]  over {success.n:,} judged rollouts"
    )
    if metrics.failures_as_zero is not None:
        zero = metrics.failures_as_zero
        console.print(
            f"mean reward with failures as 0: {mean_text(zero.mean)} over {zero.n:,} judged or failed rollouts"
        )
    if speed.rollouts_per_s is not None:
        tokens = f", {speed.tokens_per_s:,.0f} output tokens/s" if speed.tokens_per_s is not None else ""
        console.print(f"throughput: {speed.rollouts_per_s:,.1f} rollouts/s{tokens} while collecting")


def _at_k_table(metrics: RunMetrics) -> Table:
    widest = max(int(name.split("@")[1]) for name in metrics.at_k if name.startswith("pass@"))
    steps = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < widest] + [widest]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("at k")
    for k in steps:
        table.add_column(str(k), justify="right")
    for kind in ("pass@", "pass^", "best@", "worst@", "majority@"):
        found = [metrics.at_k.get(f"{kind}{k}") for k in steps]
        if any(found):
            table.add_row(f"{kind}k", *(mean_text(value.value) if value else "–" for value in found))
    tasks = [metrics.at_k[f"pass@{k}"].tasks for k in steps]
    table.add_row("tasks", *(f"{count:,}" for count in tasks), style="dim")
    return table


def _histogram_table(metrics: RunMetrics) -> Table:
    edges, counts = metrics.histogram.edges, metrics.histogram.counts
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reward", no_wrap=True)
    table.add_column("rollouts", justify="right")
    table.add_column("")
    last, most, whole = len(counts) - 1, max(counts), sum(counts)
    place = 0
    while place <= last:
        empty = next((later for later in range(place, last + 1) if counts[later]), last + 1) - place
        end = place + empty if empty > 2 else place + 1  # a long empty stretch is one row
        closing = "]" if end == last + 1 else ")"
        label = f"[{edges[place]:.3g}, {edges[end]:.3g}{closing}"
        count = sum(counts[place:end])
        drawn = f"{bar(count, most)} {percent(count / whole)}" if count else ""
        table.add_row(Text(label), f"{count:,}", Text(drawn))
        place = end
    return table


def print_comparison(comparison: Comparison) -> None:
    """The differences, task by task, and what they say."""
    console = out()
    console.print()
    console.print(Text(f"against {comparison.against}", style="bold"))
    console.print(
        f"{comparison.shared_tasks:,} shared tasks (paired by {comparison.paired_by}); "
        f"{comparison.only_run:,} only here, {comparison.only_against:,} only there"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("field", no_wrap=True)
    for name in ("here", "there", "difference", "95 % interval", "tasks"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, field in list(comparison.fields.items())[:MAX_FIELDS]:
        difference = "–" if field.difference is None else f"{field.difference:+.3f}"
        table.add_row(
            Text(clipped(name, 30)),
            mean_text(field.value),
            mean_text(field.against),
            difference,
            signed(field.ci),
            f"{field.tasks:,}",
        )
    console.print(table)
    console.print(Text(comparison.verdict, style="bold"))
