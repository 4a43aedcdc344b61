"""Output of `check`: a page for people, a JSON object, or a Markdown table for a pull request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from rollforge.cli.render.console import out
from rollforge.cli.render.table import wrapped
from rollforge.records import JsonObject
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.checks.building_blocks.finding import Finding
    from rollforge.steps.check import Report

_HEADINGS = {
    "verification": "Can the rewards be trusted?",
    "collection": "Was it collected as asked?",
    "confounds": "What else does reward follow?",
    "distribution": "How are rewards spread?",
    "recipe": "Is it fit for {recipe}?",
}
_INDENT = " " * 34
"""Indent of a finding's text, which follows its level and id."""
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def report_record(report: Report) -> JsonObject:
    """Convert the report to its JSON object."""
    record: JsonObject = msgspec.to_builtins(report)
    record["exit_code"] = int(report.exit_code)
    return record


def print_report(report: Report) -> None:
    """Print one page: verification, collection, distribution, then a line per recipe."""
    show = out().print
    counts = report.counts
    mean = counts.reward.mean if counts.reward else None
    reward = f", mean reward {mean:.3f}" if mean is not None else ""
    if counts.reward is not None and counts.reward.is_first_stage:
        reward += " in the first stage of an adaptive run"
    show(
        f"{report.run}: {count_of(counts.rollouts, 'rollout')} of {count_of(counts.tasks, 'task')}, {counts.judged:,} judged{reward}",
        markup=False,
    )
    if report.where is not None:
        show(f"only rollouts where {report.where}", markup=False)
    for area, heading in _HEADINGS.items():
        findings = [finding for finding in report.findings if _heading(finding) == area]
        if area == "recipe" and not report.asked:
            continue
        if not findings and area in ("confounds",):
            continue
        show(f"\n{heading.format(recipe=', '.join(report.asked))}", style="bold", markup=False)
        for finding in findings:
            _print_finding(finding)
        if not findings:
            show("  nothing found", markup=False)
    show("\nFit for", style="bold")
    for name, verdict in report.recipes.items():
        if not report.asked or name in report.asked:
            heading = f"  {name:<5} {verdict.verdict:<8} "
            show(
                heading + f"\n{' ' * len(heading)}".join(wrapped(_brief(verdict.reason), len(heading))),
                markup=False,
            )
    show(f"\n{_closing(report)}", markup=False)


def _heading(finding: Finding) -> str:
    return finding.area if finding.area in _HEADINGS else "collection"


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    line = Text("  ")
    line.append(f"{finding.level:<8}", style=_STYLES[finding.level])
    line.append(f" {finding.id:<22} ")
    first, *more = wrapped(finding.text, len(_INDENT))
    out().print(line.append(first))
    for continued in more:
        out().print(f"{_INDENT}{continued}", markup=False)
    if finding.where and finding.level != "note":
        for part in wrapped(f"at {_locations(finding)}", len(_INDENT)):
            out().print(f"{_INDENT}{part}", markup=False, style="dim")
    if finding.next and finding.level != "note":
        for part in wrapped(f"next: {finding.next}", len(_INDENT)):
            out().print(f"{_INDENT}{part}", markup=False)


def _brief(text: str, most: int = 110) -> str:
    """Shorten a reason to its first clause; the finding above shows the full sentence."""
    clause = text.partition(";")[0]
    return clause if len(clause) <= most else clause[: most - 1] + "…"


def _locations(finding: Finding) -> str:
    shown = [
        ", ".join(
            f"{key.replace('_', ' ').removesuffix(' at')} {_moment(value) if key.endswith('_at') else value}"
            for key, value in location.items()
            if key != "at"
        )
        for location in finding.where[:3]
    ]
    return "; ".join(shown) + ("; …" if len(finding.where) > 3 else "")


def _moment(value: object) -> str:
    """A time of the run as a date; a manifest may say anything."""
    try:
        return datetime.fromtimestamp(float(str(value)), UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return str(value)


def _closing(report: Report) -> str:
    counted = ", ".join(
        f"{len(findings)} {level}{'s' if len(findings) != 1 else ''}"
        for level in ("error", "warning", "note")
        if (findings := report.at(level))
    )
    purpose = f" for {', '.join(report.asked)}" if report.asked else ""
    later = [
        name for name, fit in report.recipes.items() if name in report.asked and fit.verdict == "not yet"
    ]
    passed = f"no error, but not yet fit for {', '.join(later)}" if later else f"fit{purpose}"
    meaning = {
        0: passed if report.asked else "no error",
        3: "too incomplete to say",
        4: f"not ready{purpose}",
        5: "verification is judged broken",
    }[int(report.exit_code)]
    return f"{counted or 'nothing found'} — {meaning}          (exit code {int(report.exit_code)})"


def markdown_text(report: Report) -> str:
    """Render the report as Markdown tables."""
    lines = [f"### rollforge check `{report.run}`: {_closing(report).partition('          ')[0]}", ""]
    if report.where is not None:
        lines += [f"only rollouts where `{report.where}`", ""]
    # Notes are left out beside errors and warnings.
    shown = [item for item in report.findings if item.level != "note"] or report.findings
    if shown:
        lines += ["| level | id | finding | next |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {item.level} | `{item.id}` | {_cell(item.text)} | {_cell(item.next)} |" for item in shown
        ]
        lines += [""]
    lines += ["| recipe | verdict | main reason |", "| --- | --- | --- |"]
    lines += [f"| {name} | {item.verdict} | {_cell(item.reason)} |" for name, item in report.recipes.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
