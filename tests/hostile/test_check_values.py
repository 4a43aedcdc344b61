"""Absurd values in every field that checks and metrics read: findings and numbers, never a traceback."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec

from rollforge.errors import RollforgeError
from rollforge.index import open_index
from rollforge.records import JsonObject
from rollforge.steps.check import CheckOptions, check_evidence, check_run, index_evidence
from rollforge.steps.metrics import nemo_gym_metrics, summarize_index, trinity_metrics
from tests.builders import make_rollout

NUMBERS = [
    "NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1.7976931348623157e308", "5e-324", "-0.0", "1e400", "9" * 400, "-" + "9" * 400,
    "true", "null", '"7"', '""', "[]", "{}", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "0.1", "1", "0",
]  # fmt: skip
TEXTS = ['"\\ud800"', '"\\u0000"', '""', "null", "7", "[]", "{}", '"' + "x" * 5000 + '"', '"a\\nb"', '"ok"']
PLACES: list[tuple[tuple[str | int, ...], list[str]]] = [
    (("reward",), NUMBERS),
    (("accuracy",), NUMBERS),
    (("extracted_answer",), [*NUMBERS, *TEXTS]),
    (("expected_answer",), [*NUMBERS, *TEXTS]),
    (("mask_sample",), NUMBERS),
    (("verifier_latency",), NUMBERS),
    (("verifier_error",), [*NUMBERS, *TEXTS]),
    (("domain",), TEXTS),
    (("agent_ref", "name"), TEXTS),
    (("response", "usage", "input_tokens"), NUMBERS),
    (("response", "usage", "output_tokens"), NUMBERS),
    (("response", "usage", "total_tokens"), NUMBERS),
    (("response", "usage"), TEXTS),
    (("response", "model"), TEXTS),
    (("response", "status"), TEXTS),
    (("response", "error"), TEXTS),
    (("response", "output"), [*TEXTS, "[[]]", "[[[]]]", "[null]", '[{"type": null}]', '[{"type": "function_call"}]', "[[{}], 3]"]),
    (("response", "output", 0, "content"), [*TEXTS, "[null]", '[{"text": 3, "type": "output_text"}]']),
    (("response", "output", 0, "generation_token_ids"), [*TEXTS, "[1, 2]", "[null]", "[1e400]"]),
    (("response", "output", 0, "generation_log_probs"), [*TEXTS, "[1]", "[NaN]"]),
    (("responses_create_params", "tools"), [*TEXTS, "[null]", '[{"function": 3}]', '[{"name": {"a": 1}}]']),
    (("responses_create_params", "temperature"), NUMBERS),
    (("responses_create_params", "model"), TEXTS),
    (("responses_create_params", "input"), [*TEXTS, "[null]", '[{"content": 3}]']),
    (("responses_create_params",), TEXTS),
    (("response",), TEXTS),
    (("_rf", "started"), NUMBERS),
    (("_rf", "seconds"), NUMBERS),
    (("_rf", "verify_seconds"), NUMBERS),
    (("_rf", "verifier"), TEXTS),
    (("_rf",), TEXTS),
]  # fmt: skip
ROUNDS = 4000 if os.environ.get("ROLLFORGE_TORTURE") else int(os.environ.get("HOSTILE_ROUNDS", 60))


def spoiled(row: JsonObject, path: tuple[str | int, ...], value: str, mark: str) -> bytes:
    """The row as JSON with the raw value at a path."""
    copy = msgspec.json.decode(msgspec.json.encode(row))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = mark
    return json.dumps(copy).replace(f'"{mark}"', value).encode()


def row_of(task: int, n: int, rng: random.Random) -> JsonObject:
    return make_rollout(
        task,
        n,
        float(rng.random() < 0.5),
        text=f"some words {rng.random()} and a few more of them. The answer is {task}.",
        accuracy=1.0,
        extracted_answer="1",
        expected_answer=str(task),
        mask_sample=False,
        verifier_latency=0.1,
        verifier_error=None,
        domain="algebra",
        _rf={
            "started": 1.0 + n,
            "seconds": 1.0,
            "verify_seconds": 0.1,
            "verifier": "exact",
            "fingerprint": "a",
        },
    )


def write_hostile(folder: Path, rng: random.Random) -> Path:
    """A run in which some fields of many rows, or of all, hold absurd values."""
    chosen = rng.sample(PLACES, rng.randint(1, 4))
    share = rng.choice([0.05, 0.5, 1.0])
    lines = []
    for task in range(rng.choice([1, 3, 30])):
        for n in range(rng.choice([1, 4])):
            row = row_of(task, n, rng)
            if rng.random() >= share:
                lines.append(json.dumps(row).encode())
                continue
            path, values = rng.choice(chosen)
            lines.append(spoiled(row, path, rng.choice(values), "@@mark@@"))
    if rng.random() < 0.2:
        lines.append(rng.choice([b"\xff\xfe", b"[" * 3000, b"{", b"\x00" * 40, b"3", b"null"]))
    target = folder / "rollouts.jsonl"
    target.write_bytes(b"\n".join(lines) + b"\n")
    return target


def test_absurd_values_end_in_findings_and_numbers(tmp_path: Path) -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = write_hostile(folder, rng)
        try:
            with open_index(path) as index:
                report = check_evidence(
                    index_evidence(index, CheckOptions()), CheckOptions(recipes=("sft", "grpo"))
                )
                numbers = summarize_index(index), nemo_gym_metrics(index), trinity_metrics(index)
        except RollforgeError:
            continue  # a message, not a traceback
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        msgspec.json.encode([report, *numbers])


def test_rewards_at_the_ends_of_the_numbers_are_judged(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, n, 1e308 if (task + n) % 2 else -1e308) for task in range(30) for n in range(4)
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    report = check_run(path, recipes=("sft", "dpo", "kto", "rm", "ppo", "grpo"))
    assert "extreme-rewards" in {item.id for item in report.findings}
