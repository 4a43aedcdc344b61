"""Verifier rates from people's labels, and the loop that asks for labels in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rollforge.cli.render.console import out, say
from rollforge.cli.render.show import print_rollouts

if TYPE_CHECKING:
    from rollforge.review.labels import LabelRate, LabelRates, Opinion
    from rollforge.steps.show import Shown

PASS = 0.5
"""Rewards from this value on count as passed, as in the rates."""

KEYS: dict[str, Opinion] = {"a": "agree", "d": "disagree", "u": "unsure"}


def print_labels(rates: LabelRates) -> None:
    """Print the verifier's rates by labels."""
    say(
        f"{rates.labels:,} labels: {rates.random:,} drawn at random count ({rates.blind:,} of them blind), "
        f"{rates.unsure:,} unsure, {rates.suspicious:,} of suspicious rollouts"
    )
    if rates.stratified:
        say(
            f"{rates.stratified:,} are drawn per stratum; rates weight passes and fails by their shares of the run"
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


QUESTION = "agree with the verdict? [a]gree, [d]isagree, [u]nsure, [s]kip, [q]uit: "
BLIND_QUESTION = "is the answer right? [a] right, [d] wrong, [u]nsure, [s]kip, [q]uit: "


def ask_labels(
    queue: Iterable[Shown],
    keep: Callable[[Shown, Opinion], None],
    *,
    blind: bool = False,
    ask: Callable[[str], str] | None = None,
) -> int:
    """Show rollouts one after another and record the person's labels; returns how many were labelled.

    Args:
        ask: Returns the typed answer; by default one key on a terminal and a line elsewhere.
    """
    ask = ask or (ask_key if sys.stdin.isatty() else input)
    count = 0
    for one in queue:
        print_rollouts([one], raw=False, full=False, json=False, hides_verdict=blind)
        answer = _ask(ask, BLIND_QUESTION if blind else QUESTION)
        if answer is None:
            break
        if answer == "skip":
            continue
        opinion = KEYS[answer]
        if blind:
            opinion = blind_opinion(opinion, one.reward)
            say(f"the verdict is {'none' if one.reward is None else f'{one.reward:g}'}: {opinion}")
        keep(one, opinion)
        count += 1
    return count


def ask_key(question: str) -> str:
    """Read one key from the terminal without Enter; a whole line on systems without termios.

    Raises:
        EOFError: Ctrl-D.
    """
    try:
        import termios
        import tty
    except ImportError:
        return input(question)
    terminal = sys.stdin.fileno()
    sys.stdout.write(question)
    sys.stdout.flush()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)  # keeps keys typed ahead; Ctrl-C still interrupts
        while (key := os.read(terminal, 1)) in (b"\n", b"\r"):
            pass  # Enter, by habit
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write("\n")
        sys.stdout.flush()
    if key in (b"", b"\x04"):
        raise EOFError
    return key.decode("latin-1")


def blind_opinion(opinion: Opinion, reward: float | None) -> Opinion:
    """Translate "right" or "wrong" about an answer into agreement with a verdict that the person did not see."""
    if opinion == "unsure" or reward is None:
        return "unsure"
    return "agree" if (opinion == "agree") == (reward >= PASS) else "disagree"


def _ask(ask: Callable[[str], str], question: str) -> str | None:
    while True:
        try:
            typed = ask(question).strip().lower()[:1]
        except EOFError:
            return None
        if typed in KEYS:
            return typed
        if typed == "s":
            return "skip"
        if typed == "q":
            return None
        say("type a, d, u, s or q")
