"""`rollforge verify`: judge a run now, later or again; compare two verifiers; ask a verifier what it must know."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.cli.interrupts import resume_command, wire_signals
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.steps.verify import Summary, Verification, VerifyOptions

EXAMPLE = "rollforge verify runs/first --verifier exact"

_WHICH = Group("Which rollouts", sort_key=1)
_HOW = Group("How it runs", sort_key=2)
_ELSE = Group("Instead of judging", sort_key=3)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WhichFlags:
    """Which rollouts of the run."""

    failed_only: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Only rollouts that this verifier failed on, or that nobody has judged."""
    where: Annotated[str | None, Parameter(group=_WHICH)] = None
    """An SQL condition over the index's columns, such as "is_truncated and reward > 0"."""
    sample: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Only so many rollouts (500) or such a share of them (1%); the same ones every time."""
    follow: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Keep reading while another process collects the run."""
    fresh: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Judge again what this verifier has judged; the newest verdict counts."""
    tasks: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Task file with the fields the verifier needs, when the run does not hold them."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HowFlags:
    """How the verifier runs."""

    mode: Annotated[Literal["fast", "precise"] | None, Parameter(group=_HOW)] = None
    """For a verifier that offers both; precise is the default there."""
    fast: Annotated[bool, Parameter(group=_HOW, negative=())] = False
    """The same as --mode fast."""
    set: Annotated[list[str], Parameter(name=["--set", "-S", "--verifier-set"], group=_HOW, negative=())] = (
        field(default_factory=list)
    )
    """key=value option of the verifier; repeatable."""
    sandbox: Annotated[Literal["auto", "require", "off"] | None, Parameter(group=_HOW)] = None
    """For a verifier that runs programs: require refuses to run them without bubblewrap, off runs them with limits only."""
    cache: Annotated[str | None, Parameter(group=_HOW)] = None
    """Directory that keeps verdicts across runs."""
    verify_workers: Annotated[str, Parameter(group=_HOW)] = "auto"
    """Processes for a sync verifier; auto uses idle cores, 0 runs it unprotected in this process."""
    verify_timeout: Annotated[str, Parameter(group=_HOW)] = "60s"
    """Longest time for one verdict."""
    verify_memory: Annotated[int, Parameter(group=_HOW)] = 4096
    """Megabytes one worker may take on top of what the loaded verifier needs; 0 = no limit."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ElseFlags:
    """Other things to do with verdicts."""

    diff: Annotated[tuple[str, str] | None, Parameter(group=_ELSE, negative=())] = None
    """Compare two verifiers' verdicts and stop. NAME@fast or NAME@1f0c is one mode or fingerprint, `recorded` the run's own reward."""
    use: Annotated[str | None, Parameter(group=_ELSE)] = None
    """Make this verifier's verdicts the ones every later command reads, and stop; `recorded` goes back to the run's own."""
    probe: Annotated[bool, Parameter(group=_ELSE, negative=())] = False
    """Ask the verifier what it must know, without labels, and stop; exit code 5 when it is judged broken."""
    input: Annotated[str | None, Parameter(name=["--input", "-i"], group=_ELSE)] = None
    """With --probe: a task file, when there is no run yet."""
    limit: Annotated[int, Parameter(name=["--limit", "-n"], group=_ELSE)] = 200
    """With --probe: tasks to ask about."""


