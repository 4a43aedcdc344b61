"""The live panel: what it says, at any width."""

from __future__ import annotations

import msgspec
import pytest

from rollforge.cli.render.progress import panel_lines, short_time
from rollforge.steps.collect.live import LiveSnapshot, _histogram
from rollforge.verifiers.running.ready_verifier import JudgeCounters

NOW = LiveSnapshot(
    elapsed_s=75.0, expected=1000, finished=420, fresh=320, judged=300, unjudged=4, failures={"server-error": 3}, given_up=1,
    rate=4.2, tokens_per_s=900.0, eta_s=130.0, reward=0.41, reward_half_width=0.03, truncated=2, empty=0, in_flight=32,
    limit=64, verifying=3, slowest_s=12.0, stragglers=0, retries=9, retry_causes={"rate-limited": 7, "server-error": 2},
    reward_histogram=(10, 0, 0, 1, 0, 0, 0, 8), reward_recent=0.52, model="my-model", server="http://localhost:8000/v1",
    light="yellow", notice="41% of answers are empty", judging=JudgeCounters(),
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_panel_uses_the_width_it_has(width: int) -> None:
    lines = panel_lines(NOW, width)
    text = " ".join(" ".join(line.split()) for line in lines)
    for part in (
        "my-model",
        "http://localhost:8000/v1",
        "0.410 ± 0.030",
        "low █ ▁ ▆ high",
        "rising (last 100: 0.520)",
        "9 retries (7 rate-limited, 2 server-error)",
        "odd: one sign of broken verification",
        "100 from before",
        "since this start only",
        "41% of answers are empty",
    ):
        assert part in text, f"{part!r} is not in\n" + "\n".join(lines)
    if width >= 80:
        assert max(map(len, lines)) <= width
    assert len(panel_lines(NOW, 200)) <= len(lines)


def test_histogram_counts_every_value_once() -> None:
    assert _histogram([0.0, 0.0, 1.0, 0.5], bins=4) == (2, 0, 1, 1)
    assert _histogram([1.0, 1.0]) == ()


@pytest.mark.parametrize(
    ("seconds", "text"), [(79e-6, "79 µs"), (0.0032, "3.2 ms"), (0.9, "0.9 s"), (75, "1m 15s")]
)
def test_short_times_have_their_own_unit(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


def test_the_name_that_the_server_gives_its_model_is_beside_the_one_asked_for() -> None:
    lines = panel_lines(msgspec.structs.replace(NOW, served="weights.gguf"), 200)
    assert lines[0].split(maxsplit=1)[1] == "my-model · weights.gguf by the server · http://localhost:8000/v1"
