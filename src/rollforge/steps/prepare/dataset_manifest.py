"""The manifest: how a dataset was made, complete enough to make the same bytes again.

It has no time stamp, so equal inputs and options give equal manifests.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rollforge import __version__
from rollforge.conversations.chat_template import template_file
from rollforge.errors import DataError, UsageError
from rollforge.exporters.form import Layout
from rollforge.registry import refuse_unknown
from rollforge.runtime.typed_decoding import decode_json
from rollforge.statistics.counts import count_of
from rollforge.steps.prepare.evaluation_prompts import evaluation_files
from rollforge.steps.prepare.rollout_pool import EvaluationOverlap
from rollforge.steps.prepare.settings import SETTING_NAMES, Settings
from rollforge.store import RunFiles
from rollforge.store.digest import digest_of
from rollforge.store.find import tasks_file
from rollforge.store.reading import UNREADABLE, FileName, read_whole
from rollforge.store.rollout_parts import parts_of
from rollforge.verifiers import VERIFIERS

NAME = "manifest.json"
PACKAGES = ("numpy", "pyarrow", "duckdb", "msgspec")


class _Keyed(msgspec.Struct, eq=False):
    """A record that can also be accessed and compared like its JSON object."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict | type(self)):
            return NotImplemented
        return bool(msgspec.to_builtins(self) == msgspec.to_builtins(other))

    def __getitem__(self, name: str) -> Any:
        for field in msgspec.structs.fields(self):
            if field.encode_name == name and (value := getattr(self, field.name)) is not UNSET:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value under a JSON key, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: str) -> bool:
        return self.get(name, UNSET) is not UNSET


class FileRecord(msgspec.Struct):
    """A file of the dataset."""

    path: FileName
    split: str
    rows: int
    bytes: int
    sha256: str


class Input(msgspec.Struct):
    """A file that the dataset was made from."""

    run: str
    """Name of the run as the user gave it."""
    file: str
    bytes: int
    sha256: str
    is_of_run: bool = True
    """False for files named by options: evaluation prompts, a chat template, a tokenizer."""


class TaskCounts(_Keyed, rename={"before": "in"}):
    """Tasks before and after the selection."""

    before: int
    kept: int


class DatasetCounts(_Keyed):
    """Fates of all rollouts and examples, each counted once."""

    rollouts: dict[str, int]
    """`in`, `kept`, and all other fates, which add up to `in`."""
    examples: dict[str, int]
    """`planned`, reasons for unwritten ones, `written`."""
    tasks: TaskCounts
    failed_attempts: int
    """Recorded failed attempts; they are not rollouts."""
    rejected_lines: int
    """Lines that are not rollouts."""
    overruled_rows: int
    """Rows replaced by a later one with the same task, rollout and attempt."""


class Distribution(_Keyed):
    """Mean, spread and range of `n` values."""

    n: int
    mean: float
    std: float | None
    min: float
    median: float
    max: float


class BinCounts(_Keyed):
    """Counts in equal bins; the last bin includes its upper edge."""

    edges: list[float]
    counts: list[int]


_Summary = Distribution | None | UnsetType


class DatasetStatistics(_Keyed, kw_only=True):
    """Statistics of the written examples; which ones are present depends on their kind."""

    tasks: int
    gap: _Summary = UNSET
    reward: _Summary = UNSET
    chars: _Summary = UNSET
    pool_chars: _Summary = UNSET
    """Lengths of all judged answers, for comparison with the chosen ones."""
    mean_reward: _Summary = UNSET
    std_reward: _Summary = UNSET
    pass_rate: _Summary = UNSET
    difficulty: _Summary = UNSET
    """Difficulty of each example's task: one minus the mean reward of its judged rollouts."""
    difficulty_histogram: BinCounts | UnsetType = UNSET
    histogram: BinCounts | UnsetType = UNSET
    """Histogram of rewards, or of gaps for pairs."""
    share_gap_at_least: float | UnsetType | None = msgspec.field(default=UNSET, name="share_gap_at_least_0.3")
    share_gap_below: float | UnsetType | None = msgspec.field(default=UNSET, name="share_gap_below_0.1")
    chosen_reward: _Summary = UNSET
    rejected_reward: _Summary = UNSET
    chosen_chars: _Summary = UNSET
    rejected_chars: _Summary = UNSET
    share_chosen_longer: float | UnsetType | None = UNSET
    desirable: int | UnsetType = UNSET
    undesirable: int | UnsetType = UNSET
    advantage_grpo: _Summary = UNSET
    exact_duplicates: int | UnsetType = UNSET

    def distributions(self) -> Iterator[tuple[str, Distribution]]:
        """Every distribution by its name."""
        for field in self.__struct_fields__:
            if isinstance(value := getattr(self, field), Distribution):
                yield field, value


