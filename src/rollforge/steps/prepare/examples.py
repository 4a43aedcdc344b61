"""This module turns planned examples into the exporter's rows: text is read here, in chunks, and nowhere else.

What cannot be expressed is counted with its reason; what was said differently is counted as a mark. Memory is bounded by a
chunk, however many examples there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from rollforge.exporters.base import Exporter
from rollforge.exporters.chat_rows import ChatRow, without_answer
from rollforge.exporters.examples import Demonstration, Example, Labelled, Pair, Scored
from rollforge.exporters.messages import Conversation, Inexpressible, Message
from rollforge.exporters.reading import Decoded, Reader
from rollforge.exporters.template import Prover
from rollforge.exporters.texts import is_spelled_once
from rollforge.exporters.tidy import Policies, lead, tidy
from rollforge.recipes.base import Ints
from rollforge.records import JsonObject, to_json
from rollforge.steps.prepare.gather import Pool
from rollforge.steps.prepare.plan import Plan
from rollforge.steps.prepare.settings import Settings
from rollforge.steps.prepare.tasks import make_prompts, plain

CHUNK = 256
"""Tasks whose rows are in memory at once."""
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

TOGETHER = 64
"""Rollouts that go through a step together."""


@dataclass
class Tally:
    """What happened on the way from plan to rows."""

    lost: dict[int, str] = field(default_factory=dict)
    """Number of each example that cannot be expressed → why."""
    unsaid: dict[int, str] = field(default_factory=dict)
    """Of lost pairs: position of each rollout that by itself cannot be expressed → why."""
    marks: Counter[str] = field(default_factory=Counter)


@dataclass
class Converter:
    """Makes examples of a plan."""

    pool: Pool
    plan: Plan
    settings: Settings
    exporter: Exporter
    policies: Policies
    form: str
    """`whole` or `step`: how much of an answer a pair or label is about."""
    prover: Prover | None = None
    """Renders each row with the user's chat template before it is written."""
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self, *, is_careful: bool = False) -> None:
        """Begin with a reader that remembers nothing; a careful one refuses rollouts that are not UTF-8."""
        self._reader = Reader(
            images=self.settings.images,
            lead=partial(lead, policies=self.policies),
            is_careful=is_careful,
            has_tokens=self.plan.selection.kind == "scored",
        )

    def examples(self, numbers: Ints) -> Iterator[tuple[int, Example | Inexpressible]]:
        """Example numbers with their examples, or why there is none."""
        kind = self.plan.selection.kind
        if kind == "prompt":
            for start in range(0, len(numbers), CHUNK):
                yield from make_prompts(self, numbers[start : start + CHUNK])
        elif kind == "pair":
            yield from self._pairs(numbers)
        else:
            yield from self._singles(numbers)

    @property
    def is_copy(self) -> bool:
        """Rows are rollout lines as they stand: nothing is converted."""
        return self.exporter.is_raw and self.plan.selection.kind != "prompt"

    def _read(self, positions: Ints) -> Iterator[Conversation | Inexpressible]:
        """Rollouts as tidy conversations, or why they are none.

        A few at a time go through each step together: the code of one step fits into the processor's cache, that of all does not.
        """
        lines = self.pool.read(positions)
        while some := list(islice(lines, TOGETHER)):
            decoded = [_try(self._reader.decode, line) for line in some]
            yield from [
                row if isinstance(row, Inexpressible) else _try(self._converse, row) for row in decoded
            ]

    def _converse(self, row: Decoded | ChatRow) -> Conversation:
        return tidy(self._reader.converse(row), self.policies)

    def _count(self, found: Conversation | Inexpressible) -> Conversation:
        """The conversation, its marks counted; raises when it is none."""
        if isinstance(found, Inexpressible):
            raise found
        if found.marks:
            self.tally.marks.update(found.marks)
        return found

    def read_prompt(self, params: bytes) -> Conversation:
        """A task's parameters as a conversation without an answer."""
        return tidy(self._reader.read_prompt(params), self.policies, needs_answer=False)

    def read_chat_prompt(self, row: JsonObject) -> Conversation:
        """The prompt of a rollout in chat form; its answer is not read."""
        found = self._reader.read(to_json(without_answer(row)))
        asked = Conversation(found.prompt, [], found.tools, found.marks - {"empty output"})
        return tidy(asked, self.policies, needs_answer=False)

    def _singles(self, numbers: Ints) -> Iterator[tuple[int, Example | Inexpressible]]:
        positions = self.plan.selection.picks[numbers]
        rewards = map(float, self.pool.candidates.reward[positions])
        conversations = self._read(positions)
        for number, reward, found in zip(numbers.tolist(), rewards, conversations, strict=True):
            try:
                example = self._single(number, reward, self._count(found))
            except Inexpressible as error:
                yield number, error
            else:
                yield number, example

    def _single(self, number: int, reward: float, conversation: Conversation) -> Example:
        selection = self.plan.selection
        prompt, answer, tools = conversation.prompt, conversation.answer, conversation.tools
        if selection.kind == "demonstration":
            return Demonstration(prompt, answer, tools, reward)
        if conversation.asks_nothing:
            raise Inexpressible("empty prompt")
        if selection.kind == "labelled":
            if self.form == "step" and len(answer) > 1:
                last = max(place for place, message in enumerate(answer) if message.role == "assistant")
                if last + 1 < len(answer):
                    self.tally.marks["tool results after the labelled message left out"] += 1
                prompt, answer = prompt + answer[:last], answer[last : last + 1]
            return Labelled(prompt, answer, tools, bool(selection.values["label"][number]), reward)
        position = int(selection.picks[number])
        return Scored(
            prompt=prompt,
            answer=answer,
            tools=tools,
            numbers={name: plain(column[number]) for name, column in selection.values.items()},
            task=self.task_id(position),
            rollout=int(self.pool.rollout[position]),
            tokens=conversation.tokens,
            fidelity=_fidelity(conversation, self.exporter),
        )

    def _pairs(self, numbers: Ints) -> Iterator[tuple[int, Example | Inexpressible]]:
        picks = self.plan.selection.picks[numbers]
        rewards = self.pool.candidates.reward[picks]
        conversations = self._read(picks.ravel())
        thinks = self.exporter.shape_as.reasoning != "drop"
        for number, positions, two in zip(numbers.tolist(), picks, rewards, strict=True):
            first, second = next(conversations), next(conversations)
            try:
                chosen, rejected = self._count(first), self._count(second)
                sides = make_sides(chosen, rejected, self.form, thinks=thinks)
            except Inexpressible as error:
                for position, found in zip(positions.tolist(), (first, second), strict=True):
                    if isinstance(found, Inexpressible):
                        self.tally.unsaid[position] = str(found)
                yield number, error
                continue
            yield number, Pair(*sides, chosen.tools, *two.tolist())

    def task_id(self, position: int) -> str:
        """The task as a text: its number; its group where the rows have none, and with it where several prompts share one."""
        task, group = int(self.pool.task[position]), int(self.pool.candidates.group[position])
        if task < 0:
            return f"group-{group}"
        return f"{task}-group-{group}" if task in self.pool.shared_tasks else str(task)


