"""How a collection ended: the reason, the exit code, and the message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from rollforge.adaptive.design import GoalProgress
from rollforge.checks.building_blocks.stream import SuspectWindow, Watch
from rollforge.errors import Exit, Failure, RollforgeError, UsageError
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.batch.results import BatchReport
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.forecast import Forecast
from rollforge.steps.collect.live import Live
from rollforge.steps.collect.program_options import runs_program
from rollforge.steps.collect.stop_reason import Ending, Reason
from rollforge.store.costs import CostFacts, dollars
from rollforge.text_safety.outgoing import cut
from rollforge.verifiers.probes import ProbeReport


class CollectResult(msgspec.Struct, frozen=True, kw_only=True):
    """Reason, exit code and final facts of a collection."""

    run: str
    ending: Ending
    exit_code: Exit
    message: str
    expected: int
    finished: int
    fresh: int
    owed: int
    unjudged: int
    failed: dict[str, int]
    elapsed_s: float
    rollouts_per_s: float | None
    tokens_per_s: float | None
    bottleneck: str
    forecast: Forecast | None = None
    goal: GoalProgress | None = None
    """Progress of the goal, counted on disk as `prepare` counts it."""
    bad_lines: int = 0
    verifier_failures: dict[str, int] = {}
    """The most frequent verifier failures in this session, as raised: text and location."""
    notes: list[str] = []
    agent_notes: list[str] = []
    """The agent's final messages for the user; also in `notes`."""
    server_notes: list[str] = []
    """What was unexpected in the server's answers; also in `notes`."""
    suspect: SuspectWindow | None = None
    """The window of rollouts whose rewards the detectors of broken verification distrust; they are kept."""
    shard: str | None = None
    """The shard that was collected; None for the whole run."""
    cost: CostFacts | None = None
    """Cost of the whole run, over all sessions; None without a price."""
    batch: BatchReport | None = None
    """Report on the batch results; None without batches."""
    probe: ProbeReport | None = None
    """Result of probing the verifier with known answers; exit code 5 if it is broken."""


class Ended(Protocol):
    """Facts for the final message, from an engine or from a collection over several."""

    error: RollforgeError | Failure | None
    live: Live
    watch: Watch
    last_verdict_failure: str
    meter: CostMeter


def ending_of(reason: Reason, *, unfinished: int, unjudged: int, shortfall: str = "") -> tuple[Ending, Exit]:
    """Reason and exit code of the ending, from the reason to stop (if any) and the missing rollouts."""
    if reason == "broken":
        return reason, Exit.BROKEN_VERIFICATION
    if not unfinished and reason not in ("fatal", "disk"):
        return ("incomplete", Exit.INCOMPLETE) if unjudged or shortfall else ("done", Exit.DONE)
    match reason:
        case "":
            return "incomplete", Exit.INCOMPLETE
        case "interrupted":
            return reason, Exit.INTERRUPTED
        case "deadline" | "tokens" | "cost":
            return reason, Exit.BUDGET_REACHED
        case "pilot":
            return reason, Exit.DONE
        case "failures" | "outage" | "taken over":
            return reason, Exit.INCOMPLETE
        case _:
            return reason, Exit.USAGE


def message_of(
    ending: Ending,
    engine: Ended,
    shortfall: str = "",
    *,
    suspicion: str = "",
    has_failed_probe: bool = False,
) -> str:
    """One sentence for the summary; `shortfall` is what an observer could not deliver, `suspicion` why verdicts stay suspect."""
    if suspicion:
        return suspicion
    match ending:
        case "incomplete" if shortfall:
            return f"finished, but {shortfall}"
        case "outage":
            return f"stopped: {engine.error}"
        case "failures":
            return f"stopped: too many failures ({engine.live.given_up:,}); see --max-failures"
        case "broken":
            return f"stopped: verification looks broken: {engine.watch.reason}"
        case "deadline":
            return "stopped at the deadline, between groups"
        case "tokens":
            return f"stopped at the token budget ({engine.live.tokens:,} used), between groups"
        case "cost":
            return f"stopped at the budget ({dollars(engine.meter.spent)} spent), between groups"
        case "interrupted":
            return "interrupted; everything finished is on disk"
        case "done" if has_failed_probe:
            return "done, but a probe found this verifier broken: do not trust its rewards; mend it and judge again"
        case "pilot":
            return "the pilot is done; its rollouts count towards the run"
        case "incomplete" if engine.live.fresh and not engine.live.judged and engine.live.unjudged:
            return f"finished, but not one rollout of this session has a verdict{_because(engine.last_verdict_failure or NO_REWARD)}"
        case "incomplete":
            return "finished, but some rollouts failed or could not be judged"
        case _:
            return "done"


NO_REWARD = "the verifier, agent or environment returned no reward and said no reason"


def _because(reason: str) -> str:
    return f": {cut(reason, 300)}" if reason else ""


def raise_fatal(error: RollforgeError | Failure | None, options: CollectOptions) -> None:
    """Raise one clear error for a failure that every rollout would meet."""
    if isinstance(error, RollforgeError):
        raise error
    assert error is not None
    if error.boundary == "agent" and runs_program(options.agent):
        raise UsageError(
            f"the run was stopped: {error.message}",
            hint=f"run the program by hand; every attempt is in {options.out}'s failures, and the same command resumes the run",
        )
    if error.boundary == "agent":
        raise UsageError(f"the agent cannot run: {error.message}", hint="check the server's URL and its kind")
    if error.kind == "auth":
        is_set = any(os.environ.get(name) for name in options.key_envs)
        raise UsageError(
            f"the server refuses the key: {error.message}",
            hint=f"${options.api_key_env} is {'set, but not accepted' if is_set else 'not set'}; name another with --api-key-env",
        )
    raise UsageError(
        f"the server does not know the model or the path: {error.message}",
        hint=f"check -m {options.model} and --base-url (it usually ends in /v1)",
    )


def server_notes(served: str, oddities: Mapping[str, int]) -> list[str]:
    """What was unexpected in the server's answers: another name of the model, and oddities with their counts."""
    names = [f"the server calls its model {served}"] if served else []
    return names + [f"{what} ({count_of(count, 'answer')})" for what, count in oddities.items()]
