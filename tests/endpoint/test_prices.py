"""A price is what was given or what the table says; an unknown one is None, never 0."""

from __future__ import annotations

import pytest

from rollforge.endpoint.prices import TokenUsage, look_up, parse_price, price_of
from rollforge.errors import UsageError

USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 400},
    "output_tokens": 300,
    "output_tokens_details": {"reasoning_tokens": 100},
}


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("2/10", (1000 * 2 + 300 * 10) / 1e6),
        ("2/10,cached=1", (600 * 2 + 400 * 1 + 300 * 10) / 1e6),
        ("2/10,reasoning=20", (1000 * 2 + 200 * 10 + 100 * 20) / 1e6),
        ("$2/10,cached=0", (600 * 2 + 300 * 10) / 1e6),
        ("0/0", 0.0),
    ],
)
def test_cached_input_and_reasoning_have_prices_of_their_own(text: str, dollars: float) -> None:
    price = parse_price("--price", text)
    assert price is not None and price.cost(USAGE) == pytest.approx(dollars, abs=1e-12)


def test_a_batch_costs_half_unless_its_price_is_given() -> None:
    half, given = parse_price("--price", "2/10"), parse_price("--price", "2/10,batch=0.5/3")
    assert half is not None and half.cost(USAGE, is_batch=True) == pytest.approx(0.0025)
    assert given is not None and given.cost(USAGE, is_batch=True) == pytest.approx((500 + 900) / 1e6)
    assert given.cost(USAGE) == pytest.approx(0.005)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"input_tokens": 5},
        {"input_tokens": None, "output_tokens": 3},
        {"input_tokens": True, "output_tokens": 3},
    ],
)
def test_tokens_that_nobody_counted_have_no_cost(usage: object) -> None:
    price = parse_price("--price", "2/10")
    assert price is not None and price.cost(usage) is None


def test_more_cached_tokens_than_input_never_make_a_cost_negative() -> None:
    assert TokenUsage.read(
        {"input_tokens": 5, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 50}}
    ) == TokenUsage(input=5, output=1, cached=5)


@pytest.mark.parametrize(
    "text", ["", "5", "2/x", "-1/2", "1/2/3", "1/2,foo=3", "nan/1", "1/inf", "gpt-4o,cached=1"]
)
def test_a_price_that_cannot_be_read_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_price("--price", text)
    assert "--price 2.50/10" in str(refused.value.hint)


def test_the_table_knows_a_model_by_name_with_its_cached_price() -> None:
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    price = price_of("--price", "auto", "gpt-4o")
    assert price is not None and price.rates.cached is not None
    assert price.rates.input > price.rates.cached > 0
    assert "openai/gpt-4o" in price.text


def test_a_model_that_the_table_does_not_know_has_no_price() -> None:
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    assert look_up("--price", "no-such-model-anywhere") is None


def test_long_requests_pay_the_rates_of_their_tier() -> None:
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    price = price_of("--price", "claude-sonnet-4-5", "")
    assert price is not None and price.tiers
    tier = price.tiers[-1]
    usage = {"input_tokens": tier.above + 1, "output_tokens": 0}
    assert price.cost(usage) == pytest.approx((tier.above + 1) * tier.rates.input / 1e6)
    assert price.cost(usage, calls=2) == pytest.approx((tier.above + 1) * price.rates.input / 1e6)


def test_the_batch_prices_of_the_table_are_its_own_and_not_half_of_everything() -> None:
    """A provider's batch price may have no rate of its own for cached input, and tiers for long prompts."""
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    price, tiered = look_up("--price", "gpt-4o"), look_up("--price", "claude-haiku-5.5")
    assert price is not None and price.batch is not None and price.batch.cached is not None
    assert price.batch.input == pytest.approx(price.rates.input / 2) and "in a batch $" in price.text
    assert price.batch.cached > (price.rates.cached or 0) / 2
    assert tiered is not None and tiered.batch is not None and tiered.batch_tiers
    tier = tiered.batch_tiers[-1]
    usage = {"input_tokens": tier.above + 1, "output_tokens": 0}
    assert tiered.cost(usage, is_batch=True) == pytest.approx((tier.above + 1) * tier.rates.input / 1e6)
    assert tier.rates.input > tiered.batch.input
