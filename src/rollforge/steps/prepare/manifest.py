"""This module holds the manifest: how a data set was made, complete enough to make the same bytes again.

It has no time stamp and no absolute path of ours: the same inputs and options give the same manifest.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from rollforge import __version__
from rollforge.errors import DataError, UsageError
from rollforge.exporters.template import template_file
from rollforge.records import JsonObject
from rollforge.registry import refuse_unknown
from rollforge.steps.prepare.settings import SETTING_NAMES, Settings
from rollforge.store import RunFiles
from rollforge.store.digest import digest_of
from rollforge.store.find import tasks_file
from rollforge.store.reading import UNREADABLE

NAME = "manifest.json"
PACKAGES = ("numpy", "pyarrow", "duckdb", "msgspec")


class FileRecord(msgspec.Struct):
    """A file of the data set."""

    path: str
    split: str
    rows: int
    bytes: int
    sha256: str


class Input(msgspec.Struct):
    """A file that the data set was made from."""

    run: str
    """As it was named."""
    file: str
    bytes: int
    sha256: str
    is_of_run: bool = True
    """False for a file that an option names: evaluation prompts, a chat template, a tokenizer."""


class Manifest(msgspec.Struct, kw_only=True):
    """How a data set was made."""

    recipe: str
    to: str
    kind: str
    """What a row is: demonstration, pair, labelled, prompt, scored."""
    options: Settings
    seed: int
    inputs: list[Input]
    versions: dict[str, str]
    thresholds: JsonObject
    """Values that decided, whether given or taken from the data."""
    counts: JsonObject
    """`rollouts`: in, kept, and every other fate; `examples`: planned, written, and why some were not; `tasks`; `failed_attempts`."""
    untidy: dict[str, int]
    """Rollouts that were said differently or are untidy, by what was done."""
    form: JsonObject
    """Where arguments, tools and reasoning stand in the rows, and why."""
    statistics: JsonObject
    splits: dict[str, int]
    files: list[FileRecord] = []
    flags: list[JsonObject] = []
    check: JsonObject = {}
    """Whether `rollforge check` ran first, what it said, and whether it was overruled."""
    dry_run: bool = False
    outlook: list[JsonObject] = []
    """Counts at other thresholds; a dry run shows them."""

    @property
    def is_forced(self) -> bool:
        """Whether errors that `rollforge check` found were overruled."""
        return bool(self.check.get("forced") and not self.check.get("ok"))

    def to_json(self) -> bytes:
        """As written to disk."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class _Options(msgspec.Struct):
    """The options of a manifest as they are written: a newer version may have some that we do not know."""

    options: dict[str, object]


def read_manifest(path: str | Path) -> Manifest:
    """The manifest at `path`, a file or the folder it is in."""
    place = Path(path)
    place = place / NAME if place.is_dir() else place
    try:
        data = place.read_bytes()
        manifest = msgspec.json.decode(data, type=Manifest)
        refuse_unknown(msgspec.json.decode(data, type=_Options).options, SETTING_NAMES, "prepare")
        return manifest
    except OSError as error:
        raise UsageError(
            f"{place}: no such manifest", hint="give the manifest.json of a prepared data set"
        ) from error
    except UNREADABLE as error:
        raise DataError(f"{place}: not a manifest of rollforge prepare: {error}") from error


def files_beside(settings: Settings) -> list[Path]:
    """Files other than the runs' that decide the result: evaluation prompts, chat template, tokenizer."""
    found = [Path(path) for path in settings.decontaminate]
    found += [template_file(settings.template)] if settings.template is not None else []
    return found + ([tokenizer_file(settings.tokenizer)] if settings.tokenizer is not None else [])


def tokenizer_file(path: str) -> Path:
    """The file that `--tokenizer` names: itself, or the one in a model's folder."""
    place = Path(path)
    place = place / "tokenizer.json" if place.is_dir() else place
    if not place.is_file():
        raise UsageError(f"{place}: no such tokenizer", hint="give the tokenizer.json of the model")
    return place


def files_of_runs(runs: Sequence[str | Path]) -> Iterator[tuple[str, Path, Path]]:
    """Every file of the runs that decides the result: the run, the file, and the folder of its index."""
    for run in runs:
        files = RunFiles(run)
        for path in (files.rollouts, tasks_file(files), files.verdicts):
            if path is not None and path.is_file():
                yield str(run), path, files.index


def describe_inputs(runs: Sequence[str | Path], beside: Sequence[Path] = ()) -> list[Input]:
    """Every file that decides the result, with its digest."""
    found = [
        Input(run, path.name, path.stat().st_size, digest_of(path, folder))
        for run, path, folder in files_of_runs(runs)
    ]
    for path in beside:
        found.append(Input(str(path), path.name, path.stat().st_size, digest_of(path), is_of_run=False))
    return found


def versions() -> dict[str, str]:
    """What the bytes may depend on."""
    found = {"rollforge": __version__, "python": platform.python_version()}
    return found | {name: _version_of(name) for name in PACKAGES}


def _version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def runs_of(manifest: Manifest) -> list[str]:
    """The runs a manifest names, in order."""
    others = manifest.options.decontaminate
    return list(dict.fromkeys(i.run for i in manifest.inputs if i.is_of_run and i.run not in others))


def find_run(name: str, near: Path) -> str:
    """Where a run is that a data set was made from, by the name it had then.

    A relative name was relative to where the command was given, most often a folder above the data set: so it is found from
    anywhere, and after both have moved together.
    """
    if RunFiles(name).rollouts.is_file():
        return name
    places = (folder / name for folder in near.resolve().parents)
    return str(next((place for place in places if RunFiles(place).rollouts.is_file()), name))


def refuse_changed_inputs(manifest: Manifest, runs: Sequence[str]) -> None:
    """Raise when the files behind a manifest are not the ones it was made from; `runs` is where its runs are now."""
    moved = dict(zip(runs_of(manifest), runs, strict=True))
    missing = [run for run in runs if not RunFiles(run).rollouts.is_file()]
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
            hint="make a new data set from them: rollforge prepare RECIPE RUN --to EXPORTER -o DIR",
        )
