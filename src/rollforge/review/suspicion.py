"""What makes a rollout suspicious: one list of tests, with weights and words, for `show`, the viewer and the label queue.

Every test is SQL over the `rollouts` table. A finding of `check` that names rollouts adds its own weight in the viewer.
"""

from __future__ import annotations

TWIN_COLUMN = "same_answer_other_reward"
"""The one test that looks at siblings."""

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
"""The reason in words → (its weight, the test)."""

ROWS_WITH_TWINS = (
    "SELECT r.*, s.task IS NOT NULL AS same_answer_other_reward FROM rollouts r LEFT JOIN ("
    "SELECT task, answer_hash FROM rollouts WHERE reward IS NOT NULL AND answer_hash IS NOT NULL "
    "GROUP BY task, answer_hash HAVING max(reward) > min(reward)) s "
    "ON r.task = s.task AND r.answer_hash = s.answer_hash AND r.reward IS NOT NULL"
)
"""The rollouts with the one column of the tests that looks at siblings; a join is half the cost of a window."""


def score_sql() -> str:
    """The sum of the weights of the tests that hold for a row of `ROWS_WITH_TWINS`."""
    return " + ".join(
        f"{weight} * CAST(coalesce({test}, false) AS INT)" for weight, test in SUSPICION.values()
    )


def bits_sql() -> str:
    """The tests that hold, as the bits of a number in the order of `SUSPICION`."""
    return " + ".join(
        f"{1 << bit} * CAST(coalesce({test}, false) AS INT)"
        for bit, (_, test) in enumerate(SUSPICION.values())
    )


def twin_test() -> tuple[int, int]:
    """The bit and the weight of the test that compares a rollout with its siblings."""
    tests = list(SUSPICION.values())
    return next((bit, weight) for bit, (weight, test) in enumerate(tests) if test == TWIN_COLUMN)


def reasons_in(bits: int) -> list[str]:
    """The words of the tests in a number made by `bits_sql`."""
    return [reason for bit, reason in enumerate(SUSPICION) if bits >> bit & 1]
