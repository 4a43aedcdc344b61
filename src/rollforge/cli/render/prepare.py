"""Output of `prepare`: progress while it runs, then the funnel and the numbers of the dataset."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rollforge.cli.render.console import err, say
from rollforge.statistics.counts import count_of
from rollforge.steps.prepare import DECIDED_BY, KEPT_BY

if TYPE_CHECKING:
    from rollforge.steps.prepare import DatasetManifest

_WITH_THRESHOLD = ("below threshold", "gap too small")
"""Reasons why a rollout is left out that are shown with their threshold."""
_NOT_COUNTED = {
    "failed_attempts": "failed attempts on record are no rollouts and not counted here",
    "rejected_lines": "lines are no rollouts and not counted here",
    "overruled_rows": "rows are not counted here: a later one has the same task, rollout and attempt",
}
"""Counts of the manifest beside the rollouts → their labels."""
PATIENCE_S = 1.0
"""Seconds of work without a progress display."""


@contextmanager
def watcher(
    kind: Literal["auto", "rich", "plain", "json", "none"],
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress callback, which draws once the work takes over a second."""
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    if kind == "rich":
        with _bar() as report:
            yield report
        return
    began = last = time.monotonic()

    def report_line(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if kind == "none" or now - began < PATIENCE_S or now - last < PATIENCE_S:
            return
        last = now
        if kind == "json":
            import msgspec

            record = {"phase": phase, "done": done, "total": total, "elapsed_s": round(now - began, 1)}
            sys.stderr.write(msgspec.json.encode(record).decode() + "\n")
        else:
            sys.stderr.write(f"{phase}: {done:,} of {total:,}\n")  # plain: no need of rich for it

    yield report_line


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=err(), transient=True)
    began = time.monotonic()
    tasks: dict[str, Any] = {}

    def report(phase: str, done: int, total: int) -> None:
        if time.monotonic() - began < PATIENCE_S:
            return
        if not tasks:
            bar.start()
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total)
        bar.update(tasks[phase], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()


def show_manifest(manifest: DatasetManifest, out: str | None) -> None:
    """Print the funnel, the distribution, the red flags and the next step."""
    _funnel(manifest)
    _numbers(manifest)
    for overlap in manifest.decontamination:
        say(
            f"note    {overlap.file}: {count_of(overlap.prompts, 'evaluation prompt')} read, {count_of(overlap.tasks, 'task')} overlap"
        )
    for flag in manifest.flags:
        say(f"look    {flag['text']} ({flag['id']})")
    if manifest.is_forced:
        say("look    made with --force: errors found by `rollforge check` were overruled")
    for name in manifest.check.get("ignored") or ():
        say(f"look    --ignore {name}: its findings were overruled, if it had any")
    if manifest.dry_run:
        _outlook(manifest)
        say("nothing was written (--dry-run)")
        return
    form = manifest.form
    for change in form.get("changes", ()):
        say(f"note    {change}")
    for what, count in manifest.untidy.items():
        say(f"note    {what}: {count:,}")
    files = ", ".join(f"{file.path} ({count_of(file.rows, 'row')})" for file in manifest.files)
    say(f"wrote   {out}: {files}, README.md, manifest.json, lineage.parquet, fates.parquet")
    if isinstance(manifest.push, msgspec.Struct):
        seen_by = "private" if manifest.push.private else "public"
        say(f"pushed  {manifest.push.url} ({seen_by}), commit {manifest.push.commit}")
    say(f"next    spot checks: rollforge show --example {out}/{manifest.files[0].path}:1")


def _funnel(manifest: DatasetManifest) -> None:
    rollouts = manifest.counts["rollouts"]
    say(
        f"{count_of(rollouts['in'], 'rollout')} of {count_of(manifest.counts['tasks']['in'], 'task')}"
        f" for {manifest.recipe} → {manifest.to}"
    )
    for name, count in rollouts.items():
        if name not in ("in", "kept") and count:
            say(f"  − {count:>9,}  {name}{_option(name, manifest.thresholds)}")
    say(f"  = {rollouts['kept']:>9,}  kept, of {count_of(manifest.counts['tasks']['kept'], 'task')}")
    for name, what in _NOT_COUNTED.items():
        if manifest.counts[name]:
            say(f"    {manifest.counts[name]:>9,}  {what}")
    examples = dict(manifest.counts["examples"])
    planned = examples.pop("planned")
    made = examples.pop("written") + examples.pop("not written (dry run)", 0)
    dropped = ", ".join(f"{count:,} {name}" for name, count in examples.items())
    say(f"{count_of(made, 'example')}" + (f" of {planned:,} planned ({dropped})" if dropped else ""))


def _option(reason: str, thresholds: dict[str, Any]) -> str:
    """The option and value that dropped these rollouts, or the option that would keep them."""
    if reason in KEPT_BY:
        return f" ({KEPT_BY[reason]} keeps them)"
    option = DECIDED_BY[reason][0] if reason in _WITH_THRESHOLD else ""
    return (
        f" (--{option.replace('_', '-')} {thresholds[option]:g})"
        if thresholds.get(option) is not None
        else ""
    )


def _numbers(manifest: DatasetManifest) -> None:
    statistics = manifest.statistics
    gap, reward = statistics.get("gap"), statistics.get("reward") or statistics.get("mean_reward")
    if gap:
        share = statistics["share_gap_at_least_0.3"]
        say(
            f"gaps    mean {gap['mean']:.3f}, min {gap['min']:.3f}, max {gap['max']:.3f}; ≥ 0.3: {share:.0%} of {gap['n']:,}"
        )
    if reward:
        what = "rewards" if "reward" in statistics else "mean reward per task"
        say(
            f"{what:7} mean {reward['mean']:.3f}, min {reward['min']:.3f}, max {reward['max']:.3f} over {reward['n']:,}"
        )
    _bars(statistics.get("histogram"))
    if "desirable" in statistics:
        say(f"labels  {statistics['desirable']:,} desirable, {statistics['undesirable']:,} undesirable")
    chars = statistics.get("chars") or statistics.get("chosen_chars")
    if chars:
        say(f"lengths median {chars['median']:,.0f} characters, max {chars['max']:,.0f}")
    if len(manifest.splits) > 1:
        say("splits  " + ", ".join(f"{name} {count:,}" for name, count in manifest.splits.items()))


def _bars(histogram: dict[str, Any] | None) -> None:
    """Print the histogram of rewards, or of gaps for pairs."""
    if not histogram or not sum(histogram["counts"]):
        return
    for low, high, count in zip(
        histogram["edges"], histogram["edges"][1:], histogram["counts"], strict=False
    ):
        bar = "█" * round(30 * count / max(histogram["counts"]))
        end = "]" if high == histogram["edges"][-1] else ")"
        say(f"        [{low:.2f}, {high:.2f}{end} {count:>9,} {bar}")


def _outlook(manifest: DatasetManifest) -> None:
    for row in manifest.outlook:
        at = ", ".join(f"{name} {value:g}" for name, value in row.items() if name != "examples")
        say(f"  at {at:<22} {row['examples']:>9,} examples")
