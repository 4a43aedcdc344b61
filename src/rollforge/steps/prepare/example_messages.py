"""Converts planned examples to messages; the only part of prepare that reads the text of selected rollouts.

Examples are read in the requested order in chunks, so memory does not grow with the dataset. An inexpressible example is replaced
by the reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from rollforge.conversations.chat_rows import without_answer
from rollforge.conversations.messages import Conversation, Inexpressible
from rollforge.conversations.reader import TOKEN_DRIFT, ConversationReader
from rollforge.conversations.shape import Shaping
from rollforge.conversations.tidy import Policies, lead, tidy
from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Demonstration, Example, Labelled, Pair, Prompt, Scored
from rollforge.json_shapes import RowJson, without
from rollforge.recipes.base import Ints
from rollforge.records import PARAMS_KEY, to_json
from rollforge.steps.prepare.dataset_plan import DatasetPlan
from rollforge.steps.prepare.pair_sides import make_sides
from rollforge.steps.prepare.rollout_pool import Pool
from rollforge.steps.prepare.sequences import sequences_of
from rollforge.steps.prepare.settings import Settings
from rollforge.store.reading import read_row

CHUNK = 256
"""Tasks whose rows are in memory at a time."""

AT_ONCE = 8192
"""Rollouts whose numbers are in memory at a time."""

GROUND_TRUTHS = ("expected_answer", "ground_truth", "answer", "solution", "label", "target", "gold")
"""Task fields for the ground truth; the first existing one is used."""

_CHAT = ("messages", "prompt", "completion")
"""Keys of a rollout in chat form."""

_OF_A_ROLLOUT = ("response", "reward", "reward_components", "mask_sample", "verification_skipped")
"""Keys that rollouts add to their task row."""

NumberedExample = tuple[int, Example | Inexpressible]
"""An example's number with the example, or the reason why there is none."""


class ExampleSource:
    """Reads the examples of a plan."""

    def __init__(
        self,
        pool: Pool,
        plan: DatasetPlan,
        settings: Settings,
        exporter: Exporter,
        *,
        policies: Policies,
        shaping: Shaping,
        pair_form: str,
    ) -> None:
        """Read the examples of `plan`; `pair_form` is `whole` or `step`: the part of an answer that a pair or label is about."""
        self._pool, self._plan, self._settings, self._exporter = pool, plan, settings, exporter
        self._policies, self._shaping, self._pair_form = policies, shaping, pair_form
        self.marks: Counter[str] = Counter()
        """Repair or irregularity → number of rollouts."""
        self.unreadable: dict[int, str] = {}
        """For inexpressible pairs: position of each rollout that is itself inexpressible → reason."""
        self._reader = ConversationReader(
            images=settings.images,
            lead=partial(lead, policies=policies),
            has_tokens=plan.selection.kind == "scored",
            is_checked=True,  # the index takes only lines in UTF-8
        )

    def examples(self, numbers: Ints) -> Iterator[NumberedExample]:
        """The examples with these numbers, in this order."""
        match self._plan.selection.kind:
            case "prompt":
                for start in range(0, len(numbers), CHUNK):
                    yield from self._prompts(numbers[start : start + CHUNK])
            case "pair":
                yield from self._pairs(numbers)
            case _:
                for start in range(0, len(numbers), AT_ONCE):
                    yield from self._singles(numbers[start : start + AT_ONCE])

    def _read(self, positions: Ints, sequences: Ints | None = None) -> Iterator[Conversation | Inexpressible]:
        """Rollouts as tidy conversations, or the reason why they are inexpressible."""
        wanted = itertools.repeat(0) if sequences is None else sequences.tolist()
        for line, sequence in zip(self._pool.read(positions), wanted, strict=False):
            try:
                yield tidy(self._reader.read(line, sequence), self._policies)
            except Inexpressible as error:
                yield error

    def _count(self, conversation: Conversation | Inexpressible) -> Conversation:
        """Count the marks of a conversation; raises for an inexpressible one."""
        if isinstance(conversation, Inexpressible):
            raise conversation
        if conversation.marks:
            self.marks.update(conversation.marks)
        return conversation

    def _singles(self, numbers: Ints) -> Iterator[NumberedExample]:
        pool, positions = self._pool, self._plan.selection.picks[numbers]
        sources = zip(
            pool.candidates.reward[positions].tolist(),
            pool.task_ids(positions),
            pool.sample[positions].tolist(),
            pool.agents.take(positions),
            strict=True,
        )
        conversations = self._read(positions, sequences_of(self._plan.selection, numbers))
        for number, source, conversation in zip(numbers.tolist(), sources, conversations, strict=True):
            try:
                example: Example | Inexpressible = self._single(number, *source, self._count(conversation))
            except Inexpressible as error:
                example = error
            yield number, example

    def _single(
        self,
        number: int,
        reward: float,
        task: str,
        sample: int,
        agent: str | None,
        conversation: Conversation,
    ) -> Example:
        selection = self._plan.selection
        prompt, answer, tools = conversation.prompt, conversation.answer, conversation.tools
        if selection.kind == "demonstration":
            return Demonstration(prompt, answer, tools, reward, task, sample, agent)
        if conversation.asks_nothing:
            raise Inexpressible("empty prompt")
        if selection.kind == "labelled":
            if self._pair_form == "step" and len(answer) > 1:
                last = max(position for position, message in enumerate(answer) if message.role == "assistant")
                if last + 1 < len(answer):
                    self.marks["tool results after the labelled message left out"] += 1
                prompt, answer = prompt + answer[:last], answer[last : last + 1]
            return Labelled(prompt, answer, tools, bool(selection.values["label"][number]), reward)
        return Scored(
            prompt=prompt,
            answer=answer,
            tools=tools,
            numbers={name: _plain(column[number]) for name, column in selection.values.items()},
            task=task,
            rollout=sample,
            tokens=conversation.tokens,
            fidelity=_fidelity(conversation, self._shaping),
        )

    def _pairs(self, numbers: Ints) -> Iterator[NumberedExample]:
        picks = self._plan.selection.picks[numbers]
        rewards = self._pool.candidates.reward[picks]
        conversations = self._read(picks.ravel())
        has_reasoning = self._shaping.reasoning != "drop"
        for number, positions, two in zip(numbers.tolist(), picks, rewards, strict=True):
            first, second = next(conversations), next(conversations)
            try:
                chosen, rejected = self._count(first), self._count(second)
                sides = make_sides(chosen, rejected, self._pair_form, has_reasoning=has_reasoning)
            except Inexpressible as error:
                for position, side in zip(positions.tolist(), (first, second), strict=True):
                    if isinstance(side, Inexpressible):
                        self.unreadable[position] = str(side)
                yield number, error
                continue
            yield number, Pair(*sides, chosen.tools, *two.tolist())

    def _prompts(self, numbers: Ints) -> Iterator[NumberedExample]:
        """One prompt example per task of the chunk."""
        positions = self._plan.selection.picks[numbers]
        rows = _task_rows(self._pool, positions)
        tasks, agents = self._pool.task_ids(positions), self._pool.agents.take(positions)
        for number, task, agent, row in zip(numbers.tolist(), tasks, agents, rows, strict=True):
            try:
                yield number, self._prompt(number, task, agent, row)
            except Inexpressible as error:
                yield number, error

    def _prompt(self, number: int, task: str, agent: str | None, row: RowJson) -> Prompt:
        plan = self._plan
        if self._exporter.has_task_rows:
            conversation = Conversation([], [])  # the task row is written as it is
            for problem in self._exporter.problems("prompt", row, self._shaping):
                raise Inexpressible(problem)
        else:
            conversation = self._read_prompt(row)
        row = without(row, _CHAT)
        self.marks.update(conversation.marks)
        truth = ground_truth(row, self._settings.ground_truth)
        if truth is None:
            self.marks["no ground truth in the task"] += 1
        return Prompt(
            prompt=conversation.prompt,
            tools=conversation.tools,
            ground_truth=truth or "",
            numbers={name: _plain(column[number]) for name, column in plan.selection.values.items()},
            task=task,
            index=number,
            source=agent or "rollforge",
            split=plan.splits[int(plan.split[number])],
            fields=to_json(row),
        )

    def _read_prompt(self, row: RowJson) -> Conversation:
        """The prompt of a task row, or of a rollout in chat form."""
        if isinstance(row.get(PARAMS_KEY), dict):
            prompt = self._reader.read_prompt(to_json(row[PARAMS_KEY]))
        elif any(key in row for key in _CHAT):
            read = self._reader.read(to_json(without_answer(row)))
            prompt = Conversation(read.prompt, [], read.tools, read.marks - {"empty output"})
        else:
            raise Inexpressible("the task has no responses_create_params")
        prompt = tidy(prompt, self._policies, needs_answer=False)
        if prompt.asks_nothing:
            raise Inexpressible("empty prompt")
        return prompt


