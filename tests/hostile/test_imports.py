"""Logs of other tools that are damaged or made up: `import` ends with a message, and makes a run or none."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import DataError, RollforgeError
from rollforge.importers import inspect_log
from rollforge.steps.import_run import import_run
from tests.hostile.mutants import mutate

LOGS = 300 if not os.environ.get("ROLLFORGE_TORTURE") else 20_000
REAL = Path(__file__).parents[1] / "importers" / "logs"
VALUES: list[Any] = [
    *(
        None,
        True,
        -1,
        0.5,
        10**25,
        1e308,
        float("nan"),
        "",
        "x",
        "\0",
        "\ud800",
        "9" * 30,
        "2024-13-99T99:99",
    ),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": {"b": [1]}}, ["a", 1, None, {}], {"text": "x"}),
]
SAMPLE = {
    "id": 1, "epoch": 1, "input": "q?", "target": "7", "total_time": 2.0, "started_at": "2026-01-01T00:00:00",
    "messages": [
        {"role": "user", "content": "q?"},
        {"role": "assistant", "content": [{"type": "text", "text": "7"}],
         "tool_calls": [{"id": "c", "function": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "x", "tool_call_id": "c"},
    ],
    "output": {"model": "m", "choices": [{"stop_reason": "stop"}], "usage": {"input_tokens": 1, "output_tokens": 2}},
    "scores": {"match": {"value": "C", "answer": "7"}}, "model_usage": {"m": {"input_tokens": 1, "output_tokens": 2}},
}  # fmt: skip
RESULT = {
    "example_id": 1, "prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}],
    "answer": "7", "info": {"a": 1}, "reward": 1.0, "metrics": {"m": 0.5}, "error": None,
    "token_usage": {"input_tokens": 1, "output_tokens": 2}, "is_truncated": False,
}  # fmt: skip


def changed(value: Any, chance: random.Random) -> Any:
    """A copy in which some values have another type, or are missing."""
    if chance.random() < 0.06:
        return chance.choice(VALUES)
    if isinstance(value, dict):
        return {key: changed(one, chance) for key, one in value.items() if chance.random() > 0.02}
    return [changed(one, chance) for one in value] if isinstance(value, list) else value


def lines(rows: list[Any], chance: random.Random) -> bytes:
    return b"".join(json.dumps(changed(row, chance)).encode() + b"\n" for row in rows)


def archive(chance: random.Random) -> bytes:
    data = io.BytesIO()
    kind = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(data, "w", kind) as file:
        file.writestr("samples/1_epoch_1.json", json.dumps(changed(SAMPLE, chance)))
    return mutate(data.getvalue(), chance) if chance.random() < 0.7 else data.getvalue()


def write_log(folder: Path, chance: random.Random) -> tuple[str, Path]:
    """A damaged log of some kind, and the kind."""
    match chance.randrange(5):
        case 0:
            path = folder / "log.json"
            path.write_text(json.dumps({"samples": changed([SAMPLE, SAMPLE], chance)}))
            return "inspect", path
        case 1:
            path = folder / "log.eval"
            path.write_bytes(archive(chance))
            return "inspect", path
        case 2:
            path = folder / "traces.jsonl"
            rows = [json.loads(line) for line in (REAL / "traces.jsonl").read_bytes().splitlines()]
            path.write_bytes(lines(rows, chance))
            return "verifiers", path
        case 3:
            path = folder / "results.jsonl"
            path.write_bytes(lines([RESULT] * 3, chance))
            return "verifiers", path
        case _:
            path = folder / "harbor"
            shutil.copytree(REAL / "harbor", path)
            file = chance.choice(sorted(path.rglob("*.json")))
            file.write_text(json.dumps(changed(json.loads(file.read_bytes()), chance)))
            return "harbor", path


def test_damaged_logs_are_imported_or_refused(tmp_path: Path, tried: Callable[..., None]) -> None:
    chance = random.Random(0)
    imported = 0
    for number in range(LOGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        kind, path = write_log(folder, chance)
        try:
            import_run(kind, path, folder / "run", reward=chance.choice((None, "reward", "match", "m")))
            imported += 1
        except RollforgeError as error:
            assert error.hint, f"{kind} {number}: {error}"
            assert not list(folder.glob("run/*")), "a refused log leaves no run"
        shutil.rmtree(folder)
    assert 0 < imported < LOGS
    tried(damaged_logs=LOGS)


def test_a_record_of_an_unexpected_shape_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(RESULT) + "\n" + json.dumps({**RESULT, "metrics": [1]}) + "\n")
    with pytest.raises(DataError, match=r"results.jsonl: record 2 has an unexpected shape"):
        import_run("verifiers", path, tmp_path / "run")


def test_a_member_of_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_log, "LONGEST_LINE", 10_000)
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("samples/1_epoch_1.json", " " * 1_000_000)
    with pytest.raises(DataError, match="larger than"):
        import_run("inspect", path, tmp_path / "run")


@pytest.mark.parametrize("name", ["result.json", "agent/trajectory.json"])
def test_a_pipe_in_a_folder_of_trials_is_not_read_for_ever(tmp_path: Path, name: str) -> None:
    shutil.copytree(REAL / "harbor", tmp_path / "harbor")
    for path in list((tmp_path / "harbor").rglob(name)):
        path.unlink()
        os.mkfifo(path)
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "import", "harbor", "harbor", "-o", "run"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and done.returncode in (0, 2), done.stderr
