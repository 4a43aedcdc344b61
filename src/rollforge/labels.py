"""Labels: what people said about verdicts, and what that says about the verifier.

A person agrees or disagrees with the verdict of a rollout, or is unsure. Rates are computed from labels of the random queue
alone: labels of suspicious rollouts find bugs, and would overstate how often the verifier is wrong.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from rollforge.errors import UsageError
from rollforge.index import Index
from rollforge.intervals import Estimate, clustered_mean
from rollforge.store import UNREADABLE, RunFiles, mend_tail
from rollforge.store.reading import lines_of

Opinion = Literal["agree", "disagree", "unsure"]
Queue = Literal["random", "suspicious", "free"]

FEWEST = 20
"""Labels below which no rate is computed: an interval of a handful says nothing."""


class Label(Struct, frozen=True, kw_only=True):
    """What one person said about one verdict."""

    task: int
    rollout: int
    label: Opinion
    reward: float | None = None
    """The reward that was judged: a later verdict may be another."""
    verifier: str | None = None
    who: str = ""
    queue: Queue = "free"
    """How the rollout was chosen: drawn at random, pointed at by checks, or found by hand."""
    seed: int | None = None
    """Seed of the random queue."""
    blind: bool = False
    """Whether the verdict was hidden until the key was pressed."""
    at: float = 0.0
    note: str = ""


class LabelFile:
    """`rollouts_labels.jsonl`: appended, never edited; the newest label of a person for a rollout wins."""

    def __init__(self, files: RunFiles) -> None:
        self.path: Path = files.labels

    def add(self, label: Label) -> Label:
        """Append a label; it is on disk when this returns."""
        made = msgspec.structs.replace(label, who=label.who or _user(), at=label.at or time.time())
        mend_tail(self.path)
        line = msgspec.json.encode(made) + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        return made

    def read(self) -> Iterator[Label]:
        """All labels in the order they were made; lines that are none are passed over."""
        for line in lines_of(self.path):
            try:
                yield msgspec.json.decode(line, type=Label)
            except UNREADABLE:
                continue

    def newest(self) -> list[Label]:
        """The newest label of each person for each rollout."""
        found = {(one.task, one.rollout, one.who): one for one in self.read()}
        return list(found.values())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in many containers
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def label_queue(
    index: Index, kind: str, *, seed: int = 0, done: Collection[tuple[int, int]] = (), count: int = 50
) -> list[tuple[int, int, int]]:
    """The next rollouts to label as (row, task, rollout), without those already labelled.

    The random queue is an order of all judged rollouts drawn by `seed` from their keys, so that it is the same whatever
    order the lines are in, and any prefix of it is a random sample.
    """
    orders = {
        "random": f"hash(task, rollout, {int(seed)}), task, rollout",
        "suspicious": "suspicion DESC, task, rollout",
    }
    if kind not in orders:
        raise UsageError(f"there is no queue {kind!r}", hint="random or suspicious")
    source = "SELECT row, task, rollout, 0 AS suspicion FROM rollouts WHERE reward IS NOT NULL"
    if kind == "suspicious":
        source = (
            "SELECT row, task, rollout, CAST(is_empty AND reward > 0 AS INT) * 4 + CAST(coalesce(error_text, false) AS INT) * 3 + "
            "CAST(is_refusal AND reward > 0 AS INT) * 3 + CAST(is_truncated AND reward > 0 AS INT) * 2 + "
            "CAST(reward > 0 AND answer_chars < 5 AS INT) AS suspicion FROM rollouts WHERE reward IS NOT NULL"
        )
    only = " WHERE suspicion > 0" if kind == "suspicious" else ""
    table = index.select(
        f"SELECT row, task, rollout FROM ({source}){only} ORDER BY {orders[kind]} LIMIT {count + len(done)}"
    )
    keys = zip(*(table.column(name).to_pylist() for name in ("row", "task", "rollout")), strict=True)
    return [(row, task, rollout) for row, task, rollout in keys if (task, rollout) not in done][:count]


class LabelRate(Struct, frozen=True, kw_only=True):
    """A share with its interval, clustered by task; no value below `FEWEST` labels."""

    value: float | None
    ci: list[float] | None
    n: int


class LabelRates(Struct, frozen=True, kw_only=True):
    """How good the verifier is, as far as people's labels tell."""

    labels: int
    """Labels in the file, the newest per person and rollout."""
    random: int
    """Those from the random queue that say agree or disagree: every rate is over these."""
    suspicious: int
    unsure: int
    stale: int
    """Labels about a reward that the rollout no longer has."""
    blind: int
    threshold: float
    error: LabelRate
    """Verdicts people disagree with."""
    precision: LabelRate
    """Of the rollouts the verifier passes, those that people pass."""
    recall: LabelRate
    """Of the rollouts people pass, those that the verifier passes."""
    false_positive: LabelRate
    """Of the rollouts people fail, those that the verifier passes."""


