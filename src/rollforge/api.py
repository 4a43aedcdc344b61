"""The Python API: `rf.collect(...)`, `rf.evaluate(...)` and others, one function per command, and the `Run` they return.

The functions only assemble steps; they compute and print nothing. Functions that wait for a server or a verifier have two forms:
the plain one blocks, also inside a running event loop (a notebook); the one named `…_async` is awaited.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from rollforge.errors import GateFailed, UsageError
from rollforge.interactive.buckets import is_address, read_here, refuse_address, written_folder, written_run
from rollforge.records import JsonObject, from_json
from rollforge.store import RunFiles
from rollforge.text_safety.bucket_addresses import ADDRESSES

if TYPE_CHECKING:
    import pyarrow as pa

    from rollforge.assembly.reports import Texts
    from rollforge.index import Index
    from rollforge.interactive.evaluated import Benched, Evaluated
    from rollforge.interactive.keywords import (
        CheckKeywords,
        CollectKeywords,
        EvaluateKeywords,
        ExperiencesKeywords,
        MetricsKeywords,
        PrepareKeywords,
        ProbeKeywords,
        ProfileKeywords,
        ShowKeywords,
        VerifyKeywords,
    )
    from rollforge.interactive.lazy_table import Table
    from rollforge.interactive.outcome import RunOutcome
    from rollforge.interactive.progress import Progress
    from rollforge.interactive.rollout_list import ShownRollouts
    from rollforge.review.labels import LabelRates
    from rollforge.steps.check import Report
    from rollforge.steps.collect import CollectResult
    from rollforge.steps.experiences import ExperiencesResult
    from rollforge.steps.metrics import RunComparison, RunMetrics
    from rollforge.steps.prepare import DatasetManifest
    from rollforge.steps.profile import Profile
    from rollforge.steps.show_calls import CallsOfRun
    from rollforge.steps.status import Status
    from rollforge.steps.verify import FlipTable, VerifySummary
    from rollforge.verifiers.probes import ProbeReport

Verifier = str | Callable[..., Any]
Tasks = Any
"""A path, a list of dicts, an iterator of dicts, a pandas or Polars DataFrame, an Arrow table, or a `datasets.Dataset`."""


class Run:
    """A run on disk. Files are read lazily."""

    def __init__(
        self, path: str | Path | Sequence[str | Path], *, result: CollectResult | None = None
    ) -> None:
        paths = [path] if isinstance(path, str | Path) else [*path] if isinstance(path, Iterable) else []
        if not paths:
            raise UsageError(f"{path!r} names no run", hint="give a path, a glob, or a list of them")
        self.paths = [read_here(one) for one in paths]
        """The run's files: usually one; several files or a glob are read as one run. For a run in a bucket, local working copies."""
        self.address = str(paths[0]) if is_address(paths[0]) else None
        """The run's bucket address; None on a local disk."""
        self.path = self.paths[0]
        self.files = RunFiles(self.path)
        self.result = result
        """How the collection ended that made this object; None for an opened run."""

    def __repr__(self) -> str:
        return f"Run({', '.join(repr(ADDRESSES.text(str(path))) for path in self.paths)})"

    def __iter__(self) -> Iterator[JsonObject]:
        """The rollout rows, one at a time."""
        from rollforge.index import read_lines
        from rollforge.store.find import find_runs

        for files in find_runs(self.paths):
            lines = _lines_of_shards(files) if files.is_sharded else read_lines(files.rollouts)
            for line in lines:
                if line.strip():
                    yield from_json(line)

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import result, table

        rows = [("outcome", f"{self.outcome}: {self.outcome.message}")]
        rows += [("files", ", ".join(map(str, self.paths)))]
        return result(repr(self), table(("", ""), rows, numeric=False))

    # How it ended

    @property
    def outcome(self) -> RunOutcome:
        """`done`, `incomplete`, `interrupted`, `over budget`, `broken` or `running`; `.ok`, `.message` and `.next` say more."""
        from rollforge.interactive.ended import outcome_of

        return outcome_of(self.files, self.result)

    def status(self) -> Status:
        """Progress of the run: counts, rate, failures."""
        from rollforge.steps.status import read_status

        return read_status(self._only("status"))

    def _only(self, name: str) -> Path:
        """The path of the run, for what works on one; refused for several."""
        if len(self.paths) > 1:
            raise UsageError(
                f"{name} works on one run, and this one is read from {len(self.paths)} files",
                hint="open each by itself: rf.open_run(PATH)",
            )
        return self.path

    def index(self, *, on: str | None = None, workers: int | None = None) -> None:
        """Build the index now, distributed over processes or machines as with `--on`; later steps read that index."""
        from rollforge.steps.indexing import index_by_workers

        index_by_workers([str(path) for path in self.paths], on=on or "processes", workers=workers)

    # Its tables

    @property
    def rollouts(self) -> Table:
        """The rollouts as a lazy table: rewards, every number, lengths, models; texts come from `.rows()`."""
        return self._table("rollouts")

    @property
    def tasks(self) -> Table:
        """The tasks as a lazy table, one row per task."""
        return self._table("tasks")

    @property
    def failures(self) -> Table:
        """The failed attempts as a lazy table: class, message, task."""
        return self._table("failures")

    def _table(self, name: Any) -> Table:
        from rollforge.interactive.lazy_table import Table

        return Table(self.paths, name)

    def query(self, sql: str, *, verifier: str | None = None) -> pa.Table:
        """The answer to one SELECT over `rollouts`, `tasks` and `failures`, as an Arrow table."""
        from rollforge.index import open_index

        with open_index(self.paths, verifier=verifier) as index:
            return index.select(sql)

    def show(self, *, verifier: str | None = None, **options: Unpack[ShowKeywords]) -> ShownRollouts:
        """Rollouts to read: prompt, reasoning, tool calls and answer laid out; `suspicious=True` shows those that look wrong."""
        from rollforge.index import open_index
        from rollforge.interactive.option_records import resolve
        from rollforge.interactive.rollout_list import ShownRollouts
        from rollforge.steps.show import ShowOptions, show_rollouts

        keywords = resolve("show", options)
        picks = [name for name in ("best", "worst", "suspicious") if keywords.pop(name, False)]
        if len(picks) > 1 or (picks and keywords.get("pick") not in (None, *picks)):
            raise UsageError(f"show: {' and '.join(picks)} exclude each other", hint="give one of them")
        if picks:
            keywords["pick"] = picks[0]
        if isinstance(keywords.get("tasks"), int):
            keywords["tasks"] = (keywords["tasks"],)
        with open_index(self.paths, verifier=verifier) as index:
            return ShownRollouts(show_rollouts(index, ShowOptions(**keywords)))

    # What the commands compute

    def calls(self, *, tasks: Sequence[int] = (), rollout: int | None = None, limit: int = 5) -> CallsOfRun:
        """Recorded model calls of programs: of unfinished rollouts, or of the rollouts named; the command is `show --calls`."""
        from rollforge.steps.show_calls import show_calls

        return show_calls(self.paths, tasks=tasks, rollout=rollout, limit=limit)

    def metrics(self, *, verifier: str | None = None, **options: Unpack[MetricsKeywords]) -> RunMetrics:
        """Every number with its count, coverage and interval: `run.metrics()["reward"].mean`."""
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.metrics import MetricsOptions, summarize_run

        chosen = MetricsOptions(**resolve("metrics", options))
        return summarize_run(self.paths, verifier=verifier, options=chosen)

    def compare(
        self, other: Run | str | Path, *, where: str | None = None, verifier: str | None = None
    ) -> RunComparison:
        """Paired differences (this run − the other) over shared tasks, with a verdict in words; `metrics --against`."""
        from rollforge.index import open_index
        from rollforge.steps.metrics import compare_runs

        with (
            open_index(self.paths, verifier=verifier) as one,
            open_index((other if isinstance(other, Run) else Run(other)).paths, verifier=verifier) as two,
        ):
            return compare_runs(one, two, where=where)

    def compat(self, tool: Literal["nemo-gym", "trinity"], *, where: str | None = None) -> Any:
        """The numbers of another tool under that tool's names; `metrics --compat`."""
        import msgspec

        from rollforge.index import open_index
        from rollforge.steps.metrics import nemo_gym_metrics, trinity_metrics

        with open_index(self.paths) as index:
            if tool == "nemo-gym":
                return msgspec.to_builtins(nemo_gym_metrics(index, where))
            if tool == "trinity":
                return trinity_metrics(index, where)
        raise UsageError(f"compat: no tool {tool!r}", hint="there are nemo-gym and trinity")

    def profile(self, *, verifier: str | None = None, **options: Unpack[ProfileKeywords]) -> Profile:
        """Statistics per task (`.tasks`) and per agent (`.agents`), as tables."""
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.profile import ProfileOptions, profile_run

        chosen = ProfileOptions(**resolve("profile", options))
        return profile_run(self.paths, verifier=verifier, options=chosen)

    def write_profile(
        self,
        *,
        out: str | Path | None = None,
        verifier: str | None = None,
        rollout_infos: bool = False,
        parquet: bool = False,
        gym_files: bool = False,
        **options: Unpack[ProfileKeywords],
    ) -> dict[str, str]:
        """Write the files of `rollforge profile` beside the run or into `out`; returns their paths."""
        from rollforge.index import open_index
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.profile import ProfileOptions, profile_index, write_gym_files, write_profile

        chosen = ProfileOptions(**resolve("profile", options, function="write_profile"))
        folder = Path(out) if out is not None else None
        with open_index(self.paths, verifier=verifier) as index:
            profile = profile_index(index, chosen)
            files = write_profile(
                profile,
                index,
                out=folder,
                rollout_infos=rollout_infos,
                parquet=parquet,
                where=chosen.where,
            )
            if gym_files:
                files |= write_gym_files(index, out=folder, where=chosen.where)
        return files

    def check(self, recipe: str | None = None, **options: Unpack[CheckKeywords]) -> Report:
        """Findings about the run, for training with `recipe` if one is named: `.ok`, `.findings`. Raises nothing."""
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.check import check_run

        return check_run(self.paths, recipe=recipe, **resolve("check", options))

    def prepare(
        self, recipe: str, *, to: str, out: str | Path | None = None, **options: Unpack[PrepareKeywords]
    ) -> DatasetManifest:
        """Write the dataset of a recipe for a trainer; `options` are those of `rollforge prepare`, such as `min_gap`.

        Raises:
            GateFailed: the checks for this recipe found an error; `force=True` goes on all the same.
        """
        from rollforge.index import open_index
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.prepare import PushTarget, prepare, push_dataset

        keywords = resolve("prepare", options)
        push, public = keywords.pop("push", None), bool(keywords.pop("public", False))
        is_rehearsal = bool(keywords.get("dry_run"))
        target = PushTarget.check(push, is_public=public) if push is not None and not is_rehearsal else None
        force = bool(keywords.pop("force", False))
        ignore = tuple(keywords.pop("ignore", ()))
        names = [str(path) for path in self.paths]
        with (
            written_folder(out) as folder,
            open_index(names, verifier=keywords.get("verifier")) as index,
        ):
            checked = gate(recipe, names, index=index, ignore=ignore, force=force, stops=not is_rehearsal)
            manifest = prepare(recipe, self.paths, to=to, out=folder, check=checked, index=index, **keywords)
            if target is None or folder is None:
                return manifest
            return push_dataset(Path(folder), manifest, target)

    def report(self, out: str | Path, *, texts: Texts = "some", verifier: str | None = None) -> Path:
        """Write the report as one self-contained HTML file; `texts="none"` leaves out prompts and answers. Several files are
        compared with the first.
        """
        from rollforge.assembly.reports import write_report

        if texts not in ("some", "none"):
            raise UsageError(f"report: texts={texts!r} is not understood", hint="texts is 'some' or 'none'")
        return Path(write_report(self.paths, out, texts=texts, verifier=verifier).path)

    def probe(self, verifier: Verifier, **options: Unpack[ProbeKeywords]) -> ProbeReport:
        """Test a verifier on answers with a known verdict (gold, empty, swapped): `.is_broken`, `.probes`. Raises nothing."""
        from rollforge.interactive.running import probing

        return probing(self._only("probe"), verifier, options).wait()

    async def probe_async(self, verifier: Verifier, **options: Unpack[ProbeKeywords]) -> ProbeReport:
        """Like `probe`, but awaited."""
        from rollforge.interactive.running import probing

        return await probing(self._only("probe"), verifier, options).run()

    def diff(self, a: str, b: str) -> FlipTable:
        """Compare two verifiers' verdicts: `name`, `name@fast`, `name@1f0c`, `recorded` (the run's own reward) or `labels`."""
        from rollforge.steps.verify import compare

        return compare(self._only("diff"), a, b)

    def use(self, verifier: str) -> None:
        """Select the verifier whose verdicts later steps read; `recorded` selects the run's own rewards."""
        from rollforge.steps.verify import use_verifier

        with written_run(self.address or self._only("use")) as run:
            use_verifier(run, verifier)

    def labels(self, *, verifier: str | None = None, threshold: float = 0.5) -> LabelRates | None:
        """Verifier quality measured by people's labels: precision, recall and error rate; None without labels."""
        from rollforge.index import open_index
        from rollforge.review.labels import run_rates

        with open_index(self.paths, verifier=verifier) as index:
            return run_rates(index, threshold=threshold)

    def experiences(self, **options: Unpack[ExperiencesKeywords]) -> ExperiencesResult:
        """Turn the run into training experiences, written to a file (`out`) or a buffer (`buffer`)."""
        from rollforge.interactive.option_records import resolve
        from rollforge.steps.experiences import ExperienceOptions, make_experiences

        keywords = resolve("experiences", options)
        with written_run(self.address or self._only("experiences")) as run:
            return make_experiences(ExperienceOptions(run=run, **keywords))

    def verify(
        self,
        verifier: Verifier,
        *,
        progress: Progress = "auto",
        strict: bool = False,
        **options: Unpack[VerifyKeywords],
    ) -> VerifySummary:
        """Judge the run with a verifier: now, later or again. Verdicts are appended beside the run."""
        return verify(self, verifier, progress=progress, strict=strict, **options)

    async def verify_async(
        self, verifier: Verifier, *, strict: bool = False, **options: Unpack[VerifyKeywords]
    ) -> VerifySummary:
        """Like `verify`, but awaited."""
        return await verify_async(self, verifier, strict=strict, **options)


