"""The Python API: `rf.collect(...)` and the `Run` it returns. Each method is one command's twin.

It only assembles steps; nothing is computed here and nothing is printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollforge.errors import GateFailed
from rollforge.records import JsonObject, from_json
from rollforge.registry import refuse_unknown
from rollforge.store import RunFiles

if TYPE_CHECKING:
    from rollforge.checks.finding import Recipe
    from rollforge.reports import Texts
    from rollforge.steps.check import Report
    from rollforge.steps.collect import CollectResult
    from rollforge.steps.metrics import RunMetrics
    from rollforge.steps.prepare import DatasetManifest
    from rollforge.steps.profile import Profile
    from rollforge.steps.status import Status

Verifier = str | Callable[..., Any]


class Run:
    """A run on disk. Nothing is read until it is asked for."""

    def __init__(
        self, path: str | Path | Sequence[str | Path], *, result: CollectResult | None = None
    ) -> None:
        self.paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
        """The run's files: mostly one; several, or a glob, are read as one run."""
        self.path = self.paths[0]
        self.files = RunFiles(self.path)
        self.result = result
        """How the collection that made this object ended; None for a run that was opened."""

    def __repr__(self) -> str:
        return f"Run({', '.join(repr(str(path)) for path in self.paths)})"

    def __iter__(self) -> Iterator[JsonObject]:
        """The rollout rows, one at a time."""
        from rollforge.index import read_lines
        from rollforge.store.find import find_runs

        for files in find_runs(self.paths):
            for line in read_lines(files.rollouts):
                if line.strip():
                    yield from_json(line)

    def metrics(self, *, verifier: str | None = None, **options: Any) -> RunMetrics:
        """Every number with its count, coverage and interval; `options` are those of the command, such as `where`."""
        from rollforge.steps.metrics import MetricsOptions, summarize_run

        refuse_unknown(options, MetricsOptions.__struct_fields__, "metrics")
        return summarize_run(self.paths, verifier=verifier, options=MetricsOptions(**options))

    def profile(self, *, verifier: str | None = None, **options: Any) -> Profile:
        """Statistics per task (`.tasks`) and per agent (`.agents`), as tables; `options` as in `metrics`."""
        from rollforge.steps.profile import ProfileOptions, profile_run

        refuse_unknown(options, ProfileOptions.__struct_fields__, "profile")
        return profile_run(self.paths, verifier=verifier, options=ProfileOptions(**options))

    def check(self, recipe: Recipe | None = None, **options: Any) -> Report:
        """Findings about the run, for training with `recipe` if one is named: `.ok`, `.findings`. Raises nothing."""
        from rollforge.steps.check import CheckOptions, check_run

        refuse_unknown(options, CheckOptions.__struct_fields__, "check")
        return check_run(self.paths, recipe=recipe, **options)

    def prepare(self, recipe: str, *, to: str, out: str | Path, **options: Any) -> DatasetManifest:
        """Write the dataset of a recipe for a trainer; `options` are those of `rollforge prepare`, such as `min_gap`.

        Raises:
            GateFailed: the checks for this recipe found an error; `force=True` goes on all the same.
        """
        from rollforge.steps.prepare import prepare

        force = bool(options.pop("force", False))
        ignore = tuple(options.pop("ignore", ()))
        names = [str(path) for path in self.paths]
        checked = gate(recipe, names, ignore=ignore, force=force, verifier=options.get("verifier"))
        return prepare(recipe, self.paths, to=to, out=out, check=checked, **options)

    def report(self, out: str | Path, *, texts: Texts = "some", verifier: str | None = None) -> Path:
        """Write the report of the run as one self-contained HTML file; `texts="none"` leaves out prompts and answers."""
        from rollforge.reports import write_report

        return Path(write_report(self.paths[:1], out, texts=texts, verifier=verifier).path)

    def status(self) -> Status:
        """How far the run is."""
        from rollforge.steps.status import read_status

        return read_status(self.path)


def collect(
    tasks: str | Path,
    *,
    model: str,
    out: str | Path,
    base_url: str | Sequence[str] = (),
    verifier: Verifier | None = None,
    samples: int = 1,
    limit: int | None = None,
    **options: Any,
) -> Run:
    """Collect rollouts and return the run; an existing run is resumed.

    Args:
        options: Any other field of `CollectOptions`, such as `concurrency`, `overrides` or `max_total_tokens`.
    """
    from rollforge.loop import run_async
    from rollforge.steps.collect import Collection, CollectOptions

    refuse_unknown(options, [field.name for field in fields(CollectOptions)], "collect")
    urls = (base_url,) if isinstance(base_url, str) else tuple(base_url)
    chosen = CollectOptions(
        input=str(tasks),
        out=str(out),
        model=model,
        base_urls=urls,
        verifier=verifier,
        samples=samples,
        limit=limit,
        **options,
    )
    result = run_async(Collection(chosen).run())
    return Run(out, result=result)


def gate(
    recipe: str,
    runs: Sequence[str],
    *,
    ignore: Sequence[str] = (),
    force: bool = False,
    verifier: str | None = None,
    stops: bool = True,
) -> JsonObject:
    """What the checks for a recipe say, for the manifest of a dataset; an error stops unless forced."""
    from rollforge.steps.check import check_run

    report = check_run(
        list(runs), recipe=cast("Recipe", recipe), verifier=verifier, ignore=tuple(ignore), only_recipe=True
    )
    errors = [finding for finding in report.findings if finding.level == "error"]
    if stops and not report.ok and not force:
        reasons = "".join(f"\n  {finding.id}: {finding.text}" for finding in errors)
        raise GateFailed(
            f"{', '.join(runs)} is not fit for {recipe}{reasons}",
            hint=f"see all of it: rollforge check {shlex.join(runs)} --for {recipe}; "
            "--ignore ID or --force goes on, and the manifest records it",
            exit_code=report.exit_code,
        )
    return {
        "ran": True,
        "ok": report.ok,
        "errors": [finding.id for finding in errors],
        "warnings": [finding.id for finding in report.findings if finding.level == "warning"],
        "forced": force,
        **({"ignored": list(ignore)} if ignore else {}),
    }


def open_run(path: str | Path | Sequence[str | Path]) -> Run:
    """A run that is already on disk, collected by rollforge or by NeMo Gym; several files, or a glob, are one run."""
    return Run(path)
