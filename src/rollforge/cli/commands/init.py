"""`rollforge init`: starter files for what users write themselves."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit, UsageError
from rollforge.records import JsonObject, to_json

EXAMPLE = "rollforge init verifier my_verifier"

VERIFIER = '''"""Rewards an answer whose last number is the expected one.

Try it:   pytest test_{name}.py
Test it:  rollforge test-verifier {name}.py:verify
Ask it:   rollforge verify RUN --verifier {name}.py:verify --probe
Use it:   rollforge verify RUN --verifier {name}.py:verify
"""

import re

needs = ("expected_answer",)
"""Fields of the task row it reads; a task file without them is refused before the first model call."""


def verify(task, response, *, tolerance: float = 1e-6):
    """Return a bool, a number, a dict with `reward`, or None for "cannot judge". Raising is a failure, never reward 0.

    `task["field"]` is a field of the task row. `response.text` is the answer; there are also `response.messages`,
    `response.tool_calls`, `response.reasoning` and the raw object, `response["output"]`.
    Parameters after these two are options: rollforge verify … -S tolerance=0.01
    """
    found = re.findall(r"-?\\d+(?:\\.\\d+)?", response.text.replace(",", ""))
    if not found:
        return {{"reward": 0.0, "has_number": False}}
    is_right = abs(float(found[-1]) - float(task["expected_answer"])) <= tolerance
    return {{"reward": float(is_right), "has_number": True, "extracted_answer": found[-1]}}
'''

VERIFIER_TEST = '''"""What {name} must get right."""

import pytest
from rollforge import Response, Task

from {name} import verify

TASK = Task({{"responses_create_params": {{"input": "What is 6 × 7?"}}, "expected_answer": "42"}})


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("6 × 7 = 42", 1.0),
        ("The answer is 42.\\n", 1.0),
        ("Not 42 but 43", 0.0),
        ("", 0.0),
        ("I cannot help with that.", 0.0),
    ],
)
def test_reward(answer, reward):
    assert verify(TASK, Response.from_text(answer))["reward"] == reward
'''


TASK = {"responses_create_params": {"input": "What is 6 × 7?"}, "expected_answer": "42"}
CASES: list[JsonObject] = [
    {"name": "the right number", "kind": "full_reward", "task": TASK, "answer": "6 × 7 = 42"},
    {"name": "another number", "kind": "zero_reward", "task": TASK, "answer": "Not 42 but 43"},
    {"name": "an empty answer", "kind": "zero_reward", "task": TASK, "answer": ""},
    {
        "name": "a row without a number",
        "kind": "malformed",
        "task": TASK | {"expected_answer": "forty-two"},
        "answer": "42",
        "expected_error": "could not convert",
    },
    {
        "name": "the same every time",
        "kind": "determinism",
        "task": TASK,
        "answer": "42",
        "expected_reward": 1.0,
    },
]
"""Cases for `rollforge test-verifier`."""


def init(
    kind: Literal["verifier"],
    name: str,
    /,
    *,
    out: Annotated[str, Parameter(name=["--out", "-o"])] = ".",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Write a starter file and a test that runs; files that exist are left alone.

    Parameters
    ----------
    kind
        What to write.
    name
        Its name, which is the file's: NAME.py, test_NAME.py and NAME_cases.jsonl.
    out
        Directory to write them into.
    json
        Print one JSON object on stdout instead of talk.
    """
    name = name.removesuffix(".py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Python file", hint="letters, digits and _, such as my_verifier"
        )
    directory = Path(out)
    texts = {
        directory / f"{name}.py": VERIFIER.format(name=name),
        directory / f"test_{name}.py": VERIFIER_TEST.format(name=name),
        directory / f"{name}_cases.jsonl": "".join(f"{to_json(case).decode()}\n" for case in CASES),
    }
    for path in texts:
        if path.exists():
            raise UsageError(f"{path} exists already", hint="choose another name, or move the file away")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    module, test, cases = texts
    if json:
        print_json({"kind": kind, "files": [str(path) for path in texts]})
    else:
        say(f"wrote {module}, {test} and {cases}")
        say(f"  next: pytest {test}")
        say(f"        rollforge test-verifier {module}:verify")
    return Exit.DONE