def open_run(path: str | Path | Sequence[str | Path]) -> Run:
    """A run that is already on disk, collected by rollforge or by NeMo Gym; several files, or a glob, are one run."""
    return Run(path)


def collect(
    tasks: Tasks,
    *,
    out: str | Path,
    model: str = "",
    base_url: str | Sequence[str] = (),
    verifier: Verifier | None = None,
    samples: int = 1,
    limit: int | None = None,
    progress: Progress = "auto",
    strict: bool = False,
    **options: Unpack[CollectKeywords],
) -> Run:
    """Collect rollouts and return the run; an existing run is resumed. The first interrupt drains, the second aborts.

    Args:
        tasks: A path, a list of dicts, an iterator, a pandas or Polars DataFrame, an Arrow table, or a `datasets.Dataset`.
        progress: `auto` shows a live line in a notebook or a terminal and a few lines in a log; `none` shows nothing.
        strict: Raise when the run ends as broken, incomplete, interrupted or over budget, instead of warning.
        options: Those of `rollforge collect`, such as `temperature`, `k`, `concurrency` or `max_total_tokens`.
    """
    from rollforge.interactive.running import collecting

    work = collecting(tasks, out, model, base_url, verifier, samples, limit, progress, options)
    run = Run(out, result=work.wait())
    run.outcome.tell(f"the run {out}", strict=strict, run=run)
    return run


