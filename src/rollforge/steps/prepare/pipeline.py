"""Prepares one dataset: pool the runs, plan, survey, write, read back, describe, move into place."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter, load_exporter, refuse_unsupported
from rollforge.exporters.form import Form
from rollforge.index import Index, codes
from rollforge.recipes.base import ExampleKind, Ints, load_recipe
from rollforge.runtime.typed_decoding import convert
from rollforge.steps.prepare.asked_form import AskedForm, asked_form, container_of, policies_of, shaping_of
from rollforge.steps.prepare.card import files_by_split, write_card
from rollforge.steps.prepare.dataset_manifest import (
    NAME,
    CheckRecord,
    DatasetManifest,
    FormRecord,
    RedFlag,
    RunSource,
    describe_inputs,
    files_beside,
    files_of_runs,
    versions,
)
from rollforge.steps.prepare.dataset_plan import DatasetPlan, make_plan, plan_again, refuse_wrong_shape
from rollforge.steps.prepare.describe import DRY, count_fates, describe, outlook, red_flags, scale_flags
from rollforge.steps.prepare.draft import Draft
from rollforge.steps.prepare.example_messages import ExampleSource
from rollforge.steps.prepare.lineage import write_fates, write_lineage
from rollforge.steps.prepare.output_folder import OutputFolder, reporting_disk_errors
from rollforge.steps.prepare.read_back import read_back
from rollforge.steps.prepare.rollout_pool import Pool, load_pool
from rollforge.steps.prepare.sequences import refuse_sequences
from rollforge.steps.prepare.settings import KEPT_BY, Settings, flags_behind, make_settings
from rollforge.steps.prepare.survey import Survey, survey
from rollforge.steps.prepare.text_filters import AnswerUse, rule_out_by_text
from rollforge.steps.prepare.write_rows import Progress, Written, copy_dataset, write_dataset
from rollforge.store import RunFiles, read_manifest
from rollforge.store.digest import Digests
from rollforge.store.find import find_runs


def silent(phase: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


@dataclass
class PrepareJob:
    """The validated request of a preparation."""

    recipe: str
    exporter: Exporter
    settings: Settings
    form: AskedForm
    out: Path | None
    """Output folder; None for a dry run."""

    @property
    def is_copy(self) -> bool:
        """Whether rows are unchanged rollout lines."""
        return self.exporter.is_raw and self.answers != "unwritten"

    @property
    def answers(self) -> AnswerUse:
        """How rows use answers: convert, copy or omit them."""
        if load_recipe(self.recipe).kind == "prompt" and self.settings.shape != "groups":
            return "unwritten"
        return "copied" if self.exporter.is_raw else "converted"

    @property
    def pair_form(self) -> str:
        """The part of an answer that a pair or label is about: `whole` or `step`."""
        return self.settings.pairs if self.settings.pairs != "auto" else self.exporter.pair_form


def prepare(
    recipe: str,
    runs: str | Path | Sequence[str | Path],
    *,
    to: str,
    out: str | Path | None = None,
    dry_run: bool = False,
    check: CheckRecord | Mapping[str, object] | None = None,
    index: Index | None = None,
    progress: Progress = silent,
    **options: object,
) -> DatasetManifest:
    """Write the dataset of a recipe for a trainer into the folder `out`; a dry run only counts.

    Args:
        recipe: sft, dpo, kto, rm, ppo or grpo.
        runs: a run, or several to pool.
        to: the exporter.
        check: the result of `rollforge check`, for the manifest. index: the run's index, if already open.
        options: fields of `Settings`.
    """
    return carry_out(
        understand(recipe, to=to, out=out, dry_run=dry_run, **options),
        runs,
        check=check,
        index=index,
        progress=progress,
    )


def carry_out(
    job: PrepareJob,
    runs: str | Path | Sequence[str | Path],
    *,
    check: CheckRecord | Mapping[str, object] | None = None,
    index: Index | None = None,
    progress: Progress = silent,
) -> DatasetManifest:
    """Carry out a validated job; `index` is the run's index, if already open."""
    names = _name_runs([runs] if isinstance(runs, str | Path) else list(runs))
    checked = convert(check or {}, CheckRecord, from_attributes=True)
    with closing(load_pool(names, job.settings, index)) as pool, Digests() as digests:
        digests.begin((path, folder) for _, path, folder in files_of_runs(names))
        rule_out_by_text(pool, job.settings, progress, job.answers)
        if job.out is None:
            manifest = _count(job, names, pool)
            manifest.check = checked
            return manifest
        return _make(job, names, pool, job.out, checked, progress)


