"""Single answers labelled as desirable or undesirable; answers between the two tiers are left out."""

from __future__ import annotations

import numpy as np

from rollforge.recipes.base import (
    Candidates,
    RecipeOptions,
    Selection,
    balanced,
    drop_duplicates,
    reaches,
    recipe,
    screen,
    success_threshold,
)


@recipe("labelled")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One labelled answer per kept rollout. Default tiers: 1 and 0 for binary rewards, else 0.7 and 0.4."""
    is_binary = success_threshold(candidates.reward, None) == 1.0
    high = options.high if options.high is not None else options.min_reward
    high = (1.0 if is_binary else 0.7) if high is None else high
    low = options.low if options.low is not None else (0.0 if is_binary else 0.4)
    fates = screen(candidates, options)
    wanted = reaches(candidates.reward, high) & candidates.flag("chosen_where", True)
    unwanted = reaches(-candidates.reward, -low) & candidates.flag("rejected_where", True) & ~wanted
    fates.drop(~(wanted | unwanted), "between the tiers")
    drop_duplicates(fates, candidates, options)
    classes = wanted.astype(np.int64) if options.balance_labels else candidates.balance
    if classes is not None:
        alive = np.flatnonzero(fates.alive)
        surplus = np.zeros(len(candidates), dtype=bool)
        surplus[alive] = ~balanced(classes[alive], candidates.ties(options.seed)[alive])
        fates.drop(surplus, "left out for balance")
    picks = np.flatnonzero(fates.alive)
    settings = {"high": high, "low": low}
    return Selection(
        "labelled", picks, fates.counts(), {"label": wanted[picks]}, settings, fate_of=fates.codes()
    )
