"""How a collection with a goal ended: reached, out of tasks, or out of budget, and the estimated remaining need."""

from __future__ import annotations

from rollforge.adaptive.design import Expectation, GoalProgress
from rollforge.errors import Exit
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.ending import message_of
from rollforge.steps.collect.engine import CollectEngine
from rollforge.steps.collect.stop_reason import Ending, Reason


def goal_ending(
    reason: Reason, ending: Ending, code: Exit, goal: GoalProgress, *, gaps: int = 0
) -> tuple[Ending, Exit]:
    """Ending of a collection: a reached goal is a success in spite of failures; running out of tasks leaves it incomplete.

    Args:
        gaps: requests that have no result yet: begun groups are not whole, whether the goal is reached or not.
    """
    if reason in ("broken", "fatal", "disk", "interrupted", "failures", "outage"):
        return ending, code
    if goal.is_reached:
        return ("incomplete", Exit.INCOMPLETE) if gaps else ("done", Exit.DONE)
    if reason in ("deadline", "tokens", "cost"):
        return reason, Exit.BUDGET_REACHED
    return ("pilot", Exit.DONE) if reason == "pilot" else ("incomplete", Exit.INCOMPLETE)


def goal_message(ending: Ending, engine: CollectEngine, goal: GoalProgress, *, gaps: int = 0) -> str:
    """One sentence on the progress and the remaining need.

    Args:
        gaps: requests written earlier that have no result yet.
    """
    so_far = f"{goal.usable:,} of {goal.target:,} usable {goal.unit} ({goal.recipe})"
    if ending == "done":
        return f"goal reached: {so_far}"
    if ending == "incomplete" and gaps:
        return f"{so_far}; {count_of(gaps, 'rollout has', 'rollouts have')} no result yet"
    if ending == "incomplete":
        return f"the tasks ran out: {so_far}; {_needs_tasks(goal)}"
    return f"{message_of(ending, engine)}: {so_far}; {_needs_tokens(goal)}"


def _needs_tasks(goal: GoalProgress) -> str:
    if goal.needed_tasks is None:
        return "no task brought anything usable, so it takes other tasks, another model or other thresholds"
    return (
        f"at this yield it takes about {_about(goal.needed_tasks)} more tasks like these, "
        "or more samples per task (-k, --max-samples)"
    )


def _needs_tokens(goal: GoalProgress) -> str:
    if goal.needed_tokens is None:
        return "nothing usable came yet, so nothing says how much more it takes"
    return f"at this yield it takes about {_about(goal.needed_tokens)} more tokens"


def _about(needed: Expectation) -> str:
    if needed.low is None or needed.high is None:
        return f"{needed.value:,.0f}"
    return f"{needed.value:,.0f} ({needed.low:,.0f} to {needed.high:,.0f})"
