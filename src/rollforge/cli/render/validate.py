"""Findings of `validate`, file by file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rollforge.cli.render.console import out
from rollforge.cli.render.numbers import short
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.steps.validate import FileReport, LineFault


def print_file(report: FileReport, limit: int) -> None:
    from rich.text import Text

    console = out()
    verdict = (
        "ok"
        if not report.errors
        else f"{_count(report.errors, 'error')} in {_count(report.bad_lines, 'line')}"
    )
    kind = "" if report.kind == "empty" else f" of {report.kind}"
    head = Text(f"{report.path}: {count_of(report.rows, 'row')}{kind}: ", style="bold")
    console.print(head.append(verdict, style="green" if not report.errors else "bold red"))
    groups = _grouped(report.bad)
    for group in groups[:limit]:
        _print_group(report.path, group)
    hidden = report.errors - sum(len(group) for group in groups[:limit])
    if hidden > 0:
        console.print(Text(f"  … {hidden:,} more; see --limit or --json", style="dim"))
    for group in _grouped(report.warnings)[: max(3, limit // 4)]:
        _print_group(report.path, group)
    metrics = report.metrics
    parts = [_count(metrics.examples, "example")]
    for name in ("tools", "turns", "words", "temperature"):
        block = getattr(metrics, name)
        if block.n:
            parts.append(f"{name} {short(block.mean)} ({short(block.min)}–{short(block.max)})")
    console.print(Text("  " + " · ".join(parts), style="dim"))
    if report.fixed is not None:
        console.print(Text(f"  wrote {report.fixed} and {report.rejects}"))


_NUMBER = re.compile(r"\d+")


def _grouped(faults: list[LineFault]) -> list[list[LineFault]]:
    """Faults with the same message (ignoring numbers) about the same field, in order of their first line."""
    groups: dict[tuple[str, str], list[LineFault]] = {}
    for fault in faults:
        groups.setdefault((_NUMBER.sub("#", fault.path), _NUMBER.sub("#", fault.text)), []).append(fault)
    return list(groups.values())


def _print_group(file: str, group: list[LineFault]) -> None:
    """The first fault of a group, and how many rows share it."""
    from rich.text import Text

    first, others = group[0], len({(fault.file, fault.line) for fault in group}) - 1
    file = first.file or file
    style = "red" if first.level == "error" else "yellow"
    where = f" {first.path}" if first.path else ""
    more = f" (and {_count(others, 'more row')})" if others else ""
    out().print(Text.assemble((f"  {file}:{first.line}", style), (where, "bold"), f": {first.text}{more}"))
    if first.hint:
        out().print(Text(f"      {first.hint}", style="dim"))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
