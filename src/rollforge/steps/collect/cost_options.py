"""Options of `collect` about costs: prices and the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollforge.endpoint.prices import parse_price
from rollforge.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Prices of tokens and hours, and the budget."""

    price: str | None = None
    """Dollars per million tokens as IN/OUT[,cached=C][,reasoning=R][,batch=IN/OUT], a model's name in the price table, or auto for the name that -m gives (names need the extra prices). Costs then go into every row, status, metrics and the report."""  # noqa: E501  (help keeps the line breaks of a field's docstring)
    judge_price: str | None = None
    """Price of the judge model, in the same form; its cost is counted apart."""
    price_per_hour: float | None = None
    """Dollars per hour in which rollouts are in flight, for GPUs of your own."""
    max_cost: float | None = None
    """Stop between groups once this many dollars are spent; exit code 6."""

    @property
    def asks_price(self) -> bool:
        """Whether to record costs."""
        return self.price is not None or self.judge_price is not None or self.price_per_hour is not None

    def check_costs(self) -> None:
        """Refuse invalid prices."""
        for flag, text in (("--price", self.price), ("--judge-price", self.judge_price)):
            if text is not None:
                parse_price(flag, text)
        if self.price_per_hour is not None and not 0 <= self.price_per_hour < math.inf:
            raise UsageError(
                f"--price-per-hour must be at least 0, not {self.price_per_hour:g}",
                hint="give the dollars that the server costs per hour: --price-per-hour 2.5",
            )
        if self.max_cost is None:
            return
        if not 0 < self.max_cost < math.inf:
            raise UsageError(
                f"--max-cost must be above 0 dollars, not {self.max_cost:g}", hint="for example --max-cost 20"
            )
        if self.price is None and self.price_per_hour is None:
            raise UsageError(
                "--max-cost needs to know what tokens cost",
                hint="add --price IN/OUT in dollars per million tokens, or --price NAME for a model in the price table",
            )
