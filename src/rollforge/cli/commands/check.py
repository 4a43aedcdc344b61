"""`rollforge check`: whether rewards can be trusted and the data is fit to train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.reading_flags import index_elsewhere
from rollforge.cli.converters import Flag, within
from rollforge.cli.render.console import print_json
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.steps.check import Report

EXAMPLE = "rollforge check runs/first --for grpo"

_GATE = Group("The gate", sort_key=1)
_CHECKS = Group("The checks", sort_key=2)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GateFlags:
    """Conditions under which the gate fails."""

    fail_on: Annotated[Literal["error", "warning", "never"], Parameter(group=_GATE)] = "error"
    """Lowest level that makes the exit code nonzero."""
    ignore: Annotated[list[str], Parameter(group=_GATE, negative=())] = field(default_factory=list)
    """Id of a check to skip; repeatable."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Selection of checks and their limits."""

    set: Annotated[list[str], Parameter(name=["--set", "-S"], group=_CHECKS, negative=())] = field(
        default_factory=list
    )
    """ID.limit=value: another limit for a check; repeatable."""
    check: Annotated[list[str], Parameter(group=_CHECKS, negative=())] = field(default_factory=list)
    """A check of your own, as file.py:function or module:function; repeatable."""
    reward_range: Annotated[tuple[float, float] | None, Parameter(group=_CHECKS, negative=())] = None
    """Lowest and highest reward that the verifier can give; by default the range of the rewards."""
    verifier: Annotated[str | None, Parameter(group=_CHECKS)] = None
    """Verifier whose verdicts to check, if the run has several."""
    where: Annotated[str | None, Parameter(group=_CHECKS)] = None
    """Only rollouts for which this SQL expression over the columns holds: "agent = 'math'"."""


def check(
    *runs: str,
    recipes: Annotated[tuple[str, ...], Parameter(name="--for", negative=(), metavar="RECIPE")] = (),
    gate: GateFlags = GateFlags(),  # noqa: B008  (frozen)
    checks: CheckFlags = CheckFlags(),  # noqa: B008
    limits: Annotated[dict[str, dict[str, float]] | None, Parameter(show=False)] = None,
    workers: Annotated[int | None, within(1, 1024)] = None,
    on: str | None = None,
    json: Flag = False,
    markdown: Flag = False,
) -> Exit:
    """Tell whether a run's rewards can be trusted and its data is fit to train on.

    Exit code 0: no error. 3: too incomplete to say. 4: the gate fails. 5: verification itself is judged broken.
    Limits can also come from a file (--config FILE, table [check.limits.ID]).

    Parameters
    ----------
    runs
        The run: a folder, a rollouts file, or several as one.
    recipes
        Purpose of the data: sft, dpo, kto, rm, ppo, grpo, or a recipe of an installed package. Adds that recipe's checks to the
        gate; repeatable.
    workers
        Threads for the first pass over the text. Default: one per core for large files.
    on
        Where the first pass over the text runs: local, processes, or ray (ray:HOST:PORT); --workers says how many.
    json
        Print one JSON object on stdout, with every offending line, and nothing else.
    markdown
        Print a table for a pull request.
    """
    from rollforge.cli.render.check import markdown_text, print_report, report_record
    from rollforge.steps.check import check_run

    if not runs:
        raise UsageError("which run?", hint=f"for example: {EXAMPLE}")
    if json and markdown:
        raise UsageError("--json and --markdown exclude each other", hint="leave one of them out")
    index_elsewhere(list(runs), on, workers)
    report: Report = check_run(
        list(runs),
        workers=workers,
        recipes=recipes,
        fail_on=gate.fail_on,
        ignore=tuple(gate.ignore),
        settings=_settings(checks.set, limits or {}),
        more_checks=tuple(checks.check),
        reward_range=checks.reward_range,
        verifier=checks.verifier,
        where=checks.where,
        places_limit=None if json else 20,
    )
    if json:
        print_json(report_record(report))
    elif markdown:
        print(markdown_text(report))
    else:
        print_report(report)
    return report.exit_code


def _settings(words: list[str], from_file: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Return option values by check id; flags win over the file."""
    from rollforge.config import parse_settings

    settings: dict[str, dict[str, Any]] = {id: dict(values) for id, values in from_file.items()}
    for word in words:
        if word.partition("=")[0].count(".") != 1:
            raise UsageError(
                f"--set {word!r} is not understood", hint="for example: --set truncated-answers.max_share=0.5"
            )
    for id, values in parse_settings(words).items():
        settings.setdefault(id, {}).update(values)
    return settings
