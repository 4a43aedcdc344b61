"""Labels: people's judgements of verdicts, and the verifier's error rates computed from them.

A person agrees or disagrees with the verdict of a rollout, or is unsure. Rates are computed from labels of the random and the
stratified queue alone: labels of suspicious rollouts find bugs, and would overstate how often the verifier is wrong. The
stratified queue draws equally many passed and failed rollouts, which suits verifiers that pass few; rates weight each stratum by
its share of the run.
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
from rollforge.review.random_order import random_order_sql
from rollforge.review.suspicion import ROWS_WITH_TWINS, score_sql
from rollforge.runtime.typed_decoding import decode_json
from rollforge.statistics.counts import count_of
from rollforge.statistics.intervals import Estimate, clustered_mean
from rollforge.store import UNREADABLE, RunFiles, mend_tail
from rollforge.store.reading import lines_of
from rollforge.store.shipping import copy_of
from rollforge.text_safety.markup import decimal, interval, result, table

Opinion = Literal["agree", "disagree", "unsure"]
Queue = Literal["random", "stratified", "suspicious", "free"]

MEASURING: tuple[Queue, ...] = ("random", "stratified")
"""Queues whose labels are random samples of the run, or of each of its strata."""

PASS = 0.5
"""Rewards from this value on count as passed; this separates the two strata."""

FEWEST = 20
"""Fewest labels for a rate: with fewer, the interval is too wide to be useful."""


class Label(Struct, frozen=True, kw_only=True):
    """One person's label of one verdict."""

    task: int
    rollout: int
    label: Opinion
    reward: float | None = None
    """The reward that was judged; a later verdict may have a different one."""
    verifier: str | None = None
    who: str = ""
    queue: Queue = "free"
    """How the rollout was selected: at random, at random per stratum, by checks, or by hand."""
    seed: int | None = None
    """Seed of the random or stratified queue."""
    blind: bool = False
    """Whether the verdict was hidden until the key was pressed."""
    at: float = 0.0
    note: str = ""


class LabelFile:
    """`rollouts_labels.jsonl`: appended, never edited; a person's newest label of a rollout counts."""

    def __init__(self, files: RunFiles) -> None:
        self.path: Path = files.labels

    def add(self, label: Label) -> Label:
        """Append a label durably."""
        made = msgspec.structs.replace(label, who=label.who or _user(), at=label.at or time.time())
        mend_tail(self.path)
        line = msgspec.json.encode(made) + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        if (copy := copy_of(self.path)) is not None:
            copy.replace(self.path)
        return made

    def read(self) -> Iterator[Label]:
        """All labels in file order; invalid lines are skipped."""
        for line in lines_of(self.path):
            try:
                yield decode_json(line, Label)
            except UNREADABLE:
                continue

    def newest(self) -> list[Label]:
        """The newest label of each person for each rollout.

        A rollout that was drawn at random stays in that sample when the person labels it again by hand.
        """
        latest: dict[tuple[int, int, str], Label] = {}
        for one in self.read():
            key = one.task, one.rollout, one.who
            before = latest.get(key)
            if before is not None and before.queue in MEASURING and one.queue not in MEASURING:
                one = msgspec.structs.replace(one, queue=before.queue, seed=before.seed)
            latest[key] = one
        return list(latest.values())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in many containers
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def label_queue(
    index: Index, kind: str, *, seed: int = 0, done: Collection[tuple[int, int]] = (), count: int = 50
) -> list[tuple[int, int, int]]:
    """The next unlabelled rollouts as (row, task, rollout).

    The random queue is an order of all judged rollouts drawn by `seed` from their keys, so that it is the same whatever order the
    lines are in, and any prefix of it is a random sample. The stratified queue alternates between passed and failed rollouts,
    each in that order.
    """
    drawn = f"{random_order_sql(seed)}, task, rollout"
    orders = {
        "random": drawn,
        "stratified": f"row_number() OVER (PARTITION BY passes ORDER BY {drawn}), passes DESC",
        "suspicious": "suspicion DESC, task, rollout",
    }
    if kind not in orders:
        raise UsageError(f"there is no queue {kind!r}", hint="random, stratified or suspicious")
    source = f"SELECT row, task, rollout, reward >= {PASS} AS passes FROM rollouts WHERE reward IS NOT NULL"
    if kind == "suspicious":
        source = f"SELECT row, task, rollout, {score_sql()} AS suspicion FROM ({ROWS_WITH_TWINS}) WHERE reward IS NOT NULL"
    only = " WHERE suspicion > 0" if kind == "suspicious" else ""
    table = index.select(
        f"SELECT row, task, rollout FROM ({source}){only} ORDER BY {orders[kind]} LIMIT {count + len(done)}"
    )
    keys = zip(*(table.column(name).to_pylist() for name in ("row", "task", "rollout")), strict=True)
    return [(row, task, rollout) for row, task, rollout in keys if (task, rollout) not in done][:count]


def labelled(index: Index, labels: Sequence[Label], kind: str) -> set[tuple[int, int]]:
    """Rollouts that a queue need not ask about again.

    A label given by hand, or in the suspicious queue, does not take a rollout out of the random and stratified queues: what is
    left would be a sample of the inconspicuous ones. A label about a reward that the rollout no longer has counts as none.
    """
    counted = [one for one in labels if kind not in MEASURING or one.queue in MEASURING]
    rewards = _rewards(index, counted)
    return {(one.task, one.rollout) for one in counted if _is_current(one, rewards)}


