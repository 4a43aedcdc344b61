"""Shared by `eval` and `bench`: their flags, and one model's run over joined task sets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from rollforge.assembly.evaluations import ChosenVerifier, EvalSettings, choose_verifier, refuse_empty
from rollforge.cli.commands.collect import ModelFlags, PaceFlags, SamplingFlags
from rollforge.cli.converters import SETTINGS, within
from rollforge.cli.render.console import say
from rollforge.cli.signals import resume_command, wire_signals
from rollforge.errors import Exit
from rollforge.records import JsonFields

if TYPE_CHECKING:
    from rollforge.cli.render.progress import Progress
    from rollforge.steps.collect import CollectOptions, CollectResult
    from rollforge.steps.evaluation import EvaluateOptions, Evaluation, JoinedTasksets

_EVAL = Group("Evaluation", sort_key=1)


@Parameter(name="*", group=_EVAL, negative=())
class EvalFlags(EvalSettings):
    """Command-line names of the options about evaluation."""

    samples: Annotated[int, Parameter(name=["--samples", "-k", "--num-repeats"])]
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"]), within(1)]
    verifier_set: Annotated[JsonFields, SETTINGS]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AskFlags:
    """Flags that `eval` and `bench` pass on to the collection."""

    server: ModelFlags = ModelFlags()  # noqa: RUF009  (frozen)
    sampling: SamplingFlags = SamplingFlags()  # noqa: RUF009
    pace: PaceFlags = PaceFlags()  # noqa: RUF009

    def asked(self) -> JsonFields:
        """Return the fields of `CollectOptions` that these flags set."""
        fields: JsonFields = vars(self.server) | vars(self.pace)
        fields["overrides"] = self.sampling.overrides() | self.server.overrides
        return fields


def chosen_verifier(flags: EvalFlags, joined: JoinedTasksets) -> ChosenVerifier:
    """Choose the run's verifier, and print the choice if the user named none."""
    chosen = choose_verifier(flags, joined)
    if chosen.is_assumed:
        say("note: no --verifier given; answers are compared with expected_answer by `exact`")
    return chosen


def collect_run(options: CollectOptions, progress: Progress) -> CollectResult:
    """Collect the missing rollouts; the first Ctrl-C drains, the second aborts."""
    from rollforge.cli.render.progress import make_display
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.collect import Collection

    def launched(collection: Collection) -> None:
        wire_signals(drain=collection.drain, abort=collection.abort)
        display.start()

    def announce() -> None:
        if collection.plan is not None and progress != "none":
            owed, expected = collection.plan.owed(options.attempts), collection.plan.ledger.expected
            say(f"{options.model}: {owed:,} of {expected:,} rollouts owed → {collection.plan.files.rollouts}")

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
    refuse_empty(result)
    if not result.fresh:
        say(f"note: the runs were in {options.out} already; nothing was asked of {options.model}")
    evaluation = evaluate_run(options.out, folding)
    evaluation.metrics[f"time/{folding.category}"] = time.monotonic() - started
    if result.exit_code != Exit.DONE:
        say(
            f"note: {result.message} ({result.finished:,} of {result.expected:,} runs); the same command goes on from here"
        )
    return evaluation, result.exit_code
