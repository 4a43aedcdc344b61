"""How a run ended, as a string with the attribute `ok`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Self

from rollforge.errors import BrokenVerification, Exit, IncompleteError, RollforgeError
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectResult

SUSPECT = "suspect"
"""The manifest's key for rollouts whose verdicts the detectors distrust."""
OVER_BUDGET = "over_budget"
"""The manifest's key for the budget that ended the last session."""

_WORDS = {
    Exit.INCOMPLETE: "incomplete",
    Exit.BROKEN_VERIFICATION: "broken",
    Exit.BUDGET_REACHED: "over budget",
    Exit.INTERRUPTED: "interrupted",
}
_UNFINISHED = ("pilot", "requests")
"""Endings that are all right although rollouts are still owed."""
_NEXT = {
    "incomplete": "the same call collects what is missing",
    "broken": "look at verdicts before anything else: run.show(suspicious=True); then judge again: run.verify(...)",
    "over budget": "the same call goes on, with a new budget",
    "interrupted": "the same call goes on from here",
    "requests": "answer them, then the same call with read_batch=… instead of write_batch=…",
}


class RunWarning(UserWarning):
    """The run did not end well: it is broken, incomplete, interrupted or over budget."""


class RunOutcome(str):
    """`done`, `incomplete`, `interrupted`, `over budget`, `broken`, `pilot`, `requests` or `running`; equals that string."""

    __slots__ = ("exit_code", "message")

    exit_code: Exit
    """The exit code of the corresponding command."""
    message: str

    def __new__(cls, word: str, message: str = "", exit_code: Exit = Exit.DONE) -> Self:
        """Make an outcome from its name."""
        made = super().__new__(cls, word)
        made.message, made.exit_code = message or word, exit_code
        return made

    @property
    def ok(self) -> bool:
        """Whether no rollout is missing and no check distrusts the verdicts."""
        return self.exit_code == Exit.DONE

    @property
    def next(self) -> str | None:
        """The next step for the user."""
        return _NEXT.get(self)

    @classmethod
    def of_result(cls, result: CollectResult) -> Self:
        """The outcome of a finished collection."""
        word = _WORDS.get(result.exit_code, result.ending if result.ending in _UNFINISHED else "done")
        counts = f"{result.finished:,} of {count_of(result.expected, 'rollout')}"
        judged = f", {result.unjudged:,} without a verdict" if result.unjudged else ""
        return cls(word, f"{result.message} ({counts}{judged})", result.exit_code)

    def tell(self, what: str, *, strict: bool, run: object = None, stacklevel: int = 3) -> None:
        """Warn unless `ok`; with `strict`, raise an error whose `run` is the partial run."""
        if self.ok:
            return
        text = f"{what} ended as {str(self)!r}: {self.message}"
        if not strict:
            warnings.warn(f"{text}; {self.next}" if self.next else text, RunWarning, stacklevel=stacklevel)
            return
        kind: type[RollforgeError] = BrokenVerification if self == "broken" else IncompleteError
        error = kind(text, hint=self.next)
        error.exit_code = self.exit_code
        error.run = run  # type: ignore[attr-defined]
        raise error
