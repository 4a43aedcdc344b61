"""This module is the check step: it gathers the evidence of a run, asks the checks, and says what that means.

A finding never raises: `Report.exit_code` is the gate. What does raise is a command that cannot be carried out (no such run, an
unknown id or option).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from rollforge.checks import CHECKS, MEMBERS
from rollforge.checks.base import Check, as_check
from rollforge.checks.evidence import About, Evidence, EvidenceSource
from rollforge.checks.finding import RECIPES, Finding, Recipe
from rollforge.checks.stream import SuspectWindow
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.index import Index, open_index
from rollforge.records import JsonObject
from rollforge.registry import did_you_mean, load_target
from rollforge.store import Manifest, RunFiles, is_alive, read_manifest

FailOn = Literal["error", "warning", "never"]
VerdictWord = Literal["ready", "not yet", "no"]

_RANK = {"error": 0, "warning": 1, "note": 2}
_AREAS = {"verification": 0, "collection": 1, "confounds": 2, "distribution": 3, "recipe": 4}


class RecipeVerdict(msgspec.Struct, frozen=True):
    """Whether a run is fit for one recipe."""

    verdict: VerdictWord
    reason: str


class RewardScale(msgspec.Struct, frozen=True, kw_only=True):
    """The mean reward, and the range that scaled rewards refer to."""

    mean: float
    range: list[float]
    is_declared: bool


class CheckCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the findings are over."""

    rollouts: int
    tasks: int
    expected: int | None
    judged: int
    unjudged: int
    failed: int | None
    """Null when nothing says how many rollouts were expected."""
    truncated: int
    rejected_lines: int
    reward: RewardScale | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks found."""

    run: str
    ok: bool
    exit_code: Exit
    recipe: str | None
    counts: CheckCounts
    findings: list[Finding]
    recipes: dict[str, RecipeVerdict]
    thresholds: dict[str, dict[str, float]]
    """The options of every check that was asked."""
    ignored: list[str] = []
    where: str | None = None
    """The condition for rollouts to be looked at, when not all were."""

    def at(self, level: str) -> list[Finding]:
        """The findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is checked."""

    recipe: Recipe | None = None
    fail_on: FailOn = "error"
    ignore: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = {}
    """Option values by check id."""
    more_checks: tuple[Any, ...] = ()
    """Checks of the user's own: functions, or `file.py:name`."""
    reward_range: tuple[float, float] | None = None
    verifier: str | None = None
    where: str | None = None
    """Look only at rollouts for which this expression holds; nobody asked for a certain number of those."""
    places_limit: int | None = 20
    only_recipe: bool = False
    """Leave out what other recipes would ask, and with it their verdicts."""

    def __post_init__(self) -> None:
        """Refuse a range in which no reward lies."""
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            low, high = self.reward_range
            raise UsageError(f"no reward lies between {low:g} and {high:g}", hint="give the lowest one first")


def check_run(
    runs: str | Path | Sequence[str | Path], *, recipe: Recipe | None = None, **options: Any
) -> Report:
    """Check a run, or several files as one; `options` are those of `CheckOptions`."""
    chosen = CheckOptions(recipe=recipe, **options)
    _check_recipe(chosen.recipe)
    with open_index(runs, verifier=chosen.verifier) as index:
        pa.default_memory_pool().release_unused()  # what building it took, before the columns take as much again
        return check_evidence(index_evidence(index, chosen), chosen)


def check_evidence(run: Evidence, options: CheckOptions) -> Report:
    """Ask the checks about evidence that is already gathered."""
    checks = _checks(options)
    limits = {check.id: _limits(check, options.settings.get(check.id, {})) for check in checks}
    general: list[Finding] = []
    by_recipe: dict[str, list[Finding]] = {name: [] for name in RECIPES}
    for check in checks:
        is_others = bool(check.recipes) and options.recipe not in check.recipes
        if check.id in options.ignore or (options.only_recipe and is_others):
            continue
        found = _ask(check, run, limits[check.id])
        if not check.recipes:
            general += found
        for name in check.recipes:
            by_recipe[name] += found
    findings = general + (by_recipe[options.recipe] if options.recipe else [])
    findings.sort(key=lambda finding: (_RANK[finding.level], _AREAS.get(finding.area, 9)))
    code = exit_code(findings, options.fail_on)
    return Report(
        run=run.name,
        ok=code == Exit.DONE,
        exit_code=code,
        recipe=options.recipe,
        counts=_counts(run),
        findings=findings,
        recipes={
            name: recipe_verdict(name, general, found)
            for name, found in by_recipe.items()
            if not options.only_recipe or name == options.recipe
        },
        thresholds=limits,
        ignored=sorted(options.ignore),
        where=run.about.where,
    )


def exit_code(findings: Sequence[Finding], fail_on: FailOn = "error") -> Exit:
    """What the findings mean for a pipeline: 5 broken verification, 3 too incomplete to say, 4 the gate fails, else 0."""
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


