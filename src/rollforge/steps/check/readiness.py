"""The check step: gathers the evidence of a run, runs the checks, and derives an exit code and a verdict per recipe.

A finding never raises: `Report.exit_code` is the gate. Only a command that cannot be carried out raises (no such run, an unknown
id or option).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from rollforge.checks import CHECKS, MEMBERS
from rollforge.checks.base import Check, as_check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import RECIPES, Finding
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.recipes.base import load_recipe
from rollforge.registry import did_you_mean, load_target
from rollforge.text_safety.markup import result, table

FailOn = Literal["error", "warning", "never"]
VerdictWord = Literal["ready", "not yet", "no"]

_RANK = {"error": 0, "warning": 1, "note": 2}
_AREAS = {"verification": 0, "collection": 1, "confounds": 2, "distribution": 3, "recipe": 4}


class RecipeVerdict(msgspec.Struct, frozen=True):
    """Whether a run is fit for one recipe."""

    verdict: VerdictWord
    reason: str


class RewardScale(msgspec.Struct, frozen=True, kw_only=True):
    """The mean reward, and the range to which scaled rewards refer."""

    mean: float
    range: list[float]
    is_declared: bool
    is_first_stage: bool = False
    """Whether the mean is over the first stage of an adaptive run; over all rollouts it would depend on the sampling rule."""


class CheckCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of rollouts behind the findings."""

    rollouts: int
    tasks: int
    expected: int | None
    judged: int
    unjudged: int
    failed: int | None
    """Null if the number of expected rollouts is unknown."""
    truncated: int
    rejected_lines: int
    reward: RewardScale | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run, and the conclusions from them."""

    run: str
    ok: bool
    exit_code: Exit
    recipe: str | None
    """The requested recipe; null for none, or for several (see `asked`)."""
    asked: list[str] = []
    """All requested recipes."""
    counts: CheckCounts
    findings: list[Finding]
    recipes: dict[str, RecipeVerdict]
    thresholds: dict[str, dict[str, float]]
    """The options of every check that ran."""
    ignored: list[str] = []
    where: str | None = None
    """The condition that selected rollouts, if any."""

    def at(self, level: str) -> list[Finding]:
        """The findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    def _repr_html_(self) -> str:
        words = "fit" if self.ok else f"not fit (exit code {int(self.exit_code)})"
        purpose = f" for {', '.join(self.asked)}" if self.asked else ""
        rows = [[one.level, one.id, one.text, one.next or ""] for one in self.findings]
        fit = [[name, one.verdict, one.reason] for name, one in self.recipes.items()]
        return result(
            f"{self.run}: {words}{purpose}",
            table(("level", "check", "finding", "next"), rows, numeric=False) if rows else "no findings",
            table(("recipe", "verdict", "why"), fit, numeric=False) if fit else None,
        )


