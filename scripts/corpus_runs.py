"""Runs for the corpus: healthy and sick made runs, collected runs, NeMo Gym's row generations, odd lines.

`make_corpus` writes each of them once, from fixed seeds. Later recordings only read copies, so the corpus itself never changes.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather at a place",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "number", "enum": [1, 3]}},
    },
    "strict": True,
}

HEALTHY: dict[str, dict[str, Any]] = {
    "binary": {"tasks": 60, "samples": 8},
    "continuous": {"tasks": 60, "samples": 6, "kind": "continuous"},
    "graded": {"tasks": 50, "samples": 4, "kind": "graded"},
    "signed": {"tasks": 50, "samples": 4, "kind": "signed"},
    "ten": {"tasks": 50, "samples": 4, "kind": "ten"},
    "tools": {"tasks": 40, "samples": 4, "has_tools": True},
    "short": {"tasks": 60, "samples": 8, "is_short": True},
    "sorted-passes": {"tasks": 60, "samples": 4, "order": "sorted", "passes": True},
    "agents": {"tasks": 90, "samples": 4, "agents": 3},
    "hard": {"tasks": 100, "samples": 4, "mean": 0.015},
    "easy": {"tasks": 100, "samples": 4, "mean": 0.985},
    "single": {"tasks": 200, "samples": 1},
    "tiny": {"tasks": 3, "samples": 2},
    "untidy": {"tasks": 60, "samples": 4, "truncated": 0.2, "empty": 0.05, "unjudged": 0.1, "failed": 0.05},
}


def make_corpus(folder: Path) -> None:
    """Write all runs below `folder`."""
    _made_runs(folder)
    _collected_runs(folder / "collected")
    _written_runs(folder / "written")
    _packed_runs(folder)
    _task_files(folder / "tasks")


def _made_runs(folder: Path) -> None:
    from rollforge.testing.defects import DEFECTS, sick_run
    from rollforge.testing.runs import Shape, healthy_run

    for name, shape in HEALTHY.items():
        healthy_run(Shape(**shape), seed=11).write(folder / "healthy" / name)
    for name in DEFECTS:
        sick_run(name, seed=5).write(folder / "sick" / name)


# Collected from the embedded model


def rollforge(*words: str, codes: Iterable[int] = (0,)) -> None:
    """Run one command of the installed package; other exit codes than `codes` are an error."""
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words], capture_output=True, text=True, check=False
    )
    if done.returncode not in set(codes):
        sys.exit(f"rollforge {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def _collected_runs(folder: Path) -> None:
    folder.mkdir(parents=True)
    tasks = {kind: str(folder / f"{kind}.jsonl") for kind in ("math", "mcqa", "tools", "mixed")}
    for kind, path in tasks.items():
        rollforge("simulate", "--write-tasks", path, "-n", "40", "--seed", "3", "--kind", kind)
    quiet = ["-m", "simulated", "--progress", "none", "--seed", "3", "-c", "4"]

    def collect(name: str, kind: str, *more: str, codes: Iterable[int] = (0,)) -> str:
        out = str(folder / name)
        rollforge("collect", "-i", tasks[kind], "-o", out, *quiet, *more, codes=codes)
        return out

    collect("math", "math", "-k", "4", "--verifier", "exact")
    collect("logprobs", "math", "-k", "2", "-n", "10", "--verifier", "exact", "--logprobs", "--api", "chat")
    collect("mcqa", "mcqa", "-k", "4", "--verifier", "mcqa", codes=(0, 3, 5))
    collect("tool-loop", "tools", "-k", "4", "--tools", "multineedle", "--verifier", "multineedle")
    collect("mixed", "mixed", "-k", "2", "--verifier", "exact", codes=(0, 3, 5))
    collect("unjudged", "math", "-k", "2", "--no-verify", codes=(0, 3))
    later = collect("judged-later", "math", "-k", "4", "--no-verify", codes=(0, 3))
    rollforge("verify", later, "--verifier", "exact", "--progress", "none")
    again = collect("judged-again", "math", "-k", "4", "--verifier", "exact")
    rollforge("verify", again, "--verifier", "math", "--progress", "none", codes=(0, 3))
    used = str(folder / "judged-used")
    shutil.copytree(again, used)
    rollforge("verify", used, "--use", "math")
    collect("partial", "math", "-k", "2", "-n", "12", "--verifier", "exact")
    _cut_manifest(folder / "partial")
    _faulty_run(folder, tasks["math"])


def _cut_manifest(run: Path) -> None:
    """Make the run look like one whose collection is still owed rollouts."""
    rollouts = run / "rollouts.jsonl"
    lines = rollouts.read_bytes().splitlines(keepends=True)
    rollouts.write_bytes(b"".join(lines[:-7]))


def _faulty_run(folder: Path, tasks: str) -> None:
    words = ["simulate", "--port", "0", "--json", "--fault", "500=0.3", "--fault", "truncated=0.1"]
    words += ["--fault", "empty=0.05", "--fault", "refusal=0.05", "--seed", "3"]
    server = subprocess.Popen(
        [sys.executable, "-m", "rollforge", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        found = re.search(r"http://[^\"\s]+", server.stdout.readline())
        assert found is not None
        out = str(folder / "faults")
        options = [
            "--retries",
            "0",
            "--attempts",
            "2",
            "--max-failures",
            "100%",
            "--progress",
            "none",
            "-c",
            "1",
        ]
        rollforge(
            "collect", "-i", tasks, "-o", out, "-m", "simulated", "--base-url", found.group(), "-k", "3",
            "--verifier", "exact", *options, codes=(0, 3, 5),
        )  # fmt: skip
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


# Written by hand: NeMo Gym's generations, chat rows, odd lines


def rollout(task: int, sample: int, reward: float | None, text: str, **fields: Any) -> Row:
    """A rollout row of the newest generation, with one assistant message."""
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"Question {task}: what is {task} + {task}?", "type": "message"}]
        },
        "response": {
            "id": f"resp_{task}_{sample}", "created_at": 1756071082.0, "object": "response", "model": "model-8b",
            "status": "completed", "error": None, "incomplete_details": None,
            "output": [message(text)],
            "usage": {"input_tokens": 20, "output_tokens": len(text) // 4 + 1, "total_tokens": 21 + len(text) // 4},
        },
        "reward": reward, "_ng_task_index": task, "_ng_rollout_index": sample,
        "agent_ref": {"name": "simple_agent"}, **fields,
    }  # fmt: skip


def message(text: str, **fields: Any) -> Row:
    """An assistant message item."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}]
    return {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content, **fields
    }  # fmt: skip


