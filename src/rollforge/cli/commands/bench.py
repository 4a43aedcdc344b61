"""`rollforge bench`: several models or checkpoints over the same task sets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from rollforge.cli.commands.evaluating import (
    AskFlags,
    EvalFlags,
    collect_options,
    evaluate_model,
    fold_options,
    join,
    safe_folder,
)
from rollforge.cli.commands.monitoring import SinkFlags, start_sinks
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.cli.values import Flag
from rollforge.errors import Exit, UsageError
from rollforge.records import JsonFields

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectOptions
    from rollforge.steps.evaluation import Evaluation, JoinedTasksets, Taskset

EXAMPLE = "rollforge bench -i arithmetic=tasks.jsonl -m a=simulated -m b=simulated -k 4 --verifier exact -o runs/bench"


@dataclass(frozen=True)
class Contestant:
    """One model of a benchmark."""

    label: str
    model: str
    url: str | None
    step: int


def bench(
    *,
    input: Annotated[list[str], Parameter(name=["--input", "-i"], negative=())],
    model: Annotated[list[str], Parameter(name=["--model", "-m"], negative=())],
    out: Annotated[str, Parameter(name=["--out", "-o"])] = "runs/bench",
    metric: str = "reward",
    evaluation: EvalFlags = EvalFlags(),  # noqa: B008  (frozen)
    ask: AskFlags = AskFlags(),  # noqa: B008
    sinks: SinkFlags = SinkFlags(),  # noqa: B008
    fresh: Flag = False,
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Benchmark several models or checkpoints over the same task sets, and say which is better.

    The first model is the one the others are compared with, task by task.

    Parameters
    ----------
    input
        NAME=FILE, a task set; repeatable. A file alone is named after itself.
    model
        [LABEL=]MODEL[@URL]; repeatable. A label that ends in a number (step200) is logged at that step.
    out
        Directory with one run per model.
    metric
        The metric the verdict is about.
    fresh
        Move existing runs aside and start anew.
    json
        Print one JSON object on stdout instead of tables.
    progress
        How to show progress: auto is a live panel on a terminal and plain lines elsewhere.
    """
    from rollforge.steps.evaluation import check_metric, compare, parse_taskset
    from rollforge.store import RunFiles

    contestants = parse_contestants(model)
    folder = Path(out)
    tasksets = [parse_taskset(text) for text in input]
    _refuse_reserved_name(tasksets)
    joined = join(tasksets, evaluation, folder)
    folding = fold_options(evaluation, joined, "bench")
    results: dict[str, Evaluation] = {}
    worst = Exit.DONE
    for contestant in contestants:
        options = _options(contestant, folder, joined, evaluation, ask, fresh=fresh)
        with start_sinks(sinks, RunFiles(options.out), options.to_config()) as opened:
            result, code = evaluate_model(
                options, folding, "none" if json and progress == "auto" else progress
            )
            opened.log(result.metrics, step=contestant.step)
        if not results:
            check_metric([result], metric)  # a verifier's metrics are known only after its first verdict
        results[contestant.label] = result
        worst = max(worst, code)
    differences = compare(results, metric) if len(results) > 1 else []
    record = _record(contestants, results) | {
        "differences": msgspec.to_builtins(differences),
        "exit_code": int(worst),
    }
    _write(folder, record)
    if json:
        print_json(record)
    else:
        _print(results, evaluation.samples, [f"{one.taskset}: {one.verdict}" for one in differences], folder)
    return worst


def _refuse_reserved_name(tasksets: list[Taskset]) -> None:
    from rollforge.steps.evaluation import OVERALL

    if len(tasksets) > 1 and any(taskset.name == OVERALL for taskset in tasksets):
        raise UsageError(
            f"no task set can be called {OVERALL!r}: that is all of them", hint="name it: -i NAME=FILE"
        )


def _options(
    contestant: Contestant,
    folder: Path,
    joined: JoinedTasksets,
    evaluation: EvalFlags,
    ask: AskFlags,
    *,
    fresh: bool,
) -> CollectOptions:
    if contestant.url:
        ask = replace(ask, server=replace(ask.server, base_urls=(contestant.url,)))
    run = folder / safe_folder(contestant.label)
    return collect_options(joined, folder, run, contestant.model, evaluation, ask, fresh=fresh)


def parse_contestants(words: list[str]) -> list[Contestant]:
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


def _record(contestants: list[Contestant], results: dict[str, Evaluation]) -> JsonFields:
    models = {}
    for contestant in contestants:
        models[contestant.label] = msgspec.to_builtins(results[contestant.label])
        del models[contestant.label]["task_means"]
        models[contestant.label] |= {"model": contestant.model, "step": contestant.step}
    return {"models": models}


def _write(folder: Path, record: JsonFields) -> None:
    from rollforge.store import write_atomically

    data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    write_atomically(folder / "bench.json", data)


def _print(results: dict[str, Evaluation], k: int, verdicts: list[str], folder: Path) -> None:
    from rollforge.cli.render.evaluation import print_tasksets

    for label, result in results.items():
        print_tasksets(result.tasksets, k, title=label)
    for verdict in verdicts:
        say(verdict)
    say(f"\nresults → {folder / 'bench.json'}")
