"""The check step: evidence of a run → findings, an exit code, a verdict per recipe."""

from rollforge.steps.check.readiness import (
    CheckCounts,
    CheckOptions,
    FailOn,
    RecipeVerdict,
    Report,
    check_evidence,
    exit_code,
    recipe_verdict,
)
from rollforge.steps.check.run_evidence import check_run, index_evidence

__all__ = [
    "CheckCounts",
    "CheckOptions",
    "FailOn",
    "RecipeVerdict",
    "Report",
    "check_evidence",
    "check_run",
    "exit_code",
    "index_evidence",
    "recipe_verdict",
]