def _task_rows(pool: Pool, positions: Ints) -> list[RowJson]:
    """Task rows as sent; the task's part of a rollout if the run has no task file."""
    row_by_task: dict[tuple[int, int], RowJson] = {}
    for run in np.unique(pool.run[positions]):
        tasks = [int(pool.task[p]) for p in positions if pool.run[p] == run and pool.task[p] >= 0]
        row_by_task |= {
            (int(run), task): row for task, row in pool.indexes[run].task_rows(sorted(set(tasks)))
        }
    missing = [p for p in positions if (int(pool.run[p]), int(pool.task[p])) not in row_by_task]
    lines = dict(zip(missing, pool.read(np.array(missing, dtype=np.int64)), strict=True)) if missing else {}
    rows: list[RowJson] = []
    for position, agent in zip(positions, pool.agents.take(positions), strict=True):
        sent = row_by_task.get((int(pool.run[position]), int(pool.task[position])))
        whole: RowJson = sent if sent is not None else read_row(lines[position])
        own = [key for key in whole if key in _OF_A_ROLLOUT or key.startswith(("_ng_", "_rf"))]
        row = without(whole, own)
        if "agent_ref" not in row and agent is not None:
            row["agent_ref"] = {"name": agent}
        rows.append(row)
    return rows


def ground_truth(row: RowJson, field: str | None) -> str | None:
    """A task's reference answer as text; other values as JSON."""
    for name in (field,) if field else GROUND_TRUTHS:
        value = row.get(name)
        if value is not None:
            return value if isinstance(value, str) else to_json(value).decode()
    if field and field not in row:
        raise UsageError(
            f"--ground-truth {field}: task has only {', '.join(key for key in row if key != PARAMS_KEY)}",
            hint="name one of them",
        )
    return None


def _plain(value: object) -> float | int | None:
    """A numpy number as JSON value; NaN becomes null."""
    if isinstance(value, np.integer):
        return int(value)
    number = float(value)  # type: ignore[arg-type]
    return None if np.isnan(number) else number


def _fidelity(conversation: Conversation, shaping: Shaping) -> str:
    if TOKEN_DRIFT in conversation.marks:
        return "token-drift"
    calls = sum(message.role == "assistant" for message in conversation.answer)
    if len(conversation.tokens) == calls and all(record.is_whole for record in conversation.tokens):
        return "token-exact"
    is_lossy = shaping.reasoning == "drop" and any(message.reasoning for message in conversation.answer)
    return "lossy" if is_lossy or "encrypted reasoning left out" in conversation.marks else "text-only"
