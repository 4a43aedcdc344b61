"""Rollouts to read, as a list that a notebook lays out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.statistics.counts import count_of
from rollforge.text_safety.markup import Html, decimal, result, tag

if TYPE_CHECKING:
    from rollforge.steps.show import Shown

SHOWN_CHARS = 4000
"""Longest text of a turn that a notebook shows; the record contains the full text."""


class ShownRollouts(list["Shown"]):
    """A list of rollout records, which a notebook renders as readable turns."""

    def __repr__(self) -> str:
        return f"[{', '.join(f'task {one.task} rollout {one.rollout}: reward {one.reward}' for one in self)}]"

    def _repr_html_(self) -> str:
        return result(f"{count_of(len(self), 'rollout')}", *(_rollout(one) for one in self))


def _rollout(one: Shown) -> Html:
    numbers = ", ".join(f"{name} {decimal(value)}" for name, value in one.numbers.items())
    head = f"task {one.task}, rollout {one.rollout}: reward {decimal(one.reward)}" + (
        f" ({numbers})" if numbers else ""
    )
    turns = [
        tag(
            "div",
            tag("em", turn.title or turn.kind),
            tag("pre", _cut(turn.text), style="white-space: pre-wrap"),
        )
        for turn in one.turns
    ]
    why = [tag("p", f"suspicious: {reason}") for reason in one.why]
    return tag("details", tag("summary", head), *why, *turns, open="open")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters)"
