"""Cost section of a run's report."""

from __future__ import annotations

from rollforge.steps.report.inputs import RunCostFacts
from rollforge.steps.report.page import tiles
from rollforge.store.costs import dollars
from rollforge.text_safety.markup import Html, join, tag


def money(cost: RunCostFacts | None) -> Html:
    """Tiles with the total cost, its parts, and unknown costs."""
    if cost is None:
        return tag(
            "p", "No price was given, so the cost is not known: collect with --price IN/OUT.", css="soft"
        )
    shown = [(dollars(cost.total), "cost of the run, as far as it is known")]
    named = (
        (cost.per_rollout, "per rollout"),
        (cost.per_usable_group, f"per usable group ({cost.usable_groups:,} with unequal rewards)"),
        (cost.failures, "paid for failed attempts"),
        (cost.judges, "paid for judges"),
        (cost.hours, "for hours in flight"),
    )
    shown += [(dollars(amount), label) for amount, label in named if amount is not None]
    return join([tiles(shown), tag("p", _small_print(cost), css="soft")])


def _small_print(cost: RunCostFacts) -> str:
    parts = [f"Price: {cost.price or 'not known'}."]
    if cost.judge_price:
        parts.append(f"Judges: {cost.judge_price}.")
    for count, name in (
        (cost.unknown_rollouts, "rollouts"),
        (cost.unknown_failures, "failed attempts"),
        (cost.unknown_judges, "verdicts"),
    ):
        if count:
            parts.append(f"The cost of {count:,} {name} is not known and in no sum.")
    return " ".join(parts)
