"""Evaluations assembled: several task sets collected as one run per model, folded into metrics, compared and recorded.

Shared by `rollforge eval`, `rollforge bench` and the Python API, which show progress and print results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from rollforge.errors import IncompleteError, UsageError
from rollforge.records import JsonFields, JsonObject
from rollforge.steps.collect import CollectOptions
from rollforge.steps.collect.collect_options import DatasetOptions
from rollforge.store import RunFiles, read_manifest, write_atomically
from rollforge.verifiers.base import load_verifier

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectResult
    from rollforge.steps.evaluation import EvaluateOptions, Evaluation, JoinedTasksets, Taskset

JOINED = "eval_tasks.jsonl"
BY_TASKSET = "rollforge.verifiers.by_taskset:ByTaskset"


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Samples, verifiers and statistics."""

    samples: int = 1
    """Runs per task; the metric names carry it (mean@4)."""
    limit: int | None = None
    """Take only this many tasks of each set."""
    verifier: list[str] = field(default_factory=list)
    """A verifier for all task sets, or TASKSET=VERIFIER; repeatable. Default: exact, where tasks have expected_answer."""
    verifier_set: JsonFields = field(default_factory=dict)
    """Option of the verifier as key=value, or of one task set's verifier as TASKSET.key=value; repeatable."""
    prompt_template: str | None = None
    """YAML file with `user` and optionally `system`; {field} is replaced by that field of the row."""
    threshold: float = 0.5
    """Reward from which a run counts as solved, for pass@k."""
    estimator: Literal["exact", "replacement", "bootstrap42"] = "exact"
    """How best@k and worst@k are estimated; bootstrap42 gives the numbers of Trinity-RFT and verl."""
    detailed_stats: bool = False
    """Also report std, max and min over tasks of every statistic."""
    seed: int = 0
    """Seed for the embedded model."""


class ChosenVerifier(NamedTuple):
    """The verifier of an evaluation, with its options."""

    verifier: Any
    """A name, a path, or a function."""
    options: JsonFields
    is_assumed: bool = False
    """Whether no verifier was named, so that answers are compared with expected_answer."""


@dataclass(frozen=True)
class Contestant:
    """One model of a benchmark."""

    label: str
    model: str
    url: str | None
    step: int


def join(
    tasksets: list[Taskset],
    settings: EvalSettings,
    dataset: DatasetOptions,
    folder: Path,
    *,
    runs: Sequence[Path] = (),
) -> JoinedTasksets:
    """Write the joined task file into `folder`.

    Args:
        runs: Runs to resume; datasets on the Hub are read at the commits that these recorded.
    """
    from rollforge.steps.evaluation import join_tasksets  # numpy and pyarrow: not for --help
    from rollforge.tasks import FieldMap, HubSplit

    if settings.samples < 1:
        raise UsageError(
            f"-k/--samples must be at least 1, not {settings.samples}",
            hint="-k 1 asks every task once; pass@8 needs -k 8 or more",
        )
    part, mapping = HubSplit(dataset.split, dataset.hub_config), FieldMap.parse(dataset.map)
    return join_tasksets(
        tasksets,
        folder / JOINED,
        limit=settings.limit,
        part=part,
        mapping=mapping,
        earlier=_recorded_origins(runs),
    )


def _recorded_origins(runs: Sequence[Path]) -> dict[str, JsonObject]:
    """Task set → its origin, from the runs' manifests; the first run that has it counts."""
    origins: dict[str, JsonObject] = {}
    for run in runs:
        if (manifest := read_manifest(RunFiles(run))) is not None:
            origins = (manifest.input.tasksets or {}) | origins
    return origins


def drop_joined(folder: Path) -> None:
    """Remove a folder that holds nothing but the joined task file."""
    with suppress(OSError):
        (folder / JOINED).unlink()
        folder.rmdir()


def fold_options(
    settings: EvalSettings, joined: JoinedTasksets, category: Literal["eval", "bench"]
) -> EvaluateOptions:
    """Return the options for folding a run into metrics."""
    from rollforge.steps.evaluation import EvaluateOptions

    return EvaluateOptions(
        k=settings.samples,
        tasks=joined.counts,
        estimator=settings.estimator,
        detailed_stats=settings.detailed_stats,
        threshold=settings.threshold,
        category=category,
    )


def collect_options(
    joined: JoinedTasksets,
    chosen: ChosenVerifier,
    folder: Path,
    run: Path,
    model: str,
    settings: EvalSettings,
    server_fields: Mapping[str, Any],
    *,
    fresh: bool,
    step: int | None = None,
) -> CollectOptions:
    """Return the options of one model's collection.

    Args:
        server_fields: Fields of `CollectOptions` about the server and the pace.
    """
    return CollectOptions(
        input=str(folder / JOINED),
        out=str(run),
        model=model,
        samples=settings.samples,
        seed=settings.seed,
        prompt_template=settings.prompt_template,
        verifier=chosen.verifier,
        verifier_options=chosen.options,
        fresh=fresh,
        step=step,
        tasksets=joined.origins,
        **server_fields,
    )


