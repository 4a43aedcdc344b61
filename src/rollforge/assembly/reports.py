"""Reports assembled: run the steps whose results a report shows, and pass the results to it.

The report step draws; it does not compute metrics or checks. This code detects what each path is (a run, a dataset, an
evaluation) and writes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from rollforge.errors import DataError, UsageError
from rollforge.index import Index, SharedGroups, open_index
from rollforge.records import PARAMS_KEY
from rollforge.runtime.typed_decoding import convert, decode_json
from rollforge.steps.check import Report, check_run
from rollforge.steps.metrics import compare_runs, summarize_index
from rollforge.steps.profile import profile_index
from rollforge.steps.report import (
    LEFT_OUT,
    BenchFacts,
    CheckFacts,
    DatasetFacts,
    EvaluationFacts,
    FlipFacts,
    LoggedStep,
    ManifestFacts,
    MetricsFacts,
    PairedFacts,
    ProbeFacts,
    ProfileFacts,
    RunInputs,
    SideInputs,
    facts_of,
    is_dataset,
    is_unset,
    read_bins,
    report_comparison,
    report_dataset,
    report_evaluation,
    report_run,
    title_of,
)
from rollforge.store import UNREADABLE, Manifest, RunFiles, read_manifest, write_atomically
from rollforge.store.outputs import refuse_output
from rollforge.store.reading import lines_of, read_whole
from rollforge.store.rollout_parts import parts_of

Texts = Literal["some", "none"]
Kind = Literal["run", "runs", "dataset", "evaluation"]

BENCH = "bench.json"

PROMPTING = ("overrides", "verifier_options")
"""Settings of a run that may hold words of a prompt, such as instructions or a judge's template."""

MOST_DATASETS = 200
"""Most folders beside a run that are searched for datasets made from it."""


class WrittenReport(Struct, frozen=True):
    """A report on disk."""

    path: str
    kind: Kind
    bytes: int


def write_report(
    paths: Sequence[str | Path], out: str | Path, *, texts: Texts = "some", verifier: str | None = None
) -> WrittenReport:
    """Write the report of a run, several runs, a dataset or an evaluation as one self-contained HTML file."""
    if not paths:
        raise UsageError("which run?", hint="for example: rollforge report runs/first -o report.html")
    refuse_output(out, reads=paths)
    kind, data = _make([str(path) for path in paths], with_texts=texts == "some", verifier=verifier)
    target = Path(out)
    if target.is_dir():
        target = target / "report.html"
    write_atomically(target, data)
    return WrittenReport(str(target), kind, len(data))


def _make(paths: Sequence[str], *, with_texts: bool, verifier: str | None) -> tuple[Kind, bytes]:
    if len(paths) > 1:
        return "runs", _comparison(paths, verifier)
    if is_dataset(paths[0]):
        return "dataset", report_dataset(Path(paths[0]), with_texts=with_texts)
    evaluation = _evaluation(Path(paths[0]))
    if evaluation is not None:
        return "evaluation", evaluation
    with open_index(paths[0], verifier=verifier) as index:
        index.refuse_tasks()
        return "run", report_run(index, run_inputs(index, with_texts=with_texts, verifier=verifier))


def run_inputs(index: Index, *, with_texts: bool = True, verifier: str | None = None) -> RunInputs:
    """Collect a run's report data: metrics, checks, profile, flips, manifest, datasets."""
    files = index.runs[0]
    manifest = read_manifest(files)
    with index.for_thread() as other, ThreadPoolExecutor(1) as worker:
        check = worker.submit(_check, other, verifier)  # numpy and Arrow release the interpreter lock
        groups = SharedGroups(index)
        metrics = facts_of(summarize_index(index, groups=groups), MetricsFacts)
        profile = facts_of(profile_index(index, groups=groups).summary, ProfileFacts)
        bins = read_bins(index, groups)
        del groups  # its columns, before the page is made
        findings = check.result()
    return RunInputs(
        run=files.name,
        metrics=metrics,
        check=facts_of(findings, CheckFacts),
        profile=profile,
        bins=bins,
        flips=flips_of(files),
        probe=_probe(manifest) if manifest else None,
        manifest=_settings(manifest, with_texts=with_texts) if manifest else (),
        datasets=_datasets(files),
        model=str(manifest.config.get("model") or "") or None if manifest else None,
        with_texts=with_texts,
    )


def _check(index: Index, verifier: str | None) -> Report:
    return check_run(index, verifier=verifier)


def flips_of(files: RunFiles) -> list[FlipFacts]:
    """Verdict flips between the first verifier and each later one."""
    if not parts_of(files).verdicts:
        return []
    from rollforge.steps.verify import compare, known_verifiers  # brings aiohttp, which few reports need

    names = known_verifiers(files)
    return [facts_of(compare(files.rollouts, names[0], other), FlipFacts) for other in names[1:4]]


def _probe(manifest: Manifest) -> ProbeFacts | None:
    """The last probe of the verifier, if it tested the version that judged the run."""
    try:
        probe = convert(manifest.extra.get("probe"), ProbeFacts)
    except msgspec.ValidationError:
        return None
    judged_by = manifest.fingerprint.get("verifier_source")
    return None if probe.fingerprint and judged_by and probe.fingerprint != judged_by else probe


