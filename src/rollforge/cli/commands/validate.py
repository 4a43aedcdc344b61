"""`rollforge validate`: task files, rollout files and datasets, every bad line with its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.commands.metrics import Flag
from rollforge.cli.render.console import out as stdout
from rollforge.cli.render.console import print_json
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.steps.validate import FileReport, Problem

EXAMPLE = "rollforge validate tasks.jsonl --verifier exact"


def validate(
    files: Annotated[list[Path], Parameter(name="file")],
    /,
    *,
    verifier: str | None = None,
    fix: Flag = False,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 20,
    json: Flag = False,
) -> Exit:
    """Check every row of task files, rollout files and prepared datasets; exit with code 2 if anything is wrong.

    Each finding has file, line, JSON path, what was expected and a hint. Beyond the schema: items that NeMo Gym would silently
    take for something else, duplicates, prompts that stand in two files, tool definitions, fields of mixed type.

    Parameters
    ----------
    files
        JSONL (also .gz, .zst) or Parquet files; prompts are compared between them.
    verifier
        Also require the task fields this verifier reads.
    fix
        Write `NAME.clean.jsonl` with the good lines and `NAME.rejects.jsonl` with the others and the reasons.
    out
        The folder for these two files. Default: beside the file.
    limit
        Findings printed per file; --json has the first 1,000 and some of each further kind.
    json
        Print one JSON object on stdout.
    """
    from rollforge.steps.validate import ValidateOptions, validate_files

    options = ValidateOptions(needs=_needs(verifier), fix=fix, out=str(out) if out is not None else None)
    report = validate_files(files, options)
    if json:
        print_json(report)
    else:
        for one in report.files:
            _print_file(one, limit)
    return Exit.DONE if report.ok else Exit.USAGE


def _needs(verifier: str | None) -> tuple[str, ...]:
    if verifier is None:
        return ()
    from rollforge.verifiers.base import load_verifier

    return tuple(load_verifier(verifier).needs)


def _print_file(report: FileReport, limit: int) -> None:
    from rich.text import Text

    from rollforge.cli.render.numbers import short

    console = stdout()
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


def _first_of_each(problems: list[Problem]) -> list[Problem]:
    """At most three that say the same of the same field: the fourth teaches nothing."""
    told: dict[tuple[str, str], int] = {}
    kept = []
    for problem in problems:
        key = (problem.path, problem.text)
        told[key] = told.get(key, 0) + 1
        if told[key] <= 3:
            kept.append(problem)
    return kept


def _print_problem(file: str, problem: Problem) -> None:
    from rich.text import Text

    style = "red" if problem.level == "error" else "yellow"
    where = f" {problem.path}" if problem.path else ""
    stdout().print(Text.assemble((f"  {file}:{problem.line}", style), (where, "bold"), f": {problem.text}"))
    if problem.hint:
        stdout().print(Text(f"      {problem.hint}", style="dim"))
