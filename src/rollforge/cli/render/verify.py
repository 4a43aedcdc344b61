"""Output of `verify`: a live line, the summary, and the flip table of two verifiers."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rollforge.cli.render.console import err, out, say
from rollforge.cli.render.progress import Progress, duration, guarded, number, short_time, write_record
from rollforge.errors import Exit
from rollforge.records import JsonObject
from rollforge.statistics.counts import count_of
from rollforge.store.costs import dollars

if TYPE_CHECKING:
    from rollforge.steps.verify import FlipTable, JudgeSpending, VerifyOptions, VerifySnapshot, VerifySummary
    from rollforge.steps.verify.tally import RewardEstimate


class LiveLine:
    """Prints snapshots from its own thread, so that a slow terminal never blocks verification."""

    def __init__(self, kind: Progress, look: Callable[[], VerifySnapshot]) -> None:
        self._kind = ("rich" if sys.stderr.isatty() else "plain") if kind == "auto" else kind
        self._look = look
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(timeout=1.0)
        if self._kind == "rich":
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _run(self) -> None:
        pause = {"rich": 0.25, "json": 2.0, "plain": 2.0}.get(self._kind, 0.25)
        due, failure = time.monotonic() + pause, ""
        while not self._done.wait(0.25):
            is_due = time.monotonic() >= due
            failure = guarded(partial(self._show, is_shown=is_due), failure)
            if is_due:
                due = time.monotonic() + pause
                pause = min(pause * 1.5, 60.0) if self._kind == "plain" else pause

    def _show(self, *, is_shown: bool) -> None:
        now = self._look()  # also when nothing is shown: it samples how busy the workers are
        if not is_shown:
            return
        if self._kind == "json":
            write_record({"event": "progress", **msgspec.to_builtins(now)})
        elif self._kind == "plain":
            print(snapshot_text(now), file=sys.stderr, flush=True)
        elif self._kind == "rich":
            sys.stderr.write("\r\x1b[K" + snapshot_text(now)[: max(20, err().width - 1)])
            sys.stderr.flush()


def snapshot_text(now: VerifySnapshot) -> str:
    """Write progress, speed and queues in one line."""
    counters = now.counters
    parts = [f"{now.done + now.already:,} judged", f"{number(now.rate)}/s"]
    if now.mean is not None:
        parts.append(f"reward {now.mean:.3f}")
    if counters.workers:
        parts.append(f"{counters.busy}/{counters.workers} workers busy, {counters.queued} queued")
    if counters.seconds_per_verdict is not None:
        parts.append(f"{short_time(counters.seconds_per_verdict)} per verdict")
    if counters.hit_rate:
        parts.append(f"{counters.hit_rate:.0%} not judged twice")
    if now.cost is not None:
        parts.append(f"{dollars(now.cost)} for the judge")
    if now.failed:
        parts.append(f"{now.failed:,} failed")
    if now.is_waiting:
        parts.append("waiting for rollouts")
    return "verifying · " + " · ".join(parts)


def summary_record(summary: VerifySummary, code: Exit) -> JsonObject:
    """Convert the summary to its JSON object."""
    record: JsonObject = msgspec.to_builtins(summary)
    record["counts"] = {
        name: record.pop(name)
        for name in ("rollouts", "judged", "unjudged", "failed", "owed", "already", "rejected_lines")
    }
    record["cache"] = {
        name: record.pop(name) for name in ("calls", "shared", "cache_hits", "lookups", "hit_rate")
    }
    record["ok"] = code == Exit.DONE
    record["exit_code"] = int(code)
    return record


def print_summary(summary: VerifySummary, options: VerifyOptions, *, resume: str) -> None:
    """Print the result of a verification, and the next step."""
    mode = f", {summary.mode}" if summary.mode else ""
    show = out().print
    show(f"{summary.run}: {summary.verifier} ({summary.fingerprint}{mode})", markup=False)
    rows = [
        (
            "judged",
            f"{summary.judged:,} of {count_of(summary.rollouts, 'rollout')}{_percent(summary.coverage)}",
        ),
        ("reward", estimate_text(summary.reward)),
        ("unjudged", f"{summary.unjudged:,}: the verifier said it cannot judge")
        if summary.unjudged
        else None,
        ("failed", f"{count_of(summary.failed, 'verdict')}: no reward, never 0") if summary.failed else None,
        ("not reached", f"{summary.owed:,}") if summary.owed else None,
        ("already", f"{summary.already:,} judged before, not judged again") if summary.already else None,
        ("bad lines", f"{summary.rejected_lines:,}") if summary.rejected_lines else None,
        ("calls", _calls_text(summary)),
        ("cost", _cost_text(summary.cost)) if summary.cost is not None else None,
        ("bottleneck", summary.bottleneck),
    ]
    for row in filter(None, rows):
        show(f"  {row[0]:<12}{row[1]}", markup=False)
    for line, reason in summary.bad_lines[:3]:
        say(f"  line {line}: {reason}")
    for message, count in summary.failures.items():
        say(f"  failed {count:,}×: {message[:300]}")
    for note in summary.notes:
        say(f"note: {note}")
    _print_next(summary, options, resume)


def _cost_text(cost: JudgeSpending) -> str:
    text = f"{dollars(cost.session)} for the judge"
    if cost.total is not None and cost.total != cost.session:
        text += f", {dollars(cost.total)} in all verifications of the run"
    return text + (f", cost of {count_of(cost.unknown, 'verdict')} unknown" if cost.unknown else "")


def _print_next(summary: VerifySummary, options: VerifyOptions, resume: str) -> None:
    if summary.is_over_budget:
        say(f"--max-cost is spent; the same command with a larger one judges the rest: {resume}")
    elif summary.state == "interrupted":
        say(f"interrupted; the same command resumes: {resume}")
    elif summary.failed:
        again = judging_command(str(options.run), summary.verifier, options.options)
        say(f"  next: {_mend_first(summary)}{again}")
    elif not summary.rollouts and summary.rejected_lines:
        say("nothing to judge: no line could be read as a rollout")
        say(f"  next: rollforge validate {shlex.quote(str(options.run))}")
    elif not summary.rollouts:
        say("nothing to judge: no rollout fits the choice")
        if options.is_failed_only:
            words = (
                f"rollforge verify {shlex.quote(str(options.run))} --verifier {shlex.quote(summary.verifier)}"
            )
            say(
                f"  next: --failed-only takes what {summary.verifier} itself failed on; to judge all: {words}"
            )


def _mend_first(summary: VerifySummary) -> str:
    """The step needed before judging again, when every verdict failed for one reason."""
    if summary.judged or summary.unjudged or len(summary.failures) != 1:
        return ""
    return "all failed alike: mend the verifier, or give its options with -S NAME=VALUE; then: "


def judging_command(run: str, verifier: str, options: Mapping[str, object]) -> str:
    """The command that retries failed verdicts, with the verifier's own options."""
    words = ["rollforge", "verify", run, "--verifier", verifier]
    for key, value in options.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        words += ["-S", f"{key}={text}"]
    return shlex.join([*words, "--failed-only"])


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({share:.1%})"


