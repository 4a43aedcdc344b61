"""Rates of a verifier from people's labels, and the loop that asks for labels in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rollforge.cli.render.console import out, say
from rollforge.cli.render.show import print_rollouts

if TYPE_CHECKING:
    from rollforge.labels import LabelRate, LabelRates, Opinion
    from rollforge.steps.show import Shown

KEYS: dict[str, Opinion] = {"a": "agree", "d": "disagree", "u": "unsure"}


def print_labels(rates: LabelRates) -> None:
    """Print what the labels say about the verifier."""
    say(
        f"{rates.labels:,} labels: {rates.random:,} from the random queue count ({rates.blind:,} of them blind), "
        f"{rates.unsure:,} unsure, {rates.suspicious:,} of suspicious rollouts"
    )
    if rates.stale:
        say(f"{rates.stale:,} are about a reward that the rollout no longer has")
    for name, rate, words in (
        ("error rate", rates.error, "verdicts that people disagree with"),
        ("precision", rates.precision, "of the rollouts it passes, those that people pass"),
        ("recall", rates.recall, "of the rollouts people pass, those that it passes"),
        ("false passes", rates.false_positive, "of the rollouts people fail, those that it passes"),
    ):
        out().print(f"{name:<13} {_shown(rate)}  {words}", highlight=False)


def _shown(rate: LabelRate) -> str:
    if rate.value is None or rate.ci is None:
        return f"too few labels to say (n = {rate.n:,})".ljust(34)
    return f"{rate.value:6.1%}  [{rate.ci[0]:.1%} … {rate.ci[1]:.1%}]  n = {rate.n:,}".ljust(34)


def ask_labels(
    queue: Iterable[Shown], keep: Callable[[Shown, Opinion], None], *, ask: Callable[[str], str] = input
) -> int:
    """Show one rollout after another and keep what the person says; returns how many were labelled."""
    count = 0
    for one in queue:
        print_rollouts([one], raw=False, full=False, json=False)
        answer = _ask(ask)
        if answer is None:
            break
        if answer != "skip":
            keep(one, KEYS[answer])
            count += 1
    return count


def _ask(ask: Callable[[str], str]) -> str | None:
    while True:
        try:
            typed = (
                ask("agree with the verdict? [a]gree, [d]isagree, [u]nsure, [s]kip, [q]uit: ")
                .strip()
                .lower()[:1]
            )
        except EOFError:
            return None
        if typed in KEYS:
            return typed
        if typed == "s":
            return "skip"
        if typed == "q":
            return None
        say("type a, d, u, s or q")