class FormRecord(_Keyed, kw_only=True):
    """The form in which the rows are written."""

    container: str
    copied: bool
    """Whether rows are unchanged rollout lines."""
    arguments: str | UnsetType = UNSET
    tools: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    keys: str | UnsetType = UNSET
    layout: Layout | UnsetType = UNSET
    """For demonstrations: `messages`, or `completion` for separate prompt and completion columns."""
    changes: list[str] | UnsetType = UNSET
    """Deviations from the requested form, with reasons."""
    answers: str | UnsetType = UNSET
    """How much of an answer a row contains: `whole` or `step`."""


class RedFlag(_Keyed):
    """Something to look at before training."""

    id: str
    text: str


class CheckRecord(_Keyed, kw_only=True):
    """Results of `rollforge check` before preparation; empty if it did not run."""

    ran: bool | UnsetType = UNSET
    ok: bool | UnsetType = UNSET
    errors: list[str] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    forced: bool | UnsetType = UNSET
    """Whether `--force` was given."""
    ignored: list[str] | UnsetType = UNSET
    """Checks named by `--ignore`; absent if none."""


class RunSource(msgspec.Struct, kw_only=True):
    """Origin of a run's rollouts, from its manifest and rows."""

    run: str
    models: list[str] = []
    """The requested model, then the model names in answers."""
    verifiers: list[str] = []
    verifier_options: dict[str, object] = {}
    fingerprints: list[str] = []
    """Fingerprints of the verifiers, from the verdicts."""


class PushRecord(msgspec.Struct, kw_only=True):
    """Where the dataset was pushed."""

    repo: str
    commit: str
    """SHA of the commit on the Hub."""
    url: str
    private: bool


Threshold = float | str | dict[str, int]


class DatasetManifest(msgspec.Struct, kw_only=True):
    """How a dataset was made."""

    recipe: str
    to: str
    kind: str
    """Kind of example: demonstration, pair, labelled, prompt, scored."""
    options: Settings
    seed: int
    inputs: list[Input]
    versions: dict[str, str]
    sources: list[RunSource] = []
    """Model, verifier with options, and fingerprint of each run, so that a reward function need not be configured again."""
    thresholds: dict[str, Threshold]
    """Effective thresholds, given by the user or derived from the data."""
    counts: DatasetCounts
    untidy: dict[str, int]
    """Number of untidy or rewritten rollouts, by treatment."""
    form: FormRecord
    statistics: DatasetStatistics
    splits: dict[str, int]
    files: list[FileRecord] = []
    flags: list[RedFlag] = []
    check: CheckRecord = msgspec.field(default_factory=CheckRecord)
    decontamination: list[EvaluationOverlap] = []
    """Per evaluation file: prompts read, and tasks that overlap one of them."""
    push: PushRecord | UnsetType = UNSET
    """The commit on the Hub, if the dataset was pushed; present only in the local manifest."""
    dry_run: bool = False
    outlook: list[dict[str, float]] = []
    """Counts at other thresholds, for a dry run."""

    @property
    def is_forced(self) -> bool:
        """Whether `--force` overruled errors of `rollforge check`."""
        return bool(self.check.get("forced") and not self.check.get("ok"))

    @property
    def has_one_verifier(self) -> bool:
        """Whether every run was judged by one and the same verifier, which another process can load."""
        names = {name for source in self.sources for name in source.verifiers or ["?"]}
        return len(names) == 1 and all(":" in name or name in VERIFIERS.names() for name in names)

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import decimal, result, table, tag

        rows = [[name, f"{count:,}"] for name, count in (*self.splits.items(), *self.counts.examples.items())]
        numbers = [
            [name, f"{one.n:,}", *map(decimal, (one.mean, one.min, one.median, one.max))]
            for name, one in self.statistics.distributions()
        ]
        return result(
            f"{self.recipe} data for {self.to}: {count_of(sum(self.splits.values()), 'example')}",
            table(("examples", "count"), rows),
            table(("statistic", "n", "mean", "min", "median", "max"), numbers) if numbers else None,
            *(tag("p", f"{flag.id}: {flag.text}") for flag in self.flags),
        )

    def to_json(self) -> bytes:
        """The manifest as written to disk."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class _Options(msgspec.Struct):
    """Options as written in a manifest; a newer version may have options unknown to this one."""

    options: dict[str, object]


def read_manifest(path: str | Path) -> DatasetManifest:
    """Read the manifest at `path`, a file or its folder."""
    file = Path(path)
    file = file / NAME if file.is_dir() else file
    try:
        data = read_whole(file)
        manifest = decode_json(data, DatasetManifest)
        refuse_unknown(decode_json(data, _Options).options, SETTING_NAMES, "prepare")
        return manifest
    except OSError as error:
        raise UsageError(
            f"{file}: no such manifest", hint="give the manifest.json of a prepared dataset"
        ) from error
    except UNREADABLE as error:
        raise DataError(
            f"{file}: not a manifest of rollforge prepare: {error}",
            hint="give the manifest.json of a folder that prepare wrote",
        ) from error


def files_beside(settings: Settings) -> list[Path]:
    """Files other than the runs' that affect the result: evaluation prompts, chat template, tokenizer."""
    paths = evaluation_files(settings.decontaminate)
    paths += [template_file(settings.template)] if settings.template is not None else []
    return paths + ([tokenizer_file(settings.tokenizer)] if settings.tokenizer is not None else [])