def verify(
    run: str | None = None,
    /,
    *,
    verifier: str | None = None,
    which: WhichFlags = WhichFlags(),  # noqa: B008  (frozen)
    how: HowFlags = HowFlags(),  # noqa: B008
    other: ElseFlags = ElseFlags(),  # noqa: B008
    json: Annotated[bool, Parameter(negative=())] = False,
    progress: Progress = "auto",
) -> Exit:
    """Judge a run with a verifier: now, later or again.

    Verdicts are appended beside the run, with the verifier's name and fingerprint; what is judged already is not judged again,
    and the run itself is never edited. A verdict that fails is recorded as a failure, never as reward 0.

    Parameters
    ----------
    run
        The run: a directory, or a rollouts file.
    verifier
        A ready verifier's name, file.py:function or module:function.
    json
        Print one JSON object on stdout at the end, and nothing else there.
    progress
        How to show progress: auto is a live line on a terminal and plain lines elsewhere.
    """
    if run is None and not (other.probe and other.input):
        raise UsageError("which run?", hint=f"for example: {EXAMPLE}")
    if other.diff is not None and run is not None:
        return _diff(run, *other.diff, tasks=which.tasks, json=json)
    if other.use is not None and run is not None:
        return _use(run, other.use, json=json)
    if verifier is None:
        raise UsageError("which verifier?", hint="--verifier NAME; see them: rollforge list verifiers")
    if other.probe:
        return _probe(run, verifier, which, how, other, json=json)
    assert run is not None
    return _judge(
        _options(run, verifier, which, how),
        json=json,
        progress="none" if json and progress == "auto" else progress,
    )


def _options(run: str, verifier: str, which: WhichFlags, how: HowFlags) -> VerifyOptions:
    from rollforge.config import parse_duration, parse_settings
    from rollforge.steps.verify import VerifyOptions
    from rollforge.verifiers.running.judge import parse_workers

    return VerifyOptions(
        run=run,
        verifier=verifier,
        options=parse_settings(how.set) | ({"sandbox": how.sandbox} if how.sandbox else {}),
        mode="fast" if how.fast else how.mode,
        tasks=which.tasks,
        is_failed_only=which.failed_only,
        where=which.where,
        sample=which.sample,
        is_following=which.follow,
        is_fresh=which.fresh,
        cache=how.cache,
        workers=parse_workers(how.verify_workers),
        timeout=parse_duration(how.verify_timeout),
        memory_mb=how.verify_memory,
    )


def _judge(options: VerifyOptions, *, json: bool, progress: Progress) -> Exit:
    from rollforge.cli.render.verify import LiveLine, print_summary, summary_record
    from rollforge.loop import run_async
    from rollforge.steps.verify import Verification

    verification = Verification(options)
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


async def _drive(verification: Verification) -> Summary:
    """Run with signals wired."""
    wire_signals(drain=verification.stop, abort=verification.abort, what="being judged")
    try:
        return await verification.run()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # stopped before anything was judged


def _exit_of(summary: Summary) -> Exit:
    if summary.state == "interrupted":
        return Exit.INTERRUPTED
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
    from rollforge.steps.verify import use_verifier

    manifest = use_verifier(run, name)
    if json:
        print_json({"run": run, "verdict_of_record": name, "manifest": str(manifest)})
    else:
        whose = "recorded verdicts" if name == "recorded" else f"verdicts of {name}"
        say(f"later commands now read the {whose} (noted in {manifest})")
    return Exit.DONE


def _probe(
    run: str | None, verifier: str, which: WhichFlags, how: HowFlags, other: ElseFlags, *, json: bool
) -> Exit:
    from rollforge.cli.render.probe import print_report, report_record
    from rollforge.config import parse_duration, parse_settings
    from rollforge.loop import run_async
    from rollforge.steps.probe import ProbeOptions, probe
    from rollforge.verifiers.running.judge import parse_workers

    report = run_async(
        probe(
            ProbeOptions(
                run=run,
                input=other.input or which.tasks,
                verifier=verifier,
                options=parse_settings(how.set) | ({"sandbox": how.sandbox} if how.sandbox else {}),
                mode="fast" if how.fast else how.mode,
                limit=other.limit,
                workers=parse_workers(how.verify_workers),
                timeout=parse_duration(how.verify_timeout),
                memory_mb=how.verify_memory,
            )
        )
    )
    if json:
        print_json(report_record(report))
    else:
        print_report(report)
    return Exit.BROKEN_VERIFICATION if report.is_broken else Exit.DONE