OF_ALL_STAGES = frozenset(
    {"adaptive-run", "low-coverage", "missing-rollouts", "duplicate-rollouts", "bad-lines", "volume"}
)
"""General checks that use all rollouts of an adaptive run."""


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Recipes, limits and selection of checks."""

    recipe: str | None = None
    recipes: tuple[str, ...] = ()
    """Several recipes; `recipe` is added to them."""
    fail_on: FailOn = "error"
    ignore: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = {}
    """Option values by check id."""
    more_checks: tuple[Any, ...] = ()
    """User-defined checks: functions, or `file.py:name`."""
    reward_range: tuple[float, float] | None = None
    verifier: str | None = None
    where: str | None = None
    """Check only rollouts for which this expression holds; the number of expected rollouts is then unknown."""
    places_limit: int | None = 20
    only_recipe: bool = False
    """Omit checks and verdicts of other recipes."""

    def __post_init__(self) -> None:
        """Refuse unknown recipes, and an empty reward range."""
        for name in self.asked:
            load_recipe(name)
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            low, high = self.reward_range
            raise UsageError(f"no reward lies between {low:g} and {high:g}", hint="give the lowest one first")

    @property
    def asked(self) -> tuple[str, ...]:
        """All requested recipes, without duplicates."""
        return tuple(dict.fromkeys((*((self.recipe,) if self.recipe else ()), *self.recipes)))

    def likes(self) -> dict[str, str]:
        """Requested recipe → the built-in one whose checks apply; a built-in recipe maps to itself."""
        return {name: load_recipe(name).like for name in self.asked}


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # absurd rewards have no mean, and no warning
def check_evidence(run: Evidence, options: CheckOptions, *, first_stage: Evidence | None = None) -> Report:
    """Run the checks on the given evidence.

    Args:
        first_stage: for an adaptive run, the rollouts that did not depend on earlier rewards. General checks use only these,
            because over all rollouts, sizes, rewards and positions depend on each other by design. A recipe's checks use all
            rollouts.
    """
    checks = _checks(options)
    limits = {check.id: _limits(check, options.settings.get(check.id, {})) for check in checks}
    general: list[Finding] = []
    recipe_findings: list[Finding] = []
    by_recipe: dict[str, list[Finding]] = {name: [] for name in RECIPES}
    likes = options.likes()
    for check in checks:
        is_others = bool(check.recipes) and not set(check.recipes) & set(likes.values())
        if check.id in options.ignore or (options.only_recipe and is_others):
            continue
        is_staged = first_stage is not None and not check.recipes and check.id not in OF_ALL_STAGES
        new = _ask(check, first_stage if first_stage is not None and is_staged else run, limits[check.id])
        if not check.recipes:
            general += _spared(new, check, likes)
        elif set(check.recipes) & set(likes.values()):
            recipe_findings += new
        for name in check.recipes:
            by_recipe[name] += new
    findings = general + recipe_findings
    findings.sort(key=lambda finding: (_RANK[finding.level], _AREAS.get(finding.area, 9)))
    code = exit_code(findings, options.fail_on)
    return Report(
        run=run.name,
        ok=code == Exit.DONE,
        exit_code=code,
        recipe=options.asked[0] if len(options.asked) == 1 else None,
        asked=list(options.asked),
        counts=_counts(run, first_stage),
        findings=findings,
        recipes={
            name: recipe_verdict(name, _for_recipe(general, checks, like), by_recipe[like])
            for name, like in ({name: name for name in by_recipe} | likes).items()
            if not options.only_recipe or name in options.asked
        },
        thresholds=limits,
        ignored=sorted(options.ignore),
        where=run.about.where,
    )


def _spared(findings: list[Finding], check: Check, likes: Mapping[str, str]) -> list[Finding]:
    """The findings, reduced to warnings if all requested recipes filter out the offending rollouts."""
    if not likes or not set(likes.values()) <= set(check.spares):
        return findings
    return [
        _as_warning(finding, list(likes)) if finding.level == "error" else finding for finding in findings
    ]


def _as_warning(finding: Finding, recipes: Sequence[str]) -> Finding:
    text = f"{finding.text}; {', '.join(recipes)} leaves them out"
    return msgspec.structs.replace(finding, level="warning", text=text)


def _for_recipe(general: Sequence[Finding], checks: Sequence[Check], name: str) -> list[Finding]:
    """The general findings that matter to a recipe, without those about rollouts that it filters out."""
    spared = {check.id for check in checks if name in check.spares}
    return [finding for finding in general if finding.id not in spared]


def exit_code(findings: Sequence[Finding], fail_on: FailOn = "error") -> Exit:
    """Exit code of the gate: 5 broken verification, 3 too incomplete to judge, 4 the gate fails, else 0."""
    errors = [finding for finding in findings if finding.level == "error"]
    if fail_on == "never":
        return Exit.DONE
    if any(finding.area == "verification" for finding in errors):
        return Exit.BROKEN_VERIFICATION
    if any(finding.is_incomplete for finding in errors):
        return Exit.INCOMPLETE
    if errors or (fail_on == "warning" and any(finding.level == "warning" for finding in findings)):
        return Exit.GATE_FAILED
    return Exit.DONE


def recipe_verdict(name: str, general: Sequence[Finding], own: Sequence[Finding]) -> RecipeVerdict:
    """Ready, not yet (more or other rollouts would help), or no (this run cannot become fit)."""
    errors = [finding for finding in (*general, *own) if finding.level == "error"]
    if errors:
        final = [finding for finding in errors if finding.is_final or finding.area == "verification"]
        main = (final or errors)[0]
        return RecipeVerdict("no" if final else "not yet", f"{main.id}: {main.text}")
    warnings = [finding for finding in own if finding.level == "warning"]
    for finding in warnings:
        if finding.needs_more:
            return RecipeVerdict("not yet", f"{finding.id}: {finding.text}")
    if warnings:
        return RecipeVerdict("ready", f"with {warnings[0].id}: {warnings[0].text}")
    return RecipeVerdict("ready", "nothing speaks against it")


# Which checks, with which limits


def _checks(options: CheckOptions) -> list[Check]:
    names = sorted(
        CHECKS.names(), key=lambda name: list(MEMBERS).index(name) if name in MEMBERS else len(MEMBERS)
    )
    checks = [as_check(CHECKS.load(name), name) for name in names]
    for target in options.more_checks:
        member = load_target(target) if isinstance(target, str) else target
        if not callable(member) and not isinstance(member, Check):
            raise UsageError(
                f"{target} is no check", hint="a check is a function of the evidence: see docs/checks.md"
            )
        name = target.rpartition(":")[2] if isinstance(target, str) else getattr(target, "__name__", "check")
        checks.append(as_check(member, name.replace("_", "-")))
    check_ids = [check.id for check in checks]
    for check_id in (*options.ignore, *options.settings):
        if check_id not in check_ids:
            raise UsageError(
                f"there is no check {check_id!r}{did_you_mean(check_id, check_ids)}",
                hint="see them all: rollforge list checks",
            )
    return checks


def _limits(check: Check, settings: Mapping[str, Any]) -> dict[str, float]:
    limits = dict(check.options)
    for name, value in settings.items():
        if name not in limits:
            raise UsageError(
                f"check {check.id!r} has no option {name!r}{did_you_mean(name, dict(limits))}",
                hint=f"it has: {', '.join(limits) or 'none'}",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(
                f"{check.id}.{name} must be a number, not {value!r}", hint=f"-S {check.id}.{name}=0.5"
            )
        limits[name] = float(value)
    return limits


def _ask(check: Check, run: Evidence, limits: dict[str, float]) -> list[Finding]:
    """Run a check; an exception in a user's check becomes a finding about the check."""
    if check.function.__module__.startswith("rollforge."):
        return check.run(run, limits)
    try:
        return check.run(run, limits)
    except RollforgeError:
        raise
    except Exception as error:  # noqa: BLE001  (a user's own check: its bug becomes a finding, and the others still run)
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return [
            Finding(
                level="error",
                id=check.id,
                area="collection",
                text=text,
                next=f"mend it, or: --ignore {check.id}",
            )
        ]


def _counts(run: Evidence, first_stage: Evidence | None) -> CheckCounts:
    rewards = first_stage or run
    low, high = rewards.range.low, rewards.range.high
    mean = rewards.mean.value
    return CheckCounts(
        rollouts=run.n,
        tasks=run.groups,
        expected=run.about.expected,
        judged=run.judged_n,
        unjudged=run.n - run.judged_n,
        failed=None if run.about.expected is None else max(0, run.about.expected - run.n),
        truncated=int(run.is_truncated.sum()),
        rejected_lines=run.about.rejected_lines,
        reward=None
        if mean is None
        else RewardScale(
            mean=mean * (high - low) + low,
            range=[low, high],
            is_declared=rewards.range.is_declared,
            is_first_stage=first_stage is not None,
        ),
    )
