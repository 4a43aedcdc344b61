"""Rollouts to read: turns, tool calls and verdicts; long texts folded."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollforge.cli.render.console import out, print_json
from rollforge.cli.render.numbers import short
from rollforge.cli.render.table import GAP, wrapped
from rollforge.errors import Exit, UsageError
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.conversations.turns import Turn
    from rollforge.steps.show import SeenLine, Shown
    from rollforge.steps.show_calls import CallsOfRun

FOLD_LINES = 14
STYLES = {
    "system": "dim", "user": "bold cyan", "assistant": "bold green", "reasoning": "italic dim", "tool call": "bold magenta",
    "tool output": "magenta", "sequence": "bold", "program": "dim", "other": "dim",
}  # fmt: skip


def print_rollouts(
    shown: list[Shown],
    *,
    raw: bool,
    full: bool,
    json: bool,
    sides: Sequence[str] = (),
    hides_verdict: bool = False,
    hint: str = "",
) -> Exit:
    """Print rollouts.

    Args:
        sides: what each is in a pair, such as chosen and rejected.
        hint: the next step when there is no rollout.
    """
    if json:
        from rollforge.steps.show import as_json

        print_json({"rollouts": [as_json(one) for one in shown]})
    elif raw:
        for one in shown:
            sys.stdout.buffer.write(bytes(one.raw) + b"\n")
        sys.stdout.buffer.flush()
    elif not shown:
        raise UsageError(
            "no rollout fits",
            hint=hint or "ask for less; what there is: rollforge metrics RUN, or profile RUN for its tasks",
        )
    else:
        for position, one in enumerate(shown):
            _print_rollout(one, full=full, side=sides[position] if sides else "", hides_verdict=hides_verdict)
    return Exit.DONE


def print_attempts(recorded: CallsOfRun, *, full: bool, json: bool) -> Exit:
    """Print the recorded calls of program attempts that did not become rollouts."""
    if json:
        print_json(recorded)
        return Exit.DONE
    from rich.text import Text

    console = out()
    for one in recorded.attempts:
        title = (
            f"task {one.task} · rollout {one.rollout} · attempt {one.session} · {count_of(one.calls, 'call')}"
        )
        state = "the rollout is finished" if one.is_finished else "no rollout yet"
        console.rule(Text(f"{title} · {state}", style="bold"), align="left", characters="─")
        for reason in one.failed_calls:
            console.print(Text(f"! a call failed: {reason}", style="yellow"))
        for turn in one.turns:
            _print_turn(turn, full=full)
        console.print()
    console.print(
        Text(
            f"{count_of(recorded.unfinished, 'attempt')} without a rollout, with {recorded.unfinished_calls:,} recorded calls; "
            f"{count_of(len(recorded.attempts), 'attempt')} shown",
            style="dim",
        )
    )
    return Exit.DONE


def print_line(seen: SeenLine, *, raw: bool, json: bool) -> Exit:
    text = seen.data.decode("utf-8", "replace")
    if raw:
        sys.stdout.buffer.write(seen.data + b"\n")
        sys.stdout.buffer.flush()
        return Exit.DONE
    if json:
        print_json(
            {"file": seen.file, "line": seen.line, "offset": seen.offset, "reason": seen.reason, "text": text}
        )
        return Exit.DONE
    from rich.text import Text

    out().print(
        Text(f"{seen.file}:{seen.line}  (offset {seen.offset:,}, {len(seen.data):,} bytes)", style="bold")
    )
    out().print(Text(seen.reason or "", style="yellow"))
    if len(text) > 4000:
        text = f"{text[:2000]}\n… {len(text) - 4000:,} characters …\n{text[-2000:]}"
    out().print(Text(text))
    return Exit.DONE


def _print_rollout(shown: Shown, *, full: bool, side: str = "", hides_verdict: bool = False) -> None:
    from rich.text import Text

    console = out()
    reward = "unjudged" if shown.reward is None else f"reward {shown.reward:g}"
    reward = "verdict hidden" if hides_verdict else reward
    title = f"{f'{side} · ' if side else ''}task {shown.task} · rollout {shown.rollout} · {reward}"
    console.rule(Text(title, style="bold"), align="left", characters="─")
    source = f"{shown.file}:{shown.line}"
    console.print(Text(f"{source}{f' · {shown.agent}' if shown.agent else ''}", style="dim"))
    if shown.numbers and not hides_verdict:
        _print_list([f"{name} {short(value)}" for name, value in shown.numbers.items()])
    if shown.facts and not hides_verdict:
        facts = [
            name if value is True else f"{name} {short(value) if isinstance(value, float) else value}"
            for name, value in shown.facts.items()
        ]
        _print_list(facts, style="dim")
    for reason in () if hides_verdict else shown.why:
        console.print(Text(f"! {reason}", style="yellow"))
    for name, value in shown.task_fields.items():
        if not name.startswith("_") and isinstance(value, str | int | float):
            console.print(Text(f"{name}: {_folded(str(value), full, 3)}", style="dim"))
    for turn in shown.turns:
        _print_turn(turn, full=full)
    console.print()


def _print_list(items: list[str], style: str = "") -> None:
    """Print items side by side, wrapping between them."""
    from rich.text import Text

    for line in wrapped(GAP.join(items), 0):
        out().print(Text(line, style=style))


def _print_turn(turn: Turn, *, full: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    title = f"{turn.kind} {turn.title}".strip()
    out().print(Text(title, style=STYLES[turn.kind]))
    if turn.kind == "sequence" or (turn.kind == "program" and not turn.text):
        return
    style = "dim" if turn.kind in ("system", "reasoning") else ""
    text = _folded(turn.text, full, FOLD_LINES if turn.kind != "assistant" else 2 * FOLD_LINES)
    if out().is_terminal:
        out().print(Padding(Text(text, style=style), (0, 0, 0, 2)), soft_wrap=False)
    else:  # lines as the model wrote them, for those who search in a file
        out().print(Text(textwrap.indent(text, GAP)))


def _folded(text: str, full: bool, lines: int) -> str:
    """Fold a long text to head and tail, with a count of the rest."""
    text = text.strip("\n")
    budget = lines * 100
    parts = text.split("\n")
    if full or (len(parts) <= lines and len(text) <= budget):
        return text or "(empty)"
    if len(parts) > lines:
        head, tail = parts[: lines * 2 // 3], parts[-(lines // 3) :]
        hidden = len(parts) - len(head) - len(tail)
        text = "\n".join([*head, f"… {count_of(hidden, 'line')} folded (--full shows them) …", *tail])
    if len(text) > 2 * budget:
        text = f"{text[:budget]} … {len(text) - budget - budget // 3:,} characters folded (--full) … {text[-(budget // 3) :]}"
    return text
