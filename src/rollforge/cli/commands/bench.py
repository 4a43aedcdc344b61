"""`rollforge bench`: several models or checkpoints over the same task sets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.commands.collect import ModelFlags, PaceFlags
from rollforge.cli.commands.eval_ import safe_folder
from rollforge.cli.commands.evaluating import (
    JOINED,
    EvalFlags,
    collect_options,
    evaluate_model,
    join,
    print_tasksets,
)
from rollforge.cli.commands.monitoring import SinkFlags, start_sinks
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rollforge.steps.evaluation import Difference, EvaluateOptions, Evaluation

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
    server: ModelFlags = ModelFlags(),  # noqa: B008
    pace: PaceFlags = PaceFlags(),  # noqa: B008
    sinks: SinkFlags = SinkFlags(),  # noqa: B008
    fresh: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from pathlib import Path

    from rollforge.steps.evaluation import OVERALL, EvaluateOptions, check_metric, compare, parse_taskset
    from rollforge.store import RunFiles

    contestants = parse_contestants(model)
    folder = Path(out)
    tasksets = [parse_taskset(text) for text in input]
    if len(tasksets) > 1 and any(taskset.name == OVERALL for taskset in tasksets):
        raise UsageError(
            f"no task set can be called {OVERALL!r}: that is all of them", hint="name it: -i NAME=FILE"
        )
    facts = join(tasksets, evaluation, folder)
    folding = EvaluateOptions(
        k=evaluation.samples,
        tasks=facts.counts,
        estimator=evaluation.estimator,
        detailed_stats=evaluation.detailed_stats,
        threshold=evaluation.threshold,
        category="bench",
    )
    results: dict[str, Evaluation] = {}
    worst = Exit.DONE
    for contestant in contestants:
        run = folder / safe_folder(contestant.label)
        asked = replace(server, base_url=[contestant.url]) if contestant.url else server
        options = collect_options(
            folder / JOINED, run, contestant.model, evaluation, asked, pace, facts=facts, fresh=fresh
        )
        with start_sinks(sinks, RunFiles(run), options.to_config()) as opened:
            result, code = evaluate_model(
                options, folding, "none" if json and progress == "auto" else progress
            )
            opened.log(result.metrics, step=contestant.step)
        if not results:
            check_metric(
                [result], metric
            )  # which numbers a verifier gives is known after its first verdict only
        results[contestant.label] = result
        worst = max(worst, code)
    differences = compare(results, metric) if len(results) > 1 else []
    _show(folder, contestants, results, differences, folding, worst, json=json)
    return worst


def parse_contestants(words: list[str]) -> list[Contestant]:
    """The models, each with its own label and step: the number its label ends in, when all do, else its place."""
    contestants = []
    for place, word in enumerate(words, start=1):
        label, equals, rest = word.partition("=")
        named = rest if equals and "@" not in label else word
        model, _, url = named.partition("@http")
        contestants.append(
            Contestant(label if named is rest else model, model, f"http{url}" if url else None, place)
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


def _show(
    folder: Path,
    contestants: list[Contestant],
    results: dict[str, Evaluation],
    differences: list[Difference],
    folding: EvaluateOptions,
    code: Exit,
    *,
    json: bool,
) -> None:
    import msgspec

    from rollforge.store.atomic import write_atomically

    models = {label: msgspec.to_builtins(result) for label, result in results.items()}
    for contestant in contestants:
        models[contestant.label].pop("task_means")
        models[contestant.label] |= {"model": contestant.model, "step": contestant.step}
    shown = {"models": models, "differences": msgspec.to_builtins(differences), "exit_code": int(code)}
    write_atomically(folder / "bench.json", msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n")
    if json:
        print_json(shown)
        return
    for label, result in results.items():
        print_tasksets(result.tasksets, folding.k, title=label)
    for difference in differences:
        say(f"{difference.taskset}: {difference.verdict}")
    say(f"\nresults → {folder / 'bench.json'}")
