"""`rollforge collect`: tasks in, a run on disk."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rollforge.assembly.monitoring import open_monitor
from rollforge.cli.commands.monitoring import MonitorFlags
from rollforge.cli.commands.spreading import ExecutorFlags
from rollforge.cli.converters import BAND, NAMES, SECONDS, SETTINGS, Flag
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.cli.signals import resume_command, wire_signals
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.records import JsonFields
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.batch.batch_options import BatchOptions
from rollforge.steps.collect.collect_options import (
    CollectOptions,
    DatasetOptions,
    PaceOptions,
    RolloutOptions,
    ServerOptions,
    TaskOptions,
    VerifierOptions,
)
from rollforge.steps.collect.cost_options import CostOptions
from rollforge.steps.collect.goal.goal_options import GoalOptions
from rollforge.steps.collect.program_options import ProgramOptions, sandbox_fields
from rollforge.store.files import RunFiles

if TYPE_CHECKING:
    from rollforge.steps.collect import Collection, Observer, ShardedCollection

EXAMPLE = "rollforge collect -i tasks.jsonl -o runs/first -m simulated --verifier exact -k 8"

COMMON = (
    *("--input", "--out", "--model", "--fresh", "--dry-run", "--json", "--limit", "--samples"),
    *("--base-url", "--api-key-env", "--temperature", "--max-output-tokens", "--verifier", "--concurrency"),
    "--goal",
)
"""Flags that `collect -h` shows."""

_TASKS = Group("Tasks", sort_key=1)
_MODEL = Group("Model", sort_key=2)
_VERIFIER = Group("Verifier", sort_key=3)


@Parameter(name="*", group=_TASKS, negative=())
class TaskFlags(TaskOptions):
    """Command-line names of the options about tasks."""

    limit: Annotated[int | None, Parameter(alias="-n")]
    samples: Annotated[int, Parameter(alias=["-k", "--num-repeats", "--group-size"])]


@Parameter(name="*", group=_TASKS, negative=())
class DatasetFlags(DatasetOptions):
    """Command-line names of the options about datasets."""

    map: Annotated[tuple[str, ...], Parameter(metavar="FIELD=PATH", show_default=False)]


@Parameter(name="*", group=_MODEL, negative=())
class ModelFlags(ServerOptions):
    """Command-line names of the options about the model."""

    base_urls: Annotated[tuple[str, ...], Parameter(name="--base-url", metavar="URL", show_default=False)]
    api_key_env: Annotated[str, NAMES]
    overrides: Annotated[JsonFields, SETTINGS, Parameter(name=["--set", "-S"])]


@Parameter(name="*", group=_MODEL)
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """Request parameters with a dedicated flag."""

    temperature: float | None = None
    """Sampling temperature, replacing the rows' own."""
    top_p: float | None = None
    """Nucleus sampling, replacing the rows' own."""
    max_output_tokens: int | None = None
    """Longest answer in tokens, replacing the rows' own."""

    def overrides(self) -> JsonFields:
        """Return the parameters that were set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@Parameter(name="*", group=_VERIFIER, negative=())
class VerifierFlags(VerifierOptions):
    """Command-line names of the options about verification."""

    verifier: str | None
    verifier_options: Annotated[JsonFields, SETTINGS, Parameter(name="--verifier-set")]
    verify_timeout_s: Annotated[float, SECONDS, Parameter(name="--verify-timeout")]
    verify_mode: Annotated[Literal["fast", "precise"] | None, Parameter(show=False)]
    verify_cache: Annotated[str | None, Parameter(name="--cache")]


@Parameter(name="*", group=_VERIFIER, negative=())
@dataclass(frozen=True, kw_only=True)
class JudgingFlags:
    """Flags that set options of the verifier."""

    sandbox: Literal["auto", "require", "off"] | None = None
    """For an agent or a verifier that runs programs: auto and require need bubblewrap or refuse, off runs them with limits only."""
    fast: bool = False
    """Use the quicker mode of a verifier that has two; every verdict records the mode."""


@Parameter(name="*", group=Group("Agent and tools", sort_key=4), negative=())
class AgentFlags(RolloutOptions):
    """Command-line names of the options about agents."""

    tools: Annotated[tuple[str, ...], Parameter(show_default=False)]
    agent_map: Annotated[tuple[str, ...], Parameter(show_default=False)]
    fan_out: Annotated[tuple[str, ...], Parameter(show_default=False)]
    tool_timeout_s: Annotated[float, SECONDS, Parameter(name="--tool-timeout")]


@Parameter(name="*", group=Group("Programs as agents", sort_key=5), negative=())
class ProgramFlags(ProgramOptions):
    """Command-line names of the options about programs."""

    pass_env: Annotated[tuple[str, ...], Parameter(show_default=False)]
    withhold: Annotated[tuple[str, ...], Parameter(show_default=False)]
    mount: Annotated[tuple[str, ...], Parameter(show_default=False)]
    artifacts: Annotated[tuple[str, ...], Parameter(show_default=False)]
    sandbox: Annotated[Literal["auto", "require", "off"], Parameter(parse=False)]


@Parameter(name="*", group=Group("Pace and limits", sort_key=5), negative=())
class PaceFlags(PaceOptions):
    """Command-line names of the options about pace."""

    concurrency: Annotated[str, Parameter(alias="-c")]
    request_timeout_s: Annotated[float, SECONDS, Parameter(name="--request-timeout")]
    rollout_deadline_s: Annotated[float, SECONDS, Parameter(name="--rollout-deadline")]
    outage_patience_s: Annotated[float, SECONDS, Parameter(name="--outage-patience")]
    deadline_s: Annotated[float | None, SECONDS, Parameter(name="--deadline")]


@Parameter(name="*", group=Group("More than one process", sort_key=6), negative=())
@dataclass(frozen=True, kw_only=True)
class ScaleFlags(ExecutorFlags):
    """Flags that spread a collection over processes and machines."""

    shard: str | None = None
    """Collect one shard of the run in this process: I/N with I from 0, or slurm for the task of a Slurm array."""


@Parameter(name="*", group=Group("Cost", sort_key=6), negative=())
class CostFlags(CostOptions):
    """Command-line names of the options about cost."""


@Parameter(name="*", group=Group("Batches", sort_key=8), negative=())
class BatchFlags(BatchOptions):
    """Command-line names of the options about batches."""

    batch_poll_s: Annotated[float, SECONDS, Parameter(name="--batch-poll")]
    read_batch: Annotated[tuple[str, ...], Parameter(show_default=False)]


@Parameter(name="*", group=Group("Goal", sort_key=7), negative=())
class GoalFlags(GoalOptions):
    """Command-line names of the options about a goal."""

    goal: Annotated[str | None, Parameter(metavar="RECIPE=N")]
    band: Annotated[tuple[float, float] | None, BAND]
    top_up: Annotated[str | None, Parameter(metavar="CONDITION")]


def collect(
    *,
    input: Annotated[str, Parameter(name=["--input", "-i"], allow_leading_hyphen=True)] = "",
    out: Annotated[str, Parameter(name=["--out", "-o"])],
    model: Annotated[str, Parameter(name=["--model", "-m"])] = "",
    tasks: TaskFlags = TaskFlags(),  # noqa: B008  (frozen)
    dataset: DatasetFlags = DatasetFlags(),  # noqa: B008
    server: ModelFlags = ModelFlags(),  # noqa: B008
    sampling: SamplingFlags = SamplingFlags(),  # noqa: B008
    verification: VerifierFlags = VerifierFlags(),  # noqa: B008
    judging: JudgingFlags = JudgingFlags(),  # noqa: B008
    agent: AgentFlags = AgentFlags(),  # noqa: B008
    program: ProgramFlags = ProgramFlags(),  # noqa: B008
    pace: PaceFlags = PaceFlags(),  # noqa: B008
    cost: CostFlags = CostFlags(),  # noqa: B008
    batches: BatchFlags = BatchFlags(),  # noqa: B008
    goal: GoalFlags = GoalFlags(),  # noqa: B008
    monitor: MonitorFlags = MonitorFlags(),  # noqa: B008
    scale: ScaleFlags = ScaleFlags(),  # noqa: B008
    fresh: Flag = False,
    dry_run: Flag = False,
    gym_files: Flag = False,
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Collect rollouts: send every task to a model, judge the answers, write a run.

    An existing run is resumed: only missing rollouts are collected. NeMo Gym's +key=value words work too. Options can also
    come from a file (--config FILE, table [collect]) or from ROLLFORGE_COLLECT_* variables.

    Parameters
    ----------
    input
        Task file: JSONL, a JSON array or CSV (plain, .gz, .zst), Arrow or Parquet; hf://datasets/ORG/NAME[@REVISION][/path]
        on the Hub; - reads stdin. Not needed where --env brings the tasks.
    out
        The run: a folder, or a rollouts file.
    model
        Model name; `simulated` starts the embedded model. Needed unless --gym-agent uses its own.
    fresh
        Move an existing run aside and start again.
    dry_run
        Check everything, print the resolved config and the plan, send nothing.
    gym_files
        Also write `STEM_materialized_inputs.jsonl` and `STEM_repeat_level_metrics.json`, which NeMo Gym's own commands read.
    json
        Print one JSON object on stdout at the end, and nothing else there.
    progress
        How to show progress: auto shows a live panel on a terminal and plain lines elsewhere.
    """
    if not input and agent.env is None:
        raise UsageError("collect needs --input", hint=f"for example: {EXAMPLE}")
    fields = (
        vars(tasks)
        | vars(dataset)
        | vars(server)
        | vars(verification)
        | vars(agent)
        | vars(program)
        | vars(pace)
        | vars(cost)
        | vars(batches)
        | vars(goal)
    )
    fields["overrides"] = _overrides(sampling.overrides(), server.overrides)
    if judging.sandbox:
        fields |= sandbox_fields(
            judging.sandbox,
            agent=agent.agent,
            verifier=verification.verifier,
            verifier_options=verification.verifier_options,
        )
    if judging.fast:
        fields["verify_mode"] = "fast"
    if verification.no_verify:
        if verification.verifier is not None:
            name = shlex.quote(str(verification.verifier))
            say(
                f"note: --no-verify: {name} judges nothing now; later: rollforge verify {shlex.quote(out)} --verifier {name}"
            )
        fields["verifier"] = None
    options = CollectOptions(input=input, out=out, model=model, fresh=fresh, **fields)
    options.check()
    for name in options.key_envs:
        _refuse_unset_key(name)
    is_sharded = scale.shard or scale.is_spread or RunFiles(out).is_sharded
    if scale.shard and gym_files:
        raise UsageError(
            "--gym-files needs the whole run, and --shard collects a part of it",
            hint=f"after the last shard: rollforge profile {out} --gym-files",
        )
    if is_sharded:
        from rollforge.steps.collect import ScaleOptions

        ScaleOptions(shard=scale.shard, workers=scale.workers, on=scale.on).check(options)
        monitor.refuse_shards()
    else:
        monitor.check()
    if scale.is_spread:
        from rollforge.executors.base import make_executor

        make_executor(scale.on or "local", scale.workers)  # refuses unknown names before the run is touched
    if dry_run:
        return _rehearse(options, json)
    if options.write_batch is not None:
        return _write_batch(options, json)
    progress = "none" if json and progress == "auto" else progress
    if is_sharded:
        code = _run(options, None, json=json, progress=progress, scale=scale)
    else:
        with open_monitor(monitor, out, options.to_config()) as observer:
            code = _run(options, observer, json=json, progress=progress)
    if gym_files:
        _write_gym_files(out)
    return code


