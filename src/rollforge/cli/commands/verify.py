"""`rollforge verify`: judge a run now, later or again; compare two verifiers; probe a verifier with known answers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.spreading import ExecutorFlags
from rollforge.cli.converters import SECONDS, SETTINGS, Flag, within
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.cli.signals import resume_command, wire_signals
from rollforge.errors import Exit, UsageError
from rollforge.records import JsonFields
from rollforge.statistics.counts import count_of
from rollforge.steps.probe import ProbeOptions
from rollforge.steps.verify.verify_options import (
    ChoiceOptions,
    JudgeCostOptions,
    RunningOptions,
    VerifyOptions,
)
from rollforge.verifiers.running.ready_verifier import Workers, parse_workers

if TYPE_CHECKING:
    from cyclopts import Token

    from rollforge.steps.verify import SpreadVerification, Verification, VerifySummary

EXAMPLE = "rollforge verify runs/first --verifier exact"

COMMON = ("--verifier", "--set", "--json", "--progress", "--failed-only", "--where", "--sample", "--fresh", "--tasks",
    "--verify-timeout",
    "--diff", "--use", "--probe", "--input")  # fmt: skip
"""Flags that `-h` shows."""

_HOW = Group("How it runs", sort_key=2)


def _to_workers(_: Any, tokens: Sequence[Token]) -> Workers:
    return parse_workers(tokens[0].value)


@Parameter(name="*", group=Group("Which rollouts", sort_key=1), negative=())
class ChoiceFlags(ChoiceOptions):
    """Command-line names of the options about rollouts."""

    is_failed_only: Annotated[bool, Parameter(name="--failed-only")]
    is_following: Annotated[bool, Parameter(name="--follow")]
    is_fresh: Annotated[bool, Parameter(name="--fresh")]
    tasks: str | None


@Parameter(name="*", group=_HOW, negative=())
class JudgeFlags(RunningOptions):
    """Command-line names of the options about the verifier."""

    options: Annotated[JsonFields, SETTINGS, Parameter(name=["--set", "-S", "--verifier-set"])]
    cache: str | None
    output: Annotated[str | None, Parameter(name="--verifier-output")]
    workers: Annotated[
        Workers,
        Parameter(
            name="--verify-workers", converter=_to_workers, n_tokens=1, metavar="N", show_choices=False
        ),
    ]
    timeout: Annotated[float, SECONDS, Parameter(name="--verify-timeout")]
    memory_mb: Annotated[int, Parameter(name="--verify-memory")]


@Parameter(name="*", group=Group("Cost", sort_key=4), negative=())
class JudgeCostFlags(JudgeCostOptions):
    """Command-line names of the options about cost."""


@Parameter(name="*", group=_HOW, negative=())
@dataclass(frozen=True, kw_only=True)
class ShortFlags:
    """Flags that set an option of the verifier."""

    fast: bool = False
    """Short for --mode fast."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """For a verifier that runs programs: auto and require need bubblewrap or refuse, off runs them with limits only."""


@Parameter(name="*", group=Group("Instead of judging", sort_key=3), negative=())
@dataclass(frozen=True, kw_only=True)
class InsteadFlags:
    """Flags that replace judging: compare, select or probe verifiers."""

    diff: tuple[str, str] | None = None
    """Compare two verifiers' verdicts and stop. NAME@fast or NAME@1f0c is one mode or fingerprint, `recorded` the run's own reward."""
    use: str | None = None
    """Make this verifier's verdicts the ones that every later command reads, and stop; `recorded` goes back to the run's own."""
    probe: bool = False
    """Test the verifier on answers whose verdict is known (gold, empty, swapped), and stop; exit code 5 if it fails."""
    input: Annotated[str | None, Parameter(name=["--input", "-i"])] = None
    """With --probe: a task file, if there is no run yet."""
    limit: Annotated[int, Parameter(name=["--limit", "-n"]), within(1)] = 200
    """With --probe: number of tasks to test on."""


def verify(
    run: str | None = None,
    /,
    *,
    verifier: str | None = None,
    choice: ChoiceFlags = ChoiceFlags(),  # noqa: B008  (frozen)
    judging: JudgeFlags = JudgeFlags(),  # noqa: B008
    short: ShortFlags = ShortFlags(),  # noqa: B008
    other: InsteadFlags = InsteadFlags(),  # noqa: B008
    money: JudgeCostFlags = JudgeCostFlags(),  # noqa: B008
    scale: ExecutorFlags = ExecutorFlags(),  # noqa: B008
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Judge a run with a verifier: now, later or again.

    Verdicts are appended beside the run, with the verifier's name and fingerprint. Rollouts that it has judged are skipped,
    and the run itself is never edited. A failed verdict is recorded as a failure, never as reward 0.

    Parameters
    ----------
    run
        The run: a folder, or a rollouts file.
    verifier
        Name of a built-in verifier, file.py:function or module:function.
    json
        Print one JSON object on stdout at the end, and nothing else there.
    progress
        How to show progress: auto shows a live line on a terminal and plain lines elsewhere.
    """
    if run is None and not (other.probe and other.input):
        raise UsageError("which run?", hint=f"for example: {EXAMPLE}")
    if other.diff is not None and run is not None:
        return _diff(run, *other.diff, tasks=choice.tasks, json=json)
    if other.use is not None and run is not None:
        return _use(run, other.use, json=json)
    if verifier is None:
        raise UsageError("which verifier?", hint="--verifier NAME; see them: rollforge list verifiers")
    fields = vars(judging).copy()
    if short.sandbox:
        fields["options"] = judging.options | {"sandbox": short.sandbox}
    if short.fast:
        fields["mode"] = "fast"
    if other.probe:
        fields = {name: value for name, value in fields.items() if name in ProbeOptions.__struct_fields__}
        return _probe(
            ProbeOptions(
                run=run, input=other.input or choice.tasks, verifier=verifier, limit=other.limit, **fields
            ),
            json=json,
        )
    assert run is not None
    return _judge(
        VerifyOptions(run=run, verifier=verifier, **vars(choice), **vars(money), **fields),
        json=json,
        progress="none" if json and progress == "auto" else progress,
        scale=scale,
    )


