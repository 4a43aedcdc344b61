"""Output of `collect`: the plan before it starts, the summary at its end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import duration, number, write_record
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.records import JsonObject
    from rollforge.steps.collect import Collection, CollectOptions, CollectPlan, CollectResult
    from rollforge.steps.collect.forecast import Forecast, ForecastRange
    from rollforge.steps.metrics import RunMetrics

LARGE_RUN = 500_000
"""From this many rollouts on, the numbers are worked out in a process of its own, so that this one stays small."""
CHARACTERS_PER_TOKEN = 4
"""Good enough to know whether a run costs thousands or billions."""


def print_launch(collection: Collection, *, is_stream: bool, is_quiet: bool) -> None:
    """Say what begins now; write the first record of `--progress json`."""
    plan, options = collection.plan, collection.options
    assert plan is not None
    facts = _plan_facts(plan, options)
    if is_stream:
        write_record({"event": "launch", "run": options.out, "pid": os.getpid(), **facts})
    if is_quiet:
        return
    if plan.bad_lines:
        say(f"left out {len(plan.bad_lines):,} bad lines of {options.input}")
    for note in collection.notes:
        say(f"note: {note}")
    verb = "resuming" if plan.is_resumed else "collecting"
    say(
        f"{verb}: {facts['owed']:,} of {facts['expected']:,} rollouts owed "
        f"({facts['tasks']:,} tasks × {options.samples}) → {plan.files.rollouts}"
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
    }


def print_plan(options: CollectOptions, *, json: bool) -> None:
    """`--dry-run`: the resolved config and the plan; nothing is sent or written."""
    from rollforge import __version__
    from rollforge.loop import run_async
    from rollforge.steps.collect.machinery import rehearse_agent
    from rollforge.steps.collect.plan import make_plan
    from rollforge.verifiers.base import load_verifier

    verifier = (
        load_verifier(options.verifier, options.verifier_options) if options.verifier is not None else None
    )
    plan = make_plan(
        options,
        needs=verifier.needs if verifier else (),
        verifier_fingerprint=verifier.fingerprint if verifier else None,
        version=__version__,
        command=[],
        agent=run_async(rehearse_agent(options)),
        is_rehearsal=True,
    )
    facts = _plan_facts(plan, options) | {"estimated_tokens": _estimated_tokens(plan, options)}
    plan.tasks.close()
    if json:
        print_json({"config": options.to_config(), "plan": facts})
        return
    config = msgspec.json.format(msgspec.json.encode(options.to_config()), indent=2).decode()
    print(config)
    tokens = facts["estimated_tokens"]
    say(
        f"plan: {facts['tasks']:,} tasks × {options.samples} = {facts['expected']:,} rollouts, "
        f"{facts['finished']:,} finished, {facts['owed']:,} owed"
    )
    say(
        f"      about {tokens['input']:,} tokens in, {_output_text(tokens['output_at_most'])} out; nothing was sent"
    )


def _estimated_tokens(plan: CollectPlan, options: CollectOptions) -> JsonObject:
    """Estimate tokens: four characters each for prompts, the allowed maximum for answers."""
    characters = sum(
        len(msgspec.json.encode(plan.tasks.read(position).params)) for position in range(len(plan.tasks))
    )
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
        say(f"resume with: {command}")
    return result.exit_code


def _final_metrics(result: CollectResult) -> RunMetrics | None:
    """Compute the metrics from the files and write them beside the run; None without rollouts."""
    if not result.finished:
        return None
    from rollforge.steps.metrics import RunMetrics, summarize_run
    from rollforge.store import RunFiles, write_atomically

    if result.finished < LARGE_RUN:
        metrics = summarize_run(result.run)
    else:
        words = [sys.executable, "-P", "-m", "rollforge", "metrics", result.run, "--json"]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
        metrics = msgspec.json.decode(done.stdout, type=RunMetrics)
    data = msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n"
    write_atomically(RunFiles(result.run).aggregate_metrics, data)
    return metrics


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
    say(f"{result.message}: {result.finished:,} of {result.expected:,} rollouts in {result.run}")
    if result.failed:
        by_class = ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.failed.items()))
        say(f"  failed    {by_class}")
    if result.unjudged:
        judge_later = f"rollforge verify {shlex.quote(result.run)} --failed-only"
        say(f"  unjudged  {result.unjudged:,} (reward null; judge them later: {judge_later})")
    if result.verifier_failures:
        from rollforge.store.verifier_failures import failures_text

        say(f"  verifier  {failures_text(list(result.verifier_failures.items()))}")
    if result.suspect is not None:
        _print_suspect(result)
    if result.bad_lines:
        say(f"  left out  {result.bad_lines:,} bad lines of the task file")
    say(
        f"  speed     {number(result.rollouts_per_s)} rollouts/s, {number(result.tokens_per_s)} tokens/s in and out, "
        f"over {duration(result.elapsed_s)} in all"
    )
    say(f"  limit     {result.bottleneck}")
    if result.forecast is not None:
        _print_forecast(result.forecast)
    _print_files(result)


def _print_files(result: CollectResult) -> None:
    from rollforge.store import RunFiles

    files = RunFiles(result.run)
    written = [files.rollouts, files.tasks, files.failures, files.aggregate_metrics, files.manifest]
    names = [path.name for path in written if path.exists() and path.stat().st_size]
    say(f"  files     {files.rollouts.parent}/: {', '.join(names)}")
    if result.ending in ("done", "incomplete") and result.finished:
        say(f"  next      rollforge profile {shlex.quote(result.run)}")


def _print_suspect(result: CollectResult) -> None:
    """Print which rewards not to trust, and how to judge them again."""
    assert result.suspect is not None
    from rollforge.checks.stream import suspect_condition
    from rollforge.store import RunFiles, read_manifest

    among = suspect_condition(result.suspect)
    manifest = read_manifest(RunFiles(result.run))
    verifier = shlex.quote(str((manifest.config.get("verifier") if manifest else None) or "NAME"))
    say(f"  suspect   {result.suspect.rollouts:,} rollouts (kept, and marked in the manifest)")
    run = shlex.quote(result.run)
    say(f'            look:   rollforge show {run} --where "{among}" --limit 5')
    say(f'            mended: rollforge verify {run} --verifier {verifier} --fresh --where "{among}"')


def _print_forecast(forecast: Forecast) -> None:
    say(f"  forecast  for the {forecast.rollouts:,} rollouts still owed, at this pace (95 % intervals):")
    say(f"            time      {_range(forecast.seconds, duration)}")
    if forecast.tokens is not None:
        say(f"            tokens    {_range(forecast.tokens, _count)}")
    say(f"            disk      {_range(forecast.disk_bytes, _bytes)}")
    say(f"            failures  {_range(forecast.failures, _count)}")


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
