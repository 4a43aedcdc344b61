"""Generates healthy runs: random numpy columns, with text generated only for rows that are read.

A run is a pure function of its shape and seed. Tasks differ in difficulty, wrong answers are longer, some answers are cut off or
empty, and some rollouts fail or stay unjudged at random; all of this is healthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.evidence_source import About
from rollforge.json_shapes import RowJson
from rollforge.testing.made_rows import (
    COPY,
    ECHO,
    EMPTY,
    ERROR,
    NEAR_COPY,
    NORMAL,
    REFUSAL,
    TRICK,
    Array,
    Kind,
    RunData,
    Shape,
    manifest_of,
    row_of,
    task_of,
)

BEGUN = 1_763_200_000.0

FORMS = ("collected",) * 6 + ("gym", "nested", "masked", "unrecorded")
"""Probabilities of the row formats."""

MASKED = 0.08
"""Share of samples that a masked run omits."""


@dataclass
class MadeRun(RunData):
    """A generated run, which can be checked in memory or written to disk."""

    def keep(self, chosen: Array) -> None:
        """Keep only the selected rollouts; lines are renumbered."""
        self.columns = {name: column[chosen] for name, column in self.columns.items()}
        self.text_kind, self.value = self.text_kind[chosen], self.value[chosen]
        self.others = {name: rewards[chosen] for name, rewards in self.others.items()}
        self.columns["row"] = np.arange(len(self))
        self.columns["line"] = np.arange(1, len(self) + 1)

    def evidence(self, *, places_limit: int | None = 20) -> Evidence:
        """The run as evidence for checks."""
        return Evidence(self, self.about, places_limit=places_limit)

    # As a source of evidence

    @property
    def numbers(self) -> Sequence[str]:
        return ["reward", "total_tokens", *self.metrics]

    @property
    def whole_numbers(self) -> frozenset[str]:
        return frozenset()

    @property
    def texts(self) -> Sequence[str]:
        return []

    @property
    def task_texts(self) -> Sequence[str]:
        return ["domain"] if self.families else []

    def table(self, columns: Sequence[str]) -> pa.Table:
        return pa.table({name: pa.array(self.columns[name], from_pandas=True) for name in columns})

    def task_table(self, columns: Sequence[str]) -> pa.Table:
        tasks = np.arange(len(self.families))
        return pa.table({name: tasks if name == "task" else self.families for name in columns})

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        for row in rows:
            yield msgspec.json.encode(row_of(self, row))

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, RowJson]]:
        if self.shape.form == "collected":
            yield from ((task, task_of(self, task)) for task in tasks)

    def other_rewards(self) -> Mapping[str, Array]:
        return self.others

    # On disk

    def write(self, folder: str | Path) -> Path:
        """Write the run's files to `folder`; returns the rollouts file."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        with (target / "rollouts.jsonl").open("wb") as file:
            for row in range(len(self)):
                file.write(msgspec.json.encode(row_of(self, row)) + b"\n")
        if self.shape.form != "collected":
            return target / "rollouts.jsonl"
        with (target / "rollouts_tasks.jsonl").open("wb") as file:
            for task in range(self.shape.tasks):
                file.write(msgspec.json.encode(task_of(self, task)) + b"\n")
        (target / "rollouts_run.json").write_bytes(msgspec.json.encode(manifest_of(self)))
        return target / "rollouts.jsonl"


def varied_shape(
    seed: int, *, least_tasks: int = 20, most_tasks: int = 5000, least_samples: int = 1, **fixed: Any
) -> Shape:
    """A random shape: from tiny to large, easy to very hard, with all kinds of reward."""
    rng = np.random.default_rng([seed, 1])
    tasks = int(np.exp(rng.uniform(np.log(least_tasks), np.log(most_tasks))))
    samples = int(rng.choice([k for k in (1, 2, 4, 8, 16) if k >= least_samples]))
    if tasks * samples > 40_000:
        tasks = 40_000 // samples
    drawn = Shape(
        tasks=tasks,
        samples=samples,
        kind=str(rng.choice(["binary", "binary", "continuous", "graded", "signed", "ten"])),  # type: ignore[arg-type]
        mean=float(rng.choice([0.015, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.985])),
        alike=float(rng.uniform(0.05, 0.7)),
        agents=int(rng.choice([1, 1, 2, 3])),
        order="sorted" if rng.random() < 0.2 else "shuffled",
        passes=bool(rng.random() < 0.2),
        is_short=bool(rng.random() < 0.3),
        has_tools=bool(rng.random() < 0.2),
        truncated=float(rng.uniform(0, 0.12)),
        empty=float(rng.uniform(0, 0.008)),
        refused=float(rng.uniform(0, 0.01)),
        unjudged=float(rng.uniform(0, 0.03)),
        failed=float(rng.uniform(0, 0.02)),
    )
    # Drawn separately, so that the shapes of known seeds do not change.
    form = str(np.random.default_rng([seed, 5]).choice(FORMS))
    drawn = replace(drawn, form=form)  # type: ignore[arg-type]
    if form == "unrecorded":
        drawn = replace(drawn, mean=max(drawn.mean, 0.3))
    return replace(drawn, **fixed)


