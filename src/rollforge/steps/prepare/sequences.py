"""Several examples per rollout: the sequences of recorded programs, for `--sequences all`.

Each sequence of a rollout becomes an example with the rollout's reward, so a rollout with three sequences counts three times.
Discarded answers (`retry`) are excluded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollforge.conversations.reader import sequence_roles
from rollforge.errors import UsageError
from rollforge.recipes.base import Ints, Selection
from rollforge.steps.prepare.rollout_pool import Pool

SEQUENCE = "sequence"
"""Selection column with the sequence number of each example; 0 is the main sequence."""

SEVERAL = ("demonstration", "labelled", "scored")
"""Kinds of examples that represent single rollouts."""


def refuse_sequences(recipe: str, kind: str, *, is_copy: bool) -> None:
    """Raise if the recipe or exporter cannot write all sequences."""
    if kind not in SEVERAL:
        raise UsageError(
            f"--sequences all does not apply to {recipe}: its rows are about a prompt or a pair, not about one rollout each",
            hint="leave it out, or use sft, kto or --shape groups",
        )
    if is_copy:
        raise UsageError(
            "--sequences all has no meaning where whole rollout lines are copied", hint="choose another --to"
        )


def with_all_sequences(selection: Selection, pool: Pool) -> Selection:
    """The selection with an example for every sequence of its rollouts."""
    if selection.kind not in SEVERAL or not len(selection):
        return selection
    sequences = [
        [number for number, role in enumerate(sequence_roles(line)) if role != "retry"]
        for line in pool.read(selection.picks)
    ]
    numbers = np.repeat(np.arange(len(sequences)), [len(each) for each in sequences])
    sequence = np.array([number for each in sequences for number in each], dtype=np.int64)
    expanded = selection.take(numbers)
    return replace(expanded, values={**expanded.values, SEQUENCE: sequence})


def sequences_of(selection: Selection, numbers: Ints) -> Ints:
    """Sequence number of each of these examples."""
    column = selection.values.get(SEQUENCE)
    return np.zeros(len(numbers), dtype=np.int64) if column is None else column[numbers]
