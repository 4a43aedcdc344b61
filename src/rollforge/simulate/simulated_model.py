"""The simulated model: (options, ask, sample) → turn.

It is a pure function: no state, no clock. Faults are applied elsewhere.
"""

from __future__ import annotations

from rollforge.simulate import tool_use, wording
from rollforge.simulate.conversation import Ask, SimulatedTurn
from rollforge.simulate.draws import Chance
from rollforge.simulate.judging import judge
from rollforge.simulate.needles import read_needles
from rollforge.simulate.problems import Exercise, near_misses, read_options, read_problem
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.simulate.skill import is_solved
from rollforge.simulate.tokens import limit

_LENGTH_SPREAD = 0.5
_UNBOXED = 0.08
"""Share of wrong answers that also lack the box."""


def take_turn(options: SimulateOptions, ask: Ask, task: str, sample: int) -> SimulatedTurn:
    """The model's next turn; `task` is the key of the canonical prompt, equal for all turns of a rollout."""
    chance = Chance("turn", options.seed, task, sample, len(ask.since_user()))
    turn = (
        judge(ask)
        or _tool_turn(options, ask, task, sample, chance)
        or _answer(options, ask, task, sample, chance)
    )
    if ask.wants_reasoning or chance.happens(options.reasoning):
        length = chance.lognormal(options.answer_tokens * 0.8, _LENGTH_SPREAD)
        turn = SimulatedTurn(
            text=turn.text, calls=turn.calls, finish=turn.finish, reasoning=wording.thoughts(chance, length)
        )
    return limit(turn, ask.max_tokens)


def _tool_turn(
    options: SimulateOptions, ask: Ask, task: str, sample: int, chance: Chance
) -> SimulatedTurn | None:
    if not ask.tools or ask.tool_choice == "none":
        return None
    if (spelt := tool_use.obey(ask, sample)) is not None:
        return spelt
    needles = read_needles(ask.task_text)
    if needles and tool_use.offers_needles(ask):
        is_right = is_solved(options.seed, task, sample, needles.difficulty, options.skill)
        return tool_use.play_needles(
            ask, needles, is_right, Chance("needles", options.seed, task, sample), sample
        )
    return tool_use.use_any(ask, chance, sample)


def _answer(options: SimulateOptions, ask: Ask, task: str, sample: int, chance: Chance) -> SimulatedTurn:
    problem = read_problem(ask.task_text)
    length = chance.lognormal(options.answer_tokens, _LENGTH_SPREAD)
    if problem is None:
        return SimulatedTurn(text=wording.generic(chance, length, _guess(options, ask, task, chance)))
    if is_solved(options.seed, task, sample, problem.difficulty, options.skill):
        return SimulatedTurn(text=wording.working(problem, problem.answer, chance, length))
    boxed = not chance.happens(_UNBOXED)
    text = wording.working(
        problem, _mistake(options, problem, task, chance), chance, 1.25 * length, boxed=boxed
    )
    return SimulatedTurn(text=text)


def _mistake(options: SimulateOptions, problem: Exercise, task: str, chance: Chance) -> str:
    """A wrong answer. Each task has a favourite one, because real samples of a task tend to fail alike."""
    if problem.options:
        wrong = [letter for letter, _ in problem.options if letter != problem.answer]
    else:
        wrong = list(near_misses(problem.answer, Chance("near misses", options.seed, task)))
    return wrong[0] if chance.happens(0.5) else chance.pick(wrong)


def _guess(options: SimulateOptions, ask: Ask, task: str, chance: Chance) -> str:
    """End of an answer to an unknown kind of prompt: a guess, if the prompt requires a definite answer."""
    favour = Chance("favourite", options.seed, task)
    letters = [letter for letter, _ in read_options(ask.task_text)]
    if letters:
        favourite = favour.pick(letters)
        guess = favourite if chance.happens(favour.uniform()) else chance.pick(letters)
    elif "\\boxed" in ask.task_text:
        favourite_number = favour.between(0, 100)
        guess = str(favourite_number if chance.happens(favour.uniform()) else chance.between(0, 100))
    else:
        return ""
    return f"My answer is \\boxed{{{guess}}}."
