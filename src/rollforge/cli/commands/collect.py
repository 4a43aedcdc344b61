"""`rollforge collect`: tasks in, a run on disk."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.monitoring import MonitorFlags, open_monitor
from rollforge.cli.interrupts import resume_command, wire_signals
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.cli.values import SECONDS, SETTINGS, Flag
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.records import JsonFields
from rollforge.steps.collect.options import (
    CollectOptions,
    PaceOptions,
    RolloutOptions,
    ServerOptions,
    TaskOptions,
    VerifierOptions,
)

if TYPE_CHECKING:
    from rollforge.steps.collect import Collection, CollectResult, Observer

EXAMPLE = "rollforge collect -i tasks.jsonl -o runs/first -m simulated --verifier exact -k 8"

COMMON = (
    *("--input", "--out", "--model", "--fresh", "--dry-run", "--json", "--limit", "--samples", "--base-url"),
    *(
        "--api-key-env",
        "--temperature",
        "--max-output-tokens",
        "--set",
        "--verifier",
        "--no-verify",
        "--tools",
    ),
    *("--concurrency", "--max-failures"),
)
"""Flags that `collect -h` shows."""

_MODEL = Group("Model", sort_key=2)
_VERIFIER = Group("Verifier", sort_key=3)


@Parameter(name="*", group=Group("Tasks", sort_key=1), negative=())
class TaskFlags(TaskOptions):
    """Spelling of the flags about tasks."""

    limit: Annotated[int | None, Parameter(alias="-n")]
    samples: Annotated[int, Parameter(alias=["-k", "--num-repeats", "--group-size"])]


@Parameter(name="*", group=_MODEL, negative=())
class ModelFlags(ServerOptions):
    """Spelling of the flags about the model."""

    base_urls: Annotated[tuple[str, ...], Parameter(name="--base-url", metavar="URL", show_default=False)]
    overrides: Annotated[JsonFields, SETTINGS, Parameter(name=["--set", "-S"])]


@Parameter(name="*", group=_MODEL)
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """Request parameters that have a flag of their own."""

    temperature: float | None = None
    """Sampling temperature, replacing the rows' own."""
    top_p: float | None = None
    """Nucleus sampling, replacing the rows' own."""
    max_output_tokens: int | None = None
    """Longest answer in tokens, replacing the rows' own."""

    def overrides(self) -> JsonFields:
        """Return the parameters that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@Parameter(name="*", group=_VERIFIER, negative=())
class VerifierFlags(VerifierOptions):
    """Spelling of the flags about verification."""

    verifier: str | None
    verifier_options: Annotated[JsonFields, SETTINGS, Parameter(name="--verifier-set")]
    verify_timeout_s: Annotated[float, SECONDS, Parameter(name="--verify-timeout")]
    verify_mode: Annotated[Literal["fast", "precise"] | None, Parameter(show=False)]
    verify_cache: Annotated[str | None, Parameter(name="--cache")]


@Parameter(name="*", group=_VERIFIER, negative=())
@dataclass(frozen=True, kw_only=True)
class JudgingFlags:
    """Flags that set an option of the verifier."""

    sandbox: Literal["auto", "require", "off"] | None = None
    """For a verifier that runs programs: auto and require need bubblewrap or refuse, off runs them with limits only."""
    fast: bool = False
    """Use the quicker mode of a verifier that has two; every verdict records the mode."""


@Parameter(name="*", group=Group("Agent and tools", sort_key=4), negative=())
class AgentFlags(RolloutOptions):
    """Spelling of the flags about agents."""

    tools: Annotated[tuple[str, ...], Parameter(show_default=False)]
    tool_timeout_s: Annotated[float, SECONDS, Parameter(name="--tool-timeout")]


@Parameter(name="*", group=Group("Pace and limits", sort_key=5), negative=())
class PaceFlags(PaceOptions):
    """Spelling of the flags about pace."""

    concurrency: Annotated[str, Parameter(alias="-c")]
    request_timeout_s: Annotated[float, SECONDS, Parameter(name="--request-timeout")]
    rollout_deadline_s: Annotated[float, SECONDS, Parameter(name="--rollout-deadline")]
    outage_patience_s: Annotated[float, SECONDS, Parameter(name="--outage-patience")]
    deadline_s: Annotated[float | None, SECONDS, Parameter(name="--deadline")]


def collect(
    *,
    input: Annotated[str, Parameter(name=["--input", "-i"], allow_leading_hyphen=True)],
    out: Annotated[str, Parameter(name=["--out", "-o"])],
    model: Annotated[str, Parameter(name=["--model", "-m"])] = "",
    tasks: TaskFlags = TaskFlags(),  # noqa: B008  (frozen)
    server: ModelFlags = ModelFlags(),  # noqa: B008
    sampling: SamplingFlags = SamplingFlags(),  # noqa: B008
    verification: VerifierFlags = VerifierFlags(),  # noqa: B008
    judging: JudgingFlags = JudgingFlags(),  # noqa: B008
    agent: AgentFlags = AgentFlags(),  # noqa: B008
    pace: PaceFlags = PaceFlags(),  # noqa: B008
    monitor: MonitorFlags = MonitorFlags(),  # noqa: B008
    fresh: Flag = False,
    dry_run: Flag = False,
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Collect rollouts: send every task to a model, judge the answers, write a run.

    An existing run is resumed: only missing rollouts are collected. NeMo Gym's +key=value words work too. Options can also
    come from a file (--config FILE, table [collect]) or from ROLLFORGE_COLLECT_* variables.

    Parameters
    ----------
    input
        Task file: JSONL (plain, gzip, zstd) or Parquet; - reads stdin.
    out
        The run: a directory, or a rollouts file.
    model
        Model name; `simulated` starts the embedded model. Needed unless --gym-agent uses its own.
    fresh
        Move an existing run aside and start again.
    dry_run
        Check everything, print the resolved config and the plan, send nothing.
    json
        Print one JSON object on stdout at the end, and nothing else there.
    progress
        How to show progress: auto shows a live panel on a terminal and plain lines elsewhere.
    """
    given = vars(tasks) | vars(server) | vars(verification) | vars(agent) | vars(pace)
    given["overrides"] = sampling.overrides() | server.overrides
    if judging.sandbox:
        given["verifier_options"] = verification.verifier_options | {"sandbox": judging.sandbox}
    if judging.fast:
        given["verify_mode"] = "fast"
    if verification.no_verify:
        given["verifier"] = None
    options = CollectOptions(input=input, out=out, model=model, fresh=fresh, **given)
    options.check()
    _refuse_unset_key(options.api_key_env)
    if dry_run:
        return _rehearse(options, json)
    with open_monitor(monitor, out, options.to_config()) as observer:
        return _run(
            options, observer, json=json, progress="none" if json and progress == "auto" else progress
        )


