"""Findings of `validate`, file by file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.cli.render.console import out
from rollforge.cli.render.numbers import short

if TYPE_CHECKING:
    from rollforge.steps.validate import FileReport, LineFault


def print_file(report: FileReport, limit: int) -> None:
    from rich.text import Text

    console = out()
    verdict = "ok" if not report.errors else f"{report.errors:,} errors in {report.bad_lines:,} lines"
    kind = "" if report.kind == "empty" else f" of {report.kind}"
    head = Text(f"{report.path}: {report.rows:,} rows{kind}: ", style="bold")
    console.print(head.append(verdict, style="green" if not report.errors else "bold red"))
    shown = _first_of_each(report.bad)[:limit]
    for problem in shown:
        _print_problem(report.path, problem)
    if report.errors > len(shown):
        console.print(Text(f"  … {report.errors - len(shown):,} more; see --limit or --json", style="dim"))
    for problem in report.warnings[: max(3, limit // 4)]:
        _print_problem(report.path, problem)
    metrics = report.metrics
    told = [f"{metrics['examples']:,} examples"]
    for name in ("tools", "turns", "words", "temperature"):
        block = metrics[name]
        if block["n"]:
            told.append(f"{name} {short(block['mean'])} ({short(block['min'])}–{short(block['max'])})")
    console.print(Text("  " + " · ".join(told), style="dim"))
    if report.fixed is not None:
        console.print(Text(f"  wrote {report.fixed} and {report.rejects}"))


def _first_of_each(problems: list[LineFault]) -> list[LineFault]:
    """At most three that say the same of the same field: the fourth teaches nothing."""
    told: dict[tuple[str, str], int] = {}
    kept = []
    for problem in problems:
        key = (problem.path, problem.text)
        told[key] = told.get(key, 0) + 1
        if told[key] <= 3:
            kept.append(problem)
    return kept


def _print_problem(file: str, problem: LineFault) -> None:
    from rich.text import Text

    style = "red" if problem.level == "error" else "yellow"
    where = f" {problem.path}" if problem.path else ""
    out().print(Text.assemble((f"  {file}:{problem.line}", style), (where, "bold"), f": {problem.text}"))
    if problem.hint:
        out().print(Text(f"      {problem.hint}", style="dim"))
