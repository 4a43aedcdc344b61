"""Results of `evaluate` and `bench`: metrics with intervals per task set, paired differences, and how the runs ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from rollforge.charts import Interval, interval_chart, to_image
from rollforge.errors import Exit
from rollforge.interactive.outcome import RunOutcome
from rollforge.registry import did_you_mean
from rollforge.statistics.counts import count_of
from rollforge.text_safety.markup import Html, decimal, interval, join, result, table, tag

if TYPE_CHECKING:
    from rollforge.steps.evaluation import ClaimResult, Difference, Evaluation, TasksetResult

RunT = TypeVar("RunT")


class Evaluated(Generic[RunT]):
    """One model over task sets: `result["gsm8k"]`, `.metrics`, the run behind it, and how it ended."""

    def __init__(self, evaluation: Evaluation, run: RunT, outcome: RunOutcome) -> None:
        self.evaluation = evaluation
        self.run = run
        """The run on disk, with all rollouts."""
        self.outcome = outcome

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers under their full metric names, as sinks receive them."""
        return self.evaluation.metrics

    @property
    def tasksets(self) -> dict[str, TasksetResult]:
        """Task set → its result."""
        return self.evaluation.tasksets

    def __getitem__(self, taskset: str) -> TasksetResult:
        if taskset not in self.tasksets:
            taskset_names = list(self.tasksets)
            raise KeyError(
                f"no task set {taskset!r}{did_you_mean(taskset, taskset_names)}; there are: {', '.join(taskset_names)}"
            )
        return self.tasksets[taskset]

    def __repr__(self) -> str:
        return f"Evaluated({self.evaluation.run}: {', '.join(self.tasksets)}; {self.outcome})"

    def _repr_html_(self) -> str:
        return result(f"{self.evaluation.run}: {self.outcome}", taskset_table(self.evaluation))


class Benched(Generic[RunT]):
    """Several models over the same task sets: `result["trained"]`, `.differences`, `.required`."""

    def __init__(
        self,
        models: dict[str, Evaluated[RunT]],
        differences: Sequence[Difference],
        required: Sequence[ClaimResult],
    ) -> None:
        self.models = models
        self.differences = list(differences)
        """Differences of every model from the first one, task by task."""
        self.required = list(required)
        """The claims of `require`, and whether they hold."""

    @property
    def outcome(self) -> RunOutcome:
        """The exit code of the worst run; failed claims count only if all runs are done."""
        worst = max((one.outcome for one in self.models.values()), key=lambda one: int(one.exit_code))
        failed = [one.claim for one in self.required if not one.holds]
        if worst.ok and failed:
            return RunOutcome("not shown", f"not shown: {'; '.join(failed)}", Exit.GATE_FAILED)
        return worst

    def __getitem__(self, label: str) -> Evaluated[RunT]:
        if label not in self.models:
            labels = list(self.models)
            raise KeyError(f"no model {label!r}{did_you_mean(label, labels)}; there are: {', '.join(labels)}")
        return self.models[label]

    def __repr__(self) -> str:
        return f"Benched({', '.join(self.models)}; {self.outcome})"

    def _repr_html_(self) -> str:
        parts = [
            join([tag("p", tag("strong", label)), taskset_table(one.evaluation)])
            for label, one in self.models.items()
        ]
        rows = [
            [
                one.taskset,
                f"{one.model} − {one.against}",
                decimal(one.difference),
                interval(one.ci),
                one.verdict,
            ]
            for one in self.differences
        ]
        shown = [one for one in self.differences if one.difference is not None and one.ci is not None]
        claims = [[one.claim, "holds" if one.holds else "not shown"] for one in self.required]
        return result(
            f"{count_of(len(self.models), 'model')}: {self.outcome}",
            *parts,
            table(("task set", "difference", "value", "95 % interval", "verdict"), rows) if rows else None,
            to_image(
                interval_chart(
                    [
                        Interval(
                            label=f"{one.model}, {one.taskset}",
                            value=one.difference or 0.0,
                            low=(one.ci or [0.0, 0.0])[0],
                            high=(one.ci or [0.0, 0.0])[1],
                        )
                        for one in shown
                    ],
                    title="Differences",
                    description="Differences from the first model, with 95 % intervals",
                    x_title="difference",
                )
            )
            if shown
            else None,
            table(("required", ""), claims, numeric=False) if claims else None,
        )


def taskset_table(evaluation: Evaluation) -> Html:
    """The rewards of an evaluation per task set."""
    rows = [
        [name, statistic, decimal(one.value), interval(one.ci), f"{one.tasks:,}", f"{taskset.coverage:.0%}"]
        for name, taskset in evaluation.tasksets.items()
        for statistic, one in taskset.metrics.get("reward", {}).items()
    ]
    return table(("task set", "reward", "value", "95 % interval", "tasks", "judged"), rows)
