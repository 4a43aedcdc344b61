"""Cost accounting of a collection: rollouts, failed attempts and judge calls, with an estimate for those in flight.

Costs of earlier processes are read from the files (`store.costs`), so that a resumed run has the same total as an uninterrupted
one.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rollforge.agents.base import Trajectory
from rollforge.endpoint.prices import has_judge, price_of, unknown_price_note
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import OwnJson
from rollforge.records import Response, Verdict
from rollforge.statistics import intervals
from rollforge.statistics.intervals import ClusterMean
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.live import CAUTION, CHARACTERS_PER_TOKEN, UNLIMITED_OUTPUT
from rollforge.store import RunFiles
from rollforge.store.costs import CostFacts, CostTally, read_costs

FREE = frozenset({"rate-limited", "unavailable", "auth", "not-found", "context-overflow"})
"""Failure classes for which the server generated nothing."""


@dataclass(slots=True)
class _OpenGroup:
    """A task whose samples are not all settled."""

    cost: float = 0.0
    low: float = math.inf
    high: float = -math.inf


class CostMeter:
    """Prices of one collection and its costs so far."""

    def __init__(
        self,
        options: CollectOptions,
        *,
        before: CostTally | None = None,
        notes: list[str] | None = None,
        is_batch: bool = False,
    ) -> None:
        self.tally = before or CostTally()
        self.price = price_of("--price", options.price, options.model)
        judge = str(options.verifier_options.get("model") or "")
        self.judge_price = price_of("--judge-price", options.judge_price, judge)
        self.per_rollout = ClusterMean()
        self.groups = UsableGroups()
        has_batch_price = self.price is not None and self.price.batch is not None
        self._is_batch = is_batch or (bool(options.read_batch) and has_batch_price)
        self._max_cost = options.max_cost
        self.price_per_hour = options.price_per_hour
        self._failed = 0.0
        """Dollars for failed attempts in this process."""
        self._is_asked = options.asks_price
        self._started: float | None = time.monotonic()
        self._estimated = 0.0
        """Estimated dollars for rollouts with unknown token counts; used only for the budget."""
        self.elsewhere = 0.0
        """Dollars spent by other workers of the run since its start."""
        self._open: dict[int, _OpenGroup] = {}
        self._say(options, judge, [] if notes is None else notes)

    @property
    def is_known(self) -> bool:
        """Whether the price of rollouts is known."""
        return self.price is not None

    def _say(self, options: CollectOptions, judge: str, notes: list[str]) -> None:
        """Add notes on prices and on unknown ones; a budget without a price is refused."""
        for flag, text, name, price in (
            ("--price", options.price, options.model, self.price),
            ("--judge-price", options.judge_price, judge, self.judge_price),
        ):
            if text is None:
                continue
            if price is None:
                notes.append(unknown_price_note(flag, text, name))
            else:
                notes.append(f"{flag.strip('-').replace('-', ' ')}: {price.text}")
        if self._is_batch and self.price is not None and self.price.batch is None:
            notes.append(
                "the batch price is taken to be half of it; say otherwise with --price IN/OUT,batch=IN/OUT"
            )
        if options.max_cost is not None and self.price is None and options.price_per_hour is None:
            unknown = options.model if options.price in (None, "auto") else options.price
            raise UsageError(
                f"--max-cost needs to know what tokens cost, and the price table does not know {unknown}",
                hint="add --price IN/OUT in dollars per million tokens, or --price NAME for a model in the price table",
            )

    # -- what one thing cost ------------------------------------------------------------------------------------------

    def of_rollout(self, trajectory: Trajectory) -> float | None:
        """Cost of a finished rollout, with paid but discarded answers; None if unknown."""
        if self.price is None:
            return None
        usage = trajectory.response.get("usage")
        return None if usage is None else self._sum([*trajectory.wasted], usage, trajectory.requests)

    def of_judge(self, numbers: object) -> float | None:
        """Cost of the judge in a verdict, from `judge_input_tokens` and `judge_output_tokens`."""
        return None if self.judge_price is None else self.judge_price.judge_cost(numbers)

    def of_failure(self, failure: Failure) -> float | None:
        """Cost of a failed attempt: of its answers; 0 if the server generated nothing; None if unknown."""
        partial = failure.partial if isinstance(failure.partial, dict) else {}
        # Turns before the failed call are in the partial response; the failed call itself is not.
        played = partial.get("usage")
        usages = [usage for usage in (*failure.wasted, failure.usage) if usage is not None]
        if usages or played is not None:
            return self._sum(usages, played, failure.requests)
        is_refused = failure.kind == "permanent" or failure.kind in FREE or (failure.status or 0) >= 400
        return 0.0 if is_refused and not partial.get("output") else None

    def _sum(self, single: list[object], played: object, requests: int) -> float | None:
        """Cost of single calls, and of turns that were played with a number of requests; None if one is unknown."""
        if self.price is None:
            return None
        costs = [self.price.cost(usage, is_batch=self._is_batch) for usage in single]
        if played is not None:
            costs.append(self.price.cost(played, calls=requests, is_batch=self._is_batch))
        return None if None in costs else round(sum(cost or 0.0 for cost in costs), 12)

    @staticmethod
    def has_judge(verdict: Verdict) -> bool:
        """Whether a judge model took part in the verdict."""
        return has_judge(verdict.numbers)

    # -- counting -----------------------------------------------------------------------------------------------------

    def add_rollout(
        self,
        position: int,
        cost: float | None,
        judge_cost: float | None,
        *,
        verdict: Verdict,
        response: Response,
        prompt_bytes: int,
    ) -> None:
        """Count a rollout that is on disk."""
        self.tally.add_rollout(cost)
        if self.has_judge(verdict):
            self.tally.add_judge(judge_cost)
        if cost is None and self.price is not None:  # a budget must hold for servers that do not count
            tokens = prompt_bytes // CHARACTERS_PER_TOKEN, len(response.text) // CHARACTERS_PER_TOKEN
            cost = self._guess(*tokens)
            self._estimated += cost
        if self.price is None:
            return
        spent = (cost or 0.0) + (judge_cost or 0.0)
        self.per_rollout.add(position, spent)
        group = self._open.setdefault(position, _OpenGroup())
        group.cost += spent
        if (reward := verdict.measured) is not None:
            group.low, group.high = min(group.low, reward), max(group.high, reward)

    def add_failure(self, position: int, failure: Failure) -> OwnJson:
        """Count a failed attempt; returns its costs as stored in its line. A judge that gave no verdict is included."""
        if failure.boundary != "verifier":
            cost = self.of_failure(failure)
            costs: OwnJson = {"cost": cost}
            self.tally.add_failure(cost)
        elif isinstance(failure.usage, dict):
            cost = self.of_judge(failure.usage)
            costs = {"judge_cost": cost}
            self.tally.add_judge(cost)
        else:
            return {}
        if cost:
            self._failed += cost
            self._open.setdefault(position, _OpenGroup()).cost += cost
        return costs

    def failures_per_rollout_cost(self) -> float:
        """Dollars for failed attempts per dollar for finished rollouts."""
        return self._failed / self.per_rollout.total if self.per_rollout.total else 0.0

    def settle(self, position: int) -> None:
        """Count a task whose samples are all finished or given up."""
        self.per_rollout.close(position)
        group = self._open.pop(position, None)
        if group is not None:
            self.groups.add(group.cost, is_usable=group.high > group.low)

    def _guess(self, read: int, written: int) -> float:
        assert self.price is not None
        usage = {"input_tokens": read, "output_tokens": written}
        return self.price.cost(usage, is_batch=self._is_batch) or 0.0

    # -- the budget ---------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Dollars spent, with estimates for rollouts with unknown token counts."""
        facts = self.facts()
        return self.spent_on_tokens + self.elsewhere + ((facts.hours or 0.0) if facts else 0.0)

    @property
    def spent_on_tokens(self) -> float:
        """Dollars spent on tokens in this process, without hourly costs."""
        return self.tally.dollars + self._estimated

    def may_exceed_budget(self, *, pending: int, prompt_bytes: int, max_output: object) -> bool:
        """Whether the costs so far plus `pending` rollouts in flight could exhaust the budget."""
        if self._max_cost is None or self.price is None:
            return False
        expected = self.per_rollout.mean
        if expected is None:
            written = max_output if isinstance(max_output, int) else UNLIMITED_OUTPUT
            expected = self._guess(prompt_bytes // CHARACTERS_PER_TOKEN, written)
        return self.spent + pending * CAUTION * expected >= self._max_cost

    def facts(self) -> CostFacts | None:
        """Costs for manifest and display; None unless requested."""
        if not self._is_asked:
            return None
        return self.tally.facts(
            price=self.price.text if self.price is not None else None,
            judge_price=self.judge_price.text if self.judge_price is not None else None,
            price_per_hour=self.price_per_hour,
            more_s=0.0 if self._started is None else time.monotonic() - self._started,
        )

    def close(self, files: RunFiles) -> None:
        """At the end of the run, read hourly costs and judge costs of a concurrent `verify` from the files."""
        self._started = None
        if self.price_per_hour is not None or (self._is_asked and files.verdicts.exists()):
            self.tally = read_costs(files)


class UsableGroups:
    """Dollars per usable group, that is one with different rewards, from which preference and group methods learn."""

    def __init__(self) -> None:
        self.count = self.usable = 0
        self._costs = self._costs2 = self._usable_costs = 0.0

    def add(self, cost: float, *, is_usable: bool) -> None:
        """Count a settled group."""
        self.count += 1
        self.usable += is_usable
        self._costs += cost
        self._costs2 += cost * cost
        self._usable_costs += cost * is_usable

    def cost(self) -> tuple[float, float | None, float | None] | None:
        """Dollars per usable group, with a 95 % interval of that ratio over tasks; None before the first usable group."""
        if not self.usable:
            return None
        ratio = self._costs / self.usable
        if self.count < 2:
            return ratio, None, None
        # Linearised variance of a ratio of sums, with the task as the unit.
        squares = self._costs2 - 2 * ratio * self._usable_costs + ratio * ratio * self.usable
        variance = max(0.0, squares) * self.count / (self.count - 1) / self.usable**2
        half = intervals.t_quantile((1 + intervals.LEVEL) / 2, self.count - 1) * math.sqrt(variance)
        return ratio, max(0.0, ratio - half), ratio + half
