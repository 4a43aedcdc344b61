"""`rollforge eval`: one model over several task sets."""

from __future__ import annotations

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
from rollforge.errors import Exit
from rollforge.records import JsonFields

if TYPE_CHECKING:
    from rollforge.steps.evaluation import Evaluation
    from rollforge.store import RunFiles

EXAMPLE = "rollforge eval -i arithmetic=tasks.jsonl -m simulated -k 4 --verifier exact -o runs/eval"


def evaluate(
    *,
    input: Annotated[list[str], Parameter(name=["--input", "-i"], negative=())],
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    step: int = 0,
    evaluation: EvalFlags = EvalFlags(),  # noqa: B008  (frozen)
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
        NAME=FILE, a task set; repeatable. A file alone is named after itself.
    model
        Model name; `simulated` starts the embedded model.
    out
        The run's directory; by default runs/eval-MODEL.
    step
        Training step the metrics are logged at, so that curves can be drawn. Another step in the same directory is
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
    curve = _curve_so_far(files, step)
    if curve is not None and not fresh:
        say(f"another step was evaluated in {folder}: its rollouts are moved aside, its metrics stay")
    joined = join([parse_taskset(text) for text in input], evaluation, folder)
    options = collect_options(
        joined, folder, folder, model, evaluation, ask, fresh=fresh or curve is not None, step=step or None
    )
    with start_sinks(sinks, files, options.to_config()) as opened:
        result, code = evaluate_model(
            options,
            fold_options(evaluation, joined, "eval"),
            "none" if json and progress == "auto" else progress,
        )
        if curve and not fresh and not files.metrics.exists():
            write_atomically(files.metrics, curve)
        opened.log(result.metrics, step=step)
    record = _record(result) | {"model": model, "step": step, "exit_code": int(code)}
    _write(files, record)
    _print(result, record, json=json)
    if not json:
        say(f"\nlogged at step {step} → {files.metrics}; the rollouts are in {folder}")
    return code


def _record(result: Evaluation) -> JsonFields:
    record: JsonFields = msgspec.to_builtins(result)
    del record["task_means"]
    return record


def _write(files: RunFiles, record: JsonFields) -> None:
    from rollforge.store import write_atomically

    write_atomically(files.evaluation, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _print(result: Evaluation, record: JsonFields, *, json: bool) -> None:
    if json:
        print_json(record)
        return
    from rollforge.cli.render.evaluation import print_tasksets

    print_tasksets(result.tasksets, result.k)


def _curve_so_far(files: RunFiles, step: int) -> bytes | None:
    """Return the metrics logged beside an evaluation of another step; None without such an evaluation."""
    from rollforge.store import read_manifest

    manifest = read_manifest(files)
    if manifest is None or manifest.fingerprint.get("step") == (step or None):
        return None
    return files.metrics.read_bytes() if files.metrics.is_file() else b""
