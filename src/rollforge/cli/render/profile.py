"""Layout of a profile for the terminal: difficulty, learning signal, tasks that deserve a look."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollforge.cli.render.numbers import bar, mean_text, percent, short
from rollforge.cli.render.table import GAP, Grid, TableColumn, put, wrapped
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.steps.profile import Profile
    from rollforge.steps.profile.profile_records import ProfileSummary

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


def print_profile(profile: Profile, files: Sequence[str], where: str | None = None) -> None:
    """Print the summary of a profile, naming the files read and the condition."""
    summary = profile.summary
    put(summary.run, "bold")
    put(_counts(summary))
    if where is not None:
        put(f"only rollouts where {where}")
    put()
    _bands(summary).put()
    if summary.adaptive:
        put(f"note: {summary.adaptive}")
    put()
    _print_signal(summary)
    if profile.agents.num_rows > 1:
        put()
        _agents(profile).put()
    if any(summary.look.values()):
        put()
        _looks(summary).put()
        first = next(looks[0] for looks in summary.look.values() if looks)
        put(f"read them: rollforge show {shlex.join(files)} --task {first.task}", "dim")


def _counts(summary: ProfileSummary) -> str:
    parts = [
        count_of(summary.tasks, "task"),
        count_of(summary.rollouts, "rollout"),
        f"{summary.judged:,} judged",
    ]
    if summary.expected is not None:
        parts[1] = f"{summary.rollouts:,} of {count_of(summary.expected, 'rollout')}"
    if summary.rejected_lines:
        parts.append(f"{count_of(summary.rejected_lines, 'line')} rejected")
    if summary.noted_lines:
        parts.append(f"{summary.noted_lines:,} odd rows")
    if summary.duplicates:
        parts.append(f"{summary.duplicates:,} duplicates")
    return " · ".join(parts)


def _bands(summary: ProfileSummary) -> Grid:
    table = Grid(
        TableColumn("difficulty"),
        TableColumn("tasks", is_right=True),
        TableColumn("share", is_right=True),
        TableColumn(""),
        TableColumn(f"(solved: reward ≥ {summary.threshold:g})", style="dim"),
    )
    whole, most = sum(summary.bands.values()), max(summary.bands.values(), default=0)
    for band, count in summary.bands.items():
        share = percent(count / whole) if whole else "–"
        table.add(band, f"{count:,}", share, bar(count, most, 16), MEANING[band])
    if summary.unjudged_tasks:
        table.add("unjudged", f"{summary.unjudged_tasks:,}", "", "", "no verdict for any rollout")
    return table


def _print_signal(summary: ProfileSummary) -> None:
    signal = summary.no_signal
    if signal.of:
        put(
            f"no learning signal: {signal.tasks:,} of {count_of(signal.of, 'group')} ({percent(signal.share)}) have equal rewards"
        )
    else:
        put("learning signal unknown: no task has two judged rollouts")
    if summary.group_yield:
        shares = GAP.join(
            f"k={y.k}: {percent(y.value)}{'' if y.is_exact else '*'}" for y in summary.group_yield
        )
        heading = "groups with signal at   "
        first, *more = wrapped(shares, len(heading))
        put(heading + first)
        for line in more:
            put(" " * len(heading) + line)
        if not all(y.is_exact for y in summary.group_yield):
            put("  * extrapolated beyond the samples taken (beta-binomial fit over all tasks)", "dim")
    variance = summary.variance
    if variance.intraclass is not None:
        put(
            f"reward variance: {mean_text(variance.between_tasks)} between tasks, {mean_text(variance.within_tasks)} within "
            f"({percent(variance.intraclass)} is the task)"
        )
    if summary.tokens_per_success is not None:
        put(f"output tokens per success: {summary.tokens_per_success:,.0f} (of judged rollouts)")
    if summary.reward_against_length is not None:
        put(f"reward against answer length, inside tasks: correlation {summary.reward_against_length:+.2f}")


def _agents(profile: Profile) -> Grid:
    numbers = (TableColumn(name, is_right=True) for name in ("tasks", "rollouts", "mean reward", "std"))
    table = Grid(TableColumn("agent"), *numbers)
    for row in profile.agents.to_pylist():
        cells = (
            f"{row['num_tasks']:,}",
            f"{row['num_rollouts']:,}",
            mean_text(row["mean/reward"]),
            short(row["std/reward"]),
        )
        table.add(row["agent"] or "(not named)", *cells)
    return table


def _looks(summary: ProfileSummary) -> Grid:
    table = Grid(TableColumn("look at"), TableColumn("tasks (pass rate)"))
    for reason, looks in summary.look.items():
        if looks:
            table.add(REASONS[reason], GAP.join(f"{look.task} ({percent(look.pass_rate)})" for look in looks))
    return table