def _try(step: Callable[[_Given], _Made], given: _Given) -> _Made | Inexpressible:
    try:
        return step(given)
    except Inexpressible as error:
        return error


def make_sides(
    chosen: Conversation, rejected: Conversation, form: str, *, thinks: bool = True
) -> tuple[list[Message], list[Message], list[Message]]:
    """(prompt, chosen, rejected): whole answers, or the first message in which the two differ.

    Where reasoning is not written (`thinks` is false), messages that differ in it alone are the same.

    Raises:
        Inexpressible: the two are not answers to one prompt, say the same, or never differ in a message of the model.
    """
    if chosen.asks_nothing:
        raise Inexpressible("empty prompt")
    if chosen.prompt != rejected.prompt or chosen.tools != rejected.tools:
        raise Inexpressible("the two prompts differ")
    if say_the_same(chosen.answer, rejected.answer):
        raise Inexpressible("same answer after normalisation")
    if form == "whole" or (len(chosen.answer) == 1 and len(rejected.answer) == 1):
        return chosen.prompt, chosen.answer, rejected.answer
    shared = 0
    for a, b in zip(chosen.answer, rejected.answer, strict=False):
        if not _same_message(a, b, thinks=thinks):
            break
        shared += 1
    if shared == min(len(chosen.answer), len(rejected.answer)):
        raise Inexpressible("one answer is the beginning of the other")
    a, b = chosen.answer[shared], rejected.answer[shared]
    if a.role != "assistant" or b.role != "assistant":
        raise Inexpressible("the answers first differ in what a tool or user said")
    if say_the_same([a], [b]):
        raise Inexpressible("the answers first differ in reasoning alone")
    # Most part ways at once: the prompt of the task itself, which is written only once for all its pairs.
    return chosen.prompt + chosen.answer[:shared] if shared else chosen.prompt, [a], [b]


def _same_message(a: Message, b: Message, *, thinks: bool) -> bool:
    """Equal but for the ids of calls, which servers draw at random."""
    raws = (a.raw, a.raw_thought, b.raw, b.raw_thought)
    if all(raw is None or is_spelled_once(raw) for raw in raws):
        if None not in (a.raw, b.raw) and a.raw != b.raw:
            return False  # most messages part ways here, and their texts need not be built
        if thinks and None not in (a.raw_thought, b.raw_thought) and a.raw_thought != b.raw_thought:
            return False
    said = [(m.role, m.content, m.reasoning if thinks else None, m.name) for m in (a, b)]
    return said[0] == said[1] and _same_calls(a, b)


def _same_calls(a: Message, b: Message) -> bool:
    return [(c.name, c.arguments) for c in a.calls] == [(c.name, c.arguments) for c in b.calls]


def say_the_same(a: list[Message], b: list[Message]) -> bool:
    """Whether the model's messages differ in nothing but white space, reasoning and call ids."""
    said = [[message for message in messages if message.role == "assistant"] for messages in (a, b)]
    return len(said[0]) == len(said[1]) and all(map(_says_the_same, *said))


def _says_the_same(a: Message, b: Message) -> bool:
    if not _same_calls(a, b):
        return False
    first, second = a.content, b.content
    if first[:200].split()[:5] != second[:200].split()[:5]:
        return False  # most texts part ways early; splitting all is slow
    return first == second or first.split() == second.split()


def _fidelity(conversation: Conversation, exporter: Exporter) -> str:
    calls = sum(message.role == "assistant" for message in conversation.answer)
    if len(conversation.tokens) == calls and all(record.is_whole for record in conversation.tokens):
        return "token-exact"
    is_lossy = exporter.shape_as.reasoning == "drop" and any(
        message.reasoning for message in conversation.answer
    )
    return "lossy" if is_lossy or "encrypted reasoning left out" in conversation.marks else "text-only"
