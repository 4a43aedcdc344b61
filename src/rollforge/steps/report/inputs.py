"""Input records of reports: the parts of `metrics`, `check` and `profile` results that they show.

The records have the format of `--json`, which is documented and stable, so reports do not import other steps.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import FileName


class FieldFacts(Struct, kw_only=True):
    """One number field."""

    mean: float | None
    ci: list[float] | None
    std: float | None
    min: float | None
    max: float | None
    median: float | None
    n: int
    missing: int


class CountFacts(Struct, kw_only=True):
    """Counts behind the numbers."""

    expected: int | None
    finished: int
    judged: int
    unjudged: int
    failed: int
    rejected_lines: int
    duplicates: int
    tasks: int


class AtKFacts(Struct, kw_only=True):
    """A value with an interval over tasks, at some k or for a statistic of an evaluation."""

    value: float | None
    ci: list[float] | None
    tasks: int


class BinFacts(Struct):
    """Counts between edges."""

    edges: list[float]
    counts: list[int]


class SuccessFacts(Struct, kw_only=True):
    """Share of judged rollouts at or above the threshold."""

    threshold: float
    value: float | None
    ci: list[float] | None
    n: int


class ThroughputFacts(Struct, kw_only=True):
    """Rates over the time with a rollout in flight."""

    rollouts_per_s: float | None = None
    tokens_per_s: float | None = None
    active_s: float | None = None


class RunCostFacts(Struct, kw_only=True):
    """Cost of the run in US dollars; null if unknown."""

    total: float | None = None
    rollouts: float | None = None
    failures: float | None = None
    judges: float | None = None
    hours: float | None = None
    unknown_rollouts: int = 0
    unknown_failures: int = 0
    unknown_judges: int = 0
    price: str | None = None
    judge_price: str | None = None
    per_rollout: float | None = None
    per_usable_group: float | None = None
    usable_groups: int = 0


class FlagFacts(Struct, kw_only=True):
    """A property of a dataset to review."""

    id: str
    text: str


class MetricsFacts(Struct, kw_only=True):
    """`rollforge metrics --json`."""

    run: str
    counts: CountFacts
    coverage: float | None
    verifier: str | None
    fields: dict[str, FieldFacts]
    facts: dict[str, FieldFacts]
    success: SuccessFacts
    failures: dict[str, int]
    at_k: dict[str, AtKFacts]
    histogram: BinFacts
    throughput: ThroughputFacts
    cost: RunCostFacts | None = None
    flags: list[FlagFacts] = []


class FindingLocation(Struct, kw_only=True):
    """A rollout, task or stretch of a finding."""

    line: int | None = None
    task: int | None = None
    rollout: int | None = None
    first_line: int | None = None
    last_line: int | None = None
    first_at: float | None = None
    last_at: float | None = None


class FindingFacts(Struct, kw_only=True):
    """One finding of `check`."""

    level: Literal["error", "warning", "note"]
    id: str
    area: str
    text: str
    n: int | None = None
    interval: list[float] | None = None
    where: list[FindingLocation] = []
    next: str = ""
    quotes: list[str] = []
    """Words of prompts and answers in `text`."""


class SelectingFinding(FindingFacts, kw_only=True):
    """A finding with the condition that selects the rollouts it points at; empty when it points at none."""

    condition: str = ""


class RecipeFacts(Struct, kw_only=True):
    """Fitness of the run for one recipe."""

    verdict: Literal["ready", "not yet", "no"]
    reason: str


class CheckFacts(Struct, kw_only=True):
    """`rollforge check --json`."""

    ok: bool
    exit_code: int
    findings: list[FindingFacts]
    recipes: dict[str, RecipeFacts]
    thresholds: dict[str, dict[str, float]] = {}


class YieldFacts(Struct, kw_only=True):
    """The share of groups of k that have more than one reward."""

    k: int
    value: float | None
    is_exact: bool
    tasks: int


class NoSignalFacts(Struct, kw_only=True):
    """Groups whose rewards are all equal."""

    tasks: int
    share: float | None
    of: int


class ProfileFacts(Struct, kw_only=True):
    """`rollforge profile --json`."""

    threshold: float
    tasks: int
    bands: dict[str, int]
    unjudged_tasks: int
    no_signal: NoSignalFacts
    group_yield: list[YieldFacts]
    tokens_per_success: float | None
    reward_against_length: float | None


class GapFacts(Struct, kw_only=True):
    """A mean difference over pairs."""

    mean: float | None
    ci: list[float] | None
    n: int


class QuestionFacts(Struct, kw_only=True):
    """One question that a probe asked a verifier about many tasks."""

    question: str
    n: int
    bad: int
    rate: float | None = None
    ci: list[float] | None = None
    limit: float = 0.0
    finding: str = ""


class ProbeFacts(Struct, kw_only=True):
    """Outcome of the last probe, from the run's manifest."""

    verifier: str
    tasks: int
    fingerprint: str | None = None
    is_broken: bool = False
    questions: list[QuestionFacts] = []


