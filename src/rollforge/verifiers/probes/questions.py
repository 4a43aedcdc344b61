"""The questions that probes ask, and the tolerated error rate of each."""

from __future__ import annotations

import msgspec

from rollforge.verifiers.probes.report import Kind


class Question(msgspec.Struct, frozen=True):
    """A question whose right verdict is known without labels."""

    text: str
    kind: Kind
    limit: float
    is_by_chance: bool = False
    """Whether a wrong answer may be right by chance, as in multiple choice."""


QUESTIONS = {
    "gold": Question("Does the right answer pass, in any usual form?", "false negative", 0.10),
    "empty": Question("Does an empty answer fail?", "false positive", 0.05),
    "refusal": Question("Does a refusal fail?", "false positive", 0.05),
    "odd": Question("Does gibberish fail?", "false positive", 0.05),
    "echo": Question("Does repeating the prompt fail?", "false positive", 0.10, is_by_chance=True),
    "swapped gold": Question("Does another task's right answer fail?", "false positive", 0.10),
    "swapped response": Question(
        "Does a response to another task fail?", "false positive", 0.10, is_by_chance=True
    ),
    "hedge": Question("Does a wrong answer fail that names the right?", "false positive", 0.10),
    "spacing": Question("Does the reward stay when only spacing changes?", "flip", 0.05),
    "twice": Question("Does the same call twice give the same reward?", "flip", 0.05),
    "errors": Question("Does it judge without failing?", "error", 0.05),
}
"""Questions by name, each with the tolerated error rate."""

UNSTEADY_LIMIT = 0.20
"""Tolerated rate of different results for the same call, for a verifier that declares itself not deterministic."""


class Said(msgspec.Struct, frozen=True):
    """A verdict on one made-up answer."""

    task: int
    reward: float | None
    sent: str
    expected: str | None
    before: float | None = None
    """The reward that it should have equalled."""
    note: str = ""
