"""`rollforge bench`: several models or checkpoints over the same task sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from rollforge.assembly.evaluations import (
    ChosenVerifier,
    Contestant,
    bench_record,
    collect_options,
    drop_joined,
    fold_options,
    join,
    parse_contestants,
    refuse_reserved_name,
    safe_folder,
    write_record,
)
from rollforge.assembly.monitoring import start_sinks
from rollforge.cli.commands.collect import DatasetFlags
from rollforge.cli.commands.evaluation_flags import AskFlags, EvalFlags, chosen_verifier, evaluate_model
from rollforge.cli.commands.monitoring import SinkFlags
from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.errors import Exit
from rollforge.runtime.on_error import OnError

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectOptions
    from rollforge.steps.evaluation import Evaluation, JoinedTasksets

EXAMPLE = "rollforge bench -i arithmetic=tasks.jsonl -m a=simulated -m b=simulated -k 4 --verifier exact -o runs/bench"

COMMON = ("--input", "--model", "--out", "--require", "--fresh", "--json", "--progress", "--samples", "--limit", "--verifier",
    "--verifier-set", "--base-url", "--api-key-env", "--temperature", "--max-output-tokens", "--concurrency")  # fmt: skip
"""Flags that `-h` shows."""


def bench(
    *,
    input: Annotated[list[str], Parameter(name=["--input", "-i"], negative=())],
    model: Annotated[list[str], Parameter(name=["--model", "-m"], negative=())],
    out: Annotated[str, Parameter(name=["--out", "-o"])] = "runs/bench",
    metric: str = "reward",
    require: Annotated[tuple[str, ...], Parameter(negative=(), metavar="CLAIM")] = (),
    evaluation: EvalFlags = EvalFlags(),  # noqa: B008  (frozen)
    dataset: DatasetFlags = DatasetFlags(),  # noqa: B008
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
        NAME=FILE or NAME=hf://datasets/ORG/NAME, a task set; repeatable. A file alone is named after itself.
        --map, --split and --config apply to all task sets.
    model
        [LABEL=]MODEL[@URL]; repeatable. A label that ends in a number (step200) is logged at that step.
    out
        Directory with one run per model.
    metric
        The metric the verdict is about.
    require
        Claim such as 'trained > base', or 'trained > base + 0.05': exit code 4 unless the whole 95 % interval of the paired
        difference supports it, over all task sets; repeatable.
    fresh
        Move existing runs aside and start anew.
    json
        Print one JSON object on stdout instead of tables.
    progress
        How to show progress: auto is a live panel on a terminal and plain lines elsewhere.
    """
    from rollforge.steps.evaluation import check_metric, compare, judge_claims, parse_claims, parse_taskset
    from rollforge.store import RunFiles

    contestants = parse_contestants(model)
    claims = parse_claims(require, [contestant.label for contestant in contestants])
    folder = Path(out)
    tasksets = [parse_taskset(text) for text in input]
    refuse_reserved_name(tasksets)
    is_new = not folder.exists()
    runs = [] if fresh else [folder / safe_folder(contestant.label) for contestant in contestants]
    joined = join(tasksets, evaluation, dataset, folder, runs=runs)
    with OnError(lambda: drop_joined(folder) if is_new else None):
        folding = fold_options(evaluation, joined, "bench")
        verifier = chosen_verifier(evaluation, joined)
        all_options = {
            contestant.label: _options(contestant, folder, joined, verifier, evaluation, ask, fresh=fresh)
            for contestant in contestants
        }
        for options in all_options.values():
            options.check()
    results: dict[str, Evaluation] = {}
    worst = Exit.DONE
    for contestant in contestants:
        options = all_options[contestant.label]
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
    judged = judge_claims(claims, results, metric)
    if worst == Exit.DONE and not all(one.holds for one in judged):
        worst = Exit.GATE_FAILED
    record = bench_record(contestants, results) | {
        "differences": msgspec.to_builtins(differences),
        "required": msgspec.to_builtins(judged),
        "exit_code": int(worst),
    }
    write_record(folder / "bench.json", record)
    if json:
        print_json(record)
    else:
        verdicts = [f"{one.taskset}: {one.verdict}" for one in differences]
        verdicts += [
            f"{'holds' if one.holds else 'FAILED'}: {one.claim} ({one.difference.verdict})" for one in judged
        ]
        _print(results, evaluation.samples, verdicts, folder)
    return worst


def _options(
    contestant: Contestant,
    folder: Path,
    joined: JoinedTasksets,
    verifier: ChosenVerifier,
    evaluation: EvalFlags,
    ask: AskFlags,
    *,
    fresh: bool,
) -> CollectOptions:
    if contestant.url:
        ask = replace(ask, server=replace(ask.server, base_urls=(contestant.url,)))
    run = folder / safe_folder(contestant.label)
    return collect_options(
        joined, verifier, folder, run, contestant.model, evaluation, ask.asked(), fresh=fresh
    )


def _print(results: dict[str, Evaluation], k: int, verdicts: list[str], folder: Path) -> None:
    from rollforge.cli.render.evaluation import print_tasksets

    for label, result in results.items():
        print_tasksets(result.tasksets, k, title=label)
    for verdict in verdicts:
        say(verdict)
    say(f"\nresults → {folder / 'bench.json'}")
