"""This module lays out a profile for the terminal: how hard the tasks are, what they can teach, which ones to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rollforge.cli.figures import bar, mean_text, percent, short
from rollforge.cli.output import out

if TYPE_CHECKING:
    from rollforge.steps.profile import Profile
    from rollforge.steps.profile.records import ProfileSummary

MEANING = {
    "never solved": "too hard, or a broken verifier",
    "hard": "up to ¼ solved",
    "mixed": "best for GRPO and DPO",
    "easy": "¾ solved or more",
    "always solved": "nothing left to learn",
}
REASONS = {
    "highest_variance": "rewards differ most",
    "never_solved_long": "never solved, though answers are long",
    "solved_once": "solved by one sample only",
    "reward_against_length": "reward goes with answer length",
}


def print_profile(profile: Profile) -> None:
    """The whole summary."""
    console, summary = out(), profile.summary
    console.print(Text(summary.run, style="bold"))
    console.print(Text(_counts(summary)))
    console.print()
    console.print(_bands(summary))
    console.print()
    _print_signal(summary)
    if profile.agents.num_rows > 1:
        console.print()
        console.print(_agents(profile))
    if any(summary.look.values()):
        console.print()
        console.print(_looks(summary))
        first = next(looks[0] for looks in summary.look.values() if looks)
        console.print(Text(f"read them: rollforge show {summary.run} --task {first.task}", style="dim"))


def _counts(summary: ProfileSummary) -> str:
    parts = [f"{summary.tasks:,} tasks", f"{summary.rollouts:,} rollouts", f"{summary.judged:,} judged"]
    if summary.expected is not None:
        parts[1] = f"{summary.rollouts:,} of {summary.expected:,} rollouts"
    if summary.rejected_lines:
        parts.append(f"{summary.rejected_lines:,} lines rejected")
    if summary.noted_lines:
        parts.append(f"{summary.noted_lines:,} odd rows")
    if summary.duplicates:
        parts.append(f"{summary.duplicates:,} duplicates")
    return " · ".join(parts)


def _bands(summary: ProfileSummary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("difficulty", no_wrap=True)
    table.add_column("tasks", justify="right")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(f"(solved: reward ≥ {summary.threshold:g})", style="dim")
    whole, most = sum(summary.bands.values()), max(summary.bands.values(), default=0)
    for band, count in summary.bands.items():
        share = percent(count / whole) if whole else "–"
        table.add_row(band, f"{count:,}", share, bar(count, most, 16), MEANING[band])
    if summary.unjudged_tasks:
        table.add_row("unjudged", f"{summary.unjudged_tasks:,}", "", "", "no verdict for any rollout")
    return table


def _print_signal(summary: ProfileSummary) -> None:
    console, signal = out(), summary.no_signal
    if signal.of:
        console.print(
            f"no learning signal: {signal.tasks:,} of {signal.of:,} groups ({percent(signal.share)}) have equal rewards"
        )
    else:
        console.print("no learning signal can be told: no task has two judged rollouts")
    if summary.group_yield:
        told = "  ".join(
            f"k={y.k}: {percent(y.value)}{'' if y.is_exact else '*'}" for y in summary.group_yield
        )
        console.print(Text(f"groups with signal at   {told}"))
        if not all(y.is_exact for y in summary.group_yield):
            console.print(
                Text("  * more samples than some tasks have: estimated from their own shares", style="dim")
            )
    variance = summary.variance
    if variance.intraclass is not None:
        console.print(
            f"reward variance: {mean_text(variance.between_tasks)} between tasks, {mean_text(variance.within_tasks)} within "
            f"({percent(variance.intraclass)} is the task)"
        )
    if summary.tokens_per_success is not None:
        console.print(f"output tokens per success: {summary.tokens_per_success:,.0f}")
    if summary.reward_against_length is not None:
        console.print(
            f"reward against answer length, inside tasks: correlation {summary.reward_against_length:+.2f}"
        )


def _agents(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("agent")
    for name in ("tasks", "rollouts", "mean reward", "std"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in profile.agents.to_pylist():
        cells = (
            f"{row['num_tasks']:,}",
            f"{row['num_rollouts']:,}",
            mean_text(row["mean/reward"]),
            short(row["std/reward"]),
        )
        table.add_row(Text(str(row["agent"])), *cells)
    return table


def _looks(summary: ProfileSummary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("look at")
    table.add_column("tasks (pass rate)")
    for reason, looks in summary.look.items():
        if looks:
            named = "  ".join(f"{look.task} ({percent(look.pass_rate)})" for look in looks)
            table.add_row(REASONS[reason], Text(named))
    return table
