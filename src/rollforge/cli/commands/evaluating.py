"""This module is what `eval` and `bench` share: their flags, one model's run over joined task sets, the table of results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.collect import (
    AgentFlags,
    ModelFlags,
    PaceFlags,
    TaskFlags,
    VerifierFlags,
    options_from_flags,
)
from rollforge.cli.interrupts import resume_command, wire_signals
from rollforge.cli.render.console import out, say
from rollforge.cli.render.numbers import interval, mean_text, percent
from rollforge.errors import Exit, IncompleteError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rollforge.cli.render.progress import Progress
    from rollforge.records import JsonObject
    from rollforge.steps.collect import CollectOptions, CollectResult
    from rollforge.steps.evaluation import EvaluateOptions, Evaluation, JoinedTasksets, Taskset, TasksetResult

_EVAL = Group("Evaluation", sort_key=1)
JOINED = "eval_tasks.jsonl"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvalFlags:
    """What is evaluated, and how it is folded."""

    samples: Annotated[int, Parameter(name=["--samples", "-k", "--num-repeats"], group=_EVAL)] = 1
    """Runs per task; the metric names carry it (mean@4)."""
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"], group=_EVAL)] = None
    """Take only this many tasks of each set."""
    verifier: Annotated[list[str], Parameter(group=_EVAL, negative=())] = field(default_factory=list)
    """A verifier for all task sets, or TASKSET=VERIFIER; repeatable. Default: exact, where tasks have expected_answer."""
    verifier_set: Annotated[list[str], Parameter(group=_EVAL, negative=())] = field(default_factory=list)
    """key=value option of the verifier."""
    prompt_template: Annotated[str | None, Parameter(group=_EVAL)] = None
    """YAML file with `user` and, if wanted, `system`; {field} stands for a field of the row."""
    threshold: Annotated[float, Parameter(group=_EVAL)] = 0.5
    """From this reward on a run counts as solved, for pass@k."""
    estimator: Annotated[Literal["exact", "replacement", "bootstrap42"], Parameter(group=_EVAL)] = "exact"
    """How best@k and worst@k are estimated; bootstrap42 gives the numbers of Trinity-RFT and verl."""
    detailed_stats: Annotated[bool, Parameter(group=_EVAL, negative=())] = False
    """Also report std, max and min over tasks of every statistic."""
    seed: Annotated[int, Parameter(group=_EVAL)] = 0
    """Seed for the embedded model."""


def join(tasksets: list[Taskset], flags: EvalFlags, folder: Path) -> JoinedTasksets:
    """The joined task file in `folder`."""
    from rollforge.steps.evaluation import join_tasksets

    if flags.samples < 1:
        raise UsageError(f"-k/--samples must be at least 1, not {flags.samples}")
    return join_tasksets(tasksets, folder / JOINED, limit=flags.limit)


def collect_options(
    joined: Path,
    run: Path,
    model: str,
    flags: EvalFlags,
    server: ModelFlags,
    pace: PaceFlags,
    *,
    facts: JoinedTasksets,
    fresh: bool,
    step: int | None = None,
) -> CollectOptions:
    """What `collect` is told for one model."""
    import msgspec

    verifier, options = choose_verifier(flags, list(facts.counts), has_answers=facts.has_answers)
    tasks = TaskFlags(samples=flags.samples, seed=flags.seed, prompt_template=flags.prompt_template)
    judging = VerifierFlags(verifier=verifier)
    collecting = options_from_flags(
        str(joined), str(run), model, tasks, server, judging, AgentFlags(), pace, fresh
    )
    return msgspec.structs.replace(collecting, verifier_options=options, step=step)


def choose_verifier(flags: EvalFlags, tasksets: list[str], *, has_answers: bool) -> tuple[str, JsonObject]:
    """The verifier for the whole run, and its options: one for all, or one that dispatches by task set."""
    from rollforge.config import parse_settings

    options = parse_settings(flags.verifier_set)
    if not flags.verifier:
        if not has_answers:
            raise UsageError("no verifier", hint="name one: --verifier math (see rollforge list verifiers)")
        say("note: no --verifier given; answers are compared with expected_answer by `exact`")
        return "exact", options
    by_taskset: dict[str, str] = {}
    common: str | None = None
    for word in flags.verifier:
        name, equals, verifier = word.partition("=")
        if equals and name in tasksets:
            by_taskset[name] = verifier
        elif equals:
            raise UsageError(
                f"--verifier {word}: there is no task set {name!r}", hint=f"known: {', '.join(tasksets)}"
            )
        else:
            common = word
    if not by_taskset and common is not None:
        return common, options
    missing = [name for name in tasksets if name not in by_taskset and common is None]
    if missing:
        raise UsageError(
            f"no verifier for {missing[0]!r}", hint=f"--verifier {missing[0]}=NAME, or one for all"
        )
    return _dispatching({name: by_taskset.get(name, common or "") for name in tasksets}, options)


def _dispatching(verifiers: dict[str, str], options: JsonObject) -> tuple[str, JsonObject]:
    from rollforge.verifiers.base import load_verifier

    fingerprints = {
        name: load_verifier(verifier, options).fingerprint for name, verifier in verifiers.items()
    }
    table = {"verifiers": verifiers, "options": options, "fingerprints": fingerprints}
    return "rollforge.verifiers.by_taskset:ByTaskset", table


def collect_run(options: CollectOptions, progress: Progress) -> CollectResult:
    """Collect what the evaluation still owes; the first Ctrl-C drains, the second aborts."""
    from rollforge.cli.render.progress import make_display
    from rollforge.loop import run_async
    from rollforge.steps.collect import Collection

    def launched(collection: Collection) -> None:
        wire_signals(drain=collection.drain, abort=collection.abort)
        display.start()

    def announce() -> None:
        if collection.plan is not None and progress != "none":
            owed, expected = collection.plan.owed(options.attempts), collection.plan.ledger.expected
            say(f"{options.model}: {owed:,} of {expected:,} runs owed → {collection.plan.files.rollouts}")

    collection = Collection(options, command=resume_command(), on_start=launched)
    display = make_display(progress, collection.snapshot, announce)
    try:
        return run_async(collection.run())
    finally:
        display.stop()


def evaluate_model(
    options: CollectOptions, folding: EvaluateOptions, progress: Progress
) -> tuple[Evaluation, Exit]:
    """Collect one model's run and fold it."""
    from rollforge.steps.evaluation import evaluate_run

    started = time.monotonic()
    result = collect_run(options, progress)
    if not result.finished:
        error = IncompleteError(
            f"{result.message}: no run finished, so there is nothing to evaluate", hint="run it again"
        )
        error.exit_code = result.exit_code
        raise error
    if not result.fresh:
        say(f"note: the runs were in {options.out} already; nothing was asked of {options.model}")
    evaluation = evaluate_run(options.out, folding)
    evaluation.metrics[f"time/{folding.category}"] = time.monotonic() - started
    if result.exit_code != Exit.DONE:
        say(
            f"note: {result.message} ({result.finished:,} of {result.expected:,} runs); the same command goes on from here"
        )
    return evaluation, result.exit_code


