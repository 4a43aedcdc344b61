"""The records of `metrics`, in the shape of its JSON."""

from __future__ import annotations

from msgspec import Struct

from rollforge.index import BadLineAt


class Counts(Struct, kw_only=True):
    """What the numbers are over."""

    expected: int | None
    """Rollouts asked for; null for files that rollforge did not collect."""
    finished: int
    judged: int
    unjudged: int
    failed: int
    """Rollouts that failed and never finished."""
    rejected_lines: int
    noted_lines: int
    """Rows that count although something about them is odd."""
    duplicates: int
    """Rows overruled by a later one with the same key."""
    tasks: int
    masked: int = 0
    """Of the unjudged: rows that declare their reward to be no measurement (`mask_sample`)."""


class Field(Struct, kw_only=True):
    """One number field over the rollouts that have it."""

    mean: float | None
    ci: list[float] | None
    """95 % interval, clustered by task."""
    std: float | None
    min: float | None
    max: float | None
    median: float | None
    n: int
    missing: int


class Success(Struct, kw_only=True):
    """Share of judged rollouts whose reward reaches the threshold."""

    threshold: float
    value: float | None
    ci: list[float] | None
    n: int


class FailuresAsZero(Struct, kw_only=True):
    """The mean reward if every failed rollout had earned 0; printed beside the mean, never instead of it."""

    mean: float | None
    n: int


class AtKValue(Struct, kw_only=True):
    """A value at k over the tasks that have at least k judged rollouts."""

    value: float | None
    ci: list[float] | None
    tasks: int


class AgentMetrics(Struct, kw_only=True):
    """One agent's fields."""

    n: int
    judged: int
    fields: dict[str, Field]


class HistogramCounts(Struct):
    """Rewards per bin; the last bin holds its upper edge too."""

    edges: list[float]
    counts: list[int]


class Throughput(Struct, kw_only=True):
    """Over the time in which at least one rollout was under way; null when rows do not say when they started."""

    rollouts_per_s: float | None = None
    tokens_per_s: float | None = None
    active_s: float | None = None


class Flag(Struct):
    """Something a person should know before believing the numbers."""

    id: str
    text: str


class EqualGroups(Struct, kw_only=True):
    """Groups whose samples are all the same text: seed, cache or temperature may not be what was meant."""

    groups: int
    of: int
    """Groups of two or more samples without tool calls, none shorter than 40 characters: other equal texts may be coincidence."""


class RunMetrics(Struct, kw_only=True):
    """What the numbers of a run are."""

    run: str
    where: str | None = None
    """The condition that all of it is under."""
    counts: Counts
    coverage: float | None
    """Judged rollouts of those expected (of those finished or failed, when nothing says how many were expected)."""
    verifier: str | None
    fields: dict[str, Field]
    facts: dict[str, Field]
    """What the answers look like: length, turns, tool calls, shares truncated, empty, refused."""
    agents: dict[str, AgentMetrics]
    success: Success
    failures_as_zero: FailuresAsZero | None
    """Only for runs with failures."""
    failures: dict[str, int]
    """Failed rollouts by class."""
    at_k: dict[str, AtKValue]
    answer_field: str | None
    """What majority@k takes for the answer."""
    histogram: HistogramCounts
    throughput: Throughput
    """Of the whole run: nulls under a condition, which says nothing about pace."""
    equal_groups: EqualGroups | None
    """None when no task has two samples, or under a condition."""
    mixed_types: dict[str, int]
    """Number fields that are text in some rows, where they count as missing."""
    bad_lines: list[BadLineAt]
    """The first lines that are rejected or odd, each with its place; `counts` has their number."""
    flags: list[Flag]