def _refuse_unset_key(name: str) -> None:
    """Refuse a variable that was typed and is not set; only the default may be absent, for servers without keys."""
    is_typed = any(word.partition("=")[0] == "--api-key-env" for word in sys.argv)
    if is_typed and not os.environ.get(name):
        raise UsageError(
            f"the environment variable {name} is not set (--api-key-env)", hint=f"export {name}=…"
        )


def _run(options: CollectOptions, observer: Observer | None, *, json: bool, progress: Progress) -> Exit:
    from rollforge.cli.render.collect import finish_collect, print_launch
    from rollforge.cli.render.progress import make_display, write_record
    from rollforge.loop import run_async
    from rollforge.steps.collect import BadTasks, Collection

    is_stream = progress == "json"

    def launched(collection: Collection) -> None:
        wire_signals(drain=collection.drain, abort=collection.abort)
        display.start()

    collection = Collection(options, command=resume_command(), on_start=launched, observer=observer)
    display = make_display(
        progress,
        collection.snapshot,
        lambda: print_launch(collection, is_stream=is_stream, is_quiet=json or progress == "none"),
    )
    try:
        try:
            result = run_async(collection.run())
        finally:
            display.stop()
    except RollforgeError as error:
        record = {"ok": False, "exit_code": error.exit_code, "error": str(error), "hint": error.hint}
        if isinstance(error, BadTasks):
            record["bad_lines"] = error.lines
        if json:
            print_json(record)
        if is_stream:
            write_record({"event": "done", **record})
        raise
    if collection.is_judged_later and result.ending == "done":
        if not json:
            say("judging the groups")
        result = run_async(_judge_groups(options, result))
    command = shlex.join(resume_command(is_after_pilot=result.ending == "pilot"))
    return finish_collect(result, command=command, json=json, write=write_record if is_stream else None)


async def _judge_groups(options: CollectOptions, result: CollectResult) -> CollectResult:
    """A group verifier judges all samples of a task together, once they are there."""
    import msgspec

    from rollforge.steps.verify import Verification, VerifyOptions

    summary = await Verification(
        VerifyOptions(
            run=options.out,
            verifier=options.verifier,
            options=options.verifier_options,
            timeout=options.verify_timeout_s,
        )
    ).run()
    code = Exit.DONE if summary.state == "done" else Exit.INCOMPLETE
    return msgspec.structs.replace(result, exit_code=code)


def _rehearse(options: CollectOptions, json: bool) -> Exit:
    """Print what would be done."""
    from rollforge.cli.render.collect import print_plan

    print_plan(options, json=json)
    return Exit.DONE