def _judge(options: VerifyOptions, *, json: bool, progress: Progress, scale: ExecutorFlags) -> Exit:
    from rollforge.cli.render.verify import LiveLine, print_summary, summary_record
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.verify import SpreadVerification, Verification

    verification: Verification | SpreadVerification
    verification = (
        SpreadVerification(options, on=scale.on, workers=scale.workers)
        if scale.is_spread
        else Verification(options)
    )
    display = LiveLine(progress, verification.snapshot)
    display.start()
    try:
        summary = run_async(_drive(verification))
    finally:
        display.stop()
    code = _exit_of(summary)
    if json:
        print_json(summary_record(summary, code))
    elif progress == "json":
        from rollforge.cli.render.progress import write_record

        write_record({"event": "done", **summary_record(summary, code)})
    else:
        print_summary(summary, options, resume=shlex.join(resume_command()))
    return code


async def _drive(verification: Verification | SpreadVerification) -> VerifySummary:
    """Run the verification with signal handlers."""
    wire_signals(drain=verification.stop, abort=verification.abort, what="being judged")
    try:
        return await verification.run()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # stopped before anything was judged


def _exit_of(summary: VerifySummary) -> Exit:
    if summary.state == "interrupted":
        return Exit.INTERRUPTED
    if summary.is_over_budget:
        return Exit.BUDGET_REACHED
    return Exit.DONE if summary.state == "done" else Exit.INCOMPLETE


def _diff(run: str, a: str, b: str, *, tasks: str | None, json: bool) -> Exit:
    from rollforge.cli.render.verify import flip_record, print_flips
    from rollforge.steps.verify import compare

    table = compare(run, a, b, tasks=tasks)
    if json:
        print_json(flip_record(table))
    else:
        print_flips(table)
    return Exit.DONE


def _use(run: str, name: str, *, json: bool) -> Exit:
    from rollforge.steps.verify import default_verifier, use_verifier
    from rollforge.store import RunFiles, read_manifest

    before = read_manifest(RunFiles(run))
    manifest = use_verifier(run, name)
    if json:
        print_json({"run": run, "verdict_of_record": name, "manifest": str(manifest)})
    else:
        whose = f"the verdicts of {name}"
        if name == "recorded":
            whose = "the rewards recorded with the rollouts, and the newest later verdict where a rollout has none"
        say(f"later commands now read {whose} (noted in {manifest})")
        previous = (before.verdict_of_record if before is not None else None) or default_verifier(
            RunFiles(run)
        )
        if previous != name:
            say(f"  to go back: rollforge verify {shlex.quote(run)} --use {shlex.quote(previous)}")
    return Exit.DONE


def _probe(options: ProbeOptions, *, json: bool) -> Exit:
    from rollforge.cli.render.probe import print_report, report_record
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.probe import probe
    from rollforge.verifiers.probes import PROBE_CALLS

    if "base_url" in options.options:
        say(
            f"note: the probe makes about {count_of(options.limit * PROBE_CALLS, 'call')} to the judge model "
            f"({count_of(options.limit, 'task')} × {PROBE_CALLS}); fewer with -n"
        )
    report = run_async(probe(options))
    if json:
        print_json(report_record(report))
    else:
        print_report(report)
    return Exit.BROKEN_VERIFICATION if report.is_broken else Exit.DONE
