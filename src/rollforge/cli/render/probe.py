"""Output of probes: a page for people, or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rollforge.cli.render.console import out, say
from rollforge.cli.render.verify import one_line
from rollforge.errors import Exit
from rollforge.records import JsonObject
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.verifiers.probes import Probe, ProbeReport
    from rollforge.verifiers.probes.report import Rate

UNSURE = 0.15
"""An interval wider than this says little; the page then points that out."""

_MARKS = {"ok": "ok", "broken": "BROKEN", "unclear": "unclear", "not asked": "–"}


def report_record(report: ProbeReport) -> JsonObject:
    """Convert the report to its JSON object."""
    record: JsonObject = msgspec.to_builtins(report)
    record["ok"] = not report.is_broken
    record["exit_code"] = int(Exit.BROKEN_VERIFICATION if report.is_broken else Exit.DONE)
    record["reasons"] = report.reasons
    return record


def print_report(report: ProbeReport) -> None:
    """Print questions, error rates, examples and the judgement."""
    show = out().print
    mode = f", {report.mode}" if report.mode else ""
    show(
        f"{report.verifier} ({report.fingerprint}{mode}): {count_of(report.tasks, 'task')}, {count_of(report.calls, 'call')}",
        markup=False,
    )
    show(f"  {'question':<48} {'wrong':>11}  {'rate [95 %]':<24} {'tolerated':<16} finding", markup=False)
    for probe in report.probes:
        show(
            f"  {probe.question:<48} {_counts(probe):>11}  {_interval(probe):<24} {_limit(probe):<16} {_finding(probe)}",
            markup=False,
        )
    for probe in report.probes:
        _print_examples(probe)
    show(
        f"\nfalse negatives {_rate(report.false_negative)} · false positives {_rate(report.false_positive)} · "
        f"flips {_rate(report.flip)}",
        markup=False,
    )
    if report.gold_form:
        show(f"the right answer passed most often written as: {report.gold_form}", markup=False)
    for note in report.notes:
        say(f"note: {note}")
    if report.is_broken:
        show("judged broken: do not trust its rewards          (exit code 5)")
        for reason in report.reasons:
            show(f"  {reason}", markup=False)
    else:
        show("nothing here says that it is broken")
        widest = max((probe.ci[1] - probe.chance for probe in report.probes if probe.ci), default=0.0)
        if widest > UNSURE:
            show(
                f"  but {count_of(report.tasks, 'task')} cannot rule out rates up to {widest:.0%}: ask about more with -n"
            )


def _counts(probe: Probe) -> str:
    return f"{probe.bad:,} of {probe.n:,}" if probe.n else ""


def _interval(probe: Probe) -> str:
    if probe.rate is None or probe.ci is None:
        return ""
    return f"{probe.rate:.1%} [{probe.ci[0]:.1%}, {probe.ci[1]:.1%}]"


def _limit(probe: Probe) -> str:
    if not probe.n:
        return ""
    return f"{probe.limit:.0%}" + (f" + {probe.chance:.0%} chance" if probe.chance >= 0.005 else "")


def _finding(probe: Probe) -> str:
    return f"not asked: {probe.reason}" if probe.finding == "not asked" else _MARKS[probe.finding]


def _rate(rate: Rate) -> str:
    if rate.rate is None or rate.ci is None:
        return "unknown"
    return f"{rate.rate:.1%} [{rate.ci[0]:.1%}, {rate.ci[1]:.1%}] of {rate.n:,}"


def _print_examples(probe: Probe) -> None:
    show = out().print
    if not probe.examples or (probe.finding == "ok" and probe.chance):
        return  # matches that chance explains are no finding
    show(f"\n{probe.question} Not here:", markup=False)
    for example in probe.examples:
        reward = "failed to judge" if probe.kind == "error" else f"reward {example.reward}"
        note = f" ({example.note})" if example.note else ""
        show(f"  task {example.task}: {reward}{note}", markup=False)
        show(f"    answer    {one_line(example.sent) or '(empty)'}", markup=False)
        if example.expected is not None:
            show(f"    expected  {one_line(example.expected)}", markup=False)
