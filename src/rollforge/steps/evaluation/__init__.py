"""folded into `eval/` and `bench/` metrics with intervals, and compared.

tasksets  the task files joined into one, each row knowing its task set
evaluate  a finished run folded per task set
compare   models over the same task sets, task by task
require   claims such as `trained > base`, held against the paired interval
"""

from rollforge.steps.evaluation.compare import OVERALL, Difference, check_metric, compare
from rollforge.steps.evaluation.evaluate import EvaluateOptions, Evaluation, TasksetResult, evaluate_run
from rollforge.steps.evaluation.require import Claim, ClaimResult, judge_claims, parse_claims
from rollforge.steps.evaluation.tasksets import JoinedTasksets, Taskset, join_tasksets, parse_taskset

__all__ = [
    "OVERALL",
    "Claim",
    "ClaimResult",
    "Difference",
    "EvaluateOptions",
    "Evaluation",
    "JoinedTasksets",
    "Taskset",
    "TasksetResult",
    "check_metric",
    "compare",
    "evaluate_run",
    "join_tasksets",
    "judge_claims",
    "parse_claims",
    "parse_taskset",
]
