"""Cost accounting for the judge model of a verification: per verdict, per session, and with a budget.

Every verdict with a judge contains its cost (`_rf.judge_cost`), so totals are sums over lines on disk. A verdict shared with an
equal answer, or taken from the cache, costs 0.
"""

from __future__ import annotations

import math

import msgspec

from rollforge.endpoint.prices import has_judge, price_of, unknown_price_note
from rollforge.errors import UsageError
from rollforge.records import OWN_KEY, JsonFields
from rollforge.steps.verify.verify_options import VerifyOptions
from rollforge.store import RunFiles, read_manifest, write_atomically
from rollforge.store.costs import UNITS, CostFacts, counted_bytes, read_verdict_costs, recounted, to_units
from rollforge.store.lock import is_held
from rollforge.store.manifest import Manifest
from rollforge.store.reading import read_whole

CAUTION = 1.5
"""Verdicts in progress are estimated at this multiple of the mean, because cheap ones finish first."""


class JudgeSpending(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of judges in US dollars; null if unknown."""

    session: float | None = None
    """Cost of this verification."""
    total: float | None = None
    """Cost of all verifications of the run including this one, without verdicts made during collection."""
    unknown: int = 0
    """Number of this verification's verdicts with unknown cost."""
    price: str | None = None
    """Price of the judge model; null if unknown."""


class JudgeMeter:
    """Price of the judge, and its cost so far."""

    def __init__(self, options: VerifyOptions) -> None:
        _check(options)
        model = str(options.options.get("model") or "")
        self.price = price_of("--judge-price", options.judge_price, model)
        self.is_asked = options.judge_price is not None
        self.notes: list[str] = []
        if options.judge_price is not None and self.price is None:
            if options.max_cost is not None:
                raise UsageError(
                    "--max-cost needs to know what the judge's tokens cost",
                    hint="give dollars per million tokens: --judge-price IN/OUT",
                )
            self.notes.append(unknown_price_note("--judge-price", options.judge_price, model))
        self._max_cost = options.max_cost
        self._before = self._units = self._paid = self._unknown = 0
        self.is_exhausted = False
        """Whether the budget ended the verification."""

    def start(self, files: RunFiles) -> None:
        """Read the costs of earlier verifications."""
        if self.is_asked:
            self._before = read_verdict_costs(files).judges

    def about(self, numbers: object, *, is_paid: bool = True) -> JsonFields:
        """Cost fields of a verdict's line; empty without a judge."""
        if not self.is_asked or not isinstance(numbers, dict) or not has_judge(numbers):
            return {}
        if not is_paid:
            return {OWN_KEY: {"judge_cost": 0.0}}
        cost = None if self.price is None else self.price.judge_cost(numbers)
        if cost is None:
            self._unknown += 1
        else:
            self._paid += 1
            self._units += to_units(cost)
        return {OWN_KEY: {"judge_cost": cost}}

    def may_exceed_budget(self, pending: int) -> bool:
        """Whether the costs so far plus `pending` verdicts could exhaust the budget."""
        if self._max_cost is None:
            return False
        if not self._paid:  # one verdict gives an estimate of the cost
            return pending > 0 or self._before / UNITS >= self._max_cost
        each = self._units / self._paid
        return (self._before + self._units + CAUTION * each * (pending + 1)) / UNITS > self._max_cost

    @property
    def dollars(self) -> float | None:
        """Dollars spent in this session; None unless requested and known."""
        return self._units / UNITS if self._paid else None

    def spending(self) -> JudgeSpending | None:
        """Spending for the summary; None unless requested."""
        if not self.is_asked:
            return None
        is_known = self._paid or self._before
        return JudgeSpending(
            session=self.dollars,
            total=(self._before + self._units) / UNITS if is_known else None,
            unknown=self._unknown,
            price=self.price.text if self.price is not None else None,
        )


def joined_spending(parts: list[JudgeSpending], files: RunFiles) -> JudgeSpending | None:
    """Combined spending of several workers; the total is read from the files."""
    if not parts:
        return None
    session_costs = [one.session for one in parts if one.session is not None]
    tally = read_verdict_costs(files)
    return JudgeSpending(
        session=sum(map(to_units, session_costs)) / UNITS if session_costs else None,
        total=tally.judges / UNITS if tally.priced_judges else None,
        unknown=sum(one.unknown for one in parts),
        price=parts[0].price,
    )


def note_costs(files: RunFiles, price: str | None) -> None:
    """Update the manifest's costs from the verdicts on disk; a collecting process writes its own."""
    manifest = read_manifest(files) if files.manifest.exists() and not is_held(files.lock) else None
    if manifest is None:
        return
    recorded_cost = manifest.cost or CostFacts()
    recorded_cost = msgspec.structs.replace(recorded_cost, judge_price=price or recorded_cost.judge_price)
    cost = recounted(files, recorded_cost, manifest.config.get("price_per_hour"))
    _rewrite(files, manifest, cost)


def _rewrite(files: RunFiles, manifest: Manifest, cost: CostFacts) -> None:
    """Replace two keys; others, of newer versions too, stay as they are."""
    raw: JsonFields = msgspec.json.decode(read_whole(files.manifest))
    raw["cost"] = msgspec.to_builtins(cost)
    if manifest.counted:
        raw["counted"] = counted_bytes(files)
    write_atomically(files.manifest, msgspec.json.format(msgspec.json.encode(raw), indent=2) + b"\n")


def _check(options: VerifyOptions) -> None:
    if options.max_cost is None:
        return
    if not 0 < options.max_cost < math.inf:
        raise UsageError(f"--max-cost must be above 0 dollars, not {options.max_cost:g}", hint="--max-cost 5")
    if options.judge_price is None:
        raise UsageError(
            "--max-cost needs to know what the judge's tokens cost",
            hint="add --judge-price IN/OUT in dollars per million tokens, or --judge-price NAME for a model in the price table",
        )