def healthy_run(shape: Shape | None = None, *, seed: int = 0) -> MadeRun:
    """A run of this shape without defects."""
    shape = shape or varied_shape(seed)
    rng = np.random.default_rng([seed, 2])
    n = shape.tasks * shape.samples
    task = np.repeat(np.arange(shape.tasks), shape.samples)
    rollout = np.tile(np.arange(shape.samples), shape.tasks)
    rate = _rates(shape, rng)
    expected = rng.integers(10, 99_999, shape.tasks)
    text_kind = _text_kinds(shape, rng, n)
    is_truncated = (rng.random(n) < shape.truncated) & (text_kind == NORMAL)
    quality = _quality(shape, rng, rate[task])
    quality = np.where((text_kind != NORMAL) | (is_truncated & (rng.random(n) < 0.95)), 0.0, quality)
    is_right = quality >= 0.5
    value = np.where(is_right, expected[task], expected[task] + rng.integers(1, 8, n))
    if shape.is_short:
        quality = _same_for_equal_answers(quality, task, value)
    columns = {
        "task": task, "rollout": rollout, "reward": _rewards(shape.kind, quality),
        "agent": np.asarray([f"agent_{number % shape.agents}" for number in range(shape.tasks)])[task],
        "is_truncated": is_truncated, "is_empty": text_kind == EMPTY, "is_refusal": text_kind == REFUSAL,
        "error_text": text_kind == ERROR, "has_token_ids": np.zeros(n, dtype=np.bool_),
        "model": np.full(n, "model-8b"), "verifier": np.full(n, "exact"), "fingerprint": np.full(n, "1f0c22aa"),
        "mode": np.full(n, None, dtype=object), "accuracy": is_right.astype(np.float64),
        "format_score": rng.random(n).round(3),
    }  # fmt: skip
    _add_lengths(columns, shape, rng, is_right, text_kind)
    _add_times(columns, shape, rng)
    columns["reward"] = np.where(rng.random(n) < shape.unjudged, np.nan, columns["reward"])
    columns["answer_hash"] = _hashes(task, value, np.arange(n), text_kind, is_short=shape.is_short)
    run = MadeRun(
        shape=shape,
        columns=columns,
        text_kind=text_kind,
        value=value,
        expected=expected,
        families=[("algebra", "geometry", "logic")[number % 3] for number in range(shape.tasks)],
        about=About(name="made", model="model-8b", expected=n, samples=shape.samples, is_collected=True),
        metrics=["accuracy", "format_score"],
        seed=seed,
    )
    finished = np.argsort(columns["started"] + columns.pop("seconds_spent"), kind="stable")
    run.keep(finished[rng.random(n) >= shape.failed])
    return run if shape.form == "collected" else _as_shipped(run)


def _as_shipped(run: MadeRun) -> MadeRun:
    """The run without facts that only `collect` records; samples are numbered in order of completion."""
    columns, n = run.columns, len(run)
    task = columns["task"]
    order = np.argsort(task, kind="stable")
    starts = np.searchsorted(task[order], task[order])
    columns["rollout"] = np.empty(n, dtype=np.int64)
    columns["rollout"][order] = np.arange(n) - starts
    for name in ("verifier", "fingerprint"):
        columns[name] = np.full(n, None, dtype=object)
    for name in ("started", "verify_seconds"):
        columns[name] = np.full(n, np.nan)
    run.about = About(name="made")
    if run.shape.form == "masked":
        columns["is_masked"] = np.random.default_rng([run.seed, 6]).random(n) < MASKED
        columns["reward"] = np.where(columns["is_masked"], np.nan, columns["reward"])
    if run.shape.form == "unrecorded":
        run.text_kind = np.full(n, EMPTY)
        columns["tool_calls"] = columns["turns"] = np.zeros(n, dtype=np.int64)
        columns["is_truncated"] = np.zeros(n, dtype=np.bool_)
        rehash(run)
    return run


def _rates(shape: Shape, rng: np.random.Generator) -> Array:
    """Success rate of each task."""
    strength = 1 / shape.alike - 1
    rates = rng.beta(shape.mean * strength, (1 - shape.mean) * strength, shape.tasks)
    return np.sort(rates)[::-1] if shape.order == "sorted" else rates


