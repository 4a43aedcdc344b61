"""This module carries one preparation through: gather, plan, write, read back, describe, put in place."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter, load_exporter, refuse_unsupported
from rollforge.exporters.examples import KIND_OF_RECIPE
from rollforge.exporters.template import Prover, load_template, pick_shaping
from rollforge.recipes import RECIPES
from rollforge.records import JsonObject
from rollforge.steps.prepare.card import files_by_split, write_card
from rollforge.steps.prepare.counts import DRY, counts_of
from rollforge.steps.prepare.examples import Converter
from rollforge.steps.prepare.form import container_of, policies_of, shaping_of
from rollforge.steps.prepare.gather import Pool, load_pool
from rollforge.steps.prepare.lineage import write_lineage
from rollforge.steps.prepare.manifest import (
    NAME,
    FileRecord,
    Manifest,
    describe_inputs,
    files_beside,
    files_of_runs,
    versions,
)
from rollforge.steps.prepare.place import Place, naming_the_place
from rollforge.steps.prepare.plan import Plan, make_plan, refuse_wrong_shape
from rollforge.steps.prepare.recheck import NotUnicode, OnlyTimes, recheck
from rollforge.steps.prepare.replan import PlanChanged, refuse_outdated
from rollforge.steps.prepare.settings import Settings, make_settings
from rollforge.steps.prepare.statistics import describe, outlook, red_flags, scale_flags
from rollforge.steps.prepare.text import Answers, rule_out_by_text
from rollforge.steps.prepare.write import Progress, Written, write_dataset
from rollforge.store import RunFiles
from rollforge.store.digest import Digests
from rollforge.store.find import find_runs


def silent(phase: str, done: int, total: int) -> None:
    """Nobody is watching."""


def prepare(
    recipe: str,
    runs: str | Path | Sequence[str | Path],
    *,
    to: str,
    out: str | Path | None = None,
    dry_run: bool = False,
    check: JsonObject | None = None,
    progress: Progress = silent,
    **options: object,
) -> Manifest:
    """Write the data set of a recipe for a trainer into the folder `out`; a dry run only counts.

    Args:
        recipe: sft, dpo, kto, rm, ppo or grpo.
        runs: a run, or several pooled.
        to: the exporter.
        check: what `rollforge check` said before, for the manifest.
        options: fields of `Settings`.
    """
    exporter_type, settings = refuse_mistakes(recipe, to=to, out=out, dry_run=dry_run, **options)
    names = _name_runs([runs] if isinstance(runs, str | Path) else list(runs))
    pool = load_pool(names, settings)
    with closing(pool), Digests() as digests:
        digests.begin((path, folder) for _, path, folder in files_of_runs(names))
        maker = _Maker(recipe, names, exporter_type, settings, pool, check or {}, progress)
        return maker.count() if dry_run or out is None else maker.make(Path(out))


def refuse_mistakes(
    recipe: str, *, to: str, out: str | Path | None, dry_run: bool = False, **options: object
) -> tuple[type[Exporter], Settings]:
    """What was asked for, understood; raises for what cannot be carried out, before any run is opened."""
    RECIPES.load(recipe)
    exporter_type = load_exporter(to)
    refuse_unsupported(exporter_type, recipe)
    if out is None and not dry_run:
        raise UsageError("prepare needs a folder to write to", hint="give -o DIR, or --dry-run to count only")
    settings = make_settings(options)
    if settings.balance == "label" and recipe != "kto":
        raise UsageError(
            f"--balance label is for kto; {recipe} has no labels", hint="balance by difficulty or a column"
        )
    refuse_wrong_shape(recipe, settings, exporter_type)
    kind = KIND_OF_RECIPE[recipe]
    container = container_of(exporter_type, settings, kind)
    shaping_of(exporter_type, settings, kind, container)
    if settings.images == "pass" and container == "parquet":
        raise UsageError("a Parquet column of texts has no place for images", hint="--format jsonl")
    if settings.images == "pass" and not exporter_type.takes_images:
        raise UsageError(f"{exporter_type.name} takes text only", hint="images pass through in --to chat")
    return exporter_type, settings


def _name_runs(given: Sequence[str | Path]) -> list[str]:
    """Every run by a name of its own: as given, or its file where a pattern stands for several."""
    names: list[str] = []
    for item in given:
        found = find_runs(item)
        names += (
            [str(item)]
            if len(found) == 1 and RunFiles(item).rollouts.is_file()
            else [str(run.rollouts) for run in found]
        )
    return list(dict.fromkeys(names))


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Look for cycles seldom: rows are many small objects without any, and looking through them is a tenth of the work."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Maker:
    """One preparation."""

    def __init__(
        self,
        recipe: str,
        runs: list[str],
        exporter_type: type[Exporter],
        settings: Settings,
        pool: Pool,
        check: JsonObject,
        progress: Progress,
    ) -> None:
        self._recipe, self._runs, self._pool = recipe, runs, pool
        self._settings, self._check, self._progress = settings, check, progress
        self._container = container_of(exporter_type, settings, KIND_OF_RECIPE[recipe])
        self._exporter_type = exporter_type
        self._changes: list[str] = []
        self._start_over()
        rule_out_by_text(pool, settings, progress, self._answers())

    def _start_over(self) -> None:
        """Take an exporter that has seen no row, so that none changes the form of a data set it is not in."""
        exporter_type, settings = self._exporter_type, self._settings
        shaping = shaping_of(exporter_type, settings, KIND_OF_RECIPE[self._recipe], self._container)
        self._exporter = exporter_type(shaping)
        self._prover = self._use_template() if settings.template is not None else None

    def _answers(self) -> Answers:
        if KIND_OF_RECIPE[self._recipe] == "prompt" and self._settings.shape != "groups":
            return "unwritten"
        return "copied" if self._exporter_type.is_raw else "converted"

    def _use_template(self) -> Prover:
        """Let the template pick the form, as far as the user left it open."""
        exporter, settings = self._exporter, self._settings
        if exporter.is_raw or exporter.name == "llama-factory":
            raise UsageError(f"--template does not apply to {exporter.name}: it renders no messages of ours")
        template = load_template(str(settings.template))
        fixed = {name: getattr(settings, name) for name in ("arguments", "tools", "reasoning", "keys")}
        fixed = {name: value for name, value in fixed.items() if value != "auto"}
        if self._container == "parquet" and exporter.shape_as.arguments != "text":
            fixed |= {"keys": "uniform", "arguments": fixed.get("arguments", "string")}
        exporter.shape_as, exporter.fallback, shows_tools = pick_shaping(template, exporter.shape_as, fixed)
        return Prover(template, shows_tools=shows_tools)

    def count(self) -> Manifest:
        """The plan as a manifest: what would be written, and what other thresholds would give."""
        plan = make_plan(self._recipe, self._pool, self._settings)
        numbers = np.arange(len(plan.selection))
        manifest = self._manifest(plan, numbers, {}, [])
        manifest.dry_run = True
        manifest.counts["examples"] |= {DRY: len(numbers), "written": 0}
        manifest.splits = {name: int((plan.split == code).sum()) for code, name in enumerate(plan.splits)}
        if plan.selection.kind != "scored":
            manifest.outlook = outlook(self._recipe, self._pool, self._settings.recipe_options())
        return manifest

    def make(self, out: Path) -> Manifest:
        """Write, read back, describe, put in place."""
        form = self._settings.pairs if self._settings.pairs != "auto" else self._exporter_type.pair_form
        policies = policies_of(self._exporter_type, self._settings)
        plan = make_plan(self._recipe, self._pool, self._settings)
        converter = Converter(self._pool, plan, self._settings, self._exporter, policies, form, self._prover)
        with naming_the_place(out), Place(out) as place:
            written, files = self._write(converter, place)
            plan = converter.plan
            self._pool.close()  # what follows needs columns only, and memory of its own
            write_lineage(place.folder, written, plan, self._pool, self._runs)
            numbers = np.concatenate([np.frombuffer(file.examples, dtype=np.int64) for file in written.files])
            manifest = self._manifest(plan, numbers, written.lost, files)
            manifest.untidy = dict(sorted(converter.tally.marks.items()))
            manifest.form |= {"changes": self._changes + written.changes, "answers": form}
            self._write_beside(place, manifest)
            place.settle([file.path for file in files])
        return manifest

    def _write(self, converter: Converter, place: Place) -> tuple[Written, list[FileRecord]]:
        """Write, and read back; again where the texts turn out to need another way, or another plan."""
        with rarely_collecting():
            while True:
                try:
                    return self._write_and_check(converter, place)
                except PlanChanged as changed:
                    converter.plan = changed.plan
                except NotUnicode:
                    converter.start_over(is_careful=True)
                except OnlyTimes as found:
                    self._use_parquet(str(found))
                self._start_over()
                converter.exporter, converter.prover = self._exporter, self._prover
                place.clear()

    def _use_parquet(self, column: str) -> None:
        """Change to a file that says what is a text, so that no loader takes texts for times."""
        exporter_type, settings = self._exporter_type, self._settings
        kind = KIND_OF_RECIPE[self._recipe]
        if settings.format != "auto" or "parquet" not in exporter_type.containers_for(kind):
            raise UsageError(
                f"every text of {column} looks like a date, and the loader of {exporter_type.name} would make times of them",
                hint="--format parquet, or --to chat --format parquet, keeps them texts",
            )
        self._container = "parquet"
        self._changes.append(
            f"written as Parquet: every text of {column} looks like a date, which JSON cannot say is a text"
        )

    def _write_and_check(self, converter: Converter, place: Place) -> tuple[Written, list[FileRecord]]:
        written = write_dataset(
            converter, place.folder, self._container, self._settings.shards, self._progress
        )
        plan = converter.plan
        refuse_outdated(self._recipe, self._pool, plan, converter.tally, self._settings)
        if not written.rows:
            raise UsageError(_nothing(plan, written), hint="see what other thresholds give: add --dry-run")
        prompts = self._pool.prompt[plan.selection.first]
        return written, recheck(
            written, place.folder, self._recipe, plan, self._exporter, prompts, self._progress
        )

    def _write_beside(self, place: Place, manifest: Manifest) -> None:
        kind = manifest.kind
        companions = self._exporter.companions(self._recipe, kind, files_by_split(manifest))  # type: ignore[arg-type]
        for name, text in companions.items():
            (place.folder / name).write_text(text, encoding="utf-8")
        (place.folder / "README.md").write_text(write_card(manifest, self._exporter), encoding="utf-8")
        (place.folder / NAME).write_bytes(manifest.to_json())

    def _manifest(
        self, plan: Plan, numbers: np.ndarray, lost: dict[int, str], files: list[FileRecord]
    ) -> Manifest:
        pool, selection = self._pool, plan.selection
        statistics = describe(pool, selection, numbers)
        shaping = self._exporter.shape_as
        form: JsonObject = {"container": self._container, "copied": self._exporter.is_raw}
        if not self._exporter.is_raw:
            form |= msgspec.to_builtins(shaping)
            if selection.kind == "prompt" and not self._exporter.has_task_rows:
                form["tools"] = self._exporter.prompt_tools
        return Manifest(
            recipe=self._recipe,
            to=self._exporter.name,
            kind=selection.kind,
            options=self._settings,
            seed=self._settings.seed,
            inputs=describe_inputs(self._runs, files_beside(self._settings)),
            versions=versions(),
            thresholds=selection.settings,
            counts=counts_of(pool, plan, numbers, lost),
            untidy={},
            form=form,
            statistics=statistics,
            splits=_split_counts(plan, files),
            files=files,
            flags=[
                *red_flags(self._recipe, len(numbers), statistics),
                *scale_flags(pool.candidates.reward, selection.settings, self._settings.recipe_options()),
            ],
            check=self._check,
        )


def _split_counts(plan: Plan, files: list[FileRecord]) -> dict[str, int]:
    return {name: sum(file.rows for file in files if file.split == name) for name in plan.splits}


def _nothing(plan: Plan, written: Written) -> str:
    fates = ", ".join(
        f"{count:,} {reason}" for reason, count in plan.selection.fates.items() if reason != "kept" and count
    )
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in written.dropped.items())
    return f"no example is left: {'; '.join(part for part in (fates, reasons) if part) or 'there are no rollouts'}"