class LabelRate(Struct, frozen=True, kw_only=True):
    """A share with an interval clustered by task; without a value below `FEWEST` labels."""

    value: float | None
    ci: list[float] | None
    n: int


class LabelRates(Struct, frozen=True, kw_only=True):
    """Quality of the verifier, estimated from people's labels."""

    labels: int
    """Labels in the file, the newest per person and rollout."""
    random: int
    """Labels from the random and stratified queues that say agree or disagree; every rate is computed from these."""
    stratified: int
    """Those of them that were drawn per stratum."""
    suspicious: int
    unsure: int
    stale: int
    """Labels of a reward that the rollout no longer has."""
    blind: int
    threshold: float
    error: LabelRate
    """Share of verdicts that people disagree with."""
    precision: LabelRate
    """Share of the rollouts passed by the verifier that people pass too."""
    recall: LabelRate
    """Share of the rollouts passed by people that the verifier passes too."""
    false_positive: LabelRate
    """Share of the rollouts failed by people that the verifier passes."""

    def _repr_html_(self) -> str:
        names = ("error", "precision", "recall", "false_positive")
        rates: list[tuple[str, LabelRate]] = [(name, getattr(self, name)) for name in names]
        rows = [
            [name.replace("_", " "), decimal(one.value), interval(one.ci), f"{one.n:,}"]
            for name, one in rates
        ]
        return result(
            f"the verifier by {count_of(self.labels, 'label')} of people",
            table(("rate", "value", "95 % interval", "n"), rows),
        )


def run_rates(index: Index, *, threshold: float = 0.5) -> LabelRates | None:
    """Rates of a run of one file, from the labels beside it; None without labels."""
    if len(index.runs) != 1 or not index.runs[0].labels.is_file():
        return None
    return label_rates(index, LabelFile(index.runs[0]).newest(), threshold=threshold)


def is_right(label: Label, threshold: float = 0.5) -> bool | None:
    """Whether the person considers the answer right; None if unsure, or if the label has no reward."""
    if label.label == "unsure" or label.reward is None:
        return None
    return (label.reward >= threshold) == (label.label == "agree")


def label_rates(index: Index, labels: Sequence[Label], *, threshold: float = 0.5) -> LabelRates:
    """Precision, recall and error rates of the verdicts that count, from labels of the random and stratified queues only."""
    rewards = _rewards(index, labels)
    drawn = [one for one in labels if one.queue in MEASURING]
    current = [one for one in drawn if _is_current(one, rewards)]
    sure = [one for one in current if one.label != "unsure"]
    task = np.array([one.task for one in sure], dtype=np.int64)
    reward = np.array([rewards[one.task, one.rollout] for one in sure], dtype=np.float64)
    passed = reward >= threshold
    agreed = np.array([one.label == "agree" for one in sure], dtype=np.bool_)
    # A person who agrees with a pass, or disagrees with a fail, passes the answer.
    is_right = passed == agreed
    stratified = sum(one.queue == "stratified" for one in sure)
    weight = _weights(index, reward >= PASS) if stratified else np.ones(len(sure))
    everything = np.ones(len(sure), dtype=np.bool_)
    return LabelRates(
        labels=len(labels),
        random=len(sure),
        stratified=stratified,
        suspicious=sum(one.queue == "suspicious" for one in labels),
        unsure=sum(one.label == "unsure" for one in current),
        stale=len(drawn) - len(current),
        blind=sum(one.blind for one in sure),
        threshold=threshold,
        error=_rate(task, weight, ~agreed, everything),
        precision=_rate(task, weight, is_right, passed),
        recall=_rate(task, weight, passed, is_right),
        false_positive=_rate(task, weight, passed, ~is_right),
    )


def _weights(index: Index, passed: np.ndarray) -> np.ndarray:
    """Weight of each label: rollouts per label in its stratum. NaN for all if a stratum has no label."""
    sizes = index.select(
        f"SELECT count(*) FILTER (reward < {PASS}) AS failed, count(*) FILTER (reward >= {PASS}) AS passed "
        "FROM rollouts WHERE reward IS NOT NULL"
    ).to_pylist()[0]
    population = np.array([sizes["failed"], sizes["passed"]], dtype=np.float64)
    labelled = np.bincount(passed.astype(np.int64), minlength=2).astype(np.float64)
    if bool(((population > 0) & (labelled == 0)).any()):
        return np.full(len(passed), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((population / labelled)[passed.astype(np.int64)])


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


def _rate(task: np.ndarray, weight: np.ndarray, hits: np.ndarray, among: np.ndarray) -> LabelRate:
    """Weighted share of hits among the selected labels, with a cluster-robust interval over tasks."""
    chosen, weights = task[among], weight[among]
    if len(chosen) < FEWEST or bool(np.isnan(weights).any()):
        return LabelRate(value=None, ci=None, n=len(chosen))
    weights = weights * weights.sum() / (weights**2).sum()  # they now add up to Kish's effective sample size
    _, group = np.unique(chosen, return_inverse=True)
    sums = np.bincount(group, weights * hits[among])
    estimate: Estimate = clustered_mean(sums, np.bincount(group, weights), is_share=True)
    return LabelRate(value=estimate.value, ci=estimate.ci, n=len(chosen))