def tokenizer_file(path: str) -> Path:
    """The file that `--tokenizer` names: the file itself, or the one inside a model's folder."""
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise UsageError(f"{file}: no such tokenizer", hint="give the tokenizer.json of the model")
    return file


def files_of_runs(runs: Sequence[str | Path]) -> Iterator[tuple[str, Path, Path | None]]:
    """Every file of the runs that affects the result: (run, file, index folder that caches the digest)."""
    for run in runs:
        files = RunFiles(run)
        if files.is_sharded:
            yield from ((str(run), path, None) for path in _files_of_shards(files))
            continue
        for path in (files.rollouts, tasks_file(files), files.verdicts):
            if path is not None and path.is_file():
                yield str(run), path, files.index


def _is_run(path: str | Path) -> bool:
    files = RunFiles(path)
    return files.rollouts.is_file() or files.is_sharded


def _name_in(run: str, path: Path) -> str:
    """The file's name; for a part of a shard, its path in the run."""
    folder = RunFiles(run).rollouts.parent
    return (
        str(path.relative_to(folder)) if path.parent != folder and path.is_relative_to(folder) else path.name
    )


def _files_of_shards(files: RunFiles) -> Iterator[Path]:
    """The plan and end records of a sharded run, which contain the digests of all valid parts."""
    yield files.shards / "plan.json"
    yield from sorted(files.shards.glob("*/e*.end"))
    yield from (part.path for part in parts_of(files).rollouts if part.length is None)
    for path in (tasks_file(files), files.verdicts):
        if path is not None and path.is_file():
            yield path


def describe_inputs(runs: Sequence[str | Path], beside: Sequence[Path] = ()) -> list[Input]:
    """Every file that affects the result, with its digest."""
    inputs = [
        Input(run, _name_in(run, path), path.stat().st_size, digest_of(path, folder))
        for run, path, folder in files_of_runs(runs)
    ]
    for path in beside:
        inputs.append(Input(str(path), path.name, path.stat().st_size, digest_of(path), is_of_run=False))
    return inputs


def versions() -> dict[str, str]:
    """Versions of all packages that may affect the bytes."""
    versions = {"rollforge": __version__, "python": platform.python_version()}
    return versions | {name: _version_of(name) for name in PACKAGES}


def _version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def runs_of(manifest: DatasetManifest) -> list[str]:
    """The runs a manifest names, in order."""
    others = manifest.options.decontaminate
    return list(dict.fromkeys(i.run for i in manifest.inputs if i.is_of_run and i.run not in others))


def find_run(name: str, near: Path) -> str:
    """The current path of a dataset's run, from its recorded name.

    A relative name was relative to the working directory, usually a folder above the dataset. Searching all folders above finds
    the run from anywhere, also after both were moved together.
    """
    if _is_run(name):
        return name
    paths = (folder / name for folder in near.resolve().parents)
    return str(next((path for path in paths if _is_run(path)), name))


def refuse_changed_inputs(manifest: DatasetManifest, runs: Sequence[str]) -> None:
    """Raise if an input of a manifest has changed; `runs` are the current paths of its runs."""
    moved = dict(zip(runs_of(manifest), runs, strict=True))
    missing = [run for run in runs if not _is_run(run)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: not there any more",
            hint="say where the runs are now, in the manifest's order: rollforge prepare --from MANIFEST RUN… -o DIR",
        )
    before = {(moved.get(item.run, item.run), item.file): item.sha256 for item in manifest.inputs}
    inputs = describe_inputs(runs, files_beside(manifest.options))
    now = {(item.run, item.file): item.sha256 for item in inputs}
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        names = ", ".join(f"{run}: {file}" for run, file in changed)
        raise DataError(
            f"the inputs have changed since the manifest was written: {names}",
            hint="make a new dataset from them: rollforge prepare RECIPE RUN --to EXPORTER -o DIR",
        )
