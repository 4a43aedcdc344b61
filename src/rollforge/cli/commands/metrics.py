"""`rollforge metrics`: the numbers of a run, with counts and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.commands.reading_flags import Reading, exit_of_tasks, index_elsewhere, strict_exit
from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.index import Index

EXAMPLE = "rollforge metrics runs/first"
ADAPTIVE_COMPAT = (
    "note: tasks were sampled adaptively; these numbers are over the first stage, and pass@k ends with it"
)
ADAPTIVE_BIASED = "warning: some runs were sampled adaptively, and their first stages are not known: these numbers are biased"


def metrics(
    run: Annotated[list[str], Parameter(name="run")],
    /,
    *,
    against: str | None = None,
    threshold: float = 0.5,
    answer_field: str | None = None,
    compat: Literal["nemo-gym", "trinity"] | None = None,
    labels: Flag = False,
    stage: Literal["auto", "all"] = "auto",
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    reading: Reading = Reading(),  # noqa: B008  (a record of defaults, never changed)
    json: Flag = False,
) -> Exit:
    """Print the metrics of a run: every number field with its interval, success rate, pass@k, histogram, red flags.

    Means are over judged rollouts; missing values are counted beside them, never averaged as 0. Intervals are 95 % and
    clustered by task.

    Parameters
    ----------
    run
        A rollouts file, its folder, or several files (or a glob) read as one run.
    against
        A second run: print paired differences over shared tasks, and a verdict in words. Not with --compat.
    threshold
        A rollout is a success when its reward is at least this.
    answer_field
        The field that majority@k votes on. Default: `extracted_answer` if there is one, else the whole answer.
    compat
        Print the numbers that another tool would print, under its names (nemo-gym: pass@k in 0–100; trinity: bootstrap best@k).
    labels
        Print how good the verifier is by people's labels instead: precision, recall and error rate, from the random queue alone.
    stage
        Of an adaptive run (collect --goal): auto takes the first stage, which is unbiased; all takes every rollout.
    out
        Also write the metrics to this file as JSON.
    json
        Print one JSON object on stdout instead of tables.
    """
    from rollforge.index import open_index
    from rollforge.store.outputs import refuse_output

    if out is not None:
        refuse_output(out, reads=[*run, *([against] if against else [])])
    if compat is not None and against is not None:
        raise UsageError(
            f"--compat {compat} prints one run's numbers and cannot compare it with another",
            hint="leave out --compat to compare, or --against to see the peer's numbers (of each run in turn)",
        )
    index_elsewhere(run, reading.on, reading.workers)
    with open_index(run, verifier=reading.verifier, workers=reading.workers) as index:
        if labels:
            _print_labels(index, threshold, out, json=json)
        elif compat is not None:
            _print_compat(index, compat, reading.where, out)
        else:
            _print_metrics(index, against, threshold, answer_field, out, reading, json=json, stage=stage)
        return strict_exit(index, is_strict=reading.strict) or exit_of_tasks(index)


def _print_labels(index: Index, threshold: float, out: Path | None, *, json: bool) -> None:
    from rollforge.cli.render.labels import print_labels
    from rollforge.review.labels import run_rates

    rates = run_rates(index, threshold=threshold)
    if rates is None:
        name = index.runs[0].name
        raise UsageError(f"{name} has no labels", hint=f"label some verdicts: rollforge show {name} --label")
    _write(rates, out)
    if json:
        print_json(rates)
    else:
        print_labels(rates)


def _print_compat(index: Index, compat: str, where: str | None, out: Path | None) -> None:
    from rollforge.steps.metrics import nemo_gym_metrics, trinity_metrics

    if index.designs:
        say(ADAPTIVE_COMPAT if index.first_stage is not None else ADAPTIVE_BIASED)
    numbers: object = (
        nemo_gym_metrics(index, where) if compat == "nemo-gym" else trinity_metrics(index, where)
    )
    _write(numbers, out)
    print_json(numbers)


def _write(numbers: object, out: Path | None) -> None:
    import msgspec

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n")


def _print_metrics(
    index: Index,
    against: str | None,
    threshold: float,
    answer_field: str | None,
    out: Path | None,
    reading: Reading,
    *,
    json: bool,
    stage: Literal["auto", "all"],
) -> None:
    import msgspec

    from rollforge.index import open_index
    from rollforge.steps.metrics import MetricsOptions, compare_runs, summarize_index

    options = MetricsOptions(threshold=threshold, where=reading.where, answer_field=answer_field, stage=stage)
    metrics_ = summarize_index(index, options)
    comparison = None
    if against is not None:
        with open_index(against, verifier=reading.verifier, workers=reading.workers) as other:
            comparison = compare_runs(index, other, where=reading.where)
    record = msgspec.to_builtins(metrics_)
    if comparison is not None:
        record["against"] = msgspec.to_builtins(comparison)
    _write(record, out)
    if json:
        print_json(record)
        return
    from rollforge.cli.render.metrics import print_comparison, print_run_metrics

    print_run_metrics(metrics_)
    if comparison is not None:
        print_comparison(comparison)
