"""How a collection ended: the reason, the exit code, the message."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from rollforge.checks.stream import SuspectWindow
from rollforge.errors import Exit, Failure, RollforgeError, UsageError
from rollforge.steps.collect.engine import CollectEngine, Reason
from rollforge.steps.collect.forecast import Forecast
from rollforge.steps.collect.options import CollectOptions
from rollforge.verifiers.probes import ProbeReport

Ending = Literal[
    "done",
    "incomplete",
    "interrupted",
    "deadline",
    "tokens",
    "pilot",
    "failures",
    "outage",
    "broken",
    "fatal",
    "disk",
]


class CollectResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a collection ended."""

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
    bad_lines: int = 0
    verifier_failures: dict[str, int] = {}
    """The most frequent failures of the verifier in this session: text and place, as it raised them."""
    notes: list[str] = []
    suspect: SuspectWindow | None = None
    """The window of rollouts whose rewards the detectors of broken verification do not trust; they are kept."""
    probe: ProbeReport | None = None
    """What the verifier answered to questions it must know; exit code 5 when that shows it broken."""


def ending_of(reason: Reason, *, unfinished: int, unjudged: int, shortfall: str = "") -> tuple[Ending, Exit]:
    """How the run ended and its exit code, from the reason to stop (if any) and from what is missing."""
    if reason == "broken":
        return reason, Exit.BROKEN_VERIFICATION
    if not unfinished and reason not in ("fatal", "disk"):
        return ("incomplete", Exit.INCOMPLETE) if unjudged or shortfall else ("done", Exit.DONE)
    match reason:
        case "":
            return "incomplete", Exit.INCOMPLETE
        case "interrupted":
            return reason, Exit.INTERRUPTED
        case "deadline" | "tokens":
            return reason, Exit.BUDGET_REACHED
        case "pilot":
            return reason, Exit.DONE
        case "failures" | "outage":
            return reason, Exit.INCOMPLETE
        case _:
            return reason, Exit.USAGE


def message_of(
    ending: Ending, engine: CollectEngine, shortfall: str = "", *, is_still_suspect: bool = False
) -> str:
    """One sentence for the summary; `shortfall` is what an observer could not deliver."""
    if is_still_suspect:
        return "verification looked broken before and nothing has changed since, so its verdicts stay suspect"
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
        case "interrupted":
            return "interrupted; everything finished is on disk"
        case "pilot":
            return "the pilot is done; its rollouts count towards the run"
        case "incomplete":
            return "finished, but some rollouts failed or could not be judged"
        case _:
            return "done"


def raise_fatal(error: RollforgeError | Failure | None, options: CollectOptions) -> None:
    """One clear message for what every rollout would meet."""
    if isinstance(error, RollforgeError):
        raise error
    assert error is not None
    if error.boundary == "agent":
        raise UsageError(f"the agent cannot run: {error.message}", hint="check the server's URL and its kind")
    if error.kind == "auth":
        is_set = bool(os.environ.get(options.api_key_env))
        raise UsageError(
            f"the server refuses the key: {error.message}",
            hint=f"${options.api_key_env} is {'set, but not accepted' if is_set else 'not set'}; name another with --api-key-env",
        )
    raise UsageError(
        f"the server does not know the model or the path: {error.message}",
        hint=f"check -m {options.model} and --base-url (it usually ends in /v1)",
    )
