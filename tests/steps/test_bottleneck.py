"""The line that says what to change to go faster blames what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.simulate import example_tasks
from rollforge.steps.collect.bottleneck import Load, bottleneck, human_seconds
from rollforge.steps.collect.live import Live


def line(*, slots: int = 16, verify_slots: int = 128, elapsed_s: float = 10.0, **seconds: float) -> str:
    live = Live(expected=100, finished=0)
    live.fresh = 100
    for name, value in seconds.items():
        setattr(live, name, value)
    load = Load(
        elapsed_s=elapsed_s, cpu_s=1.0, lag_s=0.0, commit_s=0.0, model_slots=slots, verify_slots=verify_slots
    )
    return bottleneck(live, load)


@pytest.mark.parametrize(
    ("seconds", "blamed"),
    [
        ({"model_s": 150.0, "verify_s": 1.0}, "model: 99%"),
        ({"model_s": 10.0, "verify_s": 500.0}, "verifier: 98%"),
        ({"model_s": 10.0, "verify_s": 10.0, "verify_wait_s": 40.0}, "verifier: 83%"),
        ({"model_s": 5.0, "verify_s": 45.0, "slots": 3, "verify_slots": 256}, "verifier: 90%"),
        (
            {"model_s": 10.0, "verify_s": 20.0, "slots": 1},
            "model: 33% of a rollout's time is spent waiting for the model, whose 1 slot is taken",
        ),
        (
            {"model_s": 100.0, "tool_start_s": 80.0, "tool_starts": 100},
            "tools: 80% of a rollout's time goes into starting",
        ),
        ({"model_s": 100.0, "tool_s": 80.0}, "tools: 80% of a rollout's time is spent in tool calls"),
        ({"model_s": 100.0, "tool_s": 30.0}, "model: 70%"),
        ({"model_s": 100.0, "timeout_s": 60.0}, "time-outs: 60%"),
        ({"model_s": 100.0, "is_remote": True}, "agent: 100%"),
        ({"model_s": 100.0, "fresh": 0}, "unknown"),
    ],
)
def test_the_part_that_takes_the_time_is_blamed(seconds: dict[str, float], blamed: str) -> None:
    assert line(**seconds).startswith(blamed)


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.9e-5, "79 µs"), (0.0123, "12 ms"), (0.9, "0.9 s"), (42.0, "42.0 s")]
)
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def run(folder: Path, *words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_slow_async_verifier_is_blamed_and_not_the_model(tmp_path: Path) -> None:
    """Whole commands: many calls at once, so that their seconds exceed the clock's."""
    rows = example_tasks(6, 0, "math")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "slow.py").write_text(
        "import asyncio\nasync def verify(task, response):\n    await asyncio.sleep(3)\n    return len(response.text) % 2\n"
    )
    words = [
        "-i",
        "tasks.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--verifier",
        "slow.py:verify",
        "--stop-on",
        "never",
    ]
    assert str(run(tmp_path, "collect", *words)["bottleneck"]).startswith("verifier: ")
    said = str(run(tmp_path, "verify", "run", "--verifier", "slow.py:verify", "--fresh")["bottleneck"])
    assert "of at most 128 calls were under way on average" in said


def test_starting_an_mcp_server_for_every_rollout_is_blamed(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")
    rows = example_tasks(4, 0, "tools")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "server.py").write_text(
        "import time\ntime.sleep(1.5)\nfrom mcp.server.mcpserver import MCPServer\nserver = MCPServer('needles')\n"
        "@server.tool()\ndef get_synonym_value(synonym: str) -> int:\n    return 1\n"
        "@server.tool()\ndef extract_synonym_values(synonym_values: list[int]) -> str:\n    return 'ok'\nserver.run()\n"
    )
    words = ["-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--no-verify"]
    said = str(
        run(tmp_path, "collect", *words, "--tools", f"mcp-stdio:{sys.executable} server.py")["bottleneck"]
    )
    assert "starting tool servers" in said and "mcp-stdio-shared" in said
