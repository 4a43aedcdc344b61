"""`rollforge eval`: one model over several task sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.commands.collect import ModelFlags, PaceFlags
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
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.store import RunFiles

EXAMPLE = "rollforge eval -i arithmetic=tasks.jsonl -m simulated -k 4 --verifier exact -o runs/eval"


def evaluate(
    *,
    input: Annotated[list[str], Parameter(name=["--input", "-i"], negative=())],
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    step: int = 0,
    evaluation: EvalFlags = EvalFlags(),  # noqa: B008  (frozen)
    server: ModelFlags = ModelFlags(),  # noqa: B008
    pace: PaceFlags = PaceFlags(),  # noqa: B008
    sinks: SinkFlags = SinkFlags(),  # noqa: B008
    fresh: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from pathlib import Path

    import msgspec

    from rollforge.steps.evaluation import EvaluateOptions, parse_taskset
    from rollforge.store import RunFiles
    from rollforge.store.atomic import write_atomically

    folder = Path(out or f"runs/eval-{safe_folder(model)}")
    files = RunFiles(folder)
    curve = _curve_so_far(files, step)
    if curve is not None and not fresh:
        say(f"another step was evaluated in {folder}: its rollouts are moved aside, its metrics stay")
    facts = join([parse_taskset(text) for text in input], evaluation, folder)
    options = collect_options(
        folder / JOINED, folder, model, evaluation, server, pace, facts=facts, fresh=fresh or curve is not None,
        step=step or None,
    )  # fmt: skip
    folding = EvaluateOptions(
        k=evaluation.samples,
        tasks=facts.counts,
        estimator=evaluation.estimator,
        detailed_stats=evaluation.detailed_stats,
        threshold=evaluation.threshold,
    )
    with start_sinks(sinks, files, options.to_config()) as opened:
        result, code = evaluate_model(options, folding, "none" if json and progress == "auto" else progress)
        if curve and not fresh and not files.metrics.exists():
            write_atomically(files.metrics, curve)
        opened.log(result.metrics, step=step)
    shown = msgspec.to_builtins(result) | {"model": model, "step": step, "exit_code": int(code)}
    shown.pop("task_means")
    write_atomically(files.evaluation, msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n")
    if json:
        print_json(shown)
    else:
        print_tasksets(result.tasksets, result.k)
        say(f"\nlogged at step {step} → {files.metrics}; the rollouts are in {folder}")
    return code


def _curve_so_far(files: RunFiles, step: int) -> bytes | None:
    """The metrics logged beside an evaluation of another step; None where there is no such evaluation."""
    from rollforge.store import read_manifest

    manifest = read_manifest(files)
    if manifest is None or manifest.fingerprint.get("step") == (step or None):
        return None
    return files.metrics.read_bytes() if files.metrics.is_file() else b""


def safe_folder(name: str) -> str:
    """A model's name as the name of a directory."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)
