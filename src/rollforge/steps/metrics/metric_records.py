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
    """Counts behind the numbers."""

    expected: int | None
    """Number of requested rollouts; null for files that rollforge did not collect."""
    finished: int
    judged: int
    unjudged: int
    failed: int
    """Rollouts that failed and never finished."""
    rejected_lines: int
    noted_lines: int
    """Odd rows that still count."""
    duplicates: int
    """Rows overruled by a later row with the same key."""
    tasks: int
    masked: int = 0
    """Unjudged rows that mark their reward as no measurement (`mask_sample`)."""


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

    def _repr_html_(self) -> str:
        row = [decimal(self.mean), interval(self.ci), decimal(self.std), f"{self.n:,}", f"{self.missing:,}"]
        return str(table(("mean", "95 % interval", "std", "n", "missing"), [row]))


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
    """Rewards per bin; the last bin includes its upper edge."""

    edges: list[float]
    counts: list[int]


class Throughput(Struct, kw_only=True):
    """Rates over the time with at least one rollout in flight; null if rows have no start times."""

    rollouts_per_s: float | None = None
    tokens_per_s: float | None = None
    active_s: float | None = None


class Flag(Struct):
    """A warning to read before relying on the numbers."""

    id: str
    text: str


class EqualGroups(Struct, kw_only=True):
    """Groups whose samples are all the same text; seed, cache or temperature may be misconfigured."""

    groups: int
    of: int
    """Number of examined groups: two or more samples without tool calls, none shorter than 40 characters, since equal short texts
    may be coincidence.
    """


class RunCost(CostFacts, frozen=True, kw_only=True):
    """Cost of a run in US dollars, in total and per part."""

    per_rollout: float | None = None
    """Total divided by finished rollouts; null if some costs are unknown."""
    per_usable_group: float | None = None
    """Total divided by groups with different rewards; null if some costs are unknown, or there is no such group."""
    usable_groups: int = 0


class AdaptiveFacts(Struct, kw_only=True):
    """Sampling of an adaptive run, and its consequences for the numbers."""

    goal: str | None
    """The goal of the collection: recipe and number."""
    first: int
    """Samples per task in the first stage; numbers about rewards and answers use only these."""
    tasks: int
    """Number of tasks with a first stage, on which the numbers are based."""
    rollouts: int
    """Rollouts of the first stage."""
    audited: int
    """Number of audited tasks, which were sampled in full whatever their rewards. Numbers beyond the first stage are based on
    them.
    """
    runs: int = 1
    """Number of adaptive runs among those read together."""
    left_out: dict[str, str] = {}
    """Omitted number without an unbiased estimate → reason."""


class RunMetrics(Struct, kw_only=True):
    """All metrics of a run."""

    run: str
    where: str | None = None
    """The condition that selected rollouts, if any."""
    counts: Counts
    coverage: float | None
    """Judged rollouts as a share of expected ones (of finished and failed ones if that number is unknown)."""
    verifier: str | None
    fields: dict[str, Field]
    facts: dict[str, Field]
    """Facts about answers: length, turns, tool calls, shares truncated, empty, refused."""
    agents: dict[str, AgentMetrics]
    success: Success
    failures_as_zero: FailuresAsZero | None
    """Only for runs with failures."""
    failures: dict[str, int]
    """Failed rollouts by class."""
    at_k: dict[str, AtKValue]
    answer_field: str | None
    """The field that majority@k votes on."""
    histogram: HistogramCounts
    throughput: Throughput
    """Rates of the whole run; null with a condition, which has no pace of its own."""
    equal_groups: EqualGroups | None
    """None if no task has two samples, or with a condition."""
    mixed_types: dict[str, int]
    """Number fields with text values in some rows, which count as missing → number of such rows."""
    bad_lines: list[BadLineAt]
    """The first rejected or odd lines, with their location; `counts` has their number."""
    flags: list[Flag]
    adaptive: AdaptiveFacts | None = None
    """None for a run with uniform sampling."""
    cost: RunCost | None = None
    """Cost of the run; None without a price, or with a condition."""

    def __getitem__(self, name: str) -> Field:
        """A number field of the rollouts by name: `metrics["reward"].mean`."""
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
