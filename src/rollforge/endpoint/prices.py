"""What tokens cost: a price from the user, or from a table by model name; an unknown price is None, never 0.

Prices are in US dollars per million tokens. Cached input is a part of the input, and reasoning a part of the output; each can
have a separate price, by default that of the whole. Batch prices default to half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rollforge.errors import UsageError

MILLION = 1_000_000
BATCH_SHARE = 0.5
"""Batch price relative to single requests, if none is known: the discount of OpenAI and Anthropic."""
DIGITS = 12
"""Decimals of a cost in dollars. Sums are made in integer multiples of the last decimal, so the order of addition does not
matter.
"""


class TokenRates(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Rate of input from the provider's cache; None means the rate of `input`."""
    reasoning: float | None = None
    """Rate of reasoning output; None means the rate of `output`."""

    def cost(self, usage: TokenUsage) -> float:
        """The cost of these tokens."""
        fresh, visible_output = usage.input - usage.cached, usage.output - usage.reasoning
        cached = self.input if self.cached is None else self.cached
        reasoning = self.output if self.reasoning is None else self.reasoning
        dollars = (
            fresh * self.input
            + usage.cached * cached
            + visible_output * self.output
            + usage.reasoning * reasoning
        )
        return round(dollars / MILLION, DIGITS)

    def times(self, share: float) -> TokenRates:
        """All rates multiplied by a share."""
        return TokenRates(
            input=self.input * share,
            output=self.output * share,
            cached=None if self.cached is None else self.cached * share,
            reasoning=None if self.reasoning is None else self.reasoning * share,
        )


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one or several calls."""

    input: int
    output: int
    cached: int = 0
    """Part of the input that came from the cache."""
    reasoning: int = 0
    """Part of the output that is reasoning."""

    @classmethod
    def read(cls, usage: object) -> TokenUsage | None:
        """Read the counts from a Responses-shaped `usage`; None if the server did not count input or output."""
        if not isinstance(usage, Mapping):
            return None
        read, written = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
        if read is None or written is None:
            return None
        cached = _count(_detail(usage, "input_tokens_details", "cached_tokens")) or 0
        reasoning = _count(_detail(usage, "output_tokens_details", "reasoning_tokens")) or 0
        return cls(input=read, output=written, cached=min(cached, read), reasoning=min(reasoning, written))


class Tier(msgspec.Struct, frozen=True):
    """Rates of requests with more input tokens than a threshold."""

    above: int
    rates: TokenRates


class TokenPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model's tokens."""

    rates: TokenRates
    batch: TokenRates | None = None
    """Rates inside a batch; None means half of `rates`."""
    tiers: tuple[Tier, ...] = ()
    """Rates of long requests, in ascending order of input length."""
    batch_tiers: tuple[Tier, ...] = ()
    """Rates of long requests inside a batch, likewise; unused where `batch` is None."""
    source: str = "--price"
    """Where the price comes from."""

    def cost(self, usage: object, *, calls: int = 1, is_batch: bool = False) -> float | None:
        """Cost of a rollout from its `usage`; None if tokens were not counted."""
        counted = TokenUsage.read(usage)
        if counted is None:
            return None
        rates, tiers = self.rates, self.tiers
        if is_batch and self.batch is not None:
            rates, tiers = self.batch, self.batch_tiers
        for tier in tiers:
            if counted.input / max(calls, 1) > tier.above:
                rates = tier.rates
        if is_batch and self.batch is None:
            rates = rates.times(BATCH_SHARE)
        return rates.cost(counted)

    def judge_cost(self, numbers: object) -> float | None:
        """Cost of the judge in a verdict, from the token numbers in the verdict; None if its server did not count tokens."""
        if not isinstance(numbers, Mapping) or not numbers.get("judge_input_tokens"):
            return None  # no request has an empty prompt
        usage = {
            "input_tokens": numbers.get("judge_input_tokens"),
            "output_tokens": numbers.get("judge_output_tokens"),
            "input_tokens_details": {"cached_tokens": numbers.get("judge_cached_tokens")},
            "output_tokens_details": {"reasoning_tokens": numbers.get("judge_reasoning_tokens")},
        }
        return self.cost(usage, calls=max(1, int(numbers.get("judge_calls") or 1)))

    @property
    def text(self) -> str:
        """Rates and their source in one line."""
        parts = [f"${self.rates.input:g} in, ${self.rates.output:g} out per million tokens"]
        if self.rates.cached is not None:
            parts.append(f"cached ${self.rates.cached:g}")
        if self.rates.reasoning is not None:
            parts.append(f"reasoning ${self.rates.reasoning:g}")
        if self.batch is not None:
            parts.append(f"in a batch ${self.batch.input:g} in, ${self.batch.output:g} out")
        return f"{', '.join(parts)} ({self.source})"