async def collect_async(
    tasks: Tasks,
    *,
    out: str | Path,
    model: str = "",
    base_url: str | Sequence[str] = (),
    verifier: Verifier | None = None,
    samples: int = 1,
    limit: int | None = None,
    progress: Progress = "none",
    strict: bool = False,
    **options: Unpack[CollectKeywords],
) -> Run:
    """Like `collect`, but awaited. Cancelling drains; cancelling again aborts."""
    from rollforge.interactive.running import collecting

    work = collecting(tasks, out, model, base_url, verifier, samples, limit, progress, options)
    run = Run(out, result=await work.run())
    run.outcome.tell(f"the run {out}", strict=strict, run=run)
    return run


def verify(
    run: Run | str | Path,
    verifier: Verifier,
    *,
    progress: Progress = "auto",
    strict: bool = False,
    **options: Unpack[VerifyKeywords],
) -> VerifySummary:
    """Judge a run with a verifier: now, later or again. Verdicts are appended beside the run."""
    from rollforge.interactive.running import tell_verified, verifying

    summary = verifying(_path_of(run), verifier, progress, options).wait()
    tell_verified(summary, strict=strict)
    return summary


async def verify_async(
    run: Run | str | Path,
    verifier: Verifier,
    *,
    progress: Progress = "none",
    strict: bool = False,
    **options: Unpack[VerifyKeywords],
) -> VerifySummary:
    """Like `verify`, but awaited."""
    from rollforge.interactive.running import tell_verified, verifying

    summary = await verifying(_path_of(run), verifier, progress, options).run()
    tell_verified(summary, strict=strict)
    return summary


