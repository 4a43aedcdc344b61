"""Verifier rates from people's labels, and the loop that asks for labels in a terminal."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from rollforge.cli.render.console import out, say
from rollforge.cli.render.show import print_rollouts
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.review.labels import LabelRate, LabelRates, Opinion
    from rollforge.steps.show import Shown

PASS = 0.5
"""Rewards from this value on count as passed, as in the rates."""

SEQUENCE_S = 0.05
"""The bytes of one key arrive together."""

KEYS: dict[str, Opinion] = {"a": "agree", "d": "disagree", "u": "unsure"}


def print_labels(rates: LabelRates) -> None:
    """Print the verifier's rates by labels."""
    say(
        f"{count_of(rates.labels, 'label')}: {rates.random:,} drawn at random count ({rates.blind:,} of them blind), "
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


QUESTION = "agree with the verdict? [a]gree, [d]isagree, [u]nsure, [s]kip, [b]ack, [q]uit: "
BLIND_QUESTION = "is the answer right? [a] right, [d] wrong, [u]nsure, [s]kip, [q]uit: "


def ask_labels(
    queue: Iterable[Shown],
    keep: Callable[[Shown, Opinion], None],
    *,
    blind: bool = False,
    ask: Callable[[str], str] | None = None,
) -> int:
    """Show rollouts one after another and record the person's labels; returns how many were labelled.

    One step back replaces a slip of the finger: the newest label counts. Blind labels have none, since their verdict was shown.

    Args:
        ask: Returns the typed answer; by default one key on a terminal and a line elsewhere.
    """
    ask = ask or (ask_key if sys.stdin.isatty() else input)
    labelled: set[tuple[int, int]] = set()
    waiting = iter(queue)
    again: list[Shown] = []
    previous: Shown | None = None
    while (one := again.pop() if again else next(waiting, None)) is not None:
        print_rollouts([one], raw=False, full=False, json=False, hides_verdict=blind)
        answer = _ask(ask, blind=blind)
        if answer == "quit":
            break
        if answer == "back":
            again.append(one)
            if previous is None:
                say("there is none to go back to")
            else:
                again.append(previous)
                previous = None
            continue
        previous = one
        if answer == "skip":
            continue
        opinion = answer
        if blind:
            opinion = blind_opinion(opinion, one.reward)
            say(f"the verdict is {'none' if one.reward is None else f'{one.reward:g}'}: {opinion}")
        keep(one, opinion)
        labelled.add((one.task, one.rollout))
        say(f"{len(labelled):,} labelled: {opinion}")
    return len(labelled)


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
        while (key := os.read(terminal, 1)) in (b"\n", b"\r", b"\x1b"):  # Enter, by habit
            if key == b"\x1b":
                _drop_sequence(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write("\n")
        sys.stdout.flush()
    if key in (b"", b"\x04"):
        raise EOFError
    return key.decode("latin-1")


def _drop_sequence(terminal: int) -> None:
    """Read the rest of what an arrow or function key sends: the letter that ends it is no answer."""
    if not _has_more(terminal) or os.read(terminal, 1) not in b"[O":
        return
    while _has_more(terminal) and not b"@" <= os.read(terminal, 1) <= b"~":
        pass


def _has_more(terminal: int) -> bool:
    return bool(select.select([terminal], [], [], SEQUENCE_S)[0])


def blind_opinion(opinion: Opinion, reward: float | None) -> Opinion:
    """Translate "right" or "wrong" about an answer into agreement with a verdict that the person did not see."""
    if opinion == "unsure" or reward is None:
        return "unsure"
    return "agree" if (opinion == "agree") == (reward >= PASS) else "disagree"


def _ask(ask: Callable[[str], str], *, blind: bool) -> Opinion | Literal["skip", "back", "quit"]:
    while True:
        try:
            typed = ask(BLIND_QUESTION if blind else QUESTION).strip().lower()[:1]
        except EOFError:
            return "quit"
        match typed:
            case "a" | "d" | "u":
                return KEYS[typed]
            case "s":
                return "skip"
            case "b" if not blind:
                return "back"
            case "q":
                return "quit"
        say("type a, d, u, s or q" if blind else "type a, d, u, s, b or q")