def _text_kinds(shape: Shape, rng: np.random.Generator, n: int) -> Array:
    drawn = rng.random(n)
    kinds = np.full(n, NORMAL)
    kinds[drawn < shape.empty] = EMPTY
    kinds[(drawn >= shape.empty) & (drawn < shape.empty + shape.refused)] = REFUSAL
    return kinds


def _quality(shape: Shape, rng: np.random.Generator, rate: Array) -> Array:
    """Quality of each answer, in [0, 1]."""
    match shape.kind:
        case "binary" | "signed":
            return (rng.random(len(rate)) < rate).astype(np.float64)
        case "graded":
            return rng.binomial(4, rate) / 4
        case "ten":
            return rng.binomial(10, rate) / 10
        case _:
            return np.clip(rate + rng.normal(0, 0.15, len(rate)), 0, 1).round(3)


def _same_for_equal_answers(quality: Array, task: Array, value: Array) -> Array:
    """Give equal answers to a task equal rewards."""
    keys = task * 200_000 + value
    _, first, code = np.unique(keys, return_index=True, return_inverse=True)
    return quality[first][code]


def _rewards(kind: Kind, quality: Array) -> Array:
    return {"signed": quality * 2 - 1, "ten": quality * 10}.get(kind, quality).astype(np.float64)


def _add_lengths(
    columns: dict[str, Array], shape: Shape, rng: np.random.Generator, is_right: Array, text_kind: Array
) -> None:
    task = columns["task"]
    n = len(task)
    per_task = rng.normal(6.5, 0.5, shape.tasks)[task]
    chars = np.exp(per_task + rng.normal(0, 0.4, n) + np.where(is_right, 0.0, 0.08))
    chars = np.where(columns["is_truncated"], chars * 3, chars)
    if shape.is_short:
        chars = np.full(n, 5.0)
    chars = np.where(text_kind == EMPTY, 0, np.where(text_kind == REFUSAL, 32, np.maximum(chars, 4)))
    columns["answer_chars"] = chars.astype(np.int64)
    calls = rng.poisson(1.5, n) if shape.has_tools else np.zeros(n, dtype=np.int64)
    columns["tool_calls"] = np.where(text_kind == NORMAL, calls, 0)
    columns["turns"] = columns["tool_calls"] + 1
    columns["total_tokens"] = (chars / 4).astype(np.int64) + 120.0


def _add_times(columns: dict[str, Array], shape: Shape, rng: np.random.Generator) -> None:
    n = len(columns["task"])
    turn = np.lexsort((columns["task"], columns["rollout"])) if shape.passes else np.arange(n)
    started = np.empty(n)
    started[turn] = BEGUN + np.cumsum(rng.exponential(0.05, n))
    columns["started"] = started
    columns["seconds_spent"] = 0.3 + columns["answer_chars"] / 400 * np.exp(rng.normal(0, 0.3, n))
    columns["verify_seconds"] = 0.002 * np.exp(rng.normal(0, 0.4, n)) + columns["answer_chars"] * 1e-6


def _hashes(task: Array, value: Array, number: Array, text_kind: Array, *, is_short: bool) -> Array:
    """A hash per distinct answer text."""
    own = number + 10_000_000_000
    normal = task * 200_000 + value if is_short else own
    fixed = {EMPTY: 0, REFUSAL: 1, ERROR: 2, TRICK: 3}
    hashes = np.where(text_kind == NORMAL, normal + 10, own)
    for kind, code in fixed.items():
        hashes = np.where(text_kind == kind, code, hashes)
    hashes = np.where(text_kind == ECHO, -task - 10, hashes)
    return np.where(text_kind == COPY, -task - 10_000_000, hashes)


def rehash(run: MadeRun) -> None:
    """Update hashes and flags after texts were changed."""
    columns = run.columns
    columns["answer_hash"] = _hashes(
        columns["task"], run.value, np.arange(len(run)), run.text_kind, is_short=run.shape.is_short
    )
    for name, kind in (("is_empty", EMPTY), ("is_refusal", REFUSAL), ("error_text", ERROR)):
        columns[name] = run.text_kind == kind
    chars = columns["answer_chars"].copy()
    for kind, length in (
        (EMPTY, 0),
        (REFUSAL, 32),
        (ERROR, 26),
        (TRICK, 60),
        (ECHO, 90),
        (COPY, 300),
        (NEAR_COPY, 300),
    ):
        chars = np.where(run.text_kind == kind, length, chars)
    columns["answer_chars"] = chars