def recipe_verdict(name: str, general: Sequence[Finding], found: Sequence[Finding]) -> RecipeVerdict:
    """Ready, not yet (more or other rollouts would do), or no (as it is, this run will not)."""
    errors = [finding for finding in (*general, *found) if finding.level == "error"]
    if errors:
        final = [finding for finding in errors if finding.is_final or finding.area == "verification"]
        main = (final or errors)[0]
        return RecipeVerdict("no" if final else "not yet", f"{main.id}: {main.text}")
    warnings = [finding for finding in found if finding.level == "warning"]
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
    known = [check.id for check in checks]
    for given in (*options.ignore, *options.settings):
        if given not in known:
            raise UsageError(
                f"there is no check {given!r}{did_you_mean(given, known)}",
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
            raise UsageError(f"{check.id}.{name} must be a number, not {value!r}")
        limits[name] = float(value)
    return limits


def _check_recipe(recipe: str | None) -> None:
    if recipe is not None and recipe not in RECIPES:
        raise UsageError(
            f"there is no recipe {recipe!r}{did_you_mean(recipe, list(RECIPES))}",
            hint=f"one of {', '.join(RECIPES)}",
        )


def _ask(check: Check, run: Evidence, limits: dict[str, float]) -> list[Finding]:
    """The check's findings; a user's check that raises becomes a finding about itself."""
    if check.function.__module__.startswith("rollforge."):
        return check.run(run, limits)
    try:
        return check.run(run, limits)
    except RollforgeError:
        raise
    except Exception as error:  # noqa: BLE001  (a user's own check: its bug is told, and the others still run)
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


def _counts(run: Evidence) -> CheckCounts:
    low, high = run.range.low, run.range.high
    mean = run.mean.value
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
            mean=mean * (high - low) + low, range=[low, high], is_declared=run.range.is_declared
        ),
    )


# Evidence from files


class IndexSource:
    """An index as a source of evidence: all of its rollouts, or those that an expression keeps."""

    def __init__(self, index: Index, where: str | None = None) -> None:
        self._index = index
        self._where = where

    @property
    def numbers(self) -> Sequence[str]:
        return self._index.numbers

    @property
    def whole_numbers(self) -> frozenset[str]:
        return self._index.whole_numbers

    @property
    def texts(self) -> Sequence[str]:
        return self._index.texts

    @property
    def task_texts(self) -> Sequence[str]:
        return self._index.columns("tasks")

    def table(self, columns: Sequence[str]) -> pa.Table:
        return self._index.table(columns, self._where, may_code=True)

    def task_table(self, columns: Sequence[str]) -> pa.Table:
        chosen = ", ".join(f'"{name}"' for name in columns)
        return self._index.select(f"SELECT {chosen} FROM tasks WHERE task IS NOT NULL")

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        return self._index.read(rows)

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonObject]]:
        return self._index.task_rows(tasks)

    def connection(self) -> Any:
        """For a user's own check: `evidence.index.connection()`."""
        return self._index.connection()


def index_evidence(index: Index, options: CheckOptions) -> Evidence:
    """The evidence of an opened run."""
    manifests = [read_manifest(files) for files in index.runs]
    known = [manifest for manifest in manifests if manifest is not None]
    is_whole = len(known) == len(index.runs) and bool(known) and options.where is None
    per_task = [] if is_whole or options.where is not None else _rollouts_per_task(index)
    samples = {index.samples} if is_whole else set(per_task)
    lost = [] if is_whole or per_task or options.where is not None else index.failed_tasks()
    texts = {str(files.rollouts) for files in index.runs}
    about = About(
        name=" ".join(_run_name(files) for files in index.runs),
        model=next((str(item.config["model"]) for item in known if item.config.get("model")), None),
        expected=(index.expected if is_whole else sum(per_task) or (len(index) + len(lost) if lost else 0))
        or None,
        failed_tasks=lost,
        samples=samples.pop() if len(samples) == 1 else None,
        is_running=any(
            manifest is not None and manifest.state == "running" and is_alive(files, manifest)
            for files, manifest in zip(index.runs, manifests, strict=True)
        ),
        rejected_lines=index.rejected_lines,
        noted=[(bad.line, bad.reason) for bad in index.rejects if bad.is_kept and bad.file in texts],
        duplicates=index.duplicate_count,
        duplicate_places=[
            {"task": item.task, "rollout": item.rollout, "line": item.line} for item in index.duplicates
        ],
        where=options.where,
        declared=options.reward_range or _declared(known, index.verifier),
        suspect=next((window for item in known if (window := _suspect(item)) is not None), None),
    )
    source: EvidenceSource = IndexSource(index, options.where)
    return Evidence(source, about, places_limit=options.places_limit)


def _suspect(manifest: Manifest) -> SuspectWindow | None:
    """The window that `collect` marked; None when the manifest has none, or one that makes no sense."""
    if not manifest.extra.get("suspect"):
        return None
    try:
        return msgspec.convert(manifest.extra["suspect"], SuspectWindow)
    except msgspec.ValidationError:
        return None


def _rollouts_per_task(index: Index) -> list[int]:
    """How many rollouts of each task NeMo Gym's materialized inputs ask for; empty when there are none."""
    inputs = index.inputs_per_task()
    return [] if inputs is None else inputs[1].tolist()


def _declared(manifests: Sequence[Manifest], verifier: str | None) -> tuple[float, float] | None:
    """The range that the run's own verifier declared; None when another one's verdicts are looked at."""
    if verifier is not None or len(manifests) != 1 or not manifests[0].extra.get("reward_range"):
        return None
    low, high = manifests[0].extra["reward_range"]
    return float(low), float(high)


def _run_name(files: RunFiles) -> str:
    """How a run is called in commands: its folder, when that is enough."""
    return shlex.quote(
        str(files.rollouts.parent if files.rollouts.name == "rollouts.jsonl" else files.rollouts)
    )
