"""The tool tasks: look up a value per word with one tool, submit all of them with another.

Tools and row fields are those of NeMo Gym's multi-step example (once called multineedle). The value of a word is the sum of its code
points; a model learns it from the tool.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypedDict

from rollforge.json_shapes import ToolJson
from rollforge.simulate.draws import Chance

LOOK_UP = "get_synonym_value"
SUBMIT = "extract_synonym_values"

SYNONYMS = (
    ("Warm", "Hot", "Heated", "Toasty", "Balmy", "Cosy"),
    ("Quick", "Fast", "Rapid", "Swift", "Speedy", "Brisk", "Fleet"),
    ("Calm", "Quiet", "Still", "Serene", "Placid"),
    ("Brave", "Bold", "Daring", "Valiant", "Fearless", "Plucky"),
    ("Large", "Big", "Huge", "Vast", "Immense", "Massive", "Giant"),
    ("Clever", "Bright", "Sharp", "Astute", "Canny", "Shrewd"),
    ("Tired", "Weary", "Drained", "Spent", "Drowsy"),
    ("Happy", "Glad", "Joyful", "Merry", "Cheerful", "Jolly", "Elated"),
    ("Small", "Tiny", "Little", "Minute", "Petite", "Slight"),
    ("Old", "Aged", "Ancient", "Antique", "Elderly"),
)

TOOLS: list[ToolJson] = [
    {
        "type": "function",
        "name": LOOK_UP,
        "description": "Look up the value of one synonym.",
        "parameters": {
            "type": "object",
            "properties": {"synonym": {"type": "string", "description": "The synonym to look up."}},
            "required": ["synonym"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": SUBMIT,
        "description": "Submit the values of all synonyms, in the order asked for.",
        "parameters": {
            "type": "object",
            "properties": {"synonym_values": {"type": "array", "items": {"type": "integer"}}},
            "required": ["synonym_values"],
            "additionalProperties": False,
        },
        "strict": True,
    },
]

_PROMPT = (
    "Look up the value of each of these synonyms of {label}: {words}. "
    "Then submit all the values at once, in that order. "
    "Leave out the value of {label} itself. At the end, put the sum of the values in \\boxed{{}}."
)
_PATTERN = re.compile(
    r"value of each of these synonyms of (?P<label>\w+): (?P<words>[\w, ]+)\. Then submit all the values"
)


class Needles(NamedTuple):
    """A tool task parsed from its prompt."""

    label: str
    """The word whose own value must not be submitted."""
    words: tuple[str, ...]

    @property
    def difficulty(self) -> float:
        """Difficulty, which grows with the number of words."""
        return round((len(self.words) - 1) / 5, 3)

    def prompt(self) -> str:
        """The task as prompt text."""
        return _PROMPT.format(label=self.label, words=", ".join(self.words))


def pose_needles(chance: Chance) -> Needles:
    """A tool task of one to six words."""
    label, *words = chance.pick(SYNONYMS)
    return Needles(label, tuple(chance.shuffled(words)[: chance.between(1, len(words))]))


def read_needles(text: str) -> Needles | None:
    """Parse the tool task in a prompt; None if there is none."""
    match = _PATTERN.search(text)
    return Needles(match["label"], tuple(match["words"].split(", "))) if match else None


def value_of(word: str) -> int:
    """The value of a word, as the look-up tool returns it."""
    return sum(map(ord, word))


class NeedleArgumentsJson(TypedDict, total=False):
    """The arguments of both tools."""

    synonym: str
    synonym_values: list[int]


def run_tool(name: str, arguments: NeedleArgumentsJson) -> dict[str, int | bool] | None:
    """Answer of the tool `name`; None if the tool does not exist or the arguments do not fit."""
    synonym = arguments.get("synonym")
    if name == LOOK_UP and isinstance(synonym, str):
        return {"synonym_value": value_of(synonym)}
    if name == SUBMIT and isinstance(arguments.get("synonym_values"), list):
        return {"success": True}
    return None


def words_to_look_up(task: Needles, is_right: bool, chance: Chance) -> tuple[str, ...]:
    """Words that a sample looks up and submits: the task's, or with a typical mistake."""
    words = list(task.words)
    if is_right:
        return task.words
    mistakes = ["add the label", "drop a word", "swap two"] if len(words) > 1 else ["add the label"]
    mistake = chance.pick(mistakes)
    position = chance.between(0, max(0, len(words) - 2))
    if mistake == "drop a word":
        del words[position]
    elif mistake == "swap two":
        words[position], words[position + 1] = words[position + 1], words[position]
    else:
        words.insert(position, task.label)
    return tuple(words)