def evaluate(
    tasks: Tasks | Mapping[str, Tasks],
    *,
    model: str,
    out: str | Path | None = None,
    base_url: str | Sequence[str] = (),
    verifier: Verifier | Mapping[str, str] | Sequence[str] | None = None,
    step: int = 0,
    fresh: bool = False,
    progress: Progress = "auto",
    strict: bool = False,
    **options: Unpack[EvaluateKeywords],
) -> Evaluated[Run]:
    """Evaluate a model on task sets in one resumable run: `{"gsm8k": "gsm8k.jsonl", "mine": rows}`, or a single task set.

    Args:
        verifier: One for all task sets, or `{task set: verifier}`; by default `exact`, where tasks have expected_answer.
        step: Training step that the metrics are logged at.
    """
    from rollforge.interactive.evaluating import Evaluating

    refuse_address(out, "an evaluation")
    work = Evaluating(tasks, out, base_url, verifier, fresh, progress, options, Run)
    done = work.one(model, step).wait()
    done.outcome.tell(f"the evaluation {done.run.path}", strict=strict, run=done.run)
    return done


async def evaluate_async(
    tasks: Tasks | Mapping[str, Tasks],
    *,
    model: str,
    out: str | Path | None = None,
    base_url: str | Sequence[str] = (),
    verifier: Verifier | Mapping[str, str] | Sequence[str] | None = None,
    step: int = 0,
    fresh: bool = False,
    progress: Progress = "none",
    strict: bool = False,
    **options: Unpack[EvaluateKeywords],
) -> Evaluated[Run]:
    """Like `evaluate`, but awaited."""
    from rollforge.interactive.evaluating import Evaluating

    refuse_address(out, "an evaluation")
    work = Evaluating(tasks, out, base_url, verifier, fresh, progress, options, Run)
    done = await work.one(model, step).run()
    done.outcome.tell(f"the evaluation {done.run.path}", strict=strict, run=done.run)
    return done


