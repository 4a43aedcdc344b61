"""Rewards an answer that equals the expected one.

Needs `expected_answer` in the task row. The last `\\boxed{...}` is compared if there is one, else the whole text; case and
white space do not matter, nor does a final full stop. It does not understand mathematics: `1/2` is not `0.5`.
"""

from __future__ import annotations

import re

from rollforge.records import JsonObject, Response, Task

needs = ("expected_answer",)


def verify(task: Task, response: Response) -> JsonObject:
    """Reward 1.0 when the extracted answer equals `expected_answer`, else 0.0."""
    extracted = last_boxed(response.text)
    if extracted is None:
        extracted = response.text
    return {
        "reward": float(normalise(extracted) == normalise(str(task["expected_answer"]))),
        "extracted_answer": extracted.strip()[:1000],
    }


def last_boxed(text: str) -> str | None:
    """What stands inside the last `\\boxed{...}`, braces balanced; None without a closed one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return None


def normalise(text: str) -> str:
    """The text as it is compared."""
    return re.sub(r"\s+", " ", text).strip().rstrip(".").strip().casefold()
