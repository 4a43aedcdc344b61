"""Options of a goal, in a separate file so that the help needs no arithmetic modules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollforge.adaptive.design import GOALS
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

_FORM = re.compile(r"\s*([a-z]+)\s*=\s*([0-9][0-9_,]*)\s*")
_EXAMPLE = "--goal grpo=20000"


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """Collect until there is enough, and sample where it pays."""

    goal: str | None = None
    """Stop at this many usable groups, pairs or examples, as `prepare` counts them: grpo=N, dpo=N, rm=N, sft=N or kto=N. Tasks get a first stage of few samples; those that may pay are filled up to -k."""  # noqa: E501
    min_reward: float | None = None
    """Goal: reward that counts as right; by default 1.0 for rewards of 0 and 1, else 0.95."""
    min_gap: float = 0.2
    """Goal dpo, rm: smallest reward gap of a pair."""
    min_spread: float = 0.0
    """Goal grpo: a group is usable when its highest reward exceeds its lowest by more than this."""
    band: tuple[float, float] | None = None
    """Goal: only tasks with a pass rate in this range count: 0.1-0.9."""
    max_samples: int | None = None
    """Goal: most samples of a task that has brought nothing at -k; by default -k, on a finished run 4 times -k."""
    audit: str = "1%"
    """Goal: share of tasks filled up to -k whatever the rule says, so that pass@k can be estimated without bias; 0 for none."""
    top_up: str | None = None
    """Give only those tasks of a run more samples, up to -k, for which a condition holds: "pass_rate between 0.1 and 0.9"."""


def parse_goal(text: str) -> tuple[str, int]:
    """Parse `grpo=20000` as recipe and number."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"--goal {text!r} is no goal", hint=f"write a recipe and a number: {_EXAMPLE}")
    recipe, number = match[1], int(match[2].replace(",", "").replace("_", ""))
    if recipe not in GOALS:
        raise UsageError(
            f"--goal {text}: {recipe!r} is no recipe with a goal{did_you_mean(recipe, list(GOALS))}",
            hint=f"one of {', '.join(GOALS)}: {_EXAMPLE}",
        )
    if number < 1:
        raise UsageError(f"--goal {text}: a goal is at least 1", hint=_EXAMPLE)
    return recipe, number