def understand(
    recipe: str, *, to: str, out: str | Path | None, dry_run: bool = False, **options: object
) -> PrepareJob:
    """Validate the request before any run is opened; raises for impossible ones."""
    chosen = load_recipe(recipe)
    exporter = load_exporter(to)
    refuse_unsupported(exporter, recipe, chosen.like)
    if out is None and not dry_run:
        raise UsageError("prepare needs a folder to write to", hint="give -o DIR, or --dry-run to count only")
    settings = make_settings(options)
    if settings.balance == "label" and chosen.kind != "labelled":
        raise UsageError(
            f"--balance label is for kto; {recipe} has no labels", hint="balance by difficulty or a column"
        )
    refuse_wrong_shape(recipe, settings, exporter)
    _refuse_unread(recipe, chosen.kind, settings)
    kind = chosen.kind
    if settings.sequences == "all":
        is_scored = settings.shape in ("groups", "scored")
        refuse_sequences(recipe, "scored" if is_scored else kind, is_copy=exporter.is_raw)
    container = container_of(exporter, settings, kind)
    shaping_of(exporter, settings, kind, container)
    if settings.images == "pass" and container == "parquet":
        raise UsageError("a Parquet column of texts has no place for images", hint="--format jsonl")
    if settings.images == "pass" and not exporter.takes_images:
        raise UsageError(f"{exporter.name} takes text only", hint="images pass through in --to chat")
    form = asked_form(exporter, settings, kind, container)
    folder = None if dry_run or out is None else Path(out)
    return PrepareJob(recipe, exporter(), settings, form, folder)


def _refuse_unread(recipe: str, kind: ExampleKind, settings: Settings) -> None:
    """Raise for an option whose field, file or condition would have no effect."""
    if kind not in ("pair", "labelled"):
        for name in ("chosen_where", "rejected_where"):
            if getattr(settings, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for dpo, rm and kto; {recipe} has no such sides",
                    hint="--where selects rollouts for every recipe",
                )
    if settings.ground_truth is not None and kind != "prompt":
        raise UsageError(f"--ground-truth is for ppo and grpo; {recipe} rows have none", hint="leave it out")
    if settings.tokenizer is not None and settings.max_tokens is None:
        raise UsageError(
            "--tokenizer is only read with --max-tokens", hint="add --max-tokens 4096, or leave it out"
        )


def _name_runs(patterns: Sequence[str | Path]) -> list[str]:
    """A name for every run: as given, or the file name if a pattern matches several."""
    names: list[str] = []
    for item in patterns:
        runs = find_runs(item)
        names += (
            [str(item)]
            if len(runs) == 1 and (RunFiles(item).rollouts.is_file() or RunFiles(item).is_sharded)
            else [str(run.rollouts) for run in runs]
        )
    return list(dict.fromkeys(names))


def _count(job: PrepareJob, runs: list[str], pool: Pool) -> DatasetManifest:
    """A dry run's manifest: what would be written, and how many examples other thresholds would give."""
    plan = make_plan(job.recipe, pool, job.settings)
    numbers = np.arange(len(plan.selection))
    manifest = _describe(job, runs, pool, plan, numbers, {}, job.form.form)
    manifest.dry_run = True
    manifest.counts.examples |= {DRY: len(numbers), "written": 0}
    manifest.splits = {name: int((plan.split == code).sum()) for code, name in enumerate(plan.splits)}
    if plan.selection.kind != "scored":
        manifest.outlook = outlook(job.recipe, pool, job.settings.recipe_options())
    return manifest


