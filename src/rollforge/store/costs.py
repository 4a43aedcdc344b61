"""Cost of a run, computed from its rows, failures and later verdicts on disk.

Amounts are summed as integer multiples of the last decimal, so sums do not depend on line order or resumes. Duplicate lines are
included, because each was paid. Unknown costs are counted separately, never as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from rollforge.records import OWN_KEY
from rollforge.statistics.counts import count_of
from rollforge.store.files import RunFiles
from rollforge.store.reading import UNREADABLE
from rollforge.store.rollout_parts import RunPart, parts_of

UNITS = 10**12
"""Units in one dollar."""


JUDGE_COST = b'"judge_cost":'
"""Bytes that mark a line of the verdicts file with a judge's cost."""


class CostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a run so far, in US dollars; null if unknown."""

    total: float | None = None
    """Known costs of rollouts, failures, judges and hours."""
    rollouts: float | None = None
    failures: float | None = None
    """Cost of failed attempts."""
    judges: float | None = None
    """Cost of judge models; null without judges, or if their price is unknown."""
    hours: float | None = None
    """Time with a rollout in flight, at --price-per-hour."""
    unknown_rollouts: int = 0
    """Number of rollouts with unknown cost: the server did not count tokens, or the price is unknown."""
    unknown_failures: int = 0
    """Number of failed attempts that may have been paid for, with unknown cost."""
    unknown_judges: int = 0
    """Number of judge verdicts with unknown cost."""
    price: str | None = None
    """Price of the rollouts' model; null if unknown."""
    judge_price: str | None = None


class CostTally:
    """Sums of known costs, and counts of unknown ones."""

    def __init__(self) -> None:
        self.rollouts = self.failures = self.judges = 0
        """Sum for rollouts, in units."""
        self.priced_rollouts = self.priced_judges = 0
        self.unknown_rollouts = self.unknown_failures = self.unknown_judges = 0
        self.spans: list[tuple[float, float]] = []
        """Times with rollouts in flight, as merged intervals."""

    @property
    def units(self) -> int:
        return self.rollouts + self.failures + self.judges

    @property
    def dollars(self) -> float:
        """Sum of all known costs."""
        return self.units / UNITS

    def add_rollout(self, cost: float | None) -> None:
        """Count one rollout."""
        if cost is None or not 0 <= cost < MOST_COST:
            self.unknown_rollouts += 1
        else:
            self.priced_rollouts += 1
            self.rollouts += to_units(cost)

    def add_failure(self, cost: float | None) -> None:
        """Count one failed attempt."""
        if cost is None or not 0 <= cost < MOST_COST:
            self.unknown_failures += 1
        else:
            self.failures += to_units(cost)

    def add_judge(self, cost: float | None) -> None:
        """Count the judge's cost of one verdict."""
        if cost is None or not 0 <= cost < MOST_COST:
            self.unknown_judges += 1
        else:
            self.priced_judges += 1
            self.judges += to_units(cost)

    def facts(
        self,
        *,
        price: str | None = None,
        judge_price: str | None = None,
        price_per_hour: float | None = None,
        more_s: float = 0.0,
    ) -> CostFacts:
        """Costs for the manifest and the display; `more_s` are seconds in flight not yet recorded in lines."""
        hours = None if price_per_hour is None else (self.active_s + more_s) / 3600 * price_per_hour
        is_known = bool(self.priced_rollouts or self.priced_judges) or hours is not None
        return CostFacts(
            total=self.dollars + (hours or 0.0) if is_known else None,
            rollouts=self.rollouts / UNITS if self.priced_rollouts else None,
            failures=self.failures / UNITS if self.priced_rollouts or self.failures else None,
            judges=self.judges / UNITS if self.priced_judges else None,
            hours=hours,
            unknown_rollouts=self.unknown_rollouts,
            unknown_failures=self.unknown_failures,
            unknown_judges=self.unknown_judges,
            price=price,
            judge_price=judge_price,
        )

    @property
    def active_s(self) -> float:
        """Seconds with at least one rollout in flight."""
        return sum(end - begin for begin, end in self.spans)


class _Own(msgspec.Struct):
    cost: float | msgspec.UnsetType | None = msgspec.UNSET
    judge_cost: float | msgspec.UnsetType | None = msgspec.UNSET
    started: float | None = None
    seconds: float | None = None