def _calls_text(summary: VerifySummary) -> str:
    each = (
        f", {short_time(summary.seconds_per_verdict)} each" if summary.seconds_per_verdict is not None else ""
    )
    hits = ""
    if summary.hit_rate is not None:
        hits = f"; {summary.hit_rate:.1%} of {summary.lookups:,} had been judged before ({summary.shared:,} in this run"
        hits += f", {summary.cache_hits:,} from the cache)" if summary.cache_hits else ")"
    return f"{summary.calls:,} in {duration(summary.seconds)}{each}{hits}"


def estimate_text(estimate: RewardEstimate) -> str:
    """Write mean, interval and counts."""
    if estimate.mean is None:
        return "none"
    interval = f" [{estimate.ci[0]:.3f}, {estimate.ci[1]:.3f}]" if estimate.ci else ""
    stage = "" if estimate.first_stage is None else ", the first stage of an adaptive run"
    over = f"{count_of(estimate.n, 'verdict')} of {count_of(estimate.tasks, 'task')}{stage}"
    return f"{estimate.mean:.3f}{interval} over {over}"


def flip_record(table: FlipTable) -> JsonObject:
    """Convert the flip table to its JSON object."""
    record: JsonObject = msgspec.to_builtins(table)
    record["flips"] = {"0->1": record.pop("up"), "1->0": record.pop("down"), "changed": record.pop("changed")}
    for example in record["examples"]:
        example["flip"] = example["flip"].replace("→", "->")
    return record


def print_flips(table: FlipTable) -> None:
    """Print the flip table, means, and examples of each flip."""
    show = out().print
    show(
        f"A = {table.a}   B = {table.b}   over {count_of(table.n, 'rollout')} that both judged", markup=False
    )
    for name, count in (
        ("agree", table.agree),
        ("0→1 (only B passes it)", table.up),
        ("1→0 (only A passes it)", table.down),
        ("other number, same side", table.changed),
    ):
        show(f"  {name:<26}{count:>9,}  {count / max(table.n, 1):.1%}", markup=False)
    show(f"  mean A      {estimate_text(table.mean_a)}", markup=False)
    show(f"  mean B      {estimate_text(table.mean_b)}", markup=False)
    show(f"  B − A       {estimate_text(table.difference)}, paired", markup=False)
    if table.only_a or table.only_b or table.neither:
        show(
            f"  not compared: {table.only_a:,} only A judged, {table.only_b:,} only B, {table.neither:,} neither"
        )
    for example in table.examples:
        show(
            f"\n{example.flip}  task {example.task}, rollout {example.rollout}: A {example.a:g}, B {example.b:g}"
        )
        show(f"  asked     {one_line(example.prompt)}", markup=False)
        if example.expected is not None:
            show(f"  expected  {one_line(example.expected)}", markup=False)
        show(f"  answer    {one_line(example.answer)}", markup=False)
        for letter, details in (("A", example.details_a), ("B", example.details_b)):
            if details:
                show(f"  {letter} said    {one_line(msgspec.json.encode(details).decode())}", markup=False)


def one_line(text: str, width: int = 160) -> str:
    """Return the end of a text, which usually holds the answer, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else "…" + flat[-width:]