def _make(
    job: PrepareJob, runs: list[str], pool: Pool, out: Path, checked: CheckRecord, progress: Progress
) -> DatasetManifest:
    """Survey, write, read back, describe, and move into place."""
    with reporting_disk_errors(out), OutputFolder(out) as folder, _seldom_collecting():
        marks: Mapping[str, int] = {}
        if job.is_copy:
            plan, form = make_plan(job.recipe, pool, job.settings), job.form.form
            _refuse_nothing(plan, {}, job.settings)
            written = copy_dataset(pool, plan, job.exporter, form, folder.path, job.settings.shards, progress)
        else:
            plan, surveyed = _plan_and_survey(job, pool, folder.path, progress)
            form, marks = surveyed.form, surveyed.marks
            written = surveyed.written or write_dataset(
                _source(job, pool, plan, form),
                plan,
                job.exporter,
                form,
                surveyed.lost,
                folder.path,
                job.settings.shards,
                progress,
            )
        prompts = pool.prompt[plan.selection.first]
        files = read_back(written, folder.path, job.exporter, plan.selection.kind, form, prompts, progress)
        write_lineage(folder.path, written, plan, pool, runs)
        write_fates(folder.path, plan, pool, runs, written.numbers, written.lost)
        manifest = _describe(job, runs, pool, plan, written.numbers, written.lost, form)
        manifest.files, manifest.check, manifest.untidy = files, checked, dict(sorted(marks.items()))
        manifest.splits = {name: sum(f.rows for f in files if f.split == name) for name in plan.splits}
        manifest.form.changes, manifest.form.answers = list(form.changes), job.pair_form
        _write_beside(folder.path, job, manifest)
        folder.settle()
    return manifest


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Run the garbage collector rarely: rows are many small objects without cycles, and scanning them takes a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _plan_and_survey(
    job: PrepareJob, pool: Pool, folder: Path, progress: Progress
) -> tuple[DatasetPlan, Survey]:
    """A plan whose examples can all be written, except for irreplaceable ones.

    The selection depends on the candidates, so the recipe selects again without the examples that the survey found inexpressible.
    """
    plan = make_plan(job.recipe, pool, job.settings)
    while True:
        source = _source(job, pool, plan, job.form.form)
        draft = Draft(folder, plan, job.exporter, job.settings.shards, progress)
        surveyed = survey(source, plan, job.exporter, job.settings, job.form, pool.prompt, draft)
        again = plan_again(
            job.recipe, pool, plan, job.settings, lost=surveyed.lost, unreadable=source.unreadable
        )
        if again is None:
            _refuse_nothing(plan, surveyed.lost, job.settings)
            return plan, surveyed
        draft.drop()
        plan = again


def _source(job: PrepareJob, pool: Pool, plan: DatasetPlan, form: Form) -> ExampleSource:
    return ExampleSource(
        pool,
        plan,
        job.settings,
        job.exporter,
        policies=policies_of(type(job.exporter), job.settings),
        shaping=form.shaping,
        pair_form=job.pair_form,
    )


def _refuse_nothing(plan: DatasetPlan, lost: Mapping[int, str], settings: Settings) -> None:
    """Raise if no example is left, with the fates of all rollouts and the flags that decided them."""
    if len(plan.selection) > len(lost):
        return
    counts = {reason: count for reason, count in plan.selection.fates.items() if reason != "kept" and count}
    flags = {reason: flags_behind(reason, settings, plan.selection.settings) for reason in counts}
    fates = ", ".join(
        f"{count:,} {reason}" + (f" ({', '.join(flags[reason])})" if flags[reason] else "")
        for reason, count in counts.items()
    )
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in Written([], lost).dropped.items())
    text = "; ".join(part for part in (fates, reasons) if part) or "there are no rollouts"
    most = max(counts, key=lambda reason: counts[reason], default="")
    hint = "see what other thresholds give: add --dry-run"
    if most in KEPT_BY:
        hint = f"{KEPT_BY[most]} keeps them"
    elif flags.get(most):
        hint = f"change {flags[most][0].partition(' ')[0]}; {hint}"
    raise UsageError(f"no example is left: {text}", hint=hint)


