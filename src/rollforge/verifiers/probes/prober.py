"""This module asks a verifier about one task after another, and keeps what it said until a report is wanted.

Tasks may be fed all at once or sprinkled into a running collection. No model is called, and no verdict of a probe enters a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

import msgspec

from rollforge.errors import Failure
from rollforge.records import Response, Task
from rollforge.verifiers.base import attribute
from rollforge.verifiers.probes.answers import (
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
from rollforge.verifiers.probes.report import (
    EXAMPLES,
    Kind,
    Probe,
    ProbeExample,
    ProbeReport,
    Rate,
    finding_of,
    rate_of,
    wilson,
)
from rollforge.verifiers.runner import RunningJudge

PARTNERS = 32
LEARNING = 3
EXCERPT = 200


class _Question(msgspec.Struct, frozen=True):
    text: str
    kind: Kind
    limit: float
    is_by_chance: bool = False
    """Right by chance now and then, as on multiple choice."""


QUESTIONS = {
    "gold": _Question("Does the right answer pass, in any usual form?", "false negative", 0.10),
    "empty": _Question("Does an empty answer fail?", "false positive", 0.05),
    "refusal": _Question("Does a refusal fail?", "false positive", 0.05),
    "odd": _Question("Does gibberish fail?", "false positive", 0.05),
    "echo": _Question("Does repeating the prompt fail?", "false positive", 0.10, is_by_chance=True),
    "swapped gold": _Question("Does another task's right answer fail?", "false positive", 0.10),
    "swapped response": _Question(
        "Does a response to another task fail?", "false positive", 0.10, is_by_chance=True
    ),
    "hedge": _Question("Does a wrong answer fail that names the right?", "false positive", 0.10),
    "spacing": _Question("Does the reward stay when only spacing changes?", "flip", 0.05),
    "twice": _Question("Does the same call twice give the same reward?", "flip", 0.05),
    "errors": _Question("Does it judge without failing?", "error", 0.05),
}
"""What a verifier must know, and the share of wrong answers that is tolerated."""

UNSTEADY_LIMIT = 0.20
"""For a verifier that declares itself not deterministic, the same call may differ this often."""


class _Said(msgspec.Struct, frozen=True):
    """One verdict on one made-up answer."""

    task: int
    reward: float | None
    sent: str
    expected: str | None
    before: float | None = None
    """The reward it should have equalled."""
    note: str = ""


class _Partner(msgspec.Struct, frozen=True):
    """Another task, to swap answers with."""

    task: Task
    gold: list[Any]
    response: Response | None


class Prober:
    """Asks the questions through a judge; equal answers are not shared, since agreement is one of the questions."""

    def __init__(self, judge: RunningJudge) -> None:
        self._judge = judge
        function = judge.verifier.function
        self._gold_hook = getattr(function, "gold", None) or _module_hook(function, "gold")
        self._skipped = set(attribute(function, "skip_probes", ()))
        self._said: dict[str, list[_Said]] = defaultdict(list)
        self._forms: Counter[str] = Counter()
        self._golds: Counter[str] = Counter()
        self._partners: deque[_Partner] = deque(maxlen=PARTNERS)
        self._explicit_form: str | None = None
        self._rewards = [0.0, 1.0]
        self._without_gold = 0
        self._unjudged_gold = 0
        self.tasks = 0
        self.calls = 0

    async def ask(self, task: Task, response: Response | None = None) -> None:
        """Ask everything about one task; `response` is a real answer to it, if there is one."""
        number = self.tasks
        self.tasks += 1
        gold = gold_of(task, self._gold_hook)
        partner = self._partner(task, gold)
        self._partners.append(_Partner(task, gold, response))
        if gold:
            self._golds[gold_key(gold)] += 1
        failures: list[_Said] = []
        right = await self._ask_gold(task, gold, failures)
        await self._ask_wrong(task, gold, number, failures)
        if partner is not None:
            await self._ask_swapped(task, gold, partner, failures)
        real = response if response is not None and not response.is_empty else None
        await self._ask_again(task, [answer for answer in (real, right) if answer is not None], failures)
        self._said["errors"].append(
            failures[0] if failures else _Said(task.index, 1.0, "", None)  # one observation per task
        )

    async def _called(self, task: Task, response: Response, failures: list[_Said], what: str = "") -> Any:
        """The reward, None for "cannot judge", or the failure itself."""
        self.calls += 1
        try:
            reward = (await self._judge.call_once(task, response)).reward
        except Failure as failure:
            failures.append(_Said(task.index, None, _tail(response), None, note=failure.message[:300]))
            return failure
        if reward is not None:
            self._rewards = [min(self._rewards[0], reward), max(self._rewards[1], reward)]
        return reward

    @property
    def threshold(self) -> float:
        """The middle of the verifier's range: declared, else as seen."""
        low, high = self._judge.verifier.reward_range or self._rewards
        return (low + high) / 2

    async def _ask_gold(self, task: Task, gold: list[Any], failures: list[_Said]) -> Response | None:
        if not gold or "gold" in self._skipped:
            self._without_gold += 1
            return None
        forms = sorted(renderings(task, gold), key=lambda form: -self._forms[form[0]])
        is_learning = len(self._said["gold"]) < LEARNING  # which forms and which scale this verifier knows
        best: tuple[float, str, Response] | None = None
        own: list[_Said] = []
        for name, response in forms:
            reward = await self._called(task, response, own)
            if isinstance(reward, Failure) or reward is None:
                continue
            if best is None or reward > best[0]:
                best = (reward, name, response)
            if reward >= self.threshold and not is_learning:
                break
        if best is None:
            if len(own) == len(forms):
                failures.append(own[0])  # it failed on every form, also on the one it wants
            else:
                self._unjudged_gold += 1
            return None
        reward, name, response = best
        self._said["gold"].append(_Said(task.index, reward, _tail(response), gold_text(gold)))
        if reward < self.threshold:
            return None
        self._forms[name] += 1
        return response

    async def _ask_wrong(self, task: Task, gold: list[Any], number: int, failures: list[_Said]) -> None:
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
            if name not in self._skipped:
                await self._note_highest(name, task, responses, gold, failures)

    async def _note_highest(
        self,
        name: str,
        task: Task,
        responses: list[Response],
        gold: list[Any],
        failures: list[_Said],
        note: str = "",
    ) -> None:
        """Keep the best reward that a wrong answer got; a failure to judge is no reward."""
        said: list[_Said] = []
        for response in responses:
            reward = await self._called(task, response, failures)
            if not isinstance(reward, Failure):
                said.append(_Said(task.index, reward, _tail(response), gold_text(gold) or None, note=note))
        if said:
            self._said[name].append(
                max(said, key=lambda one: float("-inf") if one.reward is None else one.reward)
            )

    def _partner(self, task: Task, gold: list[Any]) -> _Partner | None:
        """Another task whose right answer is another one; a different one each time, so that no task speaks for many."""
        partners = list(self._partners)
        turn = self.tasks * 7 % max(len(partners), 1)
        for other in partners[turn:] + partners[:turn]:
            differs = gold_key(other.gold) != gold_key(gold) if gold and other.gold else True
            if differs and other.task.prompt != task.prompt:
                return other
        return None

    async def _ask_swapped(
        self, task: Task, gold: list[Any], partner: _Partner, failures: list[_Said]
    ) -> None:
        if partner.gold and gold:
            note = f"right for task {partner.task.index}"
            forms = sorted(renderings(partner.task, partner.gold), key=lambda form: -self._forms[form[0]])[:1]
            if "swapped gold" not in self._skipped:
                responses = [response for _, response in forms]
                await self._note_highest("swapped gold", task, responses, gold, failures, note)
            if "hedge" not in self._skipped:
                await self._ask_hedge(task, gold, partner, failures)
        if partner.response is not None and "swapped response" not in self._skipped:
            note = f"an answer to task {partner.task.index}"
            await self._note_highest("swapped response", task, [partner.response], gold, failures, note)

    async def _ask_hedge(self, task: Task, gold: list[Any], partner: _Partner, failures: list[_Said]) -> None:
        """Name the right answer, then give another one in the clearest form that this verifier reads."""
        if not isinstance(gold[0], str | int | float) or not isinstance(partner.gold[0], str | int | float):
            return
        right, wrong = str(gold[0]), str(partner.gold[0])
        for form in [self._explicit_form] if self._explicit_form else EXPLICIT_FORMS:
            reward = await self._called(task, Response.from_text(FORMS[form].format(right)), [])
            if not isinstance(reward, Failure) and reward is not None and reward >= self.threshold:
                self._explicit_form = form
                text = f"At first I thought of {right}, but that is wrong.\n\n" + FORMS[form].format(wrong)
                await self._note_highest("hedge", task, [Response.from_text(text)], gold, failures)
                return

    async def _ask_again(self, task: Task, answers: list[Response], failures: list[_Said]) -> None:
        """The same answers once more, and with other spacing: one observation each, the worst of all answers."""
        repeated: list[_Said] = []
        changed: list[_Said] = []
        for answer in answers:
            first = await self._called(task, answer, failures)
            if isinstance(first, Failure):
                continue
            for name, other in [("", answer), *respaced(answer)]:
                reward = await self._called(task, other, failures)
                if not isinstance(reward, Failure):
                    said = _Said(task.index, reward, _tail(answer), None, before=first, note=name)
                    (changed if name else repeated).append(said)
        for question, said_of in (("twice", repeated), ("spacing", changed)):
            if said_of and question not in self._skipped:
                self._said[question].append(next(filter(self._has_flipped, said_of), said_of[0]))

    def _has_flipped(self, said: _Said) -> bool:
        if said.reward is None or said.before is None:
            return said.reward is not said.before
        return abs(said.reward - said.before) > 0.01 * (self._rewards[1] - self._rewards[0])

    def _is_bad(self, name: str, said: _Said) -> bool:
        kind = QUESTIONS[name].kind
        if kind == "flip":
            return self._has_flipped(said)
        if kind == "error":
            return said.reward is None
        passes = said.reward is not None and said.reward >= self.threshold
        return not passes if kind == "false negative" else passes

    def chance(self) -> float:
        """How often the right answers of two tasks are equal: what guessing without reading the task earns."""
        total = sum(self._golds.values())
        if total < 2:
            return 0.0
        return sum(count * (count - 1) for count in self._golds.values()) / (total * (total - 1))

    def report(self) -> ProbeReport:
        """What has been learnt so far."""
        probes = [self._probe(name) for name in QUESTIONS]
        form = self._forms.most_common(1)
        return ProbeReport(
            verifier=self._judge.name,
            fingerprint=self._judge.fingerprint,
            mode=self._judge.mode,
            tasks=self.tasks,
            calls=self.calls,
            is_broken=any(probe.finding == "broken" for probe in probes),
            threshold=self.threshold,
            gold_form=form[0][0] if form else None,
            probes=probes,
            false_negative=_pooled(probes, "false negative"),
            false_positive=_pooled(probes, "false positive"),
            flip=_pooled(probes, "flip"),
            notes=self._notes(),
        )

    def _probe(self, name: str) -> Probe:
        question = QUESTIONS[name]
        said = self._said[name]
        wrong = [one for one in said if self._is_bad(name, one)]
        limit = question.limit
        if name == "twice" and not self._judge.verifier.is_deterministic:
            limit = UNSTEADY_LIMIT
        chance = self.chance() if question.is_by_chance else 0.0
        rate = rate_of(len(wrong), len(said))
        return Probe(
            name=name,
            question=question.text,
            kind=question.kind,
            n=len(said),
            bad=len(wrong),
            rate=rate.rate,
            ci=rate.ci,
            chance=chance,
            limit=limit,
            finding=finding_of(len(wrong), len(said), limit, chance),
            reason="" if said else self._reason_not_asked(name),
            examples=[_example(one) for one in wrong[:EXAMPLES]],
        )

    def _reason_not_asked(self, name: str) -> str:
        if name in self._skipped:
            return "the verifier says that this question does not fit it"
        if name == "gold":
            return (
                "no row has a right answer (expected_answer, …)"
                if self._without_gold
                else "it could not judge any"
            )
        if name == "swapped response":
            return "there are no real responses; give a run"
        if name in ("swapped gold", "hedge"):
            return "there are no two tasks with different right answers"
        return "nothing to ask it with"

    def _notes(self) -> list[str]:
        notes = []
        if self._unjudged_gold:
            notes.append(f"it said it cannot judge the right answer of {self._unjudged_gold:,} tasks")
        if (
            self.tasks
            and self._rewards == [0.0, 1.0]
            and not any(
                one.reward
                for said in self._said.values()
                for one in said
                if one.reward and said is not self._said["errors"]
            )
        ):
            notes.append("it gave no reward above 0 to anything it was shown")
        return notes


def _module_hook(function: Any, name: str) -> Any:
    import sys

    found = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), name, None)
    return found if callable(found) else None


def _tail(response: Response) -> str:
    text = response.text
    return text if len(text) <= EXCERPT else "…" + text[-EXCERPT:]


def _example(said: _Said) -> ProbeExample:
    note = said.note
    if said.before is not None:
        note = f"{said.before:g} before" + (f", after {note}" if note else "")
    return ProbeExample(said.task, said.sent, said.reward, said.expected, note)


def _pooled(probes: list[Probe], kind: Kind) -> Rate:
    """All questions of a kind together; what chance explains is not taken off."""
    of_kind = [probe for probe in probes if probe.kind == kind]
    bad, n = sum(probe.bad for probe in of_kind), sum(probe.n for probe in of_kind)
    return Rate(bad / n, wilson(bad, n), n) if n else Rate(None, None, 0)
