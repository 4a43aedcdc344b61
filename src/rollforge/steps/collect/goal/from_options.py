"""The goal of a collection: the number of usable units of a recipe, from the options, recorded in the manifest."""

from __future__ import annotations

from rollforge.adaptive.design import SamplingDesign
from rollforge.adaptive.sampling_rule import MOST_SAMPLES
from rollforge.errors import UsageError
from rollforge.recipes.base import RecipeOptions
from rollforge.steps.collect.goal.goal_options import GoalOptions, parse_goal

TOPPED_UP = 4
"""On a finished run, a task may get this multiple of its samples, unless --max-samples is given."""


def first_stage(samples: int) -> int:
    """First-stage samples of each task: a quarter of a group, but at least two, so that rewards can differ."""
    return min(samples, max(2, samples // 4))


def make_design(
    options: GoalOptions, *, samples: int, audit: float, seed: int, base: int = 0
) -> SamplingDesign:
    """The design of a collection with a goal.

    Args:
        base: samples that every task of a finished run already has; 0 for a run that is not finished.
    """
    assert options.goal is not None
    recipe, target = parse_goal(options.goal)
    whole = max(samples, base)
    most = options.max_samples or (min(TOPPED_UP * whole, MOST_SAMPLES) if base else whole)
    if most < whole:
        raise UsageError(
            f"--max-samples {most} is below the {whole} samples of a whole group",
            hint=f"give --max-samples {whole} or more, or leave it out",
        )
    if most > MOST_SAMPLES:
        raise UsageError(
            f"a goal allows at most {MOST_SAMPLES} samples per task, not {most}",
            hint="give a smaller -k or --max-samples; a goal reaches its number with more tasks",
        )
    if whole < 2 and recipe in ("grpo", "dpo", "rm"):
        raise UsageError(
            f"--goal {options.goal} needs groups, but -k is {samples}",
            hint="give -k 8: a group has several samples of one task",
        )
    return SamplingDesign(
        recipe=recipe,
        target=target,
        min_reward=options.min_reward,
        min_gap=options.min_gap,
        min_spread=options.min_spread,
        band=options.band,
        first=base or first_stage(whole),
        whole=whole,
        most=most,
        audit=0.0 if base else audit,
        seed=seed,
        base=base,
    )


def recipe_options(design: SamplingDesign) -> RecipeOptions:
    """Options with which `prepare` counts the same units."""
    return RecipeOptions(
        min_reward=design.min_reward,
        min_gap=design.min_gap,
        min_spread=design.min_spread,
        band=design.band,
    )


def prepare_words(design: SamplingDesign) -> str:
    """Flags with which `prepare` counts the same units as the goal."""
    words = []
    if design.min_reward is not None:
        words.append(f"--min-reward {design.min_reward:g}")
    if design.recipe in ("dpo", "rm") and design.min_gap != 0.2:
        words.append(f"--min-gap {design.min_gap:g}")
    if design.recipe == "grpo" and design.min_spread:
        words.append(f"--min-spread {design.min_spread:g}")
    if design.band is not None:
        words.append(f"--band {design.band[0]:g}-{design.band[1]:g}")
    return " ".join(words)
