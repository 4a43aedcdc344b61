"""`rollforge eval`: one model over several task sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.assembly.evaluations import (
    collect_options,
    curve_so_far,
    drop_joined,
    evaluation_record,
    fold_options,
    join,
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
from rollforge.records import JsonFields
from rollforge.runtime.on_error import OnError

if TYPE_CHECKING:
    from rollforge.steps.evaluation import Evaluation

EXAMPLE = "rollforge eval -i arithmetic=tasks.jsonl -m simulated -k 4 --verifier exact -o runs/eval"

COMMON = ("--input", "--model", "--out", "--fresh", "--json", "--progress", "--samples", "--limit", "--verifier", "--verifier-set",
    "--base-url", "--api-key-env", "--temperature", "--max-output-tokens", "--concurrency", "--step")  # fmt: skip
"""Flags that `-h` shows."""


def evaluate(
    *,
    input: Annotated[list[str], Parameter(name=["--input", "-i"], negative=())],
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    step: int = 0,
    evaluation: EvalFlags = EvalFlags(),  # noqa: B008  (frozen)
    dataset: DatasetFlags = DatasetFlags(),  # noqa: B008
    ask: AskFlags = AskFlags(),  # noqa: B008
    sinks: SinkFlags = SinkFlags(),  # noqa: B008
    fresh: Flag = False,
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Evaluate a model on several task sets in one resumable run.

    Parameters
    ----------
    input
        NAME=FILE or NAME=hf://datasets/ORG/NAME, a task set; repeatable. A file alone is named after itself.
        --map, --split and --config apply to all task sets.
    model
        Model name; `simulated` starts the embedded model.
    out
        The run's folder; by default runs/eval-MODEL.
    step
        Training step the metrics are logged at, so that curves can be drawn. Another step in the same folder is
        evaluated anew.
    fresh
        Move an existing run aside and start anew.
    json
        Print one JSON object on stdout instead of a table.
    progress
        How to show progress: auto is a live panel on a terminal and plain lines elsewhere.
    """
    from rollforge.steps.evaluation import parse_taskset
    from rollforge.store import RunFiles, write_atomically

    folder = Path(out or f"runs/eval-{safe_folder(model)}")
    files = RunFiles(folder)
    curve = curve_so_far(files, step)
    if curve is not None and not fresh:
        say(f"another step was evaluated in {folder}: its rollouts are moved aside, its metrics stay")
    is_new = not folder.exists()
    tasksets = [parse_taskset(text) for text in input]
    joined = join(tasksets, evaluation, dataset, folder, runs=[] if fresh else [folder])
    with OnError(lambda: drop_joined(folder) if is_new else None):
        options = collect_options(
            joined,
            chosen_verifier(evaluation, joined),
            folder,
            folder,
            model,
            evaluation,
            ask.asked(),
            fresh=fresh or curve is not None,
            step=step or None,
        )
        options.check()
    with start_sinks(sinks, files, options.to_config()) as opened:
        result, code = evaluate_model(
            options,
            fold_options(evaluation, joined, "eval"),
            "none" if json and progress == "auto" else progress,
        )
        if curve and not fresh and not files.metrics.exists():
            write_atomically(files.metrics, curve)
        opened.log(result.metrics, step=step)
    record = evaluation_record(result) | {"model": model, "step": step, "exit_code": int(code)}
    write_record(files.evaluation, record)
    _print(result, record, json=json)
    if not json:
        say(f"\nlogged at step {step} → {files.metrics}; the rollouts are in {folder}")
    return code


def _print(result: Evaluation, record: JsonFields, *, json: bool) -> None:
    if json:
        print_json(record)
        return
    from rollforge.cli.render.evaluation import print_tasksets

    print_tasksets(result.tasksets, result.k)
