"""Generates answers whose verdict is known.

They are independent of the verifier: a gold answer is written in every common answer format, and one passing format is enough.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rollforge.json_shapes import parts_in
from rollforge.records import Response, Task

GOLD_FIELDS = (
    "expected_answer",
    "ground_truth",
    "gold_answer",
    "reference_answer",
    "answer",
    "target",
    "label",
    "solution",
)
"""Row fields with the right answer, most common first."""

EMPTY = ("", " \n\t\n ")
REFUSALS = (
    "I’m sorry, but I can’t help with that.",
    "I cannot answer this question.",
    "As an AI, I am unable to provide an answer to this request.",
    "Sorry — I don't know.",
)
ODD = (
    "答えは分かりません。もう一度お願いします。",
    "🙃" * 50,
    "\\boxed{",
    "}}}}\\boxed{\\boxed{}}{{{",
    "Ω≈ç√∫˜µ≤≥÷ \u202eevitanretla na\u202c \u0000 end",
    '<answer></answer> ``` ``` {"answer": null}',
    "word " * 4000,
    "\\frac{\\sqrt{\\int_{0}^{",
)


def nothing() -> Response:
    """A response without items."""
    return Response({"object": "response", "status": "completed", "incomplete_details": None, "output": []})


def gold_of(task: Task, hook: Callable[[Task], Any] | None = None) -> list[Any]:
    """The right answers to a task, each of which may pass; empty if the row has none.

    Args:
        hook: The verifier's own `gold(task)`, for tasks whose right answer is not plain text.
    """
    value = None
    if hook is not None:
        with contextlib.suppress(Exception):  # a user's function of that name may mean something else
            value = hook(task)
    if value is None:
        value = next((task[name] for name in GOLD_FIELDS if task.get(name) not in (None, "", [])), None)
    if value is None:
        return []
    values = value if isinstance(value, list | tuple) else [value]
    return [
        item for item in values if isinstance(item, str | int | float | dict) and not isinstance(item, bool)
    ]


def gold_text(gold: list[Any]) -> str:
    """The right answers as readable text."""
    return " or ".join(str(item) for item in gold)


def gold_key(gold: list[Any]) -> str:
    """A text that is equal for equal right answers, used as a key."""
    return " | ".join(" ".join(str(item).split()).casefold() for item in gold)


FORMS: dict[str, str] = {
    "plain": "{}",
    "boxed": "\\boxed{{{}}}",
    "sentence": "The answer is {}.",
    "boxed in a sentence": "The final answer is $\\boxed{{{}}}$.",
    "labelled": "Answer: {}",
    "hashes": "#### {}",
    "tags": "<answer>{}</answer>",
    "double brackets": "[[{}]]",
    "code block": "```python\n{}\n```",
    "json": '{{"answer": {}}}',
}
"""Common formats of an answer."""


EXPLICIT_FORMS = (
    "boxed in a sentence",
    "boxed",
    "tags",
    "hashes",
    "double brackets",
    "labelled",
    "sentence",
    "plain",
)
"""Formats that mark the answer explicitly, clearest first."""


def renderings(task: Task, gold: list[Any]) -> Iterator[tuple[str, Response]]:
    """The right answer in every common format: (format name, response)."""
    for item in gold:
        if isinstance(item, dict):
            yield (
                "as given",
                Response(item if "output" in item else {"status": "completed", "output": [item]}),
            )
            continue
        text = str(item)
        words = dict.fromkeys([text, *_letters(task, text)])
        for name, form in FORMS.items():
            for word in words:
                filled = msgspec.json.encode(word).decode() if name == "json" else word
                kind = name if word == text else f"{name}, as a letter"
                yield kind, Response.from_text(form.format(filled))


def _letters(task: Task, gold: str) -> list[str]:
    """For tasks with options: the letter of the right option, if the right answer is given as the option's text."""
    options = task.get("options")
    if not isinstance(options, list):
        return []
    wanted = gold.strip().casefold()
    for number, option in enumerate(options):
        pairs = option.items() if isinstance(option, dict) else [(chr(ord("A") + number), option)]
        for letter, text in pairs:
            if isinstance(text, str) and text.strip().casefold() == wanted:
                return [str(letter)]
    return []


def respaced(response: Response) -> list[tuple[str, Response]]:
    """The response with irrelevant changes of spacing or wrapping."""
    text = response.last_text
    if not text.strip():
        return []
    changes = [
        ("a newline added at the end", text.rstrip() + "\n"),
        ("spaces added at the end", text.rstrip() + "   "),
        ("a newline added at the start", "\n" + text.lstrip()),
        ("Windows line ends", text.replace("\r\n", "\n").replace("\n", "\r\n")),
    ]
    boxed = re.sub(r"(?<!\$)(\\boxed\{[^{}$]*\})(?!\$)", r"$\1$", text)
    if boxed != text:
        changes.append(("dollar signs around the box", boxed))
    altered = [(name, _with_last_text(response, changed)) for name, changed in changes if changed != text]
    return [(name, changed) for name, changed in altered if changed is not None]


def _with_last_text(response: Response, text: str) -> Response | None:
    raw = copy.deepcopy(response.raw)
    for item in reversed(raw.get("output") or []):
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        if isinstance(item.get("content"), str):
            item["content"] = text
            return Response(raw)
        parts = [part for part in parts_in(item.get("content")) if "text" in part]
        if len(parts) == 1:
            parts[0]["text"] = text
            return Response(raw)
        return None
    return None