class _Line(msgspec.Struct):
    own: msgspec.Raw = msgspec.field(name=OWN_KEY, default=msgspec.Raw(b"{}"))


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_own = msgspec.json.Decoder(_Own).decode


def read_costs(files: RunFiles) -> CostTally:
    """Costs of all rows, failures and later verdicts of a run; rows from before it had a price count as unknown."""
    tally = CostTally()
    spans: list[tuple[float, float]] = []
    parts = parts_of(files)
    for own in _owns(parts.rollouts):
        tally.add_rollout(None if own.cost is msgspec.UNSET else own.cost)
        _add_judge(tally, own)
        _add_span(spans, own)
    for own in _owns(parts.failures):
        if own.cost is not msgspec.UNSET:
            tally.add_failure(own.cost)
        _add_judge(tally, own)
        _add_span(spans, own)
    tally.spans = _joined(spans)
    for own in _later_verdicts(parts.verdicts):
        _add_judge(tally, own)
    return tally


def read_verdict_costs(files: RunFiles) -> CostTally:
    """Judge costs of later verdicts only."""
    tally = CostTally()
    for own in _later_verdicts(parts_of(files).verdicts):
        _add_judge(tally, own)
    return tally


def counted_bytes(files: RunFiles) -> dict[str, int]:
    """Current sizes of the files behind a run's counts and costs; totals are exact while the sizes are unchanged."""
    parts = parts_of(files)
    tasks = {"tasks": files.tasks.stat().st_size} if files.tasks.exists() else {}
    return tasks | {
        name: sum(part.size() for part in some)
        for name, some in (
            ("rollouts", parts.rollouts),
            ("failures", parts.failures),
            ("verdicts", parts.verdicts),
        )
    }


def recounted(files: RunFiles, recorded_cost: CostFacts, price_per_hour: object = None) -> CostFacts:
    """Costs of a run according to its files, with the manifest's prices."""
    hourly = price_per_hour if isinstance(price_per_hour, int | float) else None
    return read_costs(files).facts(
        price=recorded_cost.price, judge_price=recorded_cost.judge_price, price_per_hour=hourly
    )


def dollars(amount: float | None) -> str:
    """Format an amount in dollars: cents, and more decimals if small; `unknown` for None."""
    if amount is None:
        return "unknown"
    if amount == 0 or amount >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if amount >= 0.001 else f"${amount:.2g}"


def cost_text(cost: CostFacts) -> str:
    """One line with the total, its parts, and unknown costs."""
    parts = [dollars(cost.total)]
    shown = (("failed attempts", cost.failures), ("judges", cost.judges), ("hours", cost.hours))
    parts += [f"{dollars(amount)} of it {name}" for name, amount in shown if amount]
    if cost.price is None and cost.total is None:
        parts.append("the price is not known")
    for count, name in (
        (cost.unknown_rollouts, "rollout"),
        (cost.unknown_failures, "failed attempt"),
        (cost.unknown_judges, "verdict"),
    ):
        if count:
            parts.append(f"cost of {count_of(count, name)} unknown")
    return ", ".join(parts)


MOST_COST = 1e9
"""Largest plausible cost of one rollout or verdict in dollars; a larger or negative one counts as unknown."""


def to_units(cost: float) -> int:
    """Convert a cost in dollars to integer units."""
    return round(cost * UNITS)


def _add_judge(tally: CostTally, own: _Own) -> None:
    if own.judge_cost is not msgspec.UNSET:
        tally.add_judge(own.judge_cost)


def _add_span(spans: list[tuple[float, float]], own: _Own) -> None:
    if own.started is None or own.seconds is None:
        return
    spans.append((own.started, own.started + own.seconds))
    if len(spans) > 100_000:  # a million rows must not become a million intervals
        spans[:] = _joined(spans)


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of intervals, as sorted disjoint intervals."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _later_verdicts(parts: Iterable[RunPart]) -> Iterator[_Own]:
    """Lines of a verdicts file with a judge's cost, found without parsing; most runs have none."""
    for line in chain.from_iterable(part.all_lines() for part in parts):
        if JUDGE_COST not in line:
            continue
        try:
            yield _decode_own(_decode_line(line).own)
        except UNREADABLE:
            continue


def _owns(parts: Iterable[RunPart]) -> Iterator[_Own]:
    for line in chain.from_iterable(part.all_lines() for part in parts):
        try:
            yield _decode_own(_decode_line(line).own)
        except UNREADABLE:
            continue
