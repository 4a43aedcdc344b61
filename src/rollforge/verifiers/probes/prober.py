"""Probes a verifier task by task and collects its verdicts.

Tasks may come all at once or during a running collection. No model is called, and probe verdicts are not recorded in runs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from rollforge.errors import Failure
from rollforge.records import Response, Task
from rollforge.text_safety.outgoing import cut
from rollforge.verifiers.probes.known_answers import (
    EMPTY,
    EXPLICIT_FORMS,
    FORMS,
    ODD,
    REFUSALS,
    gold_key,
    gold_of,
    gold_text,
    nothing,
    renderings,
    respaced,
)
from rollforge.verifiers.probes.observations import Observations
from rollforge.verifiers.probes.questions import Said
from rollforge.verifiers.probes.report import ProbeReport
from rollforge.verifiers.running.calling import LATE
from rollforge.verifiers.running.ready_verifier import RunningJudge

PARTNERS = 32
LEARNING = 3
EXCERPT = 200
PATIENCE = 5
"""Number of consecutive time-outs after which probing stops."""


class _Partner(msgspec.Struct, frozen=True):
    """Another task whose answers are swapped with this task's."""

    task: Task
    gold: list[Any]
    response: Response | None


class _Hanging(Exception):
    """The verifier times out on every question."""


PROBE_CALLS = 23
"""Verifier calls per probed task: all questions, with the right answer in several forms."""