def _settings(manifest: Manifest, *, with_texts: bool) -> list[tuple[str, str]]:
    """The manifest's settings for the report; null and empty options are left out, and prompts if texts are."""
    began = (
        datetime.fromtimestamp(manifest.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if manifest.created
        else "–"
    )
    shown = [
        ("state", manifest.state),
        ("collected from", began),
        ("rollforge", manifest.rollforge),
        ("tasks", f"{manifest.tasks:,}"),
        ("samples per task", f"{manifest.samples:,}"),
        ("the server's own name", ", ".join(manifest.model_names) or "–"),
        ("API", manifest.api or "–"),
    ]
    shown += [
        (name, _text(value if with_texts or name not in PROMPTING else _without_words(value)))
        for name, value in manifest.config.items()
        if not is_unset(value)
    ]
    return shown + [
        (
            f"fingerprint: {name}",
            _text(value if with_texts or not name.startswith(f"{PARAMS_KEY}.") else _without_words(value)),
        )
        for name, value in manifest.fingerprint.items()
        if not is_unset(value)
    ]


def _without_words(value: object) -> object:
    """The value with every text in it left out."""
    if isinstance(value, str):
        return LEFT_OUT
    if isinstance(value, dict):
        return {name: _without_words(one) for name, one in value.items()}
    return [_without_words(one) for one in value] if isinstance(value, list) else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _datasets(files: RunFiles) -> list[DatasetFacts]:
    """Datasets near the run whose manifests name one of its files by digest or path."""
    folder = files.rollouts.resolve().parent
    candidates: list[Path] = []
    for base in dict.fromkeys([folder, folder.parent, folder.parent.parent]):
        for pattern in ("*/manifest.json", "data/*/manifest.json"):
            candidates += sorted(base.glob(pattern))[: MOST_DATASETS - len(candidates)]
    datasets = []
    for path in dict.fromkeys(candidates):
        manifest = _dataset_manifest(path)
        if manifest is None or not any(_is_of(one.run, files, folder, path) for one in manifest.inputs):
            continue
        datasets.append(
            DatasetFacts(
                path=path.parent.name,
                recipe=manifest.recipe,
                to=manifest.to,
                rows=sum(file.rows for file in manifest.files),
                is_forced=manifest.check.forced and not manifest.check.ok,
            )
        )
    return datasets


def _dataset_manifest(path: Path) -> ManifestFacts | None:
    """The manifest; None if a file of that name is something else."""
    try:
        return decode_json(read_whole(path), ManifestFacts)
    except (OSError, *UNREADABLE):
        return None


def _is_of(run: str, files: RunFiles, folder: Path, manifest: Path) -> bool:
    """Whether an input that a dataset names as `run` is this run, seen from a folder above the dataset."""
    named = RunFiles(run).rollouts
    if named.name != files.rollouts.name:
        return False
    return any((base / named).resolve().parent == folder for base in manifest.parents[:5])


def _comparison(paths: Sequence[str], verifier: str | None) -> bytes:
    for path in paths:
        if is_dataset(path) or _bench_path(Path(path)) is not None:
            raise UsageError(
                f"{path} is not a run", hint="compare runs with runs; report on a dataset or evaluation alone"
            )
    sides: list[SideInputs] = []
    with open_index(paths[0], verifier=verifier) as first:
        for position, path in enumerate(paths):
            with open_index(path, verifier=verifier) as index:
                paired = facts_of(compare_runs(index, first), PairedFacts) if position else None
                groups = SharedGroups(index)
                sides.append(
                    SideInputs(
                        run=index.runs[0].name,
                        metrics=facts_of(summarize_index(index, groups=groups), MetricsFacts),
                        check=facts_of(_check(index, verifier), CheckFacts),
                        profile=facts_of(profile_index(index, groups=groups).summary, ProfileFacts),
                        paired=paired,
                    )
                )
    return report_comparison(sides)


def _bench_path(path: Path) -> Path | None:
    """The result file behind a path: `bench.json`, an `eval` result, or a folder that holds one of them."""
    if path.is_file() and path.suffix == ".json":
        return path
    if path.is_dir():
        return next((one for one in (path / BENCH, RunFiles(path).evaluation) if one.is_file()), None)
    return None


def _evaluation(path: Path) -> bytes | None:
    file = _bench_path(path)
    if file is None:
        return None
    name = Path(title_of(str(path))).name
    try:
        data = read_whole(file)
        if file.name == BENCH:
            return report_evaluation(name, decode_json(data, BenchFacts))
        one = decode_json(data, EvaluationFacts)
    except UNREADABLE as error:
        raise DataError(
            f"{file}: not a result of rollforge eval or bench: {error}",
            hint="give a run, a prepared dataset, or the JSON file of an eval or bench",
        ) from error
    logged = _logged(file.with_name(file.name.replace("_eval.json", "_metrics.jsonl")))
    return report_evaluation(name, BenchFacts(models={one.model or "model": one}), logged)


def _logged(path: Path) -> list[LoggedStep]:
    """The steps in a metrics file; other lines are skipped."""
    steps = []
    for line in lines_of(path):
        try:
            steps.append(decode_json(line, LoggedStep))
        except UNREADABLE:
            continue
    return steps
