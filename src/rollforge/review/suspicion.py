"""Tests for suspicious rollouts, with weights and reasons, shared by `show`, the viewer and the label queue.

Every test is SQL over the `rollouts` table. A finding of `check` that names rollouts adds its own weight in the viewer.
"""

from __future__ import annotations

TWIN_COLUMN = "same_answer_other_reward"
"""Column of the test that compares a rollout with others of its task."""

SUSPICION = {
    "the same answer earned another reward in this task": (5, TWIN_COLUMN),
    "empty, yet rewarded": (4, "is_empty AND reward > 0"),
    "looks like an error message": (3, "error_text"),
    "a refusal, yet rewarded": (3, "is_refusal AND reward > 0"),
    "cut off at the token limit, yet rewarded": (2, "is_truncated AND reward > 0"),
    "unjudged": (1, "reward IS NULL"),
    "very short, yet rewarded": (
        1,
        "reward > 0 AND answer_chars < 5 AND NOT is_empty AND coalesce(tool_calls, 0) = 0",
    ),
}
"""Reason in words → (weight, SQL test)."""

ROWS_WITH_TWINS = (
    "SELECT r.*, s.task IS NOT NULL AS same_answer_other_reward FROM rollouts r LEFT JOIN ("
    "SELECT task, answer_hash FROM rollouts WHERE reward IS NOT NULL AND answer_hash IS NOT NULL "
    "GROUP BY task, answer_hash HAVING max(reward) > min(reward)) s "
    "ON r.task = s.task AND r.answer_hash = s.answer_hash AND r.reward IS NOT NULL"
)
"""SQL for rollouts with the column that compares them with others of their task; a join is half as expensive as a window."""


def score_sql() -> str:
    """SQL for the sum of the weights of a `ROWS_WITH_TWINS` row's true tests."""
    return " + ".join(
        f"{weight} * CAST(coalesce({test}, false) AS INT)" for weight, test in SUSPICION.values()
    )


def bits_sql() -> str:
    """SQL for the true tests as bits of an integer, in the order of `SUSPICION`."""
    return " + ".join(
        f"{1 << bit} * CAST(coalesce({test}, false) AS INT)"
        for bit, (_, test) in enumerate(SUSPICION.values())
    )


def twin_test() -> tuple[int, int]:
    """Bit and weight of the test that compares a rollout with others of its task."""
    tests = list(SUSPICION.values())
    return next((bit, weight) for bit, (weight, test) in enumerate(tests) if test == TWIN_COLUMN)


def reasons_in(bits: int) -> list[str]:
    """The reasons whose bits are set in a number that `bits_sql` computed."""
    return [reason for bit, reason in enumerate(SUSPICION) if bits >> bit & 1]