def _write_gym_files(run: str) -> None:
    from rollforge.index import open_index
    from rollforge.steps.profile import write_gym_files

    with open_index(run) as index:
        for path in write_gym_files(index).values():
            say(f"wrote {path}")


def _overrides(by_flag: JsonFields, by_setting: JsonFields) -> JsonFields:
    """Request parameters of flags and of `-S`; two values for one of them are refused."""
    for name in by_flag.keys() & by_setting.keys():
        if by_flag[name] != by_setting[name]:
            raise UsageError(
                f"{name} is given twice: {by_flag[name]} by its flag, {by_setting[name]} by -S",
                hint=f"leave out -S {name}=…",
            )
    return by_flag | by_setting


def _refuse_unset_key(name: str) -> None:
    """Refuse a key variable that the user named but did not set; only the default may be unset, for servers without keys."""
    is_typed = any(word.partition("=")[0] == "--api-key-env" for word in sys.argv)
    if is_typed and not os.environ.get(name):
        raise UsageError(
            f"the environment variable {name} is not set (--api-key-env)", hint=f"export {name}=…"
        )


def _run(
    options: CollectOptions,
    observer: Observer | None,
    *,
    json: bool,
    progress: Progress,
    scale: ScaleFlags | None = None,
) -> Exit:
    from rollforge.cli.render.collect import finish_collect, print_launch
    from rollforge.cli.render.progress import make_display, write_record
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.collect import BadTasks, Collection

    is_stream = progress == "json"

    def launched(collection: Collection | ShardedCollection) -> None:
        wire_signals(drain=collection.drain, abort=collection.abort)
        display.start()

    collection: Collection | ShardedCollection
    if scale is None:
        collection = Collection(options, command=resume_command(), on_start=launched, observer=observer)
    else:
        from rollforge.steps.collect import ScaleOptions, ShardedCollection

        where = ScaleOptions(shard=scale.shard, workers=scale.workers, on=scale.on)
        collection = ShardedCollection(options, where, command=resume_command(), on_start=launched)
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
    if collection.is_judged_later:
        from rollforge.assembly.group_verdicts import with_group_verdicts

        announce = (lambda: None) if json else (lambda: say("judging the groups"))
        result = run_async(with_group_verdicts(collection, result, announce=announce))
    command = shlex.join(resume_command(is_after_pilot=result.ending == "pilot"))
    return finish_collect(result, command=command, json=json, write=write_record if is_stream else None)


def _write_batch(options: CollectOptions, json: bool) -> Exit:
    """Write the batch's request files and print how to submit them."""
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.collect.batch.batch_step import write_batch

    written = run_async(write_batch(options, command=resume_command()))
    if json:
        print_json(written)
        return Exit.DONE
    say(
        f"wrote {count_of(written.requests, 'request')} ({written.bytes:,} bytes) to {', '.join(written.files)}"
    )
    if written.requests:
        say(f"  run:   vllm run-batch -i {written.files[0]} -o results.jsonl --model {options.model}")
        say("  then:  the same collect command with --read-batch results.jsonl instead of --write-batch")
    return Exit.DONE


def _rehearse(options: CollectOptions, json: bool) -> Exit:
    """Print the plan of a dry run."""
    from rollforge.cli.render.collect import print_plan

    print_plan(options, json=json)
    return Exit.DONE
