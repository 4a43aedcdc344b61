"""Majority votes over the answers of a task's rollouts.

A column of the index holds either numbers or short texts. An answer outside the column (a long text, a text among numbers, a
list) is read from the rollout's line, so that it does not count as missing. A number and its text form are the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from rollforge.index import ByTask, ints, split_line
from rollforge.statistics import at_k
from rollforge.statistics.stats import Floats, Ints


def majority(rows: ByTask, hits: Floats, answer_field: str, widest: int) -> dict[int, Floats]:
    """majority@k: per k the value of each task that has at least k judged rollouts; `hits` are 1 and 0, NaN for unjudged.

    For every k; if a task has more than `MOST_FOR_EVERY_K` rollouts, for 1, 2, 4, 8, … and the largest k.
    """
    if not widest:
        return {}
    is_every = widest <= at_k.MOST_FOR_EVERY_K
    every = range(1, widest + 1) if is_every else [1, *at_k.ladder(widest)]
    is_judged = ~np.isnan(hits)
    judged = np.add.reduceat(is_judged, rows.starts, dtype=np.int64)
    solved = np.add.reduceat(np.where(is_judged, hits, 0.0), rows.starts)
    values = np.where(solved > 0, 1.0, 0.0)  # where all are right, or none is, the vote changes nothing
    split = (solved > 0) & (solved < judged)
    by_k = {k: values.copy() for k in every}
    for tasks, answers, scores in _ballots(rows, answer_field, hits, split):
        known_k = [k for k in every if k <= len(scores)]
        outcomes = (
            at_k.majority_every_k(answers, scores)
            if is_every
            else [at_k.majority_at_k(answers, scores, k) for k in known_k]
        )
        for k, value in zip(known_k, outcomes, strict=True):
            by_k[k][tasks] = value
    return {k: votes[judged >= k] for k, votes in by_k.items()}


def _ballots(
    rows: ByTask, answer_field: str, hits: Floats, is_split: np.ndarray
) -> Iterator[tuple[Ints, list[int | None], list[float]]]:
    """Groups of tasks with the same vote pattern: (their positions, answers of the judged rollouts, their scores).

    A pattern is how often each answer occurs and how often it is right. A million tasks have a few hundred patterns, and each is
    evaluated once.
    """
    if not is_split.any():
        return
    votes = np.repeat(is_split, rows.sizes) & ~np.isnan(hits)
    answers = answers_of(rows, answer_field, votes)[votes]
    task, scores = np.repeat(np.arange(len(rows.sizes)), rows.sizes)[votes], hits[votes]
    width = int(answers.max()) + 1
    ballot = task * width + answers  # there are no more answers than rollouts, so that it fits
    order = np.argsort(ballot, kind="stable")
    ballot = ballot[order]
    starts = np.flatnonzero(np.append(True, ballot[1:] != ballot[:-1]))
    counts = np.diff(np.append(starts, len(ballot)))
    right = np.add.reduceat(scores[order], starts).astype(np.int64)
    owner, answer = np.divmod(ballot[starts], width)
    is_blank = answer == 0
    # Blanks first, then the most frequent answers; equally frequent ones as they first came, which fixes the order of sums.
    by_task = np.lexsort((order[starts], (owner * 2 + ~is_blank) * (counts.max() + 1) - counts))
    counts, right, is_blank = counts[by_task], right[by_task], is_blank[by_task]
    kinds, shown, kind = np.unique(
        (counts * (counts.max() + 1) + right) * 2 + is_blank, return_index=True, return_inverse=True
    )
    cast = np.stack([is_blank, counts, right], axis=1)[shown]
    begins = np.flatnonzero(np.append(True, np.diff(owner[by_task]) > 0))
    positions, lengths = owner[by_task][begins], np.diff(np.append(begins, len(kind)))
    for length in np.unique(lengths).tolist():
        chosen = lengths == length
        owners = positions[chosen]
        ballots = kind[begins[chosen][:, None] + np.arange(length)]
        pattern = np.zeros(len(ballots), dtype=np.int64)
        for column in ballots.T:  # numbered anew at each step, so that the numbers stay small
            pattern = np.unique(pattern * len(kinds) + column, return_inverse=True)[1]
        by_pattern = np.argsort(pattern, kind="stable")
        firsts = np.flatnonzero(np.append(True, np.diff(pattern[by_pattern]) > 0))
        for alike in np.split(by_pattern, firsts[1:]):
            yield owners[alike], *_cast(cast[ballots[alike[0]]].tolist())


def _cast(pattern: list[list[int]]) -> tuple[list[int | None], list[float]]:
    """The votes of a pattern: the answer of each vote (None: no answer), and its score."""
    answers: list[int | None] = []
    scores: list[float] = []
    for number, (is_blank, count, right) in enumerate(pattern, 1):
        answers += [None if is_blank else number] * count
        scores += [1.0] * right + [0.0] * (count - right)
    return answers, scores


def answers_of(rows: ByTask, field: str, wanted: np.ndarray) -> Ints:
    """Answers of the selected rollouts as codes, equal for equal answers; 0 for no answer."""
    answer_numbers, values = rows.numbered(field)
    name = rows.index.name_by_column.get(field)
    if name is None:
        return answer_numbers
    positions = np.flatnonzero(wanted & (answer_numbers == 0))
    if not len(positions):
        return answer_numbers
    positions = positions[np.argsort(rows.order[positions])]  # in the order of the file
    number_by_answer = {_spelled(value): number for number, value in enumerate(values.to_pylist(), 1)}
    numbers = ints(rows.index.table(["row"], rows.where).column(0))[rows.order[positions]]
    if not rows.index.is_of_rows(name):
        # Where a later verdict counts, the row's own answer is not the one it judged.
        is_own = ~np.isin(numbers, rows.index.judged_later())
        positions, numbers = positions[is_own], numbers[is_own]
    for position, line in zip(positions.tolist(), rows.index.read(numbers.tolist()), strict=True):
        answer = _answer_in(line, name)
        if answer is not None:
            answer_numbers[position] = number_by_answer.setdefault(answer, len(number_by_answer) + 1)
    return answer_numbers


def _answer_in(line: bytes, name: str) -> str | None:
    raw = split_line(line)[0].get(name)
    if raw is None:
        return None
    try:
        return _spelled(msgspec.json.decode(raw))
    except (
        msgspec.DecodeError
    ):  # half a character, or a number that no float holds: equal where the bytes are
        return bytes(raw).decode("utf-8", "replace")


def _spelled(value: Any) -> str | None:
    """An answer as text: an integer without decimal point, a list or an object as JSON with sorted keys."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(int(value)) if value % 1 == 0 else repr(float(value))
    return msgspec.json.encode(value, order="deterministic").decode()
