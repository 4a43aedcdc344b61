"""`rollforge collect`: tasks in, a run on disk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.cli.commands.monitoring import MonitorFlags, open_monitor
from rollforge.cli.interrupts import resume_command, wire_signals
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.errors import Exit, RollforgeError

if TYPE_CHECKING:
    from rollforge.steps.collect import Collection, CollectOptions, CollectResult, Observer

EXAMPLE = "rollforge collect -i tasks.jsonl -o runs/first -m simulated --verifier exact -k 8"

_TASKS = Group("Tasks", sort_key=1)
_MODEL = Group("Model", sort_key=2)
_VERIFIER = Group("Verifier", sort_key=3)
_AGENT = Group("Agent and tools", sort_key=4)
_PACE = Group("Pace and limits", sort_key=5)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """Which tasks, and how often."""

    limit: Annotated[int | None, Parameter(name=["--limit", "-n"], group=_TASKS)] = None
    """Take only this many tasks."""
    samples: Annotated[
        int, Parameter(name=["--samples", "-k", "--num-repeats", "--group-size"], group=_TASKS)
    ] = 1
    """Rollouts per task."""
    shuffle: Annotated[bool, Parameter(group=_TASKS, negative=())] = False
    """Take the tasks in a random order, drawn with --seed."""
    seed: Annotated[int, Parameter(group=_TASKS)] = 0
    """Seed for --shuffle and for the embedded model."""
    prompt_template: Annotated[str | None, Parameter(group=_TASKS)] = None
    """YAML file with `user` and, if wanted, `system`; {field} stands for a field of the row."""
    skip_bad: Annotated[bool, Parameter(group=_TASKS, negative=())] = False
    """Leave out bad lines instead of refusing the file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model, and how it is asked."""

    base_url: Annotated[list[str], Parameter(group=_MODEL, negative=())] = field(default_factory=list)
    """Server, such as http://localhost:8000/v1; repeat it for replicas."""
    api: Annotated[Literal["auto", "responses", "chat"], Parameter(group=_MODEL)] = "auto"
    """Which API the server speaks; auto finds out once."""
    api_key_env: Annotated[str, Parameter(group=_MODEL)] = "OPENAI_API_KEY"
    """Name of the variable that holds the key; never the key itself."""
    temperature: Annotated[float | None, Parameter(group=_MODEL)] = None
    """Sampling temperature, over the rows' own."""
    top_p: Annotated[float | None, Parameter(group=_MODEL)] = None
    """Nucleus sampling, over the rows' own."""
    max_output_tokens: Annotated[int | None, Parameter(group=_MODEL)] = None
    """Longest answer in tokens, over the rows' own."""
    set: Annotated[list[str], Parameter(name=["--set", "-S"], group=_MODEL, negative=())] = field(
        default_factory=list
    )
    """key.path=value put over every row's responses_create_params."""
    logprobs: Annotated[bool, Parameter(group=_MODEL, negative=())] = False
    """Keep logprobs, and token ids where the server gives them."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VerifierFlags:
    """Who judges."""

    verifier: Annotated[str | None, Parameter(group=_VERIFIER)] = None
    """A ready verifier's name, file.py:function or module:function."""
    verifier_set: Annotated[list[str], Parameter(group=_VERIFIER, negative=())] = field(default_factory=list)
    """key=value option of the verifier."""
    sandbox: Annotated[Literal["auto", "require", "off"] | None, Parameter(group=_VERIFIER)] = None
    """For a verifier that runs programs: auto and require confine them with bubblewrap or refuse to run; off runs them with limits only."""
    no_verify: Annotated[bool, Parameter(group=_VERIFIER, negative=())] = False
    """Collect only; judge later with `rollforge verify`."""
    verify_workers: Annotated[str, Parameter(group=_VERIFIER)] = "auto"
    """Processes for a sync verifier; auto uses idle cores, 0 runs it unprotected in this process."""
    verify_concurrency: Annotated[int, Parameter(group=_VERIFIER)] = 256
    """Most verdicts under way at once."""
    verify_timeout: Annotated[str, Parameter(group=_VERIFIER)] = "60s"
    """Longest time for one verdict."""
    fast: Annotated[bool, Parameter(group=_VERIFIER, negative=())] = False
    """Ask a verifier that offers two ways for the quick one; the mode stands in every verdict."""
    cache: Annotated[str | None, Parameter(group=_VERIFIER)] = None
    """Directory that keeps verdicts across runs."""
    stop_on: Annotated[Literal["broken", "never"], Parameter(group=_VERIFIER)] = "broken"
    """Stop, with exit code 5, on two independent signs of broken verification; never only marks the rollouts."""
    probe: Annotated[str | None, Parameter(group=_VERIFIER)] = None
    """Ask the verifier what it must know after this share of rollouts (1%); exit code 5 when that shows it broken."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """What makes a rollout of a task."""

    agent: Annotated[str | None, Parameter(group=_AGENT)] = None
    """model_call, tool_loop, gym_resources, gym_agent or file.py:Class; found from the flags below when left out."""
    tools: Annotated[list[str], Parameter(group=_AGENT, negative=())] = field(default_factory=list)
    """Tools the model may call: file.py, file.py:name, mcp:URL, mcp-stdio:COMMAND; repeatable."""
    max_turns: Annotated[int, Parameter(group=_AGENT)] = 16
    """Most model calls in one rollout."""
    tool_timeout: Annotated[str, Parameter(group=_AGENT)] = "60s"
    """Longest time for one tool call."""
    gym_head: Annotated[str | None, Parameter(group=_AGENT)] = None
    """NeMo Gym head server: each row's agent_ref finds its resources server, the loop runs here."""
    gym_resources: Annotated[str | None, Parameter(group=_AGENT)] = None
    """NeMo Gym resources server for all rows: its tools and its verdicts, the loop runs here."""
    gym_agent: Annotated[str | None, Parameter(group=_AGENT)] = None
    """NeMo Gym agent server: rows are handed to its /run; no --model is needed."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PaceFlags:
    """How fast, how long, how patient."""

    concurrency: Annotated[str, Parameter(name=["--concurrency", "-c"], group=_PACE)] = "auto"
    """Requests in flight: auto, a number, or MIN-MAX."""
    attempts: Annotated[int, Parameter(group=_PACE)] = 3
    """How often a failed rollout is tried in all, over resumes too."""
    retries: Annotated[int, Parameter(group=_PACE)] = 4
    """How often one request is sent again within an attempt."""
    retry_budget: Annotated[float, Parameter(group=_PACE)] = 0.5
    """All retries together may not exceed this share of the fresh requests, of which 200 count from the start; 0 is none."""
    max_failures: Annotated[str, Parameter(group=_PACE)] = "50%"
    """More failed rollouts than this end the run: a count, or a share such as 5%."""
    request_timeout: Annotated[str, Parameter(group=_PACE)] = "10m"
    """Longest time for one request."""
    rollout_deadline: Annotated[str, Parameter(group=_PACE)] = "1h"
    """Longest time for one rollout, retries included."""
    outage_patience: Annotated[str, Parameter(group=_PACE)] = "10m"
    """How long to wait for a server that stopped answering."""
    deadline: Annotated[str | None, Parameter(group=_PACE)] = None
    """Stop between groups after this time (90s, 15m, 8h); exit code 6."""
    max_total_tokens: Annotated[int | None, Parameter(group=_PACE)] = None
    """Stop between groups once this many tokens were used; exit code 6."""
    pilot: Annotated[int | None, Parameter(group=_PACE)] = None
    """Collect about this many rollouts, then forecast the whole run; they count towards it."""


def collect(
    *,
    input: Annotated[str, Parameter(name=["--input", "-i"], allow_leading_hyphen=True)],
    out: Annotated[str, Parameter(name=["--out", "-o"])],
    model: Annotated[str, Parameter(name=["--model", "-m"])] = "",
    tasks: TaskFlags = TaskFlags(),  # noqa: B008  (frozen)
    server: ModelFlags = ModelFlags(),  # noqa: B008
    judging: VerifierFlags = VerifierFlags(),  # noqa: B008
    agent: AgentFlags = AgentFlags(),  # noqa: B008
    pace: PaceFlags = PaceFlags(),  # noqa: B008
    monitor: MonitorFlags = MonitorFlags(),  # noqa: B008
    fresh: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    progress: Progress = "auto",
) -> Exit:
    """Collect rollouts: send every task to a model, judge the answers, write a run.

    A run that exists is resumed: only what is missing is collected. NeMo Gym's +key=value words are understood too.
    Settings may also stand in a file given with --config, under [collect], or in ROLLFORGE_COLLECT_* variables.

    Parameters
    ----------
    input
        Task file: JSONL (plain, gzip, zstd) or Parquet; - reads stdin.
    out
        The run: a directory, or a rollouts file.
    model
        Model name; `simulated` starts the embedded model. Needed unless --gym-agent asks its own.
    fresh
        Move an existing run aside and start anew.
    dry_run
        Check everything, print the resolved config and the plan, send nothing.
    json
        Print one JSON object on stdout at the end, and nothing else there.
    progress
        How to show progress: auto is a live panel on a terminal and plain lines elsewhere.
    """
    options = options_from_flags(input, out, model, tasks, server, judging, agent, pace, fresh)
    options.check()
    if dry_run:
        return _rehearse(options, json)
    with open_monitor(monitor, out, options.to_config()) as observer:
        return _run(
            options, observer, json=json, progress="none" if json and progress == "auto" else progress
        )


def options_from_flags(
    input: str,
    out: str,
    model: str,
    tasks: TaskFlags,
    server: ModelFlags,
    judging: VerifierFlags,
    agent: AgentFlags,
    pace: PaceFlags,
    fresh: bool,
) -> CollectOptions:
    """The step's options from the flags."""
    from rollforge.config import parse_duration, parse_settings
    from rollforge.steps.collect import CollectOptions

    sampling = {
        name: getattr(server, name)
        for name in ("temperature", "top_p", "max_output_tokens")
        if getattr(server, name) is not None
    }
    return CollectOptions(
        input=input,
        out=out,
        model=model,
        fresh=fresh,
        base_urls=tuple(server.base_url),
        api=server.api,
        api_key_env=server.api_key_env,
        logprobs=server.logprobs,
        overrides=sampling | parse_settings(server.set),
        verifier=None if judging.no_verify else judging.verifier,
        verifier_options=parse_settings(judging.verifier_set)
        | ({"sandbox": judging.sandbox} if judging.sandbox else {}),
        no_verify=judging.no_verify,
        agent=agent.agent,
        tools=tuple(agent.tools),
        max_turns=agent.max_turns,
        tool_timeout_s=parse_duration(agent.tool_timeout),
        gym_head=agent.gym_head,
        gym_resources=agent.gym_resources,
        gym_agent=agent.gym_agent,
        verify_workers=judging.verify_workers,
        verify_concurrency=judging.verify_concurrency,
        verify_timeout_s=parse_duration(judging.verify_timeout),
        verify_mode="fast" if judging.fast else None,
        verify_cache=judging.cache,
        probe=judging.probe,
        stop_on=judging.stop_on,
        limit=tasks.limit,
        samples=tasks.samples,
        shuffle=tasks.shuffle,
        seed=tasks.seed,
        prompt_template=tasks.prompt_template,
        skip_bad=tasks.skip_bad,
        concurrency=pace.concurrency,
        attempts=pace.attempts,
        retries=pace.retries,
        retry_budget=pace.retry_budget,
        max_failures=pace.max_failures,
        request_timeout_s=parse_duration(pace.request_timeout),
        rollout_deadline_s=parse_duration(pace.rollout_deadline),
        outage_patience_s=parse_duration(pace.outage_patience),
        deadline_s=parse_duration(pace.deadline) if pace.deadline else None,
        max_total_tokens=pace.max_total_tokens,
        pilot=pace.pilot,
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
