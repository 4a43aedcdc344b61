"""Progress of a collection: a live panel, plain lines, JSON lines, or nothing.

The display has its own thread and only reads snapshots: a slow terminal or a full pipe never blocks the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from rollforge.cli.render.console import err
from rollforge.statistics.counts import count_of
from rollforge.store.costs import cost_text, dollars
from rollforge.text_safety.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rollforge.adaptive.design import Expectation, GoalProgress
    from rollforge.steps.collect.live import LiveSnapshot

Progress = Literal["auto", "rich", "plain", "json", "none"]
Look = Callable[[], "LiveSnapshot | None"]


class Display(Protocol):
    """A display of snapshots between `start` and `stop`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def make_display(kind: Progress, look: Look, announce: Callable[[], None]) -> Display:
    """The display for a kind; `auto` is a live panel on a terminal and plain lines elsewhere.

    Args:
        announce: Prints what starts; called first, in the display's thread if it has one.
    """
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    match kind:
        case "rich":
            return _Panel(look, announce)
        case "plain":
            return _Lines(look, announce, _write_line)
        case "json":
            return _Lines(look, announce, _write_record, is_json=True)
        case _:
            return _Nothing(announce)


class _Nothing:
    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def start(self) -> None:
        """Show nothing but messages that must not be missed."""
        self._announce()

    def stop(self) -> None:
        """Do nothing: there is no display to stop."""


class _Panel:
    """A live panel on the terminal."""

    def __init__(self, look: Look, announce: Callable[[], None]) -> None:
        from rich.live import Live

        self._look = look
        self._announce = announce
        self._live = Live(get_renderable=self._draw, console=err(), refresh_per_second=4, transient=True)

    def start(self) -> None:
        self._announce()
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        from rich.text import Text

        def draw() -> RenderableType:
            snapshot = self._look()
            return draw_panel(snapshot, err().width) if snapshot else Text("reading tasks …")

        panel, failure = drawn(draw)
        return Text(failure) if panel is None else panel


T = TypeVar("T")
LABEL = 10
"""Width of the labels at the left of the panel."""
BARS = "▁▂▃▄▅▆▇█"


