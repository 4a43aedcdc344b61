"""This module makes prompt examples: a task's prompt, its ground truth and what its rollouts say about its difficulty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rollforge.errors import UsageError
from rollforge.exporters.examples import Example, Prompt
from rollforge.exporters.messages import Conversation, Inexpressible
from rollforge.records import PARAMS_KEY, JsonObject, from_json, to_json

if TYPE_CHECKING:
    from rollforge.steps.prepare.examples import Converter

GROUND_TRUTHS = ("expected_answer", "ground_truth", "answer", "solution", "label", "target", "gold")
"""Task fields taken as the ground truth, the first that is there."""

_CHAT = ("messages", "prompt", "completion")
"""Where a rollout in chat form has its prompt, and its answer."""

_OF_A_ROLLOUT = ("response", "reward", "reward_components", "mask_sample", "verification_skipped")


def make_prompts(converter: Converter, chunk: np.ndarray) -> Iterator[tuple[int, Example | Inexpressible]]:
    """One prompt example per task of the chunk."""
    positions = converter.plan.selection.picks[chunk]
    rows = _task_rows(converter, positions)
    for number, position, row in zip(chunk, positions, rows, strict=True):
        try:
            yield int(number), _prompt(converter, int(number), int(position), row)
        except Inexpressible as error:
            yield int(number), error


def _task_rows(converter: Converter, positions: np.ndarray) -> list[JsonObject]:
    """The task rows as sent, or what a rollout repeats of them where the run has no tasks file."""
    pool = converter.pool
    known: dict[tuple[int, int], JsonObject] = {}
    for run in np.unique(pool.run[positions]):
        tasks = [int(pool.task[p]) for p in positions if pool.run[p] == run and pool.task[p] >= 0]
        known |= {(int(run), task): row for task, row in pool.indexes[run].task_rows(sorted(set(tasks)))}
    missing = [p for p in positions if (int(pool.run[p]), int(pool.task[p])) not in known]
    lines = dict(zip(missing, pool.read(np.array(missing, dtype=np.int64)), strict=True)) if missing else {}
    found = []
    for position in positions:
        row = known.get((int(pool.run[position]), int(pool.task[position])))
        row = dict(row) if row is not None else from_json(lines[position])
        row = {
            key: value
            for key, value in row.items()
            if key not in _OF_A_ROLLOUT and not key.startswith(("_ng_", "_rf"))
        }
        agent = pool.agents[int(position)]
        if "agent_ref" not in row and agent is not None:
            row["agent_ref"] = {"name": agent}
        found.append(row)
    return found


def _prompt(converter: Converter, number: int, position: int, row: JsonObject) -> Prompt:
    plan, pool = converter.plan, converter.pool
    if converter.exporter.has_task_rows:
        conversation = Conversation([], [])  # the row goes out as it is, whatever messages could say of it
        for problem in converter.exporter.problems("", "prompt", row):
            raise Inexpressible(problem)
    else:
        conversation = _conversation(converter, row)
    row = {key: value for key, value in row.items() if key not in _CHAT}
    converter.tally.marks.update(conversation.marks)
    truth = ground_truth(row, converter.settings.ground_truth)
    if truth is None:
        converter.tally.marks["no ground truth in the task"] += 1
    return Prompt(
        prompt=conversation.prompt,
        tools=conversation.tools,
        ground_truth=truth or "",
        numbers={name: plain(column[number]) for name, column in plan.selection.values.items()},
        task=converter.task_id(position),
        index=number,
        source=pool.agents[position] or "rollforge",
        split=plan.splits[int(plan.split[number])],
        fields=to_json(row),
    )


def _conversation(converter: Converter, row: JsonObject) -> Conversation:
    """The prompt of a task row; of a rollout in chat form where there is no other."""
    if isinstance(row.get(PARAMS_KEY), dict):
        found = converter.read_prompt(to_json(row[PARAMS_KEY]))
    elif any(key in row for key in _CHAT):
        found = converter.read_chat_prompt(row)
    else:
        raise Inexpressible("the task has no responses_create_params")
    if found.asks_nothing:
        raise Inexpressible("empty prompt")
    return found


def ground_truth(row: JsonObject, field: str | None) -> str | None:
    """What the verifier compares with, as text; JSON for what is no text."""
    for name in (field,) if field else GROUND_TRUTHS:
        value = row.get(name)
        if value is not None:
            return value if isinstance(value, str) else to_json(value).decode()
    if field and field not in row:
        raise UsageError(
            f"--ground-truth {field}: task has only {', '.join(key for key in row if key != PARAMS_KEY)}"
        )
    return None


def plain(value: object) -> float | int | None:
    """A numpy number as JSON has it: NaN is null."""
    if isinstance(value, np.integer):
        return int(value)
    number = float(value)  # type: ignore[arg-type]
    return None if np.isnan(number) else number
