"""`rollforge init`: starter files for verifiers, examples, skills and shell completion."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit, UsageError
from rollforge.records import JsonObject, to_json

EXAMPLE = "rollforge init verifier my_verifier"
EXAMPLES = ("improve",)
STARTERS = Path(__file__).parents[2] / "starters"

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
"""Starter cases for `rollforge test-verifier`."""


Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")
Kind = Literal["verifier", "example", "skill", "completion"]


def init(
    kind: Kind,
    name: str | None = None,
    /,
    *,
    out: Annotated[str, Parameter(name=["--out", "-o"])] = ".",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Write a starter: a verifier with its test, an example folder, a skill file for coding agents; or print shell completion.

    Files that exist are left alone.

    Parameters
    ----------
    kind
        verifier: NAME.py, test_NAME.py and NAME_cases.jsonl. example: the folder NAME (improve). skill: rollforge/SKILL.md.
        completion: a script for the shell NAME (bash, zsh, fish), on stdout.
    name
        The name of the verifier, the example or the shell; a skill needs none.
    out
        Directory to write into.
    json
        Print one JSON object on stdout instead of talk.
    """
    if kind == "completion":
        return _print_completion(name)
    texts = _texts(kind, name, Path(out))
    for path in texts:
        if path.exists():
            raise UsageError(
                f"{path} exists already", hint="choose another name or --out, or move the file away"
            )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(0o755)
    if json:
        print_json({"kind": kind, "files": [str(path) for path in texts]})
        return Exit.DONE
    *first, last = map(str, texts)
    say(f"wrote {', '.join(first)}{' and ' if first else ''}{last}")
    for number, line in enumerate(_next_steps(kind, list(texts))):
        say(f"  {'next: ' if not number else '      '}{line}")
    return Exit.DONE


def _texts(kind: Kind, name: str | None, folder: Path) -> dict[Path, str]:
    """The files of a starter with their texts."""
    match kind:
        case "verifier":
            return _verifier_files(name, folder)
        case "example":
            return _example_files(name, folder)
        case _:
            if name not in (None, "rollforge"):
                raise UsageError(f"init skill takes no name, not {name!r}", hint="rollforge init skill")
            return {folder / "rollforge" / "SKILL.md": (STARTERS / "SKILL.md").read_text(encoding="utf-8")}


def _next_steps(kind: Kind, paths: list[Path]) -> list[str]:
    match kind:
        case "verifier":
            return [f"pytest {paths[1]}", f"rollforge test-verifier {paths[0]}:verify"]
        case "example":
            return [f"read {paths[0].parent / 'README.md'}, then: bash {paths[0].parent / 'improve.sh'}"]
        case _:
            return [
                "put the folder where your agent looks for skills, such as .agents/skills or .claude/skills"
            ]


def _verifier_files(name: str | None, folder: Path) -> dict[Path, str]:
    if name is None:
        raise UsageError("init verifier needs a NAME", hint=f"for example: {EXAMPLE}")
    name = name.removesuffix(".py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Python file", hint="letters, digits and _, such as my_verifier"
        )
    return {
        folder / f"{name}.py": VERIFIER.format(name=name),
        folder / f"test_{name}.py": VERIFIER_TEST.format(name=name),
        folder / f"{name}_cases.jsonl": "".join(f"{to_json(case).decode()}\n" for case in CASES),
    }


def _example_files(name: str | None, folder: Path) -> dict[Path, str]:
    """The files of an example: in the package, or in the checkout that an editable install comes from."""
    if name not in EXAMPLES:
        raise UsageError(
            f"there is no example {name!r}" if name else "init example needs a NAME",
            hint=f"for example: rollforge init example {EXAMPLES[0]}",
        )
    candidates = (STARTERS / name, STARTERS.parents[2] / "examples" / name)
    source = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if source is None:
        raise UsageError(
            f"this installation lacks the example {name}", hint="install rollforge from its wheel"
        )
    files = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    return {folder / name / path.name: path.read_text(encoding="utf-8") for path in files}


def _print_completion(shell: str | None) -> Exit:
    """Print the completion script of a shell."""
    shell_name = next((one for one in SHELLS if one == shell), None)
    if shell_name is None:
        raise UsageError(
            f"no completion for {shell!r}" if shell else "init completion needs a shell",
            hint="rollforge init completion bash; also zsh, fish",
        )
    from rollforge.cli.app import build_app

    sys.stdout.write(build_app().generate_completion(shell=shell_name))
    return Exit.DONE
