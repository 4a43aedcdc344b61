"""Rate limits: what a provider says and what flags say is kept, with requests planned by what they are expected to use."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.endpoint.client import paired
from rollforge.endpoint.rate_limits import Bucket, ExpectedTokens, RateLimits, read_limit, reset_s
from rollforge.errors import Exit, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions
from tests.steps.test_collect import collect, write_tasks


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("12", 12),
        ("1970-01-01T00:01:40Z", 40),
        ("soon", 0),
        ("", 0),
    ],
)
def test_every_form_of_a_reset_is_read(text: str, seconds: float) -> None:
    assert reset_s(text, 60.0) == pytest.approx(seconds)


def test_headers_of_both_providers_are_read() -> None:
    openai = {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "58s",
    }
    anthropic = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "1970-01-01T00:00:30Z",
    }
    assert read_limit(openai, "tokens", 0.0) == (1000, 40, 58)
    assert read_limit(openai, "requests", 0.0) is None
    assert read_limit(anthropic, "requests", 10.0) == (50, 0, 20)
    assert read_limit({"x-ratelimit-limit-tokens": "many"}, "tokens", 0.0) is None


def test_a_bucket_waits_for_what_it_lacks_and_no_longer() -> None:
    bucket = Bucket(100, 10)
    bucket.take(95, 0.0)
    assert bucket.wait_s(25, 0.0) == pytest.approx(2.0)
    assert bucket.wait_s(25, 2.0) == 0.0
    assert bucket.wait_s(1000, 9.5) == 0.0, "what is larger than the bucket passes when that is full"


def test_what_the_provider_says_is_a_ceiling_for_our_own_count() -> None:
    limits = RateLimits()
    assert limits.wait_s(1e6, 0.0) == (0.0, None)
    headers = {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "60s",
    }
    limits.observe(headers, 0.0, 0.0)
    assert limits.wait_s(100, 0.0) == (pytest.approx(10.0), "tokens")
    assert limits.wait_s(100, 10.0)[0] == pytest.approx(0.0)


def test_a_limit_of_the_users_own_is_named_by_its_flag_until_the_provider_allows_less() -> None:
    limits = RateLimits(rpm=60)
    limits.take(0, 0.0)
    limits.take(0, 0.0)
    assert limits.wait_s(0, 0.0) == (pytest.approx(1.0), "--rpm")
    headers = {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60s",
    }
    limits.observe(headers, 0.0, 0.0)
    assert limits.wait_s(0, 0.0) == (pytest.approx(30.0), "requests")


def test_a_plan_is_corrected_by_what_was_used() -> None:
    limits = RateLimits(tpm=6000)  # two seconds' worth at once: 200
    limits.take(200, 0.0)
    limits.correct(200, 50, 0.0)
    assert limits.wait_s(150, 0.0)[0] == pytest.approx(0.0)


def test_expected_tokens_follow_the_answers() -> None:
    expected = ExpectedTokens()
    body = b"x" * 400
    for _ in range(50):
        expected.learn(body, {"usage": {"input_tokens": 200, "output_tokens": 1000}})
    assert expected.of(body) == pytest.approx(1200, rel=0.01)
    assert expected.learn(body, {"usage": None}) is None


def test_keys_and_urls_are_paired() -> None:
    assert paired(["a"], ["x", "y"]) == [("a", "x"), ("a", "y")]
    assert paired(["a", "b"], ["x", "y"]) == [("a", "x"), ("b", "y")]
    assert paired(["a", "b"], ["x"]) == [("a", "x"), ("b", "x")]
    assert paired(["a"], []) == [("a", None)]


async def test_a_limit_told_in_headers_is_kept_with_hardly_a_429(tmp_path: Path) -> None:
    write_tasks(tmp_path, 40)
    async with SimulatedServer(SimulateOptions(rpm=1200)) as server:
        server.service._rates._levels[""] = (server.service._clock(), {"requests": 10.0})
        result = await collect(tmp_path, server, concurrency="16")
    assert (result.exit_code, result.finished) == (Exit.DONE, 40)
    # The first sixteen go out together, before any header has come.
    assert server.stats.faults["rate-limit"] <= 16
    assert server.stats.requests <= 40 + 16 + 4


async def test_tokens_a_minute_are_kept_and_named_as_the_bottleneck(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, concurrency="8", tpm=60_000)
    tokens = server.stats.input_tokens + server.stats.output_tokens
    # One second's worth is 1,000; two may go at once.
    assert tokens <= 2_000 + 1_500 * (result.elapsed_s + 1)
    assert result.bottleneck.startswith("limited by --tpm (")


async def test_each_key_has_a_limit_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tasks(tmp_path, 12)
    monkeypatch.setenv("KEY_ONE", "sk-one")
    monkeypatch.setenv("KEY_TWO", "sk-two")
    async with SimulatedServer(SimulateOptions(rpm=60_000)) as server:
        result = await collect(tmp_path, server, api_key_env="KEY_ONE,KEY_TWO")
        keys = set(server.service._rates._levels)
    assert result.exit_code == Exit.DONE
    assert keys == {"Bearer sk-one", "Bearer sk-two"}
    for path in (tmp_path / "run").iterdir():
        assert not path.is_file() or b"sk-one" not in path.read_bytes()


async def test_each_server_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """A server that allows little must not hold back one that allows much."""
    write_tasks(tmp_path, 60)
    async with (
        SimulatedServer(SimulateOptions(rpm=6)) as slow,
        SimulatedServer(SimulateOptions(rpm=60_000)) as quick,
    ):
        result = await collect(tmp_path, base_urls=(slow.base_url, quick.base_url), concurrency="8")
    assert (result.exit_code, result.finished) == (Exit.DONE, 60)
    answered = [server.stats.by_status["200"] for server in (slow, quick)]
    assert sum(answered) >= 60 and answered[0] <= 12 and answered[1] >= 48


async def test_keys_that_fit_no_servers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tasks(tmp_path, 1)
    monkeypatch.setenv("KEY_ONE", "sk-one")
    monkeypatch.setenv("KEY_TWO", "sk-two")
    with pytest.raises(UsageError, match="2 keys for 3 servers"):
        await collect(
            tmp_path, base_urls=("http://a/v1", "http://b/v1", "http://c/v1"), api_key_env="KEY_ONE,KEY_TWO"
        )