class Prober:
    """Sends questions to a judge. Equal answers do not share calls, since consistency is one of the questions."""

    def __init__(self, judge: RunningJudge) -> None:
        self._judge = judge
        self._gold_hook = judge.verifier.gold
        self._seen = Observations(judge, judge.verifier.skip_probes)
        self._partners: deque[_Partner] = deque(maxlen=PARTNERS)
        self._explicit_form: str | None = None
        self._late = 0
        """Number of consecutive time-outs."""

    def report(self) -> ProbeReport:
        """The report on all observations so far."""
        return self._seen.report()

    async def ask(self, task: Task, response: Response | None = None) -> None:
        """Ask all questions about one task; `response` is a real answer to it, if available."""
        if self._seen.is_hanging:
            return
        try:
            await self._ask(task, response)
        except _Hanging as hanging:
            self._seen.is_hanging = True
            self._seen.said["errors"].append(Said(task.index, None, "", None, note=str(hanging)))

    async def _ask(self, task: Task, response: Response | None) -> None:
        number = self._seen.tasks
        self._seen.tasks += 1
        gold = gold_of(task, self._gold_hook)
        partner = self._partner(task, gold)
        self._partners.append(_Partner(task, gold, response))
        if gold:
            self._seen.golds[gold_key(gold)] += 1
        failures: list[Said] = []
        right = await self._ask_gold(task, gold, failures)
        await self._ask_wrong(task, gold, number, failures)
        if partner is not None:
            await self._ask_swapped(task, gold, partner, failures)
        real = response if response is not None and not response.is_empty else None
        answers = [answer for answer in (real, right) if answer is not None]
        await self._ask_again(task, answers or [Response.from_text(REFUSALS[1])], failures)
        self._seen.said["errors"].append(
            failures[0] if failures else Said(task.index, 1.0, "", None)  # one observation per task
        )

    async def _called(self, task: Task, response: Response, failures: list[Said]) -> Any:
        """The reward, None for "cannot judge", or the failure."""
        self._seen.calls += 1
        try:
            reward = (await self._judge.call_once(task, response)).reward
        except Failure as failure:
            self._late = self._late + 1 if failure.message.startswith(LATE) else 0
            if self._late >= PATIENCE:
                raise _Hanging(failure.message) from failure
            failures.append(Said(task.index, None, _tail(response), None, note=cut(failure.message, 300)))
            return failure
        self._late = 0
        if reward is not None:
            self._seen.saw(reward)
        return reward

    async def _ask_gold(self, task: Task, gold: list[Any], failures: list[Said]) -> Response | None:
        if not gold or "gold" in self._seen.skipped:
            self._seen.without_gold += 1
            return None
        forms = sorted(renderings(task, gold), key=lambda form: -self._seen.forms[form[0]])
        is_learning = (
            len(self._seen.said["gold"]) < LEARNING
        )  # which forms and which scale this verifier knows
        best: tuple[float, str, Response] | None = None
        own: list[Said] = []
        for name, response in forms:
            reward = await self._called(task, response, own)
            if isinstance(reward, Failure) or reward is None:
                continue
            if best is None or reward > best[0]:
                best = (reward, name, response)
            if reward >= self._seen.threshold and not is_learning:
                break
        if best is None:
            if len(own) == len(forms):
                failures.append(own[0])  # it failed on every form, also on the one it wants
            else:
                self._seen.unjudged_gold += 1
                observation = Said(task.index, None, _tail(forms[0][1]), gold_text(gold))
                self._seen.said["gold"].append(observation)
            return None
        reward, name, response = best
        self._seen.said["gold"].append(Said(task.index, reward, _tail(response), gold_text(gold)))
        if reward < self._seen.threshold:
            return None
        self._seen.forms[name] += 1
        return response

    async def _ask_wrong(self, task: Task, gold: list[Any], number: int, failures: list[Said]) -> None:
        odd = [Response.from_text(ODD[(number + shift) % len(ODD)]) for shift in (0, 3)]
        answers = {
            "empty": [
                nothing() if number % 2 else Response.from_text(EMPTY[1]),
                Response.from_text(EMPTY[0]),
            ],
            "refusal": [Response.from_text(REFUSALS[number % len(REFUSALS)])],
            "odd": odd,
        }
        prompt = task.prompt
        if prompt.strip() and gold_key([prompt]) not in {gold_key([item]) for item in gold}:
            answers["echo"] = [Response.from_text(prompt)]
        for name, responses in answers.items():
            if name not in self._seen.skipped:
                await self._note_highest(name, task, responses, gold, failures)

    async def _note_highest(
        self,
        name: str,
        task: Task,
        responses: list[Response],
        gold: list[Any],
        failures: list[Said],
        note: str = "",
    ) -> None:
        """Record the best reward among wrong answers; failures to judge are ignored."""
        observations: list[Said] = []
        for response in responses:
            reward = await self._called(task, response, failures)
            if not isinstance(reward, Failure):
                observations.append(
                    Said(task.index, reward, _tail(response), gold_text(gold) or None, note=note)
                )
        if observations:
            self._seen.said[name].append(
                max(observations, key=lambda one: float("-inf") if one.reward is None else one.reward)
            )

    def _partner(self, task: Task, gold: list[Any]) -> _Partner | None:
        """Another task with a different right answer; varied, so that no task is used too often."""
        partners = list(self._partners)
        turn = self._seen.tasks * 7 % max(len(partners), 1)
        for other in partners[turn:] + partners[:turn]:
            differs = gold_key(other.gold) != gold_key(gold) if gold and other.gold else True
            if differs and other.task.prompt != task.prompt:
                return other
        return None

    async def _ask_swapped(
        self, task: Task, gold: list[Any], partner: _Partner, failures: list[Said]
    ) -> None:
        if partner.gold and gold:
            note = f"right for task {partner.task.index}"
            forms = sorted(
                renderings(partner.task, partner.gold), key=lambda form: -self._seen.forms[form[0]]
            )[:1]
            if "swapped gold" not in self._seen.skipped:
                responses = [response for _, response in forms]
                await self._note_highest("swapped gold", task, responses, gold, failures, note)
            if "hedge" not in self._seen.skipped:
                await self._ask_hedge(task, gold, partner, failures)
        if partner.response is not None and "swapped response" not in self._seen.skipped:
            note = f"an answer to task {partner.task.index}"
            await self._note_highest("swapped response", task, [partner.response], gold, failures, note)

    async def _ask_hedge(self, task: Task, gold: list[Any], partner: _Partner, failures: list[Said]) -> None:
        """Test hedging: name the right answer, then give another one in the clearest format that the verifier accepts."""
        if not isinstance(gold[0], str | int | float) or not isinstance(partner.gold[0], str | int | float):
            return
        right, wrong = str(gold[0]), str(partner.gold[0])
        for form in [self._explicit_form] if self._explicit_form else EXPLICIT_FORMS:
            reward = await self._called(task, Response.from_text(FORMS[form].format(right)), [])
            if not isinstance(reward, Failure) and reward is not None and reward >= self._seen.threshold:
                self._explicit_form = form
                text = f"At first I thought of {right}, but that is wrong.\n\n" + FORMS[form].format(wrong)
                await self._note_highest("hedge", task, [Response.from_text(text)], gold, failures)
                return

    async def _ask_again(self, task: Task, answers: list[Response], failures: list[Said]) -> None:
        """Test consistency: repeat answers, also with other spacing; records the worst result of all answers."""
        repeated: list[Said] = []
        changed: list[Said] = []
        for answer in answers:
            first = await self._called(task, answer, failures)
            if isinstance(first, Failure):
                continue
            for name, other in [("", answer), *respaced(answer)]:
                reward = await self._called(task, other, failures)
                if not isinstance(reward, Failure):
                    observation = Said(task.index, reward, _tail(answer), None, before=first, note=name)
                    (changed if name else repeated).append(observation)
        for question, said_of in (("twice", repeated), ("spacing", changed)):
            if said_of and question not in self._seen.skipped:
                self._seen.said[question].append(next(filter(self._seen.has_flipped, said_of), said_of[0]))


def _tail(response: Response) -> str:
    text = response.text
    return text if len(text) <= EXCERPT else "…" + text[-EXCERPT:]
