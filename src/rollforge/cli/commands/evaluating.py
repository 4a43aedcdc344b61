"""Shared by `eval` and `bench`: their flags, and one model's run over joined task sets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.collect import ModelFlags, PaceFlags, SamplingFlags
from rollforge.cli.interrupts import resume_command, wire_signals
from rollforge.cli.render.console import say
from rollforge.cli.values import SETTINGS, within
from rollforge.errors import Exit, IncompleteError, UsageError
from rollforge.records import JsonFields
from rollforge.steps.collect.options import CollectOptions

if TYPE_CHECKING:
    from rollforge.cli.render.progress import Progress
    from rollforge.steps.collect import CollectResult
    from rollforge.steps.evaluation import EvaluateOptions, Evaluation, JoinedTasksets, Taskset

_EVAL = Group("Evaluation", sort_key=1)
JOINED = "eval_tasks.jsonl"


@Parameter(name="*", group=_EVAL, negative=())
@dataclass(frozen=True, kw_only=True)
class EvalFlags:
    """Samples, verifiers and statistics."""

    samples: Annotated[int, Parameter(name=["--samples", "-k", "--num-repeats"])] = 1
    """Runs per task; the metric names carry it (mean@4)."""
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"]), within(1)] = None
    """Take only this many tasks of each set."""
    verifier: list[str] = field(default_factory=list)
    """A verifier for all task sets, or TASKSET=VERIFIER; repeatable. Default: exact, where tasks have expected_answer."""
    verifier_set: Annotated[JsonFields, SETTINGS] = field(default_factory=dict)
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AskFlags:
    """The flags that `eval` and `bench` pass on to the collection."""

    server: ModelFlags = ModelFlags()  # noqa: RUF009  (frozen)
    sampling: SamplingFlags = SamplingFlags()  # noqa: RUF009
    pace: PaceFlags = PaceFlags()  # noqa: RUF009


def join(tasksets: list[Taskset], flags: EvalFlags, folder: Path) -> JoinedTasksets:
    """Write the joined task file into `folder`."""
    from rollforge.steps.evaluation import join_tasksets

    if flags.samples < 1:
        raise UsageError(f"-k/--samples must be at least 1, not {flags.samples}")
    return join_tasksets(tasksets, folder / JOINED, limit=flags.limit)


def fold_options(
    flags: EvalFlags, joined: JoinedTasksets, category: Literal["eval", "bench"]
) -> EvaluateOptions:
    """Return how a run is folded into metrics."""
    from rollforge.steps.evaluation import EvaluateOptions

    return EvaluateOptions(
        k=flags.samples,
        tasks=joined.counts,
        estimator=flags.estimator,
        detailed_stats=flags.detailed_stats,
        threshold=flags.threshold,
        category=category,
    )


def collect_options(
    joined: JoinedTasksets,
    folder: Path,
    run: Path,
    model: str,
    flags: EvalFlags,
    ask: AskFlags,
    *,
    fresh: bool,
    step: int | None = None,
) -> CollectOptions:
    """Return the options of one model's collection."""
    verifier, options = choose_verifier(flags, list(joined.counts), has_answers=joined.has_answers)
    given = vars(ask.server) | vars(ask.pace)
    given["overrides"] = ask.sampling.overrides() | ask.server.overrides
    return CollectOptions(
        input=str(folder / JOINED),
        out=str(run),
        model=model,
        samples=flags.samples,
        seed=flags.seed,
        prompt_template=flags.prompt_template,
        verifier=verifier,
        verifier_options=options,
        fresh=fresh,
        step=step,
        **given,
    )


def choose_verifier(flags: EvalFlags, tasksets: list[str], *, has_answers: bool) -> tuple[str, JsonFields]:
    """Return the run's verifier and its options: one for all task sets, or one that dispatches by task set."""
    own = {name: given for name in tasksets if isinstance(given := flags.verifier_set.get(name), dict)}
    options = {name: value for name, value in flags.verifier_set.items() if name not in own}
    if not flags.verifier:
        if not has_answers:
            raise UsageError("no verifier", hint="name one: --verifier math (see rollforge list verifiers)")
        say("note: no --verifier given; answers are compared with expected_answer by `exact`")
        return _dispatching(dict.fromkeys(tasksets, "exact"), options, own) if own else ("exact", options)
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
    if not by_taskset and not own and common is not None:
        return common, options
    missing = [name for name in tasksets if name not in by_taskset and common is None]
    if missing:
        raise UsageError(
            f"no verifier for {missing[0]!r}", hint=f"--verifier {missing[0]}=NAME, or one for all"
        )
    return _dispatching({name: by_taskset.get(name, common or "") for name in tasksets}, options, own)


def _dispatching(
    verifiers: dict[str, str], options: JsonFields, own: dict[str, JsonFields]
) -> tuple[str, JsonFields]:
    from rollforge.verifiers.base import load_verifier

    fingerprints = {
        name: load_verifier(verifier, options | own.get(name, {})).fingerprint
        for name, verifier in verifiers.items()
    }
    table: JsonFields = {"verifiers": verifiers, "options": options, "fingerprints": fingerprints}
    if own:
        table["own_options"] = own
    return "rollforge.verifiers.by_taskset:ByTaskset", table


def collect_run(options: CollectOptions, progress: Progress) -> CollectResult:
    """Collect the missing rollouts; the first Ctrl-C drains, the second aborts."""
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


def safe_folder(name: str) -> str:
    """Turn a model's name into a directory name."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)