def print_tasksets(tasksets: dict[str, TasksetResult], k: int, *, title: str = "") -> None:
    """One row per task set and metric; on a narrow terminal the statistics people ask for first, the rest is in --json."""
    from rich.table import Table

    columns = _columns(k, is_wide=out().width >= 120)
    table = Table(box=None, pad_edge=False, header_style="dim", title=title or None, title_justify="left")
    for name in ("taskset", "metric"):
        table.add_column(name, no_wrap=True)
    for name in [*columns, "tasks", "judged"]:
        table.add_column(name, justify="right", no_wrap=True)
    for taskset, result in tasksets.items():
        for metric in sorted(result.metrics, key=lambda name: name != "reward"):
            statistics = result.metrics[metric]
            mean = statistics.get(f"mean@{k}")
            if mean is None and metric != "reward":
                continue
            cells = {name: mean_text(found.value) for name, found in statistics.items()}
            cells["95 % interval"] = interval(mean.ci) if mean else ""
            shown = [cells.get(column, "") for column in columns]
            judged = mean.tasks if mean else 0
            table.add_row(taskset, metric, *shown, f"{judged:,}/{result.tasks:,}", percent(result.coverage))
    out().print(table)


def _columns(k: int, *, is_wide: bool) -> list[str]:
    head = [f"mean@{k}", "95 % interval"]
    if k == 1:
        return head
    if is_wide:
        return [*head, *(f"{name}@{k}" for name in ("std", "best", "worst", "maj", "pass"))]
    return [*head, f"best@{k}", f"pass@{k}"]