def _write_beside(folder: Path, job: PrepareJob, manifest: DatasetManifest) -> None:
    kind = load_recipe(job.recipe).kind
    companions = job.exporter.companions(kind, files_by_split(manifest))
    for name, text in companions.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(write_card(manifest, job.exporter), encoding="utf-8")
    (folder / NAME).write_bytes(manifest.to_json())


def _describe(
    job: PrepareJob,
    runs: list[str],
    pool: Pool,
    plan: DatasetPlan,
    numbers: Ints,
    lost: Mapping[int, str],
    form: Form,
) -> DatasetManifest:
    """The manifest of the written examples, without their files."""
    selection, options = plan.selection, job.settings.recipe_options()
    statistics = describe(pool, selection, numbers)
    return DatasetManifest(
        recipe=job.recipe,
        to=job.exporter.name,
        kind=selection.kind,
        options=job.settings,
        seed=job.settings.seed,
        inputs=describe_inputs(runs, files_beside(job.settings)),
        versions=versions(),
        sources=[_source_of(run, index) for run, index in zip(runs, pool.indexes, strict=True)],
        thresholds=dict(selection.settings),
        counts=count_fates(pool, plan, numbers, lost),
        untidy={},
        form=_form_record(job.exporter, selection.kind, form),
        statistics=statistics,
        splits={},
        decontamination=pool.evaluations,
        flags=[
            *red_flags(load_recipe(job.recipe).like, len(numbers), statistics),
            *scale_flags(pool.candidates.reward, selection.settings, options),
            *_adaptive_flags(pool.indexes),
        ],
    )


def _adaptive_flags(indexes: Sequence[Index]) -> list[RedFlag]:
    """Flags on adaptive sampling: statistics then describe the dataset's rows, not the model."""
    if not any(index.designs for index in indexes):
        return []
    text = (
        "tasks were sampled adaptively: rewards, pass rates and difficulties here are over samples that the rule chose to take; "
        "for unbiased ones see rollforge metrics"
    )
    return [RedFlag("adaptive-run", text)]


def _source_of(run: str, index: Index) -> RunSource:
    """Model and verifier of a run, from its manifest and rows."""
    config, model = {}, None
    if (manifest := read_manifest(RunFiles(run))) is not None:
        config, model = manifest.config, manifest.config.get("model")
    seen = {
        name: sorted(codes(index.table([name], may_code=True).column(name))[1])
        for name in ("model", "verifier", "fingerprint")
    }
    requested_models = [model] if isinstance(model, str) else []
    options = config.get("verifier_options")
    return RunSource(
        run=run,
        models=list(dict.fromkeys([*requested_models, *seen["model"]])),
        verifiers=seen["verifier"] or [name for name in (config.get("verifier"),) if isinstance(name, str)],
        verifier_options=options if isinstance(options, dict) else {},
        fingerprints=seen["fingerprint"],
    )


def _form_record(exporter: Exporter, kind: str, form: Form) -> FormRecord:
    if exporter.is_raw:
        return FormRecord(container=form.container, copied=True)
    record = FormRecord(container=form.container, copied=False, **msgspec.to_builtins(form.shaping))
    if kind == "prompt" and not exporter.has_task_rows:
        record.tools = exporter.prompt_tools
    if kind == "demonstration" and exporter.completion_columns is not None:
        record.layout = form.layout
    return record
