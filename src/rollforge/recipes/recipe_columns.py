"""The columns of a run that recipes read: from its index, or from single rollouts during a collection.

Both sources give the same values for a row, so that counts during a collection equal those afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rollforge.index import AnswerFacts, Index, codes, flags, floats, ints, is_known
from rollforge.recipes.base import Candidates, Ints, scrambled
from rollforge.records import UNANSWERED

FLAGS = ("truncated", "empty", "error_text", "failed", "filtered", "masked")

MASKED = "mask_sample"
"""NeMo Gym's mark for rollouts that must not be trained on."""

_COLUMNS: dict[str, tuple[str, Callable[[pa.ChunkedArray], np.ndarray]]] = {
    "task": ("task", partial(ints, missing=-1)),
    "rollout": ("rollout", partial(ints, missing=-1)),
    "line": ("line", partial(ints, missing=-1)),
    "prompt_hash": ("prompt_hash", ints),
    "answer_hash": ("answer_hash", ints),
    "answer_chars": ("answer_chars", ints),
    "tool_calls": ("tool_calls", ints),
    "reward": ("reward", floats),
    "truncated": ("is_truncated", flags),
    "empty": ("is_empty", flags),
    "refusal": ("is_refusal", flags),
    "error_text": ("error_text", flags),
}
"""Column → (name in the index, conversion); a missing reward becomes NaN, a missing flag false."""


def candidate_columns(index: Index) -> dict[str, np.ndarray]:
    """The run's columns as numpy arrays. Most runs need no SQL, which avoids the cost of starting DuckDB."""
    table = index.table([name for name, _ in _COLUMNS.values()])
    columns = {name: convert(table.column(stored)) for name, (stored, convert) in _COLUMNS.items()}
    columns["has_answer"] = is_known(table.column("answer_hash"))
    columns["empty"] = columns["empty"] & ~columns.pop(
        "refusal"
    )  # a refusal is an answer, though not as text
    finish, reasons = codes(index.table(["finish_reason"], may_code=True).column(0))
    for flag, meant in (("failed", UNANSWERED), ("filtered", ("content_filter",))):
        columns[flag] = np.isin(finish, [number for number, reason in enumerate(reasons) if reason in meant])
    columns["masked"] = np.zeros(table.num_rows, dtype=bool)
    if MASKED in index.columns():
        columns["masked"] = floats(index.table([MASKED]).column(0)) == 1
    if index.duplicate_count:
        columns["row"] = ints(index.table(["row"]).column("row"))
    else:
        columns["row"] = np.arange(table.num_rows)
    return columns


def rollout_keys(columns: dict[str, np.ndarray]) -> Ints:
    """A hash of each rollout's identity: task and sample, or prompt and answer if it has no numbers."""
    task = np.where(columns["task_key"] >= 0, columns["task_key"], columns["prompt_hash"])
    sample = np.where(columns["sample_key"] >= 0, columns["sample_key"], columns["answer_hash"])
    return (scrambled(task, 5) ^ scrambled(sample, 6)).astype(np.int64)


def answer_codes(columns: dict[str, np.ndarray]) -> Ints:
    """Codes that are equal for equal answers. An answer with tool calls equals no other, since its hash covers only text."""
    is_comparable = columns["has_answer"] & (columns["tool_calls"] == 0)
    alone = scrambled(np.arange(len(is_comparable)), 4).astype(np.int64)
    return np.where(is_comparable, columns["answer_hash"], alone)


class RolloutFacts(NamedTuple):
    """The facts of one rollout that recipes read."""

    sample: int
    reward: float
    """NaN without a reward."""
    answer_hash: int
    has_answer: bool
    answer_chars: int
    tool_calls: int
    truncated: bool
    empty: bool
    error_text: bool
    failed: bool
    filtered: bool
    masked: bool


def facts_of(sample: int, answer: AnswerFacts, *, reward: float | None, is_masked: bool) -> RolloutFacts:
    """The facts of a rollout, from its row during a collection."""
    return RolloutFacts(
        sample=sample,
        reward=math.nan if reward is None else float(reward),
        answer_hash=answer.answer_hash or 0,
        has_answer=answer.answer_hash is not None,
        answer_chars=answer.answer_chars or 0,
        tool_calls=answer.tool_calls or 0,
        truncated=bool(answer.is_truncated),
        empty=bool(answer.is_empty) and not answer.is_refusal,
        error_text=bool(answer.error_text),
        failed=answer.finish_reason in UNANSWERED,
        filtered=answer.finish_reason == "content_filter",
        masked=is_masked,
    )


def facts_at(columns: dict[str, np.ndarray], rows: Ints) -> list[RolloutFacts]:
    """The facts of these rows of `candidate_columns`, ordered by sample."""
    names = ("rollout", *RolloutFacts._fields[1:])
    values = zip(*(columns[name][rows].tolist() for name in names), strict=True)
    return sorted((RolloutFacts(*each) for each in values), key=lambda facts: facts.sample)


def candidates_of(task: int, facts: list[RolloutFacts]) -> Candidates:
    """The rollouts of one task as candidates, ordered by sample."""
    columns: dict[str, np.ndarray] = {
        name: np.array([getattr(each, name) for each in facts]) for name in RolloutFacts._fields
    }
    columns["task_key"], columns["sample_key"] = np.full(len(facts), task, dtype=np.int64), columns["sample"]
    columns["prompt_hash"] = columns["task_key"]  # not read: every row has its numbers
    return Candidates(
        row=np.arange(len(facts)),
        group=np.zeros(len(facts), dtype=np.int64),
        reward=columns["reward"].astype(np.float64),
        answer=answer_codes(columns),
        chars=columns["answer_chars"],
        key=rollout_keys(columns),
        flags={name: columns[name].astype(bool) for name in FLAGS},
    )
