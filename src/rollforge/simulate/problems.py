"""Problems that the simulated model can solve: each can be written as text and parsed from it.

The model gets only the text: it parses the numbers and options from the prompt, which contains no hidden answer.
`Exercise.answer` is the right answer, not the one the model will give.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rollforge.simulate.arithmetic import Solution, find_expression, work_out
from rollforge.simulate.draws import Chance
from rollforge.simulate.facts import TOPICS, recall

BOXED = "Put the final answer in \\boxed{}."
LETTER = "Answer with the letter of the right option in \\boxed{}."


class Exercise(NamedTuple):
    """A question with one right answer."""

    text: str
    answer: str
    steps: tuple[str, ...]
    """Steps to the answer; each may end in `= result`."""
    difficulty: float
    """From 0 (everyone can solve it) to 1 (hardly anyone can)."""
    options: tuple[tuple[str, str], ...] = ()
    """Letters and texts of a multiple-choice question; then the answer is a letter."""


class Story(NamedTuple):
    """A word problem: a text with placeholders for a name and numbers, and its formula."""

    text: str
    formula: str
    ranges: dict[str, tuple[int, int]]

    def pattern(self) -> re.Pattern[str]:
        """Regular expression for this story in a prompt, with its numbers as named groups."""
        parts = re.split(r"\{(\w+)\}", self.text)
        made = [
            re.escape(part) if position % 2 == 0 else (r"\w+" if part == "name" else rf"(?P<{part}>\d+)")
            for position, part in enumerate(parts)
        ]
        return re.compile("".join(made))

    def landmark(self) -> str:
        """Its longest part without numbers, for a quick test before the pattern."""
        return max(re.split(r"\{\w+\}", self.text), key=len)

    def solve(self, numbers: dict[str, str]) -> Solution | None:
        """Evaluate the formula with these numbers."""
        return work_out(re.sub(r"[a-z]", lambda letter: numbers[letter.group()], self.formula))


STORIES = (
    Story(
        "{name} has {a} boxes with {b} pencils each and gives away {c} pencils. How many pencils are left?",
        "a * b - c",
        {"a": (3, 40), "b": (6, 48), "c": (2, 17)},
    ),
    Story(
        "A train has {a} carriages with {b} seats each. {c} passengers are on board and each has one seat. "
        "How many seats are free?",
        "a * b - c",
        {"a": (4, 14), "b": (40, 96), "c": (20, 150)},
    ),
    Story(
        "{name} reads {a} pages on each of {b} days and {c} pages on each of {d} days. How many pages is that in all?",
        "a * b + c * d",
        {"a": (8, 60), "b": (2, 12), "c": (10, 75), "d": (2, 9)},
    ),
    Story(
        "A bakery sold {a} rolls in the morning and {b} rolls in the afternoon. How many rolls did it sell that day?",
        "a + b",
        {"a": (12, 480), "b": (9, 520)},
    ),
    Story(
        "{name} saves {a} coins a week for {b} weeks, then spends {c} coins. How many coins remain?",
        "a * b - c",
        {"a": (3, 25), "b": (4, 52), "c": (1, 11)},
    ),
    Story(
        "A hall is {a} metres long and {b} metres wide, and a stage takes {c} square metres of it. "
        "How many square metres are left?",
        "a * b - c",
        {"a": (12, 240), "b": (11, 180), "c": (20, 110)},
    ),
    Story(
        "{a} teams of {b} players and {c} coaches share buses. How many people are that, if each team has "
        "{d} coaches more?",
        "a * (b + d) + c",
        {"a": (3, 30), "b": (5, 15), "c": (1, 9), "d": (1, 4)},
    ),
    Story(
        "An orchard has {a} rows of {b} trees. Each tree bears {c} kilos of apples, and {d} kilos spoil. "
        "How many kilos are good?",
        "a * b * c - d",
        {"a": (4, 60), "b": (6, 45), "c": (11, 88), "d": (5, 60)},
    ),
)
_PATTERNS = tuple((story.landmark(), story.pattern(), story) for story in STORIES)
NAMES = ("Ada", "Bilal", "Chen", "Dina", "Emeka", "Freya", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")

_OPTION = re.compile(r"^[ \t]*\(?([A-J])[:.)][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)


def difficulty_of(effort: float) -> float:
    """Converts effort to difficulty: a sum of two small numbers is near 0, three long multiplications near 1."""
    return round(min(1.0, effort / 12), 3)


def pose_math(chance: Chance) -> Exercise:
    """A random expression or word problem, to be answered in a box."""
    if chance.happens(0.5):
        question = f"What is {_expression(chance)}?"
    else:
        story = chance.pick(STORIES)
        numbers = {letter: str(chance.between(*span)) for letter, span in story.ranges.items()}
        question = story.text.format(name=chance.pick(NAMES), **numbers)
    return _posed(f"{question} {BOXED}")


def pose_choice(chance: Chance) -> Exercise:
    """A random multiple-choice question about a fact or a sum."""
    if chance.happens(0.35):
        expression = _expression(chance)
        question = f"What is {expression}?"
        solution = work_out(expression)
        right = solution.value if solution else ""
        others = list(near_misses(right, chance))
    else:
        topic = chance.pick(TOPICS)
        subject, right = chance.pick(topic.facts)
        question = topic.question.format(subject)
        others = chance.shuffled([value for _, value in topic.facts if value != right])
    texts = chance.shuffled([right, *others[:3]])
    lines = "\n".join(f"{letter}: {text}" for letter, text in zip("ABCD", texts, strict=True))
    return _posed(f"{question}\n\n{lines}\n\n{LETTER}")


@lru_cache(maxsize=256)
def read_problem(text: str) -> Exercise | None:
    """Parse the problem in a prompt; None for an unknown kind."""
    options = read_options(text)
    if options:
        return _read_choice(text, options)
    for landmark, pattern, story in _PATTERNS:
        if landmark in text and (match := pattern.search(text)):
            solution = story.solve(match.groupdict())
            return solution and Exercise(text, solution.value, solution.steps, difficulty_of(solution.effort))
    expression = find_expression(text)
    solution = work_out(expression) if expression else None
    return solution and Exercise(text, solution.value, solution.steps, difficulty_of(solution.effort))


def read_options(text: str) -> tuple[tuple[str, str], ...]:
    """Options `A: …`, `B: …` in the text; none unless they start at A and are consecutive."""
    options = tuple((letter, option) for letter, option in _OPTION.findall(text))
    letters = "".join(letter for letter, _ in options)
    return options if len(letters) > 1 and letters == "ABCDEFGHIJ"[: len(letters)] else ()


def near_misses(answer: str, chance: Chance) -> tuple[str, ...]:
    """Four different wrong answers as typical mistakes."""
    try:
        value = int(answer)
    except ValueError:
        return tuple(f"{answer}{ending}" for ending in (" + 1", " - 1", "/2", " * 2"))
    digits = str(abs(value))
    swapped = int(digits[:-2] + digits[-1] + digits[-2]) if len(digits) > 1 else value + 3
    slips = [value + 1, value - 1, value + 10, value - 10, swapped, value + 100, value * 10, value + 2]
    unlike = list(dict.fromkeys(slip for slip in slips if slip != value))
    return tuple(str(slip) for slip in chance.shuffled(unlike)[:4])


def _read_choice(text: str, options: tuple[tuple[str, str], ...]) -> Exercise | None:
    stem = _OPTION.split(text, maxsplit=1)[0]
    expression = find_expression(stem)
    solution = work_out(expression) if expression else None
    fact = recall(stem)
    if fact:
        right, difficulty = fact
        steps: tuple[str, ...] = (f"I recall that the answer is {right}",)
    elif solution:
        right, difficulty, steps = solution.value, difficulty_of(solution.effort), solution.steps
    else:
        return None
    letters = [letter for letter, option in options if option == right]
    return Exercise(text, letters[0], steps, difficulty, options) if letters else None


def _expression(chance: Chance) -> str:
    level = chance.between(1, 4)
    numbers = [
        chance.between(2, 10 ** chance.between(1, 3 if level < 4 else 2) - 1) for _ in range(level + 1)
    ]
    text = str(numbers[0])
    for number in numbers[1:]:
        text = f"{text} {chance.pick('+-××')} {number}"
    return text


def _posed(text: str) -> Exercise:
    problem = read_problem(text)
    if problem is None:
        raise RuntimeError(f"a problem was posed that cannot be read back: {text!r}")
    return problem