def bench(
    tasks: Tasks | Mapping[str, Tasks],
    *,
    models: Sequence[str] | Mapping[str, str],
    out: str | Path = "runs/bench",
    base_url: str | Sequence[str] = (),
    verifier: Verifier | Mapping[str, str] | Sequence[str] | None = None,
    metric: str = "reward",
    require: Sequence[str] = (),
    fresh: bool = False,
    progress: Progress = "auto",
    strict: bool = False,
    **options: Unpack[EvaluateKeywords],
) -> Benched[Run]:
    """Benchmark models over the same task sets and say which is better. Every model is compared with the first.

    Args:
        models: `["base=qwen@http://a/v1", "trained=qwen-rl"]`, as on the command line, or `{label: model[@url]}`.
        require: Claims such as `trained > base`, tested with the paired interval.
    """
    from rollforge.interactive.evaluating import Evaluating

    refuse_address(out, "an evaluation")
    work = Evaluating(tasks, out, base_url, verifier, fresh, progress, options, Run, function="bench")
    done = work.several(models, metric, require).wait()
    done.outcome.tell(f"the benchmark {out}", strict=strict, run=done)
    return done


async def bench_async(
    tasks: Tasks | Mapping[str, Tasks],
    *,
    models: Sequence[str] | Mapping[str, str],
    out: str | Path = "runs/bench",
    base_url: str | Sequence[str] = (),
    verifier: Verifier | Mapping[str, str] | Sequence[str] | None = None,
    metric: str = "reward",
    require: Sequence[str] = (),
    fresh: bool = False,
    progress: Progress = "none",
    strict: bool = False,
    **options: Unpack[EvaluateKeywords],
) -> Benched[Run]:
    """Like `bench`, but awaited."""
    from rollforge.interactive.evaluating import Evaluating

    refuse_address(out, "an evaluation")
    work = Evaluating(tasks, out, base_url, verifier, fresh, progress, options, Run, function="bench")
    done = await work.several(models, metric, require).run()
    done.outcome.tell(f"the benchmark {out}", strict=strict, run=done)
    return done


def _path_of(run: Run | str | Path) -> str:
    return (run.address or str(run._only("verify"))) if isinstance(run, Run) else str(run)


def gate(
    recipe: str,
    runs: Sequence[str],
    *,
    index: Index,
    ignore: Sequence[str] = (),
    force: bool = False,
    stops: bool = True,
) -> JsonObject:
    """Run a recipe's checks and return their result for the dataset's manifest; an error stops unless forced."""
    from rollforge.steps.check import check_run

    report = check_run(index, recipe=recipe, ignore=tuple(ignore), only_recipe=True)
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


def _lines_of_shards(files: RunFiles) -> Iterator[bytes]:
    from rollforge.store.rollout_parts import parts_of

    for part in parts_of(files).rollouts:
        yield from part.lines()
