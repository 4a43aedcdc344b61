"""The wording of answers: intermediate steps, remarks, optional reasoning, and the boxed answer.

The caller decides the answer; these functions only phrase it.
"""

from __future__ import annotations

from rollforge.simulate.draws import Chance
from rollforge.simulate.problems import Exercise
from rollforge.simulate.tokens import count

_OPENINGS = (
    "Let me work through this step by step.",
    "First I write down what is given.",
    "I take it one step at a time.",
    "Here is how I would go about it.",
    "The question gives everything that is needed.",
    "",
)
_REMARKS = (
    "I keep an eye on the order of operations here.",
    "As a rough estimate, the size of this looks plausible.",
    "Let me double-check the last digit.",
    "Nothing else in the question changes this.",
    "Going over the numbers once more gives the same result.",
    "I ignore details that do not matter for the result.",
    "This agrees with what I would expect.",
    "It helps to split the larger number into tens and ones.",
    "The remaining part follows directly.",
    "There is no rounding involved.",
)
_THOUGHTS = (
    "The user wants a short, definite answer.",
    "Which quantities matter here? I should list them first.",
    "Hmm, it would be easy to mix up the order.",
    "Wait, let me read the question again.",
    "I could try to verify this by going backwards.",
    "That seems fine, but let me make sure.",
    "One possible trap is forgetting the last part.",
    "I think the direct way is the best one.",
    "The numbers are small enough to do this in the head.",
    "If I am wrong anywhere, it will be in the middle step.",
)
_STRIDES = (1, 3, 7, 9)
"""Strides coprime to the number of remarks, so that every remark occurs once before any repeats."""
_ENDINGS = (
    "So the answer is {}.",
    "Therefore the final answer is {}.",
    "This gives {}.",
    "The result is {}.",
)
_REPLIES = (
    "Here is a short take on that.",
    "There are a few sides to this.",
    "In brief, it depends on what you want to achieve.",
    "The usual way is to start small and look at the result.",
    "A good first step is to write down what is known.",
    "What matters most is being clear about the goal.",
    "Many people would begin with the simplest case.",
    "After that, one can refine it where it falls short.",
    "It is worth checking each assumption on its own.",
    "With that, the rest is mostly patience.",
)


def working(problem: Exercise, answer: str, chance: Chance, tokens: float, *, boxed: bool = True) -> str:
    """A text of about `tokens` tokens that states `answer`, by default in a box."""
    steps = list(problem.steps)
    if answer != problem.answer and not problem.options:
        steps[-1] = f"{steps[-1].rpartition(' = ')[0]} = {answer}"
    elif answer != problem.answer:
        steps = ["I compare the options with what I know"]
    lines = [chance.pick(_OPENINGS), *(f"Step {number}: {step}." for number, step in enumerate(steps, 1))]
    stated = f"\\boxed{{{answer}}}" if boxed else answer
    ending = chance.pick(_ENDINGS).format(stated)
    return "\n".join(filter(None, [*_padded(lines, _REMARKS, chance, tokens), ending]))


def thoughts(chance: Chance, tokens: float) -> str:
    """Reasoning of about the given number of tokens."""
    return "\n".join(_padded([chance.pick(_THOUGHTS)], _THOUGHTS, chance, tokens))


def generic(chance: Chance, tokens: float, ending: str = "") -> str:
    """A plausible answer to a prompt of unknown kind."""
    lines = _padded([chance.pick(_REPLIES)], _REPLIES, chance, tokens)
    return "\n".join([*lines, ending] if ending else lines)


def _padded(lines: list[str], remarks: tuple[str, ...], chance: Chance, tokens: float) -> list[str]:
    """The lines padded with remarks to the length."""
    length = sum(map(count, lines))
    position, stride = chance.between(0, len(remarks) - 1), chance.pick(_STRIDES)
    while length < tokens:
        lines.append(remarks[position % len(remarks)])
        length += count(lines[-1])
        position += stride
    return lines