class FlipFacts(Struct, kw_only=True):
    """Two verifiers on the rollouts that both judged (`verify --diff A B --json`)."""

    a: str
    b: str
    n: int
    agree: int
    up: int
    down: int
    changed: int
    difference: GapFacts | None = None


Facts = TypeVar("Facts", bound=Struct)


def facts_of(result: Any, kind: type[Facts]) -> Facts:
    """Convert a step's result to a report record: undefined numbers become null as in `--json`, and unneeded fields are dropped."""
    return decode_json(msgspec.json.encode(result), kind)


class DifferenceFacts(Struct, kw_only=True):
    """Paired difference of one field between two runs."""

    value: float | None
    against: float | None
    difference: float | None
    ci: list[float] | None
    tasks: int
    differing: int


class PairedFacts(Struct, kw_only=True):
    """`rollforge metrics RUN --against OTHER --json`."""

    run: str
    against: str
    paired_by: str
    shared_tasks: int
    only_run: int
    only_against: int
    fields: dict[str, DifferenceFacts]
    verdict: str


class SummaryFacts(Struct, kw_only=True):
    """Summary of a number over the rows of a dataset."""

    n: int
    mean: float
    std: float | None = None
    min: float
    median: float
    max: float


class FileFacts(Struct, kw_only=True):
    """A file of a dataset."""

    path: FileName
    split: str
    rows: int
    bytes: int
    sha256: str


class InputFacts(Struct, kw_only=True):
    """A file that a dataset was made from."""

    run: str
    file: str
    bytes: int
    sha256: str


class GateFacts(Struct, frozen=True, kw_only=True):
    """Result of `check` before the dataset was made."""

    ran: bool = False
    ok: bool = False
    errors: list[str] = []
    warnings: list[str] = []
    forced: bool = False


class ManifestFacts(Struct, kw_only=True):
    """The `manifest.json` of a prepared dataset."""

    recipe: str
    to: str
    kind: str
    seed: int
    options: dict[str, object]
    inputs: list[InputFacts]
    versions: dict[str, str]
    counts: dict[str, object]
    statistics: dict[str, object]
    splits: dict[str, int]
    files: list[FileFacts] = []
    flags: list[FlagFacts] = []
    check: GateFacts = GateFacts()


class TasksetFacts(Struct, kw_only=True):
    """One task set of an evaluation."""

    tasks: int
    runs: int
    judged: int
    coverage: float
    metrics: dict[str, dict[str, AtKFacts]]


class EvaluationFacts(Struct, kw_only=True):
    """The result file of `rollforge eval`."""

    model: str = ""
    step: int = 0
    k: int
    tasksets: dict[str, TasksetFacts]


class BenchDifference(Struct, kw_only=True):
    """Difference of one model from the first, on one task set."""

    taskset: str
    metric: str
    model: str
    against: str
    difference: float | None
    ci: list[float] | None
    tasks: int
    verdict: str


class BenchFacts(Struct, kw_only=True):
    """The `bench.json` of `rollforge bench`; an evaluation is represented as a bench of one model."""

    models: dict[str, EvaluationFacts]
    differences: list[BenchDifference] = []


class LoggedStep(Struct, kw_only=True):
    """One line of a metrics file: the metrics logged at a step."""

    step: int
    metrics: dict[str, float | None]
