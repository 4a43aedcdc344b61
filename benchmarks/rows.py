"""Rollout rows like those of a real run: about 10 KB, nested, uneven, some of them odd in shape.

Beside its text a row has about twenty numbers. Rows are a pure function of (task, rollout, seed). Texts are drawn from a fixed pool,
so that making 100,000 rows costs little beside reading them; numbers, lengths and item counts differ from row to row.

    python -m benchmarks.rows out.jsonl --tasks 6250 --samples 16
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

WORDS = [
    "let",
    "the",
    "integral",
    "of",
    "each",
    "term",
    "converge",
    "because",
    "we",
    "assume",
    "n",
    "≥",
    "2",
    "then",
    "by",
    "symmetry",
    "$x^2",
    "+",
    "y^2",
    "=",
    "r^2$",
    "so\nconsider",
    "naïve",
    "bounds",
    "«first»",
    "and",
    "résumé",
    "the",
    "“proof”",
    "with",
    "care",
    "if",
    "not",
    "we",
    "split",
    "cases",
    "你好",
    "and",
    "check",
    "42",
    "%",
    "of",
    "them",
    "def",
    "solve(values):",
    "return",
    "sum(v",
    "for",
    "v",
    "in",
    "values",
    "if",
    "v",
    ">",
    "0)\\n",
    "therefore",
    "\\boxed{17}",
    "is",
    "the",
    "answer",
]

_encode = msgspec.json.Encoder().encode


def text(rng: random.Random, words: int, pool: list[str]) -> str:
    """About `words` words, cut from a pool made once."""
    paragraphs = []
    while words > 0:
        paragraph = pool[rng.randrange(len(pool))]
        paragraphs.append(paragraph[: words * 7])
        words -= 60
    return "\n\n".join(paragraphs)


def make_pool(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=60)) for _ in range(500)]


def make_row(task: int, rollout: int, *, seed: int, pool: list[str]) -> dict[str, Any]:
    """One rollout of one task."""
    task_rng = random.Random(f"{seed}/{task}")
    rng = random.Random(f"{seed}/{task}/{rollout}")
    ability = task_rng.betavariate(0.8, 0.8)
    question = text(task_rng, task_rng.randrange(60, 400), pool)
    agent = f"agent_{task % 3}"
    correct = rng.random() < ability
    output: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": f"rs_{task}_{rollout}",
            "encrypted_content": None,
            "content": None,
            "summary": [{"type": "summary_text", "text": text(rng, rng.randrange(150, 900), pool)}],
        }
    ]
    calls = rng.choice((0, 0, 1, 2, 4))
    for call in range(calls):
        output += [
            {
                "type": "function_call",
                "id": f"fc_{call}",
                "call_id": f"call_{call}",
                "name": "search",
                "arguments": msgspec.json.encode({"query": text(rng, 8, pool), "limit": call}).decode(),
                "status": "completed",
            },
            {
                "type": "function_call_output",
                "id": None,
                "call_id": f"call_{call}",
                "output": text(rng, 60, pool),
                "status": None,
            },
        ]
    answer = text(rng, rng.randrange(60, 640), pool) + f" \\boxed{{{17 if correct else rng.randrange(100)}}}"
    output.append(
        {
            "type": "message",
            "id": f"msg_{task}_{rollout}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": answer, "annotations": [], "logprobs": None}],
        }
    )
    row: dict[str, Any] = {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": pool[0], "type": "message"},
                {"role": "user", "content": question, "type": "message"},
            ],
            "background": None,
            "include": None,
            "instructions": None,
            "max_output_tokens": 4096,
            "max_tool_calls": None,
            "metadata": None,
            "model": None,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": None,
            "store": None,
            "temperature": 1.0,
            "text": None,
            "tool_choice": "auto",
            "tools": [
                {
                    "type": "function",
                    "name": "search",
                    "description": pool[1],
                    "strict": True,
                    "parameters": {
                        "type": "object",
                        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                        "required": ["query"],
                        "additionalProperties": False,
                    },
                }
            ],
            "top_logprobs": None,
            "top_p": 1.0,
            "truncation": None,
            "user": None,
        },
        "response": {
            "id": f"resp_{task}_{rollout}",
            "created_at": 1756071082.0 + rollout,
            "object": "response",
            "model": "model-8b",
            "status": "completed" if rng.random() < 0.95 else "incomplete",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": 1.0,
            "top_p": 1.0,
            "max_output_tokens": 4096,
            "reasoning": {"effort": None},
            "text": {"format": {"type": "text"}},
            "output": output,
            "usage": {
                "input_tokens": 250 + len(question) // 4,
                "input_tokens_details": {"cached_tokens": rng.randrange(200)},
                "output_tokens": len(answer) // 4 + 60 * calls,
                "output_tokens_details": {"reasoning_tokens": rng.randrange(900)},
                "total_tokens": 250 + len(question) // 4 + len(answer) // 4 + 60 * calls,
            },
        },
        "reward": float(correct),
        "accuracy": correct,
        "extracted_answer": "17" if correct else str(rng.randrange(100)),
        "expected_answer": "17",
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "agent_ref": {"name": agent},
    }
    for name in (
        "format_score",
        "length_penalty",
        "style",
        "brevity",
        "helpfulness",
        "clarity",
        "depth",
        "judge_score",
        "tests_time",
    ):
        row[name] = round(rng.random(), 4)
    row["tests_passed"] = rng.randrange(10)
    row["tests_run"] = 10
    row["compiled"] = rng.random() < 0.9
    row["sandbox_seconds"] = round(rng.expovariate(0.5), 3)
    row["similarity"] = rng.random()
    row["difficulty"] = ("easy", "hard")[task % 2]
    if rng.random() < 0.2:
        row["judge_confidence"] = rng.random()
    if rng.random() < 0.05:
        row["style"] = None
    if rng.random() < 0.02:
        row["tests_passed"] = "unknown"
    return row


def rows(tasks: int, samples: int, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """All rows of a run, in the order of tasks."""
    pool = make_pool(seed)
    for task in range(tasks):
        for rollout in range(samples):
            yield make_row(task, rollout, seed=seed, pool=pool)


def write(path: Path, tasks: int, samples: int, *, seed: int = 0) -> None:
    """The run as a file; whole lines only."""
    with path.open("wb") as file:
        for row in rows(tasks, samples, seed=seed):
            file.write(_encode(row) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--tasks", type=int, default=625)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.path, options.tasks, options.samples, seed=options.seed)


if __name__ == "__main__":
    main()
