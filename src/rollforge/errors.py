"""Errors that end a command, and failures that become data.

A `RollforgeError` is a user's problem to solve: it says what, where and what to do next, and carries the exit code. A `Failure`
is one rollout's or one verdict's problem: it is recorded, counted, possibly retried, and does not end the run.

```
RollforgeError            exit 1
├── UsageError            exit 2   wrong flags, wrong config, nothing to work on
│   └── DataError         exit 2   a file has bad rows
├── IncompleteError       exit 3   the work ended with parts missing
├── GateFailed            exit 4   the checks say that the data is not fit
├── BrokenVerification    exit 5   the verifier's answers cannot be trusted
└── ResumeRefused         exit 7   the run on disk was made from something else
```
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal


class Exit(IntEnum):
    """Exit codes; scripts branch on these."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    INCOMPLETE = 3
    GATE_FAILED = 4
    BROKEN_VERIFICATION = 5
    BUDGET_REACHED = 6
    RESUME_REFUSED = 7
    INTERRUPTED = 130


class RollforgeError(Exception):
    """An error whose message tells the user how to proceed."""

    exit_code: Exit = Exit.UNEXPECTED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"next: {hint}")  # shown in tracebacks too


class UsageError(RollforgeError):
    """The command, its options or its config cannot be carried out as written."""

    exit_code = Exit.USAGE


class DataError(UsageError):
    """A file holds rows that cannot be used."""


class IncompleteError(RollforgeError):
    """The work ended, but parts of it are missing."""

    exit_code = Exit.INCOMPLETE


class GateFailed(RollforgeError):
    """The checks found an error: the data is not fit for the requested use."""

    exit_code = Exit.GATE_FAILED

    def __init__(self, message: str, *, hint: str | None = None, exit_code: Exit = Exit.GATE_FAILED) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class BrokenVerification(RollforgeError):
    """The verifier's verdicts cannot be trusted."""

    exit_code = Exit.BROKEN_VERIFICATION


class ResumeRefused(RollforgeError):
    """The run on disk was made from another input or config; `keys` names what differs."""

    exit_code = Exit.RESUME_REFUSED

    def __init__(self, message: str, *, keys: tuple[str, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.keys = keys


Boundary = Literal["model", "agent", "verifier", "tool", "store"]
"""The component that was running when it failed."""

FailureClass = Literal[
    "transient",  # 5xx, a cut connection, torn JSON: the same request may work later
    "rate-limited",  # 429
    "timeout",  # no answer within the request timeout or the rollout's deadline
    "permanent",  # the server understood and said no; asking again changes nothing
    "context-overflow",  # prompt and answer do not fit the model's context
    "refused",  # a content filter, not the model, ended the answer
    "oversized",  # the answer or the row is larger than --max-response-bytes
    "auth",  # the key is wrong
    "not-found",  # no such model or path
    "unavailable",  # nothing answers at the address, or every endpoint's breaker is open
    "agent",  # the agent itself raised
    "tool",  # a tool's server failed in a way that the model did not see
    "verifier",  # the verifier raised, hung, crashed or answered nonsense
]

RETRYABLE: frozenset[FailureClass] = frozenset(
    {"transient", "rate-limited", "timeout", "unavailable", "agent", "tool"}
)
"""Failure classes for which another attempt may succeed."""

FATAL: frozenset[FailureClass] = frozenset({"auth", "not-found"})
"""Failure classes that every other rollout would hit too; they stop the run at once."""


class Failure(Exception):
    """A failed attempt, at one boundary. It becomes a row in `rollouts_failures.jsonl`, never a reward."""

    def __init__(
        self,
        boundary: Boundary,
        kind: FailureClass,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.boundary = boundary
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.requests = 0
        """Number of requests that this attempt made."""
        self.usage: object = None
        """Tokens that were generated and paid for, although the answer is unusable."""
        self.wasted: tuple[object, ...] = ()
        """Token usage of earlier unusable answers of the same request."""
        self.partial: object = None
        """The partial response before the failure, Responses-shaped, if any."""
        self.is_terminal = False
        """Whether the remote side declared that further attempts cannot help."""
        self.stops_run = False
        """Whether every other rollout would fail too, so that the run stops."""
        self.peer_kind: str | None = None
        """The remote side's name for the failure (NeMo Gym's `failure_kind`)."""

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str, str]]:
        return (type(self), (self.boundary, self.kind, self.message))

    @property
    def is_retryable(self) -> bool:
        return self.kind in RETRYABLE and not self.is_terminal
