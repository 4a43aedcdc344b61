"""Rewards an answer that follows the task's formal instructions.

Needs `instruction_id_list` and `kwargs` (one object per instruction), in `verifier_metadata` or at the top of the row, and
optionally `grading_mode`: `binary` (all instructions, the default) or `fraction` (their share). The judged text is the first text
part of the last output item; an empty text follows no instruction.

A missing or invalid argument, an unknown instruction and lists of different lengths are errors of the task and raise. Only form
is judged, so a well-formed answer to another question passes. Extra: `ifeval`.
"""

from __future__ import annotations

import re
from typing import Any

from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.registry import did_you_mean
from rollforge.verifiers.building_blocks.verdict_fields import InstructionVerdictJson
from rollforge.verifiers.instruction_following import copies, layout, words
from rollforge.verifiers.instruction_following.arguments import Arguments, Checker

needs = ("verifier_metadata.instruction_id_list|instruction_id_list", "verifier_metadata.kwargs|kwargs")
skip_probes = ("gold", "refusal", "odd", "echo", "swapped gold", "swapped response", "hedge", "spacing")
"""Probes that do not apply because only form is judged: a well-formed refusal or an answer to another question passes, and white
space may matter.
"""

CHECKERS: dict[str, Checker] = {**words.CHECKERS, **layout.CHECKERS, **copies.CHECKERS}
"""Instruction id → checker, for all instructions."""


class InstructionFollowing:
    """Judges by checking each instruction separately."""

    def __init__(self) -> None:
        try:
            import langdetect  # noqa: F401  (asked for now, so that a missing extra is not met per rollout)
        except ImportError as error:
            raise UsageError(
                "the instruction_following verifier needs the package langdetect",
                hint="pip install 'rollforge[ifeval]'",
            ) from error

    def verify(self, task: Task, response: Response) -> InstructionVerdictJson:
        instructions = _field(task, "instruction_id_list")
        arguments = _field(task, "kwargs")
        if not isinstance(instructions, list) or not isinstance(arguments, list):
            raise ValueError("the task needs the lists instruction_id_list and kwargs")
        if len(instructions) != len(arguments):
            raise ValueError(f"{len(instructions)} instructions have {len(arguments)} kwargs")
        mode = _field(task, "grading_mode") or "binary"
        if mode not in ("binary", "fraction"):
            raise ValueError(f"unknown grading_mode {mode!r}")
        if not instructions:
            return {"reward": None, "follow_all_instructions": None, "follow_instruction_list": []}
        text = judged_text(response)
        followed = [
            follows(name, text, keywords or {})
            for name, keywords in zip(instructions, arguments, strict=True)
        ]
        reward = float(all(followed)) if mode == "binary" else sum(followed) / len(followed)
        return {
            "reward": reward,
            "follow_all_instructions": all(followed),
            "follow_instruction_list": followed,
        }


def follows(instruction: str, text: str, arguments: Arguments) -> bool:
    """Whether a text follows one instruction; raises ValueError if this is undecidable."""
    checker = CHECKERS.get(instruction)
    if checker is None:
        raise ValueError(
            f"unknown instruction {instruction!r}{did_you_mean(str(instruction), list(CHECKERS))}"
        )
    try:
        is_followed = checker(
            text, arguments
        )  # run for an empty text too, so that a faulty task always shows
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, re.error) as error:
        raise ValueError(f"{instruction}: {error}") from error
    return is_followed and bool(text.strip())


def judged_text(response: Response) -> str:
    """First content part of the last output item; empty if that is not text."""
    content = response.output[-1].get("content") if response.output else None
    if isinstance(content, str):
        return content
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else ""


def _field(task: Task, name: str) -> Any:
    metadata = task.get("verifier_metadata")
    if isinstance(metadata, dict) and name in metadata:
        return metadata[name]
    return task.get(name)