def draw_panel(now: LiveSnapshot, width: int = 80) -> RenderableType:
    """Draw one snapshot at the terminal's width; a long line is wrapped between its parts."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total, done = (now.expected, now.finished) if now.goal is None else (now.goal.target, now.goal.usable)
    of = "" if now.goal is None else f" usable {now.goal.unit}"
    counts = f"{done:,}/{total:,}{of}  {done / max(total, 1):.1%}  eta {duration(now.eta_s)}"
    bar = Table.grid(padding=(0, 1), expand=False)
    bar_width = max(10, width - LABEL - len(counts) - 3)
    bar.add_row(
        "collecting",
        ProgressBar(total=max(total, 1), completed=min(done, max(total, 1)), width=bar_width),
        counts,
    )
    return Group(bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in panel_lines(now, width)))


def panel_lines(now: LiveSnapshot, width: int) -> list[str]:
    """Write the lines below the bar, each a label and parts."""
    rows = [
        (
            "model",
            [now.model, *([f"{now.served} by the server"] if now.served else []), now.server]
            if now.model
            else [],
        ),
        (
            "speed",
            [
                f"{number(now.rate)} rollouts/s",
                f"{number(now.tokens_per_s)} tokens/s",
                f"{duration(now.elapsed_s)} so far",
                *([f"{now.finished - now.fresh:,} from before"] if now.finished > now.fresh else []),
            ],
        ),
        ("cost", [cost_text(now.cost)] if now.cost is not None else []),
        ("goal", goal_parts(now.goal, now.tokens_per_s) if now.goal is not None else []),
        ("reward", reward_parts(now)),
        ("verdicts", [health_text(now)] if now.judging is not None or now.judged else []),
        ("requests", [f"{now.in_flight} in flight", f"limit {now.limit}", retries_text(now)]),
        ("verifying", judging_text(now).split(" · ") if now.judging is not None else []),
        (
            "slowest",
            [f"{now.stragglers} over a minute", f"oldest {duration(now.slowest_s)}"]
            if now.slowest_s > 10
            else [],
        ),
        ("trouble", [trouble_text(now)] if trouble_text(now) else []),
        ("now", [now.notice] if now.notice else []),
    ]
    return [line for label, parts in rows if parts for line in _wrapped_row(label, parts, width)]


def _wrapped_row(label: str, parts: list[str], width: int) -> list[str]:
    lines = [f"{label:<{LABEL}}{parts[0]}"]
    for part in parts[1:]:
        if len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(f"{'':<{LABEL}}{part}")
    return lines


def reward_parts(now: LiveSnapshot) -> list[str]:
    """Write the mean, its interval and count, a small histogram and the trend."""
    parts = [reward_text(now)]
    if now.goal is not None:
        parts.append("first stage only: later samples are chosen")
    if now.finished > now.fresh and now.reward is not None:
        parts.append("since this start only")
    if now.reward_histogram:
        most = max(now.reward_histogram)
        bars = "".join(
            BARS[min(7, count * 8 // (most + 1))] if count else " " for count in now.reward_histogram
        )
        parts.append(f"low {bars} high")
    if now.reward_recent is not None and now.reward is not None:
        change = now.reward_recent - now.reward
        # Two standard errors of a hundred rewards of 0 and 1.
        trend = "steady" if abs(change) < 0.1 else "rising" if change > 0 else "falling"
        parts.append(f"{trend} (last 100: {now.reward_recent:.3f})")
    return parts


def goal_parts(goal: GoalProgress, tokens_per_s: float | None = None) -> list[str]:
    """Write the usable units so far, their cost, and the forecast for the goal."""
    parts = [f"{goal.usable:,} of {goal.target:,} usable {goal.unit} ({goal.recipe})"]
    if goal.per_1000_tokens is not None:
        parts.append(f"{number(goal.per_1000_tokens)} per 1,000 tokens")
    if goal.dollars_per_unit is not None:
        parts.append(f"{dollars(goal.dollars_per_unit)} per usable {goal.unit.removesuffix('s')}")
    parts.append(f"{count_of(goal.tasks, 'task')} begun")
    if goal.is_reached:
        return parts
    if goal.needed_tokens is None:
        return [*parts, "no forecast before something usable came"]
    parts.append(f"to the goal: {expectation_text(goal.needed_tokens)} tokens")
    if (cost := goal.needed_dollars) is not None:
        between = f" [{dollars(cost.low)} – {dollars(cost.high)}]" if cost.low is not None else ""
        parts.append(f"{dollars(cost.value)}{between}")
    if tokens_per_s:
        seconds = [
            None if value is None else value / tokens_per_s
            for value in (goal.needed_tokens.value, goal.needed_tokens.low, goal.needed_tokens.high)
        ]
        between = f" [{duration(seconds[1])} – {duration(seconds[2])}]" if seconds[1] is not None else ""
        parts.append(f"{duration(seconds[0])}{between}")
    return parts


def expectation_text(needed: Expectation) -> str:
    """Write a number with its 95 % interval."""
    between = f" [{needed.low:,.0f} – {needed.high:,.0f}]" if needed.low is not None else ""
    return f"{needed.value:,.0f}{between}"


def health_text(now: LiveSnapshot) -> str:
    """Describe whether the verdicts look trustworthy so far."""
    if now.light == "red":
        return "BROKEN: two independent signs; see below"
    if now.light == "yellow":
        return "odd: one sign of broken verification; see below"
    return f"nothing odd in {count_of(now.judged, 'verdict')}" if now.judged else "none yet"


def retries_text(now: LiveSnapshot) -> str:
    """Write the retries by cause, the most frequent first."""
    causes = sorted(now.retry_causes.items(), key=lambda item: -item[1])
    return f"{now.retries:,} retries" + (
        f" ({', '.join(f'{count:,} {kind}' for kind, count in causes[:4])})" if causes else ""
    )


class _Lines:
    """Prints a line after 2 s, then at growing intervals of up to a minute."""

    def __init__(
        self,
        look: Look,
        announce: Callable[[], None],
        write: Callable[[LiveSnapshot], None],
        *,
        is_json: bool = False,
    ) -> None:
        self._look = look
        self._announce = announce
        self._write = write
        self._is_json = is_json
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        pause_s, due, shown, has_named = 2.0, time.monotonic() + 2.0, -1, self._is_json
        failure = guarded(self._announce)
        while not self._done.wait(0.25):
            if time.monotonic() < due:
                continue
            pause_s = min(pause_s * 1.5, 60.0)
            due = time.monotonic() + (2.0 if self._is_json else pause_s)

            def show() -> None:
                nonlocal shown, has_named
                now = self._look()
                if now is not None and now.served and not has_named:
                    print(visible(f"note: the server calls its model {now.served}"), file=sys.stderr)
                    has_named = True
                if now is not None and (self._is_json or now.finished != shown or now.notice):
                    self._write(now)
                    shown = now.finished

            failure = guarded(show, failure)


def guarded(show: Callable[[], None], last_failure: str = "") -> str:
    """Run one piece of a display; report its first failure on stderr and go on."""
    _, failure = drawn(show)
    if failure and failure != last_failure:
        with contextlib.suppress(OSError, ValueError):
            print(failure, file=sys.stderr, flush=True)
    return failure or last_failure


def drawn(draw: Callable[[], T]) -> tuple[T | None, str]:
    """What a piece of the display returns, and how it failed: an exception would end the drawing thread unseen."""
    try:
        return draw(), ""
    except Exception as error:  # noqa: BLE001  (see above)
        return None, f"the display failed: {type(error).__name__}: {error} (the run goes on)"


def _write_line(now: LiveSnapshot) -> None:
    trouble = trouble_text(now)
    parts = [
        f"{now.finished:,}/{now.expected:,} ({now.finished / max(now.expected, 1):.1%})"
        if now.goal is None
        else " · ".join([*goal_parts(now.goal), f"{count_of(now.finished, 'rollout')}"]),
        f"{number(now.rate)}/s",
        f"eta {duration(now.eta_s)}",
        f"reward {reward_text(now)}{light_text(now)}",
        f"{now.in_flight}/{now.limit} in flight",
        *([f"cost {cost_text(now.cost)}"] if now.cost is not None else []),
        *([trouble] if trouble else []),
        *([f"oldest {duration(now.slowest_s)}"] if now.slowest_s > 60 else []),
        *([f"verifying {judging_text(now)}"] if now.judging is not None and now.judging.queued else []),
        *([now.notice] if now.notice else []),
    ]
    print(visible(" · ".join(parts)), file=sys.stderr, flush=True)


def _write_record(now: LiveSnapshot) -> None:
    write_record({"event": "progress", **msgspec.to_builtins(now)})


def write_record(record: object) -> None:
    """Write one JSON object as a line of stdout."""
    sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
    sys.stdout.buffer.flush()


def reward_text(now: LiveSnapshot) -> str:
    """Write mean ± half-width, and the share of rollouts judged."""
    if now.reward is None:
        return "none yet"
    width = f" ± {now.reward_half_width:.3f}" if now.reward_half_width is not None else ""
    return f"{now.reward:.3f}{width} over {now.judged / max(now.fresh, 1):.0%} judged"


def light_text(now: LiveSnapshot) -> str:
    """Warn if verdicts look broken; empty while there is no signal."""
    return {"yellow": " · verification: odd (yellow)", "red": " · verification: BROKEN (red)"}.get(
        now.light, ""
    )


def judging_text(now: LiveSnapshot) -> str:
    """Write queue, workers and speed of verification; a growing queue means that it is the bottleneck."""
    judging = now.judging
    assert judging is not None
    parts = [f"{now.verifying} at once", f"{judging.queued:,} queued"]
    if judging.workers:
        parts.append(f"{judging.busy} of {judging.workers} workers busy")
    if judging.seconds_per_verdict is not None:
        parts.append(f"{short_time(judging.seconds_per_verdict)} per verdict")
    if judging.hit_rate:
        parts.append(f"{judging.hit_rate:.0%} shared")
    return " · ".join(parts)


def trouble_text(now: LiveSnapshot) -> str:
    """Write failures by class, truncated and empty answers; empty if there are none."""
    parts = [f"{count:,} {kind}" for kind, count in sorted(now.failures.items(), key=lambda item: -item[1])]
    if now.given_up:
        parts.append(f"{now.given_up:,} given up")
    if now.truncated:
        parts.append(f"{now.truncated:,} truncated")
    if now.empty:
        parts.append(f"{now.empty:,} empty")
    return ", ".join(parts)


def duration(seconds: float | None) -> str:
    """Format a duration: 4.2 s, 3m 12s, 2h 05m, 3d 4h."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def short_time(seconds: float) -> str:
    """Format a short duration in a suitable unit: 79 µs, 3.2 ms, 0.9 s."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else duration(seconds)


def number(value: float | None) -> str:
    """Format a rate with two or three significant digits."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
