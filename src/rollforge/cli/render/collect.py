"""Output of `collect`: the plan before it starts, the summary at its end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rollforge.adaptive.design import GOALS
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import duration, goal_parts, number, write_record
from rollforge.endpoint.prices import UNKNOWN_PRICE
from rollforge.errors import Exit
from rollforge.runtime.typed_decoding import decode_json
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.records import JsonObject
    from rollforge.steps.collect import (
        Collection,
        CollectOptions,
        CollectPlan,
        CollectResult,
        ShardedCollection,
    )
    from rollforge.steps.collect.forecast import Forecast, ForecastRange
    from rollforge.steps.metrics import RunMetrics
    from rollforge.store import Manifest

FOLLOWS = "-c auto follows"
"""Start of the note that names the signal which decides about concurrency."""
LARGE_RUN = 500_000
"""From this many rollouts on, metrics are computed in a child process, so that this process stays small."""
CHARACTERS_PER_TOKEN = 4
"""A rough ratio: it shows whether a run costs thousands or billions of tokens."""


def print_launch(collection: Collection | ShardedCollection, *, is_stream: bool, is_quiet: bool) -> None:
    """Print what the collection does; write the first record of `--progress json`."""
    from rollforge.steps.collect import Collection

    if not isinstance(collection, Collection):
        _print_sharded_launch(collection, is_stream=is_stream, is_quiet=is_quiet)
        return
    plan, options = collection.plan, collection.options
    assert plan is not None
    facts = _plan_facts(plan, options)
    if is_stream:
        write_record({"event": "launch", "run": options.out, "pid": os.getpid(), **facts})
    _say_notes(collection.notes, is_quiet=is_quiet)
    if is_quiet:
        return
    if plan.bad_lines:
        say(f"left out {len(plan.bad_lines):,} bad lines of {options.input}")
    verb = "resuming" if plan.is_resumed else "collecting"
    if (design := plan.design) is not None and design.recipe is not None:
        say(
            f"{verb}: until {design.target:,} usable {GOALS[design.recipe]} ({design.recipe}) of {count_of(facts['tasks'], 'task')}; "
            f"{count_of(design.first, 'sample')} each, {design.whole} where it pays → {plan.files.rollouts}"
        )
        return
    say(
        f"{verb}: {facts['owed']:,} of {count_of(facts['expected'], 'rollout')} owed "
        f"({count_of(facts['tasks'], 'task')} × {options.samples}) → {plan.files.rollouts}"
    )


def _say_notes(notes: list[str], *, is_quiet: bool) -> None:
    """Print the notes; in quiet mode only the note that costs will be missing."""
    for note in notes:
        if not is_quiet or UNKNOWN_PRICE in note:
            say(f"note: {note}")


def _print_sharded_launch(collection: ShardedCollection, *, is_stream: bool, is_quiet: bool) -> None:
    run, options = collection.run_of_shards, collection.options
    assert run is not None
    facts = {"tasks": run.plan.tasks, "samples": run.plan.samples, "expected": collection.live.expected}
    facts |= {"shards": len(run.plan), "is_resumed": run.is_resumed, "bad_lines": len(run.bad_lines)}
    if is_stream:
        write_record({"event": "launch", "run": options.out, "pid": os.getpid(), **facts})
    _say_notes(collection.notes, is_quiet=is_quiet)
    if is_quiet:
        return
    what = (
        f"shard {collection.choice.number_in(run.plan)} of {len(run.plan)}"
        if collection.choice
        else f"{count_of(len(run.plan), 'shard')}"
    )
    say(
        f"{'resuming' if run.is_resumed else 'collecting'}: {what}, {count_of(facts['expected'], 'rollout')} → {run.files.shards}"
    )


def _plan_facts(plan: CollectPlan, options: CollectOptions) -> JsonObject:
    ledger = plan.ledger
    return {
        "tasks": len(plan.tasks),
        "samples": options.samples,
        "expected": ledger.expected,
        "finished": ledger.finished,
        "owed": plan.owed(options.attempts),
        "given_up": ledger.given_up(options.attempts),
        "unreadable_lines": ledger.unreadable_lines,
        "is_resumed": plan.is_resumed,
        "bad_lines": len(plan.bad_lines),
        "goal": plan.design,
    }


def print_plan(options: CollectOptions, *, json: bool) -> None:
    """`--dry-run`: the resolved config and the plan; nothing is sent or written."""
    from rollforge import __version__
    from rollforge.environments.base import open_environment
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.collect.chosen_verifier import chosen_verifier
    from rollforge.steps.collect.goal.setup import design_of
    from rollforge.steps.collect.machinery import rehearse_agent, with_verifier_of
    from rollforge.steps.collect.plan import make_plan

    environment = open_environment(options.env) if options.env is not None else None
    options = with_verifier_of(environment, options)
    verifier = chosen_verifier(options)
    plan = make_plan(
        options,
        needs=verifier.needs if verifier else (),
        verifier_fingerprint=verifier.fingerprint if verifier else None,
        version=__version__,
        command=[],
        agent=run_async(rehearse_agent(options, environment)),
        is_rehearsal=True,
        design_of=design_of,
        rows_of=environment.rows if environment is not None else None,
    )
    facts = _plan_facts(plan, options) | {"estimated_tokens": _estimated_tokens(plan, options)}
    plan.tasks.close()
    if json:
        print_json({"config": options.to_config(), "plan": facts})
        return
    config = msgspec.json.format(msgspec.json.encode(options.to_config()), indent=2).decode()
    print(config)
    tokens = facts["estimated_tokens"]
    if (design := plan.design) is not None and design.recipe is not None:
        say(
            f"plan: until {design.target:,} usable {GOALS[design.recipe]} ({design.recipe}); {count_of(facts['tasks'], 'task')}, "
            f"{count_of(design.first, 'sample')} each, {design.whole} where it pays, "
            f"at most {count_of(facts['expected'], 'rollout')}, "
            f"{facts['finished']:,} finished; nothing was sent"
        )
        return
    say(
        f"plan: {count_of(facts['tasks'], 'task')} × {options.samples} = {count_of(facts['expected'], 'rollout')}, "
        f"{facts['finished']:,} finished, {facts['owed']:,} owed"
    )
    say(
        f"      about {tokens['input']:,} tokens in, {_output_text(tokens['output_at_most'])} out; nothing was sent"
    )


def _estimated_tokens(plan: CollectPlan, options: CollectOptions) -> JsonObject:
    """Estimate tokens: one per four characters of prompts and tools, and the allowed maximum for answers."""
    characters = 0
    for position in range(len(plan.tasks)):
        params = plan.tasks.read(position).params
        texts = (params.get("instructions"), params.get("input"), params.get("tools"))
        characters += sum(len(msgspec.json.encode(text)) for text in texts if text)
    owed = plan.owed(options.attempts)
    per_prompt = characters / max(len(plan.tasks), 1) / CHARACTERS_PER_TOKEN
    longest = options.overrides.get("max_output_tokens")
    return {
        "input": int(per_prompt * owed),
        "output_at_most": longest * owed if isinstance(longest, int) else None,
    }


def _output_text(tokens: int | None) -> str:
    return "an unlimited number" if tokens is None else f"at most {tokens:,}"


def finish_collect(
    result: CollectResult, *, command: str, json: bool, write: Callable[[object], None] | None
) -> Exit:
    """Print the ending, the metrics, the files and the next step; return the exit code."""
    metrics = _final_metrics(result)
    record = msgspec.to_builtins(result) | {
        "metrics": msgspec.to_builtins(metrics),
        "resume": None if result.ending == "done" else command,
    }
    if write is not None:
        write({"event": "done", **record})
    if json:
        print_json(record)
    if write is None and not json:
        _print_end(result, metrics)
    if result.ending not in ("done", "incomplete") or result.owed:
        if result.exit_code == Exit.BROKEN_VERIFICATION and result.suspect is not None:
            say(
                "mend the verifier first; until it has changed and judged them again, these verdicts stay suspect"
            )
        say(f"resume with: {command}")
    return result.exit_code


def _final_metrics(result: CollectResult) -> RunMetrics | None:
    """Compute the metrics from the files and write them beside the run; None without rollouts."""
    if not result.finished or result.shard is not None:
        return None
    from rollforge.steps.metrics import RunMetrics, summarize_run
    from rollforge.store import RunFiles, write_atomically

    if result.finished < LARGE_RUN:
        metrics = summarize_run(result.run)
    else:
        words = [sys.executable, "-P", "-m", "rollforge", "metrics", result.run, "--json"]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
        metrics = decode_json(done.stdout, RunMetrics)
    data = msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n"
    write_atomically(RunFiles(result.run).aggregate_metrics, data)
    return metrics


def _print_cause(result: CollectResult) -> None:
    """Print the most frequent cause of failed attempts, since failure classes alone do not show what to fix."""
    from rollforge.store import RunFiles
    from rollforge.store.failure_reasons import attempt_failures, cause_text

    causes = attempt_failures(RunFiles(result.run))
    if causes:
        say(f"  cause       {cause_text(causes)}")


def _print_end(result: CollectResult, metrics: RunMetrics | None) -> None:
    if metrics is not None:
        from rollforge.cli.render.metrics import print_run_metrics

        say("")
        print_run_metrics(metrics)
    if result.probe is not None:
        from rollforge.cli.render.probe import print_report

        say("")
        print_report(result.probe)
    say("")
    if result.goal is None:
        say(
            f"{result.message}: {result.finished:,} of {count_of(result.expected, 'rollout')} in {result.run}"
        )
    else:
        say(f"{result.message}: {count_of(result.finished, 'rollout')} in {result.run}")
        say(f"  goal        {' · '.join(goal_parts(result.goal)[1:])}")
    if result.failed:
        by_class = ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.failed.items()))
        say(f"  failed      {by_class}")
        _print_cause(result)
    if result.unjudged:
        say(f"  unjudged    {result.unjudged:,} (reward null; judge them later: {_judge_later(result.run)})")
    if result.verifier_failures:
        from rollforge.store.failure_reasons import failures_text

        say(f"  verifier    {failures_text(list(result.verifier_failures.items()))}")
    for note in result.agent_notes:
        say(f"  agent       {note}")
    for note in result.server_notes:
        say(f"  server      {note}")
    if result.suspect is not None:
        _print_suspect(result)
    if result.bad_lines:
        say(f"  left out    {count_of(result.bad_lines, 'bad line')} of the task file")
    say(
        f"  speed       {number(result.rollouts_per_s)} rollouts/s, {number(result.tokens_per_s)} tokens/s in and out, "
        f"over {duration(result.elapsed_s)} in all"
    )
    say(f"  bottleneck  {result.bottleneck}")
    for note in result.notes:
        if note.startswith(FOLLOWS):
            say(f"              {note}")
    for note in result.batch.notes() if result.batch is not None else []:
        say(f"  batch       {note}")
    if result.cost is not None:
        from rollforge.store.costs import cost_text

        say(f"  cost        {cost_text(result.cost)}")
    if result.forecast is not None:
        _print_forecast(result.forecast)
    _print_files(result)


def _print_files(result: CollectResult) -> None:
    from rollforge.store import RunFiles, read_manifest

    files = RunFiles(result.run)
    written = [
        *(files.rollouts, files.tasks, files.failures, files.calls, files.batches),
        *(files.aggregate_metrics, files.manifest),
    ]
    names = [path.name for path in written if path.exists() and path.stat().st_size]
    say(f"  files       {files.rollouts.parent}/: {', '.join(names)}")
    if result.ending in ("done", "incomplete"):
        # One shard is not the run, and failures alone have no profile: status names what is owed, and why.
        verb = "profile" if result.finished and result.shard is None else "status"
        manifest = read_manifest(files)
        if verb == "profile" and manifest is not None and _is_unverified(manifest):
            say("  verifier    none: every reward is null; see them: rollforge list verifiers")
            say(f"  next        rollforge verify {shlex.quote(result.run)} --verifier NAME")
            return
        if result.exit_code == Exit.BROKEN_VERIFICATION and manifest is not None:
            words = f"rollforge verify {shlex.quote(result.run)} --verifier {_verifier_of(manifest)}"
            say(f"  next        mend the verifier, and probe it again: {words} --probe")
            say(f"              then judge again: {words}")
            return
        say(f"  next        rollforge {verb} {shlex.quote(result.run)}")


def _is_unverified(manifest: Manifest) -> bool:
    """Whether nobody was to judge, and nobody did."""
    return not manifest.judged and not manifest.config.get("verifier") and not manifest.config.get("env")


def _verifier_of(manifest: Manifest | None) -> str:
    """The run's verifier as a word of a command."""
    return shlex.quote(str((manifest.config.get("verifier") if manifest else None) or "NAME"))


