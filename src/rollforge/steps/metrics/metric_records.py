"""The records of `metrics`, in the shape of its JSON."""

from __future__ import annotations

from msgspec import Struct

from rollforge.charts import Bar, Scene, column_chart, to_image
from rollforge.index import BadLineAt
from rollforge.registry import did_you_mean
from rollforge.statistics.counts import count_of
from rollforge.store.costs import CostFacts
from rollforge.text_safety.markup import decimal, interval, result, table, tag


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


class RunCost(CostFacts, frozen=True, kw_only=True):
    """What a run cost in US dollars, and what one of its parts cost."""

    per_rollout: float | None = None
    """The total over the finished rollouts; null when the cost of some is not known."""
    per_usable_group: float | None = None
    """The total over the groups whose rewards are not all equal; null when the cost of some is not known, or none is usable."""
    usable_groups: int = 0


class AdaptiveFacts(Struct, kw_only=True):
    """How an adaptive run was sampled, and what that means for its numbers."""

    goal: str | None
    """The recipe and number that it was collected for."""
    first: int
    """Samples of the first stage: all numbers about rewards and answers are over those alone."""
    tasks: int
    """Tasks begun: what the numbers are over."""
    rollouts: int
    """Rollouts of the first stage."""
    audited: int
    """Audited tasks: started, and sampled in full whatever their rewards. Numbers beyond the first stage are based on them."""
    runs: int = 1
    """Adaptive ones among the runs that are read as one."""
    left_out: dict[str, str] = {}
    """Number without an unbiased estimate → why."""


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
    adaptive: AdaptiveFacts | None = None
    """None for a run in which every task was to get the same number of samples."""
    cost: RunCost | None = None
    """What the run cost; None when no price was given, or under a condition."""

    def __getitem__(self, name: str) -> Field:
        """A number of the rollouts by its name: `metrics["reward"].mean`."""
        field = self.fields.get(name) or self.facts.get(name)
        if field is None:
            metric_names = [*self.fields, *self.facts]
            raise KeyError(
                f"no metric {name!r}{did_you_mean(name, metric_names)}; there are: {', '.join(metric_names)}"
            )
        return field

    def __contains__(self, name: object) -> bool:
        return name in self.fields or name in self.facts

    def _repr_html_(self) -> str:
        rows = [
            [name, decimal(one.mean), interval(one.ci), decimal(one.std), f"{one.n:,}", f"{one.missing:,}"]
            for name, one in self.fields.items()
        ]
        at_k = [
            [name, decimal(one.value), interval(one.ci), f"{one.tasks:,}"] for name, one in self.at_k.items()
        ]
        counts = self.counts
        title = f"{self.run}: {counts.judged:,} of {count_of(counts.finished, 'rollout')} judged, {counts.failed:,} failed"
        return result(
            title,
            table(("field", "mean", "95 % interval", "std", "n", "missing"), rows),
            table(("over k", "value", "95 % interval", "tasks"), at_k) if at_k else None,
            to_image(self._histogram()) if self.histogram.counts else None,
            *(tag("p", f"{flag.id}: {flag.text}") for flag in self.flags),
        )

    def _histogram(self) -> Scene:
        edges, counts = self.histogram.edges, self.histogram.counts
        bars = [Bar(label=f"from {low:g}", count=count) for low, count in zip(edges, counts, strict=False)]
        missing = (
            Bar(label="unjudged", count=self.counts.unjudged, css="fill-muted")
            if self.counts.unjudged
            else None
        )
        return column_chart(
            edges,
            bars,
            missing=missing,
            title="Reward distribution",
            description=f"Histogram of {self.counts.judged:,} rewards, {self.counts.unjudged:,} unjudged",
            x_title="reward",
        )
