"""Evidence: a run's columns, read once and shared by all checks, with derived quantities computed on demand.

Missing numbers are NaN and missing flags are False; an unjudged rollout has no reward and enters no mean. Rewards are scaled to
their range (declared, else observed), so that limits stated for [0, 1] apply to any verifier. Text is only read in small samples.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from rollforge.checks.building_blocks.coded_columns import Bools, Range, TextCodes, ends_of
from rollforge.checks.building_blocks.evidence_source import About, EvidenceSource, ProbeOutcome
from rollforge.checks.building_blocks.finding import Location
from rollforge.checks.building_blocks.text_samples import SampledText, Texts
from rollforge.index import flags, floats, ints
from rollforge.statistics.intervals import Estimate, clustered_mean
from rollforge.statistics.stats import Floats, GroupSummaries, Ints, distinct, summarize_groups

SEED = 5
"""Seed of every sample a check draws: the same run gives the same findings."""

_INTS = ("row", "line", "task", "rollout", "answer_hash")
_FLOATS = ("reward", "answer_chars", "turns", "tool_calls", "started", "verify_seconds")
_FLAGS = ("is_truncated", "is_empty", "is_refusal", "error_text", "has_token_ids")
_NAMES = ("agent", "model", "verifier", "fingerprint", "mode")
USED = (*_INTS, *_FLOATS, *_FLAGS, *_NAMES)
"""The columns every check shares."""


MIXED_TASKS = 4000
SPREAD = 400
FEW_LEVELS = 16

TOGETHER = 8
"""Number columns read per batch."""

UNRECORDED = 0.9
"""An agent with at least this share of empty answers counts as one that records no output."""

LEAST_UNRECORDED = 5
"""Fewest rollouts of an agent to conclude that, unless the run has no others."""

SOME_WHOLE = 0.2
"""If at least this share of tasks has the largest group size, that size counts as the number asked for."""

MOST_NUMBERED = 4
"""Rollout numbers above this multiple of the usual group size are counted on from task to task, not per task."""

FAMILIES = frozenset(
    {
        "category", "dataset", "dataset_name", "data_source", "difficulty", "domain", "env", "environment", "family", "kind",
        "language", "level", "source", "split", "subject", "subset", "subtask", "task_type", "topic", "type",
    }
)  # fmt: skip
"""Text fields that name task families. Other text fields may be part of the verdict, and would then explain it perfectly."""


class Evidence:
    """A run as checks see it."""

    def __init__(self, source: EvidenceSource, about: About, *, places_limit: int | None = 20) -> None:
        self.source = source
        self.about = about
        self.places_limit = places_limit
        columns = _columns(source, USED)
        self.row, self.line, self.task_id, self.rollout, self.answer_hash = (
            ints(columns.pop(name)) for name in _INTS
        )
        self.reward, self.answer_chars, self.turns, self.tool_calls, self.started, self.verify_seconds = (
            floats(columns.pop(name)) for name in _FLOATS
        )
        self.is_truncated, self.is_empty, self.is_refusal, self.error_text, self.has_token_ids = (
            flags(columns.pop(name)) for name in _FLAGS
        )
        self.agent, self.model, self.verifier, self.fingerprint, self.mode = (
            TextCodes(columns.pop(name)) for name in _NAMES
        )
        has_none = np.isnan(self.answer_chars)
        if not has_none.all():  # rows without a response, among others that have one, are empty answers
            self.is_empty |= has_none
        self.n = len(self.row)
        self.texts = Texts(source)
        self.shared: dict[str, Any] = {}
        """Results cached by one check for use by others."""

    @property
    def index(self) -> Any:
        """The index itself, for user-defined checks; None for an in-memory run."""
        return self.source if hasattr(self.source, "connection") else None

    @property
    def name(self) -> str:
        return self.about.name

    # Groups

    @cached_property
    def order(self) -> Ints:
        """Positions sorted by task; within a task in file order."""
        if self.n and bool((np.diff(self.task_id) >= 0).all()):
            return np.arange(self.n)
        return np.argsort(self.task_id, kind="stable")

    @cached_property
    def starts(self) -> Ints:
        """Where each task begins in `order`."""
        if not self.n:
            return np.zeros(0, dtype=np.int64)
        ordered = self.task_id[self.order]
        return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])).astype(np.int64)

    @cached_property
    def sizes(self) -> Ints:
        """Rollouts of each task."""
        return np.diff(np.append(self.starts, self.n))

    @cached_property
    def group(self) -> Ints:
        """The number of each rollout's task, 0 … groups − 1, by position."""
        numbers = np.empty(self.n, dtype=np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return numbers

    @property
    def groups(self) -> int:
        return len(self.starts)

    @cached_property
    def task_ids(self) -> Ints:
        """The task number of each group."""
        return self.task_id[self.order[self.starts]]

    @cached_property
    def profile(self) -> GroupSummaries:
        """Reward per task: n, mean, std, min, max, median."""
        return summarize_groups(self.reward[self.order], self.starts)

    @cached_property
    def scaled_profile(self) -> GroupSummaries:
        """`profile` with rewards scaled to [0, 1]."""
        profile = self.profile
        half_width = self.range.high / 2 - self.range.low / 2
        return GroupSummaries(
            profile.n,
            self._scale(profile.mean),
            profile.std / 2 / half_width,
            self._scale(profile.min),
            self._scale(profile.max),
            self._scale(profile.median),
        )

    def per_group(self, chosen: Bools) -> Ints:
        """Number of selected rollouts per task."""
        return np.bincount(self.group[chosen], minlength=self.groups)

    @cached_property
    def is_unrecorded(self) -> Bools:
        """Rollouts of agents that record no output: nearly all of their answers are empty, and some are rewarded.

        A few empty answers among others are the model's; an agent that earns rewards without any output does not record it.
        """
        agent = self.agent.codes + 1
        counts, empty = (
            np.bincount(agent),
            np.bincount(agent[self.is_empty], minlength=int(agent.max(initial=0)) + 1),
        )
        rewarded = np.bincount(agent[self.is_empty & self.judged & self.succeeded], minlength=len(counts))
        silent = (counts >= 2) & (empty >= UNRECORDED * counts) & (rewarded > 0)
        silent &= (counts >= LEAST_UNRECORDED) | (counts == self.n)
        if self.agent.names:
            silent[0] = False  # rows that name no agent, among others that do, are odd lines
        if int(counts[silent].sum()) >= LEAST_UNRECORDED and int(empty.sum()) >= UNRECORDED * self.n:
            silent[:] = (
                True  # where one agent records nothing and no other does, all of them are the same software
            )
        is_unrecorded: Bools = silent[agent] & self.is_empty
        return is_unrecorded

    # Rewards

    @cached_property
    def judged(self) -> Bools:
        """Mask of rollouts with a finite reward."""
        return np.isfinite(self.reward)

    @cached_property
    def judged_n(self) -> int:
        return int(self.judged.sum())

    @cached_property
    def values(self) -> Floats:
        """Rewards of judged rollouts."""
        return self.reward[self.judged]

    @cached_property
    def levels(self) -> Floats:
        """The distinct rewards, up to 1,000 of them."""
        if not self.judged_n:
            return np.zeros(0)
        first = distinct(self.values[:20_000])
        if len(first) > 1000:
            return first
        others = self.values[20_000:]
        for value in first[:FEW_LEVELS].tolist():
            others = others[others != value]
        return distinct(np.concatenate([first, others])) if len(others) else first

    @property
    def is_binary(self) -> bool:
        """Whether at most two distinct rewards occur."""
        return len(self.levels) <= 2

    @property
    def is_continuous(self) -> bool:
        """Whether more than 20 distinct rewards occur."""
        return len(self.levels) > 20

    @cached_property
    def range(self) -> Range:
        """Reward range: declared, else [0, 1], else [-1, 1], else the observed range without a few outliers."""
        if self.about.declared is not None:
            return Range(*self.about.declared, is_declared=True)
        if not self.judged_n:
            return Range(0.0, 1.0)
        low, high = ends_of(self.values)
        if low >= 0 and high <= 1:
            return Range(0.0, 1.0)
        if low >= -1 and high <= 1:
            return Range(-1.0, 1.0)
        return Range(min(low, 0.0), high if high > low else low + 1.0)

    @cached_property
    def scaled(self) -> Floats:
        """Rewards in [0, 1]; NaN where unjudged."""
        return np.clip(self._scale(self.reward), 0.0, 1.0)

    def _scale(self, values: Floats) -> Floats:
        """Values scaled to the reward range. Computed in halves, because the width of a huge range overflows."""
        scaled: Floats = (values / 2 - self.range.low / 2) / (self.range.high / 2 - self.range.low / 2)
        return scaled

    @cached_property
    def success_at(self) -> float:
        """Scaled reward from which a rollout counts as a success: the middle of the range.

        Where rewards may be negative, 0 usually means neither right nor wrong (no answer, a wrong format). It lies in the
        middle of the range and counts as a success only as the higher of two values.
        """
        if self.range.low >= 0:
            return 0.5
        if len(self.levels) == 2:
            low, high = self._scale(self.levels).tolist()
            return float(low + high) / 2
        return 0.5 + 1e-9

    @cached_property
    def succeeded(self) -> Bools:
        """Mask of rollouts whose scaled reward reaches `success_at`."""
        return np.nan_to_num(self.scaled, nan=-1.0) >= self.success_at

    def mean_of(self, values: Floats, among: Bools, *, is_share: bool = False) -> Estimate:
        """Mean over the selected rollouts, with an interval clustered by task."""
        sums = np.bincount(self.group[among], weights=values[among].astype(np.float64), minlength=self.groups)
        return clustered_mean(sums, self.per_group(among), is_share=is_share, level=0.99)

    @cached_property
    def mean(self) -> Estimate:
        """The mean scaled reward."""
        return self.mean_of(self.scaled, self.judged, is_share=self.is_binary)

    @cached_property
    def all_independent(self) -> float:
        """Effective sample size of the whole run."""
        return _worth(self.sizes)

    def independent(self, among: Bools) -> float:
        """Effective sample size of these rollouts, at an intraclass correlation of 0.3 within tasks."""
        if among is self.judged:
            return _worth(self.profile.n)
        return _worth(self.per_group(among))

    @cached_property
    def fifths(self) -> Ints:
        """Number of scaled rewards in each fifth of the range; the last fifth includes its upper end."""
        return np.asarray(self.tenths.reshape(5, 2).sum(axis=1), dtype=np.int64)

    @cached_property
    def tenths(self) -> Ints:
        """Number of scaled rewards in each tenth of the range; the last tenth includes its upper end."""
        tenth_of_row = np.minimum((self.scaled[self.judged] * 10 + 1e-9).astype(np.int64), 9)
        return np.bincount(tenth_of_row, minlength=10)

    @cached_property
    def by_reward(self) -> Ints:
        """Judged positions sorted by task, and within a task by reward."""
        positions = self.order[self.judged[self.order]]
        return positions[np.lexsort((self.reward[positions], self.group[positions]))]

    @cached_property
    def answer_code(self) -> Ints:
        """A code per (task, answer): equal answers to the same task share a code."""
        mixed = self.answer_hash.view(np.uint64) ^ (
            self.group.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
        order = np.argsort(mixed)
        ordered = mixed[order]
        codes = np.empty(self.n, dtype=np.int64)
        codes[order] = np.cumsum(np.append(0, ordered[1:] != ordered[:-1])) if self.n else 0
        return codes

    @cached_property
    def other_rewards(self) -> Mapping[str, Floats]:
        """Rewards of verifiers whose verdicts do not count, by position; NaN where missing."""
        return self.source.other_rewards()

    @property
    def probe(self) -> ProbeOutcome | None:
        """The last probe, if it tested the verifier version that judged the run."""
        probe, versions = self.about.probe, self.fingerprint.names
        is_other = probe is not None and probe.fingerprint and versions and probe.fingerprint not in versions
        return None if is_other else probe

    # Other columns

    def number(self, name: str) -> Floats:
        """A number column from the rows' own fields."""
        return next(self.each_number([name]))[1]

    def each_number(self, names: Sequence[str]) -> Iterator[tuple[str, Floats]]:
        """Number columns one by one, read in small batches and not cached: a run may have hundreds."""
        for first in range(0, len(names), TOGETHER):
            columns = _columns(self.source, names[first : first + TOGETHER])
            for name in list(columns):
                yield name, floats(columns.pop(name))

    @cached_property
    def metrics(self) -> list[str]:
        """Number columns beside the reward, without usage and timing."""
        return [name for name in self.source.numbers if name != "reward" and not _is_usage(name)]

    @cached_property
    def in_time(self) -> Ints:
        """Positions by start time; in file order where start times are unknown.

        Rollouts finish in an order that depends on their length; start order does not.
        """
        if np.isnan(self.started).any():
            return np.arange(self.n)
        if bool((np.diff(self.started) >= 0).all()):
            return np.arange(self.n)
        return np.argsort(self.started, kind="stable")

    @cached_property
    def samples(self) -> int:
        """Rollouts asked for per task: from the manifest, else from the rollout numbers, else the usual group size."""
        if self.about.samples is not None:
            return self.about.samples
        if not self.groups:
            return 0
        usual = int(np.bincount(self.sizes).argmax())
        last = np.maximum.reduceat(self.rollout[self.order], self.starts) - int(self.rollout.min()) + 1
        if int(last.max()) > MOST_NUMBERED * max(usual, 1):
            return usual  # numbers that go on from task to task
        most = int(last.max())
        if (self.sizes == most).mean() >= SOME_WHOLE:
            return most
        return max(usual, int(np.bincount(last).argmax()))

    @property
    def filled(self) -> Bools:
        """Groups that should be complete: all of them; in an adaptive run, those that its rule did not stop early."""
        design = self.about.design
        return np.ones(self.groups, dtype=np.bool_) if design is None else self.sizes >= design.whole

    @property
    def is_samples_certain(self) -> bool:
        """Whether the manifest gives the number of rollouts per task, or most tasks have that many."""
        return self.about.samples is not None or bool((self.sizes == self.samples).mean() > 0.5)

    def read(self, positions: Ints | Sequence[int]) -> list[SampledText]:
        """The text of these rollouts; intended for a few hundred."""
        return self.texts.read(self.row[positions].tolist(), self.task_id[positions].tolist())

    def draw(self, among: Bools | Ints, count: int) -> Ints:
        """A seeded random sample of at most `count` of the selected positions."""
        positions = _positions(among)
        if len(positions) <= count:
            return positions
        rng = np.random.default_rng(SEED)
        return np.sort(rng.choice(positions, size=count, replace=False))

    def flags(self, positions: Ints) -> Bools:
        """A mask over all rollouts that is true at these positions."""
        chosen = np.zeros(self.n, dtype=np.bool_)
        chosen[positions] = True
        return chosen

    @cached_property
    def spread(self) -> Ints:
        """Positions spread evenly over the file, for checks that search text for anomalies."""
        return distinct(np.linspace(0, max(self.n - 1, 0), min(self.n, SPREAD)).astype(np.int64))

    @cached_property
    def spread_samples(self) -> list[SampledText]:
        """The text at `spread`, shared by several checks."""
        return self.read(self.spread)

    @cached_property
    def groups_with_different_answers(self) -> Bools:
        """Tasks whose rollouts do not all have one answer."""
        if not self.n:
            return np.zeros(0, dtype=np.bool_)
        answers = self.answer_hash[self.order]
        lowest, highest = np.minimum.reduceat(answers, self.starts), np.maximum.reduceat(answers, self.starts)
        differ: Bools = lowest != highest
        return differ

    @cached_property
    def family_fields(self) -> list[str]:
        """Text fields of rollouts or tasks that name families."""
        return [
            name for name in dict.fromkeys([*self.source.texts, *self.source.task_texts]) if name in FAMILIES
        ]

    def family(self, field: str) -> TextCodes:
        """A text field used as task families."""
        if field in self.source.texts:
            return TextCodes(self.source.table([field])[field])
        names = self.source.task_table(["task", field])
        family = TextCodes(names[field])
        codes = np.full(self.groups, -1, dtype=np.int64)
        tasks = ints(names["task"])
        position = np.searchsorted(self.task_ids, tasks)
        is_known = (position < self.groups) & (self.task_ids[np.minimum(position, self.groups - 1)] == tasks)
        codes[position[is_known]] = family.codes[is_known]
        family.codes = codes[self.group]
        return family

    @property
    def counting_verifier(self) -> str:
        """The verifier of most verdicts, as `verify --diff` takes it: `recorded` if most name none."""
        counts = self.verifier.counts(self.judged)
        name, count = next(iter(counts.items()), ("recorded", 0))
        return name if count >= self.judged_n - sum(counts.values()) else "recorded"

    def verify(self, words: str, instead: str = "--limit 5") -> str:
        """A `verify` command for the user; a `show` command if no row names its verifier."""
        name = next(iter(self.verifier.counts()), None)
        if name is None:
            return f"rollforge show {self.name} {instead}"
        return f"rollforge verify {self.name} --verifier {shlex.quote(name)} {words}"

    def verify_rest(self) -> str:
        """A command that judges what has no verdict."""
        if next(iter(self.verifier.counts()), None) is None:
            return f"rollforge verify {self.name} --verifier NAME"
        return self.verify("--failed-only")

    @property
    def status(self) -> str:
        """A command that shows the fate of the requested rollouts."""
        return f"rollforge {'metrics' if self.about.samples is None else 'status'} {self.name}"

    @cached_property
    def mixed_positions(self) -> Ints:
        """Judged rollouts of tasks with different rewards, limited to a few thousand tasks: enough for a correlation within ±
        0.02.
        """
        useful = np.flatnonzero(np.nan_to_num(self.profile.std) > 0)
        chosen = np.zeros(self.groups, dtype=np.bool_)
        chosen[self.draw(useful, MIXED_TASKS)] = True
        return np.flatnonzero(self.judged & chosen[self.group])

    # Places

    def lines(self, among: Bools | Ints) -> list[Location]:
        """Locations of offending rollouts, with their lines."""
        positions = _positions(among)
        return [
            {
                "task": int(self.task_id[position]),
                "rollout": int(self.rollout[position]),
                "line": int(self.line[position]),
            }
            for position in positions[: self.places_limit].tolist()
        ]

    def tasks(self, groups: Ints | Bools) -> list[Location]:
        """Locations of offending tasks."""
        numbers = _positions(groups)
        return [{"task": int(task)} for task in self.task_ids[numbers[: self.places_limit]].tolist()]


def _columns(source: EvidenceSource, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Columns to pop one by one, so that a run is never in memory twice."""
    table = source.table(names)
    return {name: table[name] for name in names}


def _positions(chosen: Bools | Ints) -> Ints:
    """Positions, from positions or from a boolean mask."""
    if chosen.dtype == np.bool_:
        return np.flatnonzero(chosen)
    return np.asarray(chosen, dtype=np.int64)


def _worth(counts: Ints) -> float:
    sizes = counts[counts > 0].astype(np.float64)
    return float((sizes / (1 + 0.3 * (sizes - 1))).sum())


def _is_usage(name: str) -> bool:
    return name.split(".")[0].endswith(("_tokens", "_tokens_details")) or name in {
        "cost",
        "sequences",
        "model_calls",
        "drift_turns",
        "latency",
        "duration",
    }