def choose_verifier(settings: EvalSettings, joined: JoinedTasksets) -> ChosenVerifier:
    """Return the run's verifier and its options: one for all task sets, or one that dispatches by task set."""
    tasksets = list(joined.counts)
    own = {
        name: taskset_options
        for name in tasksets
        if isinstance(taskset_options := settings.verifier_set.get(name), dict)
    }
    options = {name: value for name, value in settings.verifier_set.items() if name not in own}
    if not settings.verifier:
        if not joined.has_answers:
            raise UsageError("no verifier", hint="name one: --verifier math (see rollforge list verifiers)")
        if own:
            return _dispatching(dict.fromkeys(tasksets, "exact"), options, own)._replace(is_assumed=True)
        return ChosenVerifier("exact", options, is_assumed=True)
    by_taskset: dict[str, str] = {}
    common: str | None = None
    for word in settings.verifier:
        name, equals, verifier = word.partition("=")
        if equals and name in tasksets:
            by_taskset[name] = verifier
        elif equals:
            raise UsageError(
                f"--verifier {word}: there is no task set {name!r}", hint=f"known: {', '.join(tasksets)}"
            )
        else:
            common = word
    if not by_taskset and not own and common is not None:
        return ChosenVerifier(common, options)
    missing = [name for name in tasksets if name not in by_taskset and common is None]
    if missing:
        raise UsageError(
            f"no verifier for {missing[0]!r}", hint=f"--verifier {missing[0]}=NAME, or one for all"
        )
    return _dispatching({name: by_taskset.get(name, common or "") for name in tasksets}, options, own)


def _dispatching(
    verifiers: dict[str, str], options: JsonFields, own: dict[str, JsonFields]
) -> ChosenVerifier:
    fingerprints = {
        name: load_verifier(verifier, options | own.get(name, {})).fingerprint
        for name, verifier in verifiers.items()
    }
    table: JsonFields = {"verifiers": verifiers, "options": options, "fingerprints": fingerprints}
    if own:
        table["own_options"] = own
    return ChosenVerifier(BY_TASKSET, table)


def refuse_empty(result: CollectResult) -> None:
    """Raise when no run finished, so that there is nothing to fold."""
    if result.finished:
        return
    error = IncompleteError(
        f"{result.message}: no run finished, so there is nothing to evaluate", hint="run it again"
    )
    error.exit_code = result.exit_code
    raise error


def safe_folder(name: str) -> str:
    """Turn a model's name into a directory name."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)


def parse_contestants(words: Sequence[str]) -> list[Contestant]:
    """Parse the models; a model's step is the number its label ends in if all labels have one, else its position."""
    contestants = []
    for position, word in enumerate(words, start=1):
        label, equals, rest = word.partition("=")
        named = rest if equals and "@" not in label else word
        model, _, url = named.partition("@http")
        contestants.append(
            Contestant(label if named is rest else model, model, f"http{url}" if url else None, position)
        )
    labels = [contestant.label for contestant in contestants]
    folders = [safe_folder(label) for label in labels]
    for label, folder in zip(labels, folders, strict=True):
        if not folder.strip("."):
            raise UsageError(f"the label {label!r} names no directory", hint="name it: -m before=MODEL")
        if folders.count(folder) > 1:
            raise UsageError(
                f"two models have the same label, as the directory {folder} of their run",
                hint="name them apart: -m before=MODEL -m after=MODEL",
            )
    numbers = [re.search(r"(\d+)$", label) for label in labels]
    if all(numbers):
        return [replace(c, step=int(n[1])) for c, n in zip(contestants, numbers, strict=True) if n]
    return contestants


def refuse_reserved_name(tasksets: Sequence[Taskset]) -> None:
    """Raise when a task set has the name reserved for all task sets together."""
    from rollforge.steps.evaluation import OVERALL

    if len(tasksets) > 1 and any(taskset.name == OVERALL for taskset in tasksets):
        raise UsageError(
            f"no task set can be called {OVERALL!r}: that is all of them", hint="name it: -i NAME=FILE"
        )


def curve_so_far(files: RunFiles, step: int) -> bytes | None:
    """Return the metrics logged beside an evaluation of another step; None without such an evaluation."""
    manifest = read_manifest(files)
    if manifest is None or manifest.fingerprint.get("step") == (step or None):
        return None
    return files.metrics.read_bytes() if files.metrics.is_file() else b""


def evaluation_record(result: Evaluation) -> JsonFields:
    """An evaluation as JSON, without the means of single tasks."""
    record: JsonFields = msgspec.to_builtins(result)
    del record["task_means"]
    return record


def bench_record(contestants: Sequence[Contestant], results: Mapping[str, Evaluation]) -> JsonFields:
    """Every model's evaluation as JSON."""
    return {
        "models": {
            one.label: evaluation_record(results[one.label]) | {"model": one.model, "step": one.step}
            for one in contestants
        }
    }


def write_record(path: Path, record: JsonFields) -> None:
    """Write a record as indented JSON, atomically."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
