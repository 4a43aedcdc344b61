"""Majority votes over the answers of a task's rollouts.

A column of the index holds either numbers or short texts. An answer that is in neither (a long text, a text among numbers, a list)
is read from the rollout's line, so it is never taken for a missing one. A number and the text that spells it are the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from rollforge import at_k
from rollforge.index import ByTask, ints, split_line
from rollforge.stats import Floats, Ints


def majority(rows: ByTask, hits: Floats, answer_field: str, widest: int) -> dict[int, Floats]:
    """majority@k: per k the value of each task that has at least k judged rollouts; `hits` are 1 and 0, NaN for unjudged.

    For every k; where a task has more than `MOST_FOR_EVERY_K`, for 1, 2, 4, 8, … and the most there are.
    """
    if not widest:
        return {}
    is_every = widest <= at_k.MOST_FOR_EVERY_K
    every = range(1, widest + 1) if is_every else [1, *at_k.ladder(widest)]
    known = ~np.isnan(hits)
    judged = np.add.reduceat(known, rows.starts, dtype=np.int64)
    solved = np.add.reduceat(np.where(known, hits, 0.0), rows.starts)
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
    return {k: found[judged >= k] for k, found in by_k.items()}


def _ballots(
    rows: ByTask, answer_field: str, hits: Floats, is_split: np.ndarray
) -> Iterator[tuple[list[int], list[int | None], list[float]]]:
    """Tasks whose votes are cast alike, together: (their places, answers of the judged rollouts, their scores).

    Who gave which answer does not matter, only how often each was given and how often it was right. Among a million tasks
    there are few hundred such patterns, and each is counted once.
    """
    if not is_split.any():
        return
    sizes = np.diff(np.append(rows.starts, len(rows)))
    task = np.repeat(np.arange(len(sizes)), sizes)
    votes = is_split[task] & ~np.isnan(hits)
    given = answers_of(rows, answer_field, votes)[votes]
    task, scores = task[votes], hits[votes]
    order = np.lexsort((given, task))
    given, task = given[order], task[order]
    starts = np.flatnonzero(np.append(True, (given[1:] != given[:-1]) | (task[1:] != task[:-1])))
    counts = np.diff(np.append(starts, len(given)))
    right = np.add.reduceat(scores[order], starts).astype(np.int64)
    is_blank, owner = given[starts] == 0, task[starts]
    # Blanks first, then the most frequent answers; equally frequent ones as they first came, which fixes the order of sums.
    by_task = np.lexsort((order[starts], -counts, ~is_blank, owner))
    codes = np.stack([is_blank, counts, right], axis=1).astype(np.int64)[by_task]
    begins = np.flatnonzero(np.append(True, np.diff(owner[by_task]) > 0))
    ends = np.append(begins[1:], len(codes))
    tasks_by_pattern: dict[bytes, list[int]] = {}
    for begin, end, place in zip(
        begins.tolist(), ends.tolist(), owner[by_task][begins].tolist(), strict=True
    ):
        tasks_by_pattern.setdefault(codes[begin:end].tobytes(), []).append(place)
    for pattern, tasks in tasks_by_pattern.items():
        yield tasks, *_cast(np.frombuffer(pattern, dtype=np.int64).reshape(-1, 3).tolist())


def _cast(pattern: list[list[int]]) -> tuple[list[int | None], list[float]]:
    """The votes of a pattern: an answer per vote (None: no answer), and its score."""
    answers: list[int | None] = []
    scores: list[float] = []
    for number, (is_blank, count, right) in enumerate(pattern, 1):
        answers += [None if is_blank else number] * count
        scores += [1.0] * right + [0.0] * (count - right)
    return answers, scores


def answers_of(rows: ByTask, field: str, wanted: np.ndarray) -> Ints:
    """The answers of the wanted rollouts as numbers, equal where the answers are; 0 for those that gave none."""
    given, values = rows.numbered(field)
    name = rows.index.name_by_column.get(field)
    if name is None:
        return given
    places = np.flatnonzero(wanted & (given == 0))
    if not len(places):
        return given
    places = places[np.argsort(rows.order[places])]  # in the order of the file
    number_by_answer = {_spelled(value): number for number, value in enumerate(values, 1)}
    numbers = ints(rows.index.table(["row"], rows.where).column(0))[rows.order[places]]
    if not rows.index.is_of_rows(name):
        # Where a later verdict counts, the row's own answer is not the one it judged.
        is_own = ~np.isin(numbers, rows.index.judged_later())
        places, numbers = places[is_own], numbers[is_own]
    for place, line in zip(places.tolist(), rows.index.read(numbers.tolist()), strict=True):
        answer = _answer_in(line, name)
        if answer is not None:
            given[place] = number_by_answer.setdefault(answer, len(number_by_answer) + 1)
    return given


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
    """An answer as text: a whole number without a point, a list or an object with its keys in order."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(int(value)) if value % 1 == 0 else repr(float(value))
    return msgspec.json.encode(value, order="deterministic").decode()