def task_rows(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """One task row for each task of the rollouts."""
    by_task: dict[int, Row] = {}
    for row in rows:
        task = row["_ng_task_index"]
        by_task.setdefault(
            task,
            {"_ng_task_index": task, "responses_create_params": row["responses_create_params"],
             "expected_answer": str(task * 2), **fields},
        )  # fmt: skip
    return [by_task[task] for task in sorted(by_task)]


def write(path: Path, rows: Iterable[Row | bytes]) -> Path:
    """Write rows as JSONL; bytes go in as they are, each with a newline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def _plain(tasks: int = 20, samples: int = 4, seed: int = 7) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        for sample in range(samples):
            is_right = rng.random() < 0.2 + 0.6 * task / tasks
            value = task * 2 + (0 if is_right else rng.randrange(1, 9))
            words = " ".join(
                rng.choices(
                    ["we", "add", "both", "numbers", "and", "then", "check", "the", "sum", "once", "more"],
                    k=8,
                )
            )
            rows.append(rollout(task, sample, float(is_right), f"{words}. The answer is {value}."))
    return rows


def _written_runs(folder: Path) -> None:
    for name, build in _WRITTEN.items():
        rows = build()
        write(folder / name / "rollouts.jsonl", rows)
        if name not in ("gym-a", "not-rollouts", "empty-file", "bad-lines-only"):
            known = [
                row for row in rows if isinstance(row, dict) and isinstance(row.get("_ng_task_index"), int)
            ]
            write(folder / name / "rollouts_tasks.jsonl", task_rows(known, topic="sums"))
    torn = folder / "torn-tail" / "rollouts.jsonl"
    torn.write_bytes(torn.read_bytes()[:-40])
    blank = folder / "blank-tail" / "rollouts.jsonl"
    blank.write_bytes(blank.read_bytes() + b"\n")
    no_newline = folder / "no-newline" / "rollouts.jsonl"
    no_newline.write_bytes(no_newline.read_bytes()[:-1])


def _gym_a() -> list[Row | bytes]:
    """The first generation: no indices, no agent."""
    rows: list[Row | bytes] = []
    for row in _plain():
        rows.append({key: value for key, value in row.items() if key not in _NEWER_KEYS})
    return rows


_NEWER_KEYS = ("_ng_task_index", "_ng_rollout_index", "agent_ref")


def _gym_b() -> list[Row | bytes]:
    """The second generation: indices and agent, unset parameters written as null, task fields lost."""
    unset = dict.fromkeys(("temperature", "top_p", "instructions", "metadata", "max_output_tokens", "store"))
    rows: list[Row | bytes] = []
    for row in _plain(seed=8):
        params = {**unset, **row["responses_create_params"], "tools": [], "tool_choice": "auto"}
        rows.append(
            {**row, "responses_create_params": params, "accuracy": row["reward"] == 1.0, "set_overlap": 0.5}
        )
    return rows


def _gym_c() -> list[Row | bytes]:
    """The third generation: tool trajectories, reasoning, token ids, reward components, attempts, masks."""
    rows: list[Row | bytes] = []
    for number, row in enumerate(_plain(seed=9)):
        text = row["response"]["output"][0]["content"][0]["text"]
        tokens = {
            "prompt_token_ids": [1, 2, number],
            "generation_token_ids": [3, 4],
            "generation_log_probs": [-0.1, -0.25],
        }
        row["response"]["output"] = [
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": f"hm {number}"}],
             "encrypted_content": None, "content": None},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather",
             "arguments": '{"city": "Oslo", "days": 3}', "status": "completed"},
            {"type": "function_call_output", "id": None, "call_id": "call_1", "output": '{"t": 9}', "status": None},
            message(text, **tokens),
        ]  # fmt: skip
        row["responses_create_params"] |= {"tools": [TOOL], "instructions": "Be brief."}
        row |= {
            "reward_components": {"format": number % 2, "content": row["reward"]},
            "_ng_rollout_id": f"r{number}",
        }
        if number % 9 == 0:
            row["_ng_attempt_index"] = 1
        if number % 13 == 0:
            row["mask_sample"] = True
        rows.append(row)
    return rows


def _chat() -> list[Row | bytes]:
    """Rows whose prompt and answer are chat messages, with and without tool calls."""
    rows: list[Row | bytes] = []
    for row in _plain(seed=10):
        text = row["response"]["output"][0]["content"][0]["text"]
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        }
        row["response"] = {
            "id": "chatcmpl-1", "object": "chat.completion", "model": "model-8b",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
        }  # fmt: skip
        if row["_ng_rollout_index"] == 3:
            row["response"]["choices"][0]["message"]["tool_calls"] = [call]
        rows.append(row)
    return rows


def _odd_lines() -> list[Row | bytes]:
    rows: list[Row | bytes] = list(_plain(seed=12))
    assert isinstance(rows[5], dict)
    rows[3:3] = [b"", b"   ", b"{not json", b"[1, 2]", b'"text"', b"null", b'{"reward": 1.0}', b"\xff\xfe{}"]
    rows[20:20] = [b'{"reward": NaN}', b'{"_ng_task_index": "one"}', b"\x00\x00\x00", b'{"a": "\xc3\x28"}']
    return rows


def _duplicates() -> list[Row | bytes]:
    rows: list[Row | bytes] = list(_plain(seed=13))
    later = [copy.deepcopy(row) for row in rows[:20] if isinstance(row, dict)]
    for row in later:
        row["reward"] = 0.25
    return [*rows, *later]


def _huge_numbers() -> list[Row | bytes]:
    rows = _plain(seed=14)
    values: list[Any] = [1e308, -1e308, 2**70, 1e-320, -0.0, True, "1.0", 12345678901234567]
    for row, value in zip(rows, values, strict=False):
        row["score"] = value
    rows[9]["reward"] = 2**64
    rows[10]["response"]["usage"]["output_tokens"] = 10**12
    lines: list[Row | bytes] = list(rows)
    lines.append(json.dumps(rollout(3, 9, 1.0, "x")).replace('"reward": 1.0', '"reward": 1e999').encode())
    return lines


def _unicode() -> list[Row | bytes]:
    texts = [
        "für 9 °C ✓",
        "日本語の答え",
        "\u2028line\u2029",
        "𝔘𝔫𝔦",
        "a\u0000b",
        "‮rtl",
        "e\u0301 é",
        "\\u00e9 \\n",
        "🙂" * 20,
    ]
    rows: list[Row | bytes] = []
    for task in range(12):
        for sample in range(3):
            text = texts[(task + sample) % len(texts)] + f" {task * 2}"
            row = rollout(task, sample, float(sample % 2), text, **{"größe": sample, "emoji 🙂": 1.5})
            rows.append(json.dumps(row).encode() if task % 2 else row)
    rows.append(json.dumps(rollout(0, 7, 1.0, "lone \ud800 surrogate")).encode())
    return rows


def _empty_answers() -> list[Row | bytes]:
    rows = _plain(seed=15)
    for number, row in enumerate(rows):
        match number % 8:
            case 0:
                row["response"]["output"] = []
            case 1:
                row["response"]["output"] = [message("")]
            case 2:
                row["response"]["output"][0]["content"] = [{"type": "refusal", "refusal": "No."}]
            case 3:
                row["response"] |= {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                }
            case 4:
                row["response"] = None
                row["reward"] = None
    return list(rows)


def _more_numbers() -> list[Row | bytes]:
    rows = _plain(seed=16)
    for number, row in enumerate(rows):
        row |= {
            "accuracy": bool(number % 3),
            "note": f"n{number % 4}",
            "deep": {"er": {"x": number / 7}},
            "zero": 0,
        }
        if number % 2:
            row["late"] = number
        if number % 5 == 0:
            row["reward"] = None
    return list(rows)


_WRITTEN: dict[str, Callable[[], list[Row | bytes]]] = {
    "plain": lambda: list(_plain()),
    "gym-a": _gym_a,
    "gym-b": _gym_b,
    "gym-c": _gym_c,
    "chat": _chat,
    "odd-lines": _odd_lines,
    "torn-tail": lambda: list(_plain(seed=17)),
    "blank-tail": lambda: list(_plain(seed=18)),
    "no-newline": lambda: list(_plain(seed=19)),
    "duplicates": _duplicates,
    "huge-numbers": _huge_numbers,
    "unicode": _unicode,
    "empty-answers": _empty_answers,
    "more-numbers": _more_numbers,
    "one-row": lambda: [rollout(0, 0, 1.0, "4")],
    "empty-file": list,
    "bad-lines-only": lambda: [b"{", b"[]", b"nope"],
    "not-rollouts": lambda: [{"id": n, "text": "hello"} for n in range(5)],
}


# Other containers and several files


def _packed_runs(folder: Path) -> None:
    plain = folder / "written" / "plain" / "rollouts.jsonl"
    text = plain.read_bytes()
    packed = folder / "packed"
    for name in ("gz", "zst", "gz-members", "several"):
        (packed / name).mkdir(parents=True)
    (packed / "gz" / "rollouts.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
    half = text.index(b"\n", len(text) // 2) + 1
    (packed / "gz-members" / "rollouts.jsonl.gz").write_bytes(
        gzip.compress(text[:half], mtime=0) + gzip.compress(text[half:], mtime=0)
    )
    import pyarrow as pa

    with pa.CompressedOutputStream(str(packed / "zst" / "rollouts.jsonl.zst"), "zstd") as file:
        file.write(text)
    (packed / "several" / "a.jsonl").write_bytes(text[:half])
    (packed / "several" / "b.jsonl").write_bytes(text[half:])
    shutil.copy(folder / "collected" / "math" / "rollouts.jsonl", packed / "several" / "c.jsonl")


def _task_files(folder: Path) -> None:
    params = {"input": [{"role": "user", "content": "What is 1 + 1?"}]}
    good = [{"responses_create_params": params, "expected_answer": "2", "n": n} for n in range(6)]
    bad: list[Row | bytes] = [
        {"responses_create_params": {}},
        {"responses_create_params": {"input": []}},
        {"responses_create_params": {"input": "text"}, "expected_answer": 2},
        {"responses_create_params": {"input": [{"role": "robot", "content": "x"}]}},
        {"responses_create_params": {"input": "x", "temprature": 1}},
        {"responses_create_params": {"input": "x", "tools": [{"type": "function"}]}},
        {"responses_create_params": {"input": "x", "metadata": {"a": 1}}},
        {"prompt": "x"},
        b"{",
        b"",
    ]
    write(folder / "good.jsonl", [{**row, "uuid": f"u{row['n']}"} for row in good])
    write(folder / "repeated.jsonl", list(good))
    write(folder / "bad.jsonl", bad)
    write(folder / "held-out.jsonl", good[:2])