def parse_price(flag: str, text: str) -> TokenPrice | None:
    """Parse `IN/OUT[,cached=C][,reasoning=R][,batch=IN/OUT]`; None if the text is a model name to look up."""
    first, *words = text.replace(" ", "").split(",")
    if "/" not in first or not _is_pair(first):
        if words or not first or _is_pair(first):
            raise _unreadable(flag, text)
        return None
    text_by_part = dict(word.partition("=")[::2] for word in words)
    if unknown := text_by_part.keys() - {"cached", "reasoning", "batch"}:
        raise _unreadable(flag, text, f"{sorted(unknown)[0]!r} is no part of a price")
    read, written = _pair(flag, text, first)
    batch = text_by_part.pop("batch", None)
    parts = {name: _dollars(flag, text, value) for name, value in text_by_part.items()}
    batch_rates = None
    if batch is not None:
        batch_in, batch_out = _pair(flag, text, batch)
        batch_rates = TokenRates(input=batch_in, output=batch_out)
    return TokenPrice(rates=TokenRates(input=read, output=written, **parts), batch=batch_rates, source=flag)


def price_of(flag: str, text: str | None, model: str) -> TokenPrice | None:
    """Price of a model: parsed from the option, or looked up by name; None without option, or for an unknown name."""
    if text is None:
        return None
    typed_price = parse_price(flag, text)
    return typed_price if typed_price is not None else look_up(flag, model if text == "auto" else text)


def has_judge(numbers: Mapping[str, object]) -> bool:
    """Whether a judge model took part in a verdict."""
    return "judge_input_tokens" in numbers


UNKNOWN_PRICE = "is not known: costs are null"
"""Start of the note on a model without a known price; it is printed even in quiet mode."""


def unknown_price_note(flag: str, text: str, model: str) -> str:
    """Note for the user on a model that the price table does not contain."""
    wanted = model if text == "auto" else text
    return f"the price of {wanted or 'the model'} {UNKNOWN_PRICE}; give dollars per million tokens: {flag} IN/OUT"


def look_up(flag: str, name: str) -> TokenPrice | None:
    """Look up a model in the table of `genai-prices`, offline; None for an unknown name."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError as error:
        raise UsageError(
            f"{flag} {name}: a price by name needs the package genai-prices",
            hint=f"pip install 'rollforge[prices]', or give dollars per million tokens: {flag} 2.50/10",
        ) from error
    counted = Usage(input_tokens=1, output_tokens=1)
    try:
        price = calc_price(counted, name)
        batch = calc_price(counted, name, price_context={"processing": "batch"}).model_price
    except LookupError:
        return None
    prices = price.model_price
    if prices.input_mtok is None or prices.output_mtok is None:
        return None
    has_batch = batch != prices and batch.input_mtok is not None and batch.output_mtok is not None
    return TokenPrice(
        rates=_rates(prices, 0),
        batch=_rates(batch, 0) if has_batch else None,
        tiers=_tiers(prices),
        batch_tiers=_tiers(batch) if has_batch else (),
        source=f"{price.provider.id}/{price.model.id} in genai-prices {_table_version()}",
    )


def _table_version() -> str:
    from importlib.metadata import version

    return version("genai-prices")


_PRICE_KEYS = ("input_mtok", "output_mtok", "cache_read_mtok")


def _tier_starts(prices: object) -> list[int]:
    tiers = [getattr(getattr(prices, key), "tiers", ()) for key in _PRICE_KEYS]
    return sorted({int(tier.start) for some in tiers for tier in some})


def _tiers(prices: object) -> tuple[Tier, ...]:
    return tuple(Tier(start, _rates(prices, start + 1)) for start in _tier_starts(prices))


def _rates(prices: object, tokens: int) -> TokenRates:
    """The table's rates for a request with this many input tokens."""
    read, written, cached = (_at(getattr(prices, key), tokens) for key in _PRICE_KEYS)
    assert read is not None and written is not None
    return TokenRates(input=read, output=written, cached=cached)


def _at(price: Any, tokens: int) -> float | None:
    if price is None:
        return None
    value = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        if tokens > tier.start:
            value = tier.price
    return float(value)


def _is_pair(text: str) -> bool:
    """Whether the text begins with a number, as a price does; `Qwen/Qwen2.5-7B` and `01-ai/Yi` are names."""
    try:
        float(text.partition("/")[0].removeprefix("$"))
    except ValueError:
        return False
    return True


def _pair(flag: str, text: str, pair: str) -> tuple[float, float]:
    parts = pair.split("/")
    if len(parts) != 2:
        raise _unreadable(flag, text)
    return _dollars(flag, text, parts[0]), _dollars(flag, text, parts[1])


def _dollars(flag: str, text: str, word: str) -> float:
    try:
        value = float(word.removeprefix("$"))
    except ValueError:
        raise _unreadable(flag, text, f"{word!r} is no number") from None
    if not 0 <= value < math.inf:
        raise _unreadable(flag, text, f"{word} is no price")
    return value


def _unreadable(flag: str, text: str, why: str = "") -> UsageError:
    return UsageError(
        f"{flag} {text!r} is not understood" + (f": {why}" if why else ""),
        hint=f"write dollars per million tokens: {flag} 2.50/10, {flag} 2.50/10,cached=1.25,reasoning=10,batch=1.25/5, "
        f"or a model's name: {flag} gpt-4o",
    )


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None  # type: ignore[return-value]  # narrowed by is_count


def _detail(usage: Mapping[str, object], group: str, name: str) -> object:
    details = usage.get(group)
    return details.get(name) if isinstance(details, Mapping) else None