def run_rates(index: Index, *, threshold: float = 0.5) -> LabelRates | None:
    """The rates of a run of one file, from the labels beside it; None when it has no labels."""
    if len(index.runs) != 1 or not index.runs[0].labels.is_file():
        return None
    return label_rates(index, LabelFile(index.runs[0]).newest(), threshold=threshold)


def is_right(label: Label, threshold: float = 0.5) -> bool | None:
    """Whether the person takes the answer for right; None when unsure, or when the label names no reward."""
    if label.label == "unsure" or label.reward is None:
        return None
    return (label.reward >= threshold) == (label.label == "agree")


def label_rates(index: Index, labels: Sequence[Label], *, threshold: float = 0.5) -> LabelRates:
    """Precision, recall and error rates of the verdicts that count, from random labels alone."""
    rewards = _rewards(index, labels)
    random = [one for one in labels if one.queue == "random"]
    current = [one for one in random if _is_current(one, rewards)]
    sure = [one for one in current if one.label != "unsure"]
    task = np.array([one.task for one in sure], dtype=np.int64)
    passed = np.array([rewards[one.task, one.rollout] >= threshold for one in sure], dtype=np.bool_)
    agreed = np.array([one.label == "agree" for one in sure], dtype=np.bool_)
    is_right = (
        passed == agreed
    )  # a person who agrees with a pass, or disagrees with a fail, passes the answer
    return LabelRates(
        labels=len(labels),
        random=len(sure),
        suspicious=sum(one.queue == "suspicious" for one in labels),
        unsure=sum(one.label == "unsure" for one in current),
        stale=len(random) - len(current),
        blind=sum(one.blind for one in sure),
        threshold=threshold,
        error=_rate(task, ~agreed, np.ones(len(sure), dtype=np.bool_)),
        precision=_rate(task, is_right, passed),
        recall=_rate(task, passed, is_right),
        false_positive=_rate(task, passed, ~is_right),
    )


def _rewards(index: Index, labels: Sequence[Label]) -> dict[tuple[int, int], float]:
    tasks = sorted({one.task for one in labels})
    if not tasks:
        return {}
    table = index.select(
        f"SELECT task, rollout, reward FROM rollouts WHERE reward IS NOT NULL AND task IN ({', '.join(map(str, tasks))})"
    )
    keys = zip(*(table.column(name).to_pylist() for name in ("task", "rollout", "reward")), strict=True)
    return {(task, rollout): reward for task, rollout, reward in keys}


def _is_current(label: Label, rewards: dict[tuple[int, int], float]) -> bool:
    """Whether the rollout still has the reward that the person judged."""
    now = rewards.get((label.task, label.rollout))
    return now is not None and (label.reward is None or abs(label.reward - now) < 1e-9)


def _rate(task: np.ndarray, hits: np.ndarray, among: np.ndarray) -> LabelRate:
    """Share of hits among the chosen, with an interval over tasks."""
    chosen = task[among]
    if len(chosen) < FEWEST:
        return LabelRate(value=None, ci=None, n=len(chosen))
    _, group = np.unique(chosen, return_inverse=True)
    sums = np.bincount(group, hits[among].astype(np.float64))
    found: Estimate = clustered_mean(sums, np.bincount(group).astype(np.float64), is_share=True)
    return LabelRate(value=found.value, ci=found.ci, n=len(chosen))