def _print_suspect(result: CollectResult) -> None:
    """Print which rewards are suspect, and how to judge them again."""
    assert result.suspect is not None
    from rollforge.checks.building_blocks.stream import suspect_condition
    from rollforge.store import RunFiles, read_manifest

    among = suspect_condition(result.suspect)
    manifest = read_manifest(RunFiles(result.run))
    verifier = _verifier_of(manifest)
    say(f"  suspect     {count_of(result.suspect.rollouts, 'rollout')} (kept, and marked in the manifest)")
    run = shlex.quote(result.run)
    say(f'              look:   rollforge show {run} --where "{among}" --limit 5')
    say(f'              mended: rollforge verify {run} --verifier {verifier} --fresh --where "{among}"')


def _print_forecast(forecast: Forecast) -> None:
    rest = (
        f"the {count_of(forecast.rollouts, 'rollout')} still owed, at this pace"
        if forecast.goal is None
        else f"the rest to {forecast.goal}, about {count_of(forecast.rollouts, 'rollout')} at this yield"
    )
    say(f"  forecast    for {rest} (95 % intervals):")
    say(f"              time      {_range(forecast.seconds, duration)}")
    if forecast.tokens is not None:
        say(f"              tokens    {_range(forecast.tokens, _count)}")
    say(f"              disk      {_range(forecast.disk_bytes, _bytes)}")
    say(f"              failures  {_range(forecast.failures, _count)}")
    if forecast.cost is not None:
        from rollforge.store.costs import dollars

        say(f"              cost      {_range(forecast.cost, dollars)}")
        per_group = forecast.cost_per_usable_group
        shown = (
            "unknown: no group of the pilot was usable" if per_group is None else _range(per_group, dollars)
        )
        usable = "" if forecast.goal is not None else " (usable: its rewards are not all equal)"
        say(f"              dollars per usable {forecast.unit}  {shown}{usable}")


def _range(estimate: ForecastRange, show: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{show(estimate.value)} (too few tasks for an interval)"
    return f"{show(estimate.value)}  [{show(estimate.low)} – {show(estimate.high)}]"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def _judge_later(run: str) -> str:
    """The command that judges unjudged rollouts with the run's own verifier; a placeholder if a server judged."""
    from rollforge.cli.render.verify import judging_command
    from rollforge.store import RunFiles, read_manifest

    manifest = read_manifest(RunFiles(run))
    name = manifest.fingerprint.get("verifier") if manifest is not None else None
    options = manifest.config.get("verifier_options") if manifest is not None else None
    return judging_command(
        run, name if isinstance(name, str) else "NAME", options if isinstance(options, dict) else {}
    )
