"""Detectors of broken verification that watch verdicts as they arrive, at constant cost per rollout.

A verifier that fails on everything trips at once. Otherwise one signal is a warning ("yellow") and two independent signals trip,
because sorted tasks, a slow disk or a cache occasionally cause any single one. A tripped detector marks a window to be judged
again; it never drops rollouts.

Two signals count as independent only after common causes are removed. Samples of one task are correlated, so a fall of rewards
must span more tasks than chance explains. Wrong answers may take longer to judge, so a duration is compared with those of equal
reward. The last rollouts of a run arrive sorted by how long they took, so durations are ignored once no more rollouts are
started. A loaded machine slows any verifier, so durations are also ignored while low rewards go to answers that look wrong.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
import numpy as np

from rollforge.checks.building_blocks.chance import ALIKE, EDGES, chance_all_same
from rollforge.checks.building_blocks.finding import share

Light = Literal["green", "yellow", "red"]
Signal = Literal["rewards", "latency", "failures", "consistency", "extraction", "undeserved"]

LEAST_TASKS = 20
"""Fewest tasks in a suspicious stretch of equal rewards."""
LOW_TASKS, MOST_LOW_TASKS = 10, 100
"""Fewest tasks over which the mean reward must stay low, and the most that are counted."""
LEAST_RATE = 0.01
"""A working verifier is assumed to reward at least one rollout in a hundred."""
SURE = 1e-6
RARE = 1e-5
"""Rewards have fallen when that many hard tasks in a row are less likely than this."""
FAST, SLOW = 0.05, 0.002
"""Weights of the newest value in the fast and slow moving averages."""
WARM = 50
TIMES = math.log(5.0)
"""Logarithm of the factor by which verification must become slower or faster."""
CALM = 0.2
"""A fall of the mean reward (or a fraction of `TIMES`) below this counts as calm."""
REMEMBERED = 8192
NEIGHBOURS = 400
FEWEST_LOOKS = 20
"""Low-reward answers that must have been compared with the expected answers before wrong answers explain a fall."""
FEWEST_FAILURES, NEARLY_ALL = 20, 0.9
"""This many failures, if they are also this share of all verdicts, trip on their own."""
EVERY = 64
LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999."""


class SuspectWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of rollouts whose rewards the detectors distrust. The rollouts stay in the run."""

    first_at: float | None = None
    last_at: float | None = None
    rollouts: int = 0
    value: float | None = None
    """The common reward of the stretch, if it tripped on equal rewards."""
    reason: str = ""
    signals: dict[str, str] = {}


def suspect_condition(window: SuspectWindow) -> str:
    """The rollouts of a window as a --where condition, widened by a millisecond on both sides."""
    first, last = _moment((window.first_at or 0.0) - 0.001), _moment((window.last_at or 0.0) + 0.001)
    return f"to_timestamp(started + seconds) between '{first}' and '{last}'"


def _moment(seconds: float) -> str:
    """A time as a date that SQL reads, whatever its time zone; a manifest may say anything."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_MOMENT), UTC).isoformat(" ", "milliseconds")


class Watch:
    """The detectors of one collection. Call `observe` for every rollout; read `light`, `tripped`, `reason`."""

    __slots__ = (
        "_begun_at", "_calm_at", "_calm_seen", "_drop_high", "_drop_low", "_empties", "_empties_rewarded", "_fail_fast", "_fail_slow",
        "_failed", "_first_at", "_first_seen", "_is_draining", "_known", "_last_at", "_length", "_looked", "_looks_right",
        "_low_looked", "_low_looks_right", "_low_tasks", "_next_look", "_pace", "_past", "_repeats", "_repeats_differ",
        "_reward_fast", "_reward_slow", "_task_count", "_tasks", "_usual", "_usual_n", "_value",
        "judged", "reason", "seen", "signals", "tripped",
    )  # fmt: skip

    def __init__(self) -> None:
        self.seen = self.judged = 0
        self.tripped = False
        self.reason = ""
        self.signals: dict[Signal, str] = {}
        """Current signals → a sentence for each."""
        self._value = math.nan
        self._length = 0
        self._tasks: set[int] = set()
        """Unfinished tasks in the current stretch of equal rewards; `_task_count` also counts the finished ones."""
        self._task_count = 0
        self._next_look = LEAST_TASKS
        self._past: deque[tuple[float, int]] = deque(maxlen=NEIGHBOURS)
        self._first_at = self._last_at = 0.0
        self._first_seen = 0
        self._begun_at = self._calm_at = 0.0
        self._calm_seen = 0
        """Time and rollout number of the last moment without a signal."""
        self._pace = 0.0
        """Fast moving average of log(duration / usual duration)."""
        self._usual, self._usual_n = [0.0, 0.0], [0, 0]
        """Slow moving averages of log durations, separate for low and high rewards, and their counts."""
        self._is_draining = False
        self._fail_fast = self._fail_slow = 0.0
        self._reward_fast = self._reward_slow = 0.0
        self._drop_low, self._drop_high = math.inf, -math.inf
        self._low_tasks: set[int] = set()
        """Tasks judged since the mean reward fell, counted up to `MOST_LOW_TASKS`."""
        self._low_looked = self._low_looks_right = 0
        """Low-reward answers compared since the mean fell, and how many of them end in the expected answer."""
        self._empties = self._empties_rewarded = 0
        self._known: dict[tuple[int, int], float] = {}
        self._repeats = self._repeats_differ = 0
        self._looked = self._looks_right = 0
        self._failed = 0

    @property
    def light(self) -> Light:
        """red: tripped; yellow: some signal; green: no signal."""
        return "red" if self.tripped else "yellow" if self.signals else "green"

    def observe(
        self,
        task: int,
        reward: float | None,
        *,
        answer_hash: int | None = None,
        is_empty: bool = False,
        verify_seconds: float | None = None,
        has_failure: bool = False,
        at: float = 0.0,
        is_draining: bool = False,
        looks_right: Callable[[], bool | None] | None = None,
    ) -> None:
        """Record one verdict or verifier failure.

        Args:
            at: when it was judged, for the window that is marked.
            is_draining: no further rollout will be started.
            looks_right: whether the answer ends in the expected one; only called during a stretch of equal or low rewards.
        """
        self.seen += 1
        if self.seen == 1:
            self._begun_at = at
        self._is_draining = is_draining
        self._fail_fast += FAST * (has_failure - self._fail_fast)
        self._observe_failure(has_failure, at)
        if reward is None:
            if self.seen % EVERY == 0:
                self._judge()
            return
        self.judged += 1
        if reward == self._value:
            self._length += 1
            if task not in self._tasks:
                self._tasks.add(task)
                self._task_count += 1
        else:
            self._begin_stretch(task, reward, at)
        self._last_at = at
        is_still = self._task_count >= LEAST_TASKS
        if verify_seconds is not None and math.isfinite(verify_seconds):
            self._observe_latency(math.log(verify_seconds + 1e-6), reward, is_still)
        self._reward_fast += FAST * (reward - self._reward_fast)
        if not is_still:
            weight = self._slow_weight(self.judged, self.judged)
            self._reward_slow += weight * (reward - self._reward_slow)
            self._fail_slow += weight * (has_failure - self._fail_slow)
            if reward < self._drop_low:
                self._drop_low = reward
            if reward > self._drop_high:
                self._drop_high = reward
        elif looks_right is not None and self._looked < REMEMBERED:
            self._observe_look(looks_right())
        self._observe_low(task, reward, looks_right)
        if is_empty:
            self._empties += 1
            self._empties_rewarded += reward > (self._drop_low + self._drop_high) / 2
        if answer_hash is not None and not is_empty:  # agents that record no text give many equal "answers"
            self._observe_answer((task, answer_hash), reward)
        if self._task_count >= self._next_look or self.judged % EVERY == 0:
            self._judge()

    def settle(self, task: int) -> None:
        """Every rollout of this task has arrived: drop its state."""
        self._tasks.discard(task)

    def window(self) -> SuspectWindow:
        """The suspect rollouts: the stretch of equal rewards, or all since the first signal."""
        is_stretch = bool(self._still_text())
        return SuspectWindow(
            first_at=self._first_at if is_stretch else self._calm_at or self._begun_at,
            last_at=self._last_at,
            rollouts=self.seen - (self._first_seen - 1 if is_stretch else self._calm_seen),
            value=None if math.isnan(self._value) else self._value,
            reason=self.reason,
            signals={str(name): text for name, text in self.signals.items()},
        )

    # State

    def _begin_stretch(self, task: int, reward: float, at: float) -> None:
        if self._length:
            self._past.append((self._value, self._length))
        self._value, self._length = reward, 1
        self._tasks = {task}
        self._task_count = 1
        self._next_look = LEAST_TASKS
        self._first_at, self._first_seen = at, self.seen
        self._looked = self._looks_right = 0
        if "rewards" in self.signals:
            self.signals.pop("rewards")
            self.signals.pop("extraction", None)

    def _observe_failure(self, has_failure: bool, at: float) -> None:
        if not has_failure:
            return
        self._failed += 1
        self._last_at = at
        if self._failed == 1:
            self._calm_at, self._calm_seen = at, self.seen - 1
        is_nearly_all = self._failed >= FEWEST_FAILURES and self._failed >= NEARLY_ALL * self.seen
        if is_nearly_all and not self.tripped:
            self.tripped = True
            self.signals["failures"] = f"the verifier failed on {self._failed:,} of {self.seen:,} rollouts"
            self.reason = "; ".join(self.signals.values())

    def _observe_latency(self, logarithm: float, reward: float, is_still: bool) -> None:
        kind = int(self._has_moved and reward > (self._drop_low + self._drop_high) / 2)
        compared_kind = kind if self._usual_n[kind] >= WARM else int(self._usual_n[1] > self._usual_n[0])
        if self._usual_n[compared_kind]:
            self._pace += FAST * (logarithm - self._usual[compared_kind] - self._pace)
        if not is_still:
            self._usual_n[kind] += 1
            weight = self._slow_weight(sum(self._usual_n), self._usual_n[kind])
            self._usual[kind] += weight * (logarithm - self._usual[kind])

    def _slow_weight(self, total: int, count: int) -> float:
        """Weight of the newest value in a slow average: a plain mean at first; small while rewards are low, to preserve the
        earlier level.
        """
        if self._low_tasks:
            return SLOW / 10
        return SLOW if total > 500 else 1.0 / count

    def _observe_look(self, looks_right: bool | None) -> None:
        if looks_right is not None:
            self._looked += 1
            self._looks_right += looks_right

    def _observe_low(self, task: int, reward: float, looks_right: Callable[[], bool | None] | None) -> None:
        if not self._is_low:
            self._low_tasks.clear()
            self._low_looked = self._low_looks_right = 0
            return
        if len(self._low_tasks) < MOST_LOW_TASKS:
            self._low_tasks.add(task)
        is_low = reward <= (self._drop_low + self._drop_high) / 2
        if looks_right is not None and is_low and self._low_looked < REMEMBERED:
            looks = looks_right()
            self._low_looked += looks is not None
            self._low_looks_right += looks is True

    def _observe_answer(self, key: tuple[int, int], reward: float) -> None:
        before = self._known.get(key)
        if before is not None:
            self._repeats += 1
            self._repeats_differ += abs(before - reward) > 0.1 * (self._drop_high - self._drop_low)
            return
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = reward

    # Signals; recomputed a few times per hundred rollouts

    def _judge(self) -> None:
        if self._task_count >= self._next_look:
            self._next_look = int(self._task_count * 1.3) + 1
        self._set("rewards", self._still_text() or self._drop_text())
        self._set("latency", self._latency_text())
        self._set("failures", self._failure_text())
        self._set("consistency", self._consistency_text())
        self._set("undeserved", self._undeserved_text())
        self._set("extraction", self._extraction_text())
        if not self.signals and self._fall < CALM and abs(self._pace) < CALM * TIMES:
            self._calm_at, self._calm_seen = self._last_at, self.seen
        if len(self.signals) > 1 and ({"rewards", "undeserved"} & self.signals.keys()) and not self.tripped:
            self.tripped = True
            self.reason = "; ".join(self.signals.values())

    def _set(self, signal: Signal, text: str) -> None:
        if text:
            self.signals[signal] = text
        else:
            self.signals.pop(signal, None)

    def _still_text(self) -> str:
        tasks = self._task_count
        if tasks < LEAST_TASKS:
            return ""
        around, same = self._around()
        if around == 0 and self._value not in EDGES:
            chance = 0.5**tasks
        elif around < 30:
            chance = chance_all_same(np.array([self._length // tasks]), LEAST_RATE, ALIKE) ** tasks
            chance *= 1 if around == 0 else 10
        else:
            usual = share(same, around, independent=max(around / 2, 1)).high
            chance = usual**tasks * self.judged
        if chance >= (1e-2 if around < 30 else SURE):
            return ""
        return f"the last {self._length:,} rewards, of {tasks:,} tasks, are all {self._value:g}"

    def _around(self) -> tuple[int, int]:
        """Rewards just before the stretch, and how many of them equal it."""
        around = same = 0
        for value, length in reversed(self._past):
            taken = min(length, NEIGHBOURS - around)
            around += taken
            same += taken if value == self._value else 0
            if around >= NEIGHBOURS:
                break
        return around, same

    @property
    def _fall(self) -> float:
        """How far the fast mean reward is below the slow one, as a share of the observed range."""
        width = self._drop_high - self._drop_low
        return (self._reward_slow - self._reward_fast) / width if 0 < width < math.inf else 0.0

    @property
    def _is_low(self) -> bool:
        """Whether the fast mean reward is far below the slow one and near the lowest reward."""
        width = self._drop_high - self._drop_low
        most = 0.2 if self._low_tasks else 0.1  # one good answer does not end a low stretch
        return self._fall >= 0.25 and (self._reward_fast - self._drop_low) / width <= most

    def _drop_text(self) -> str:
        if self.judged < 200 or len(self._low_tasks) < LOW_TASKS:
            return ""
        usual = 1 - (self._reward_slow - self._drop_low) / (self._drop_high - self._drop_low)
        if len(self._low_tasks) < MOST_LOW_TASKS and usual ** len(self._low_tasks) > RARE:
            return ""  # so many hard tasks in a row are not rare enough
        return f"the mean reward fell from {self._reward_slow:.2f} to {self._reward_fast:.2f}"

    @property
    def _has_moved(self) -> bool:
        """Whether rewards have differed so far; without that there is no earlier level for comparison."""
        return self._drop_low < self._drop_high

    def _latency_text(self) -> str:
        # First calls are slow and later ones shared, so a change of pace counts only together with a change of rewards.
        if self._is_draining or not self._has_moved or sum(self._usual_n) < WARM or abs(self._pace) < TIMES:
            return ""
        if self._low_looked >= FEWEST_LOOKS and not _is_often(self._low_looks_right, self._low_looked):
            return ""  # wrong answers explain the low rewards
        kind = "slower" if self._pace > 0 else "faster"
        return f"verification became {math.exp(abs(self._pace)):,.0f} times {kind}"

    def _failure_text(self) -> str:
        if self.seen < WARM or self._fail_fast < 0.3 or self._fail_slow > 0.1:
            return ""
        return f"{self._fail_fast:.0%} of verdicts fail of late"

    def _consistency_text(self) -> str:
        if self._repeats_differ < 5:
            return ""
        estimate = share(self._repeats_differ, self._repeats)
        if estimate.low <= 0.05:
            return ""
        return f"{estimate.count:,} of {estimate.n:,} repeated answers were judged differently"

    def _undeserved_text(self) -> str:
        if self._empties_rewarded < 5 or share(self._empties_rewarded, self._empties).low <= 0.2:
            return ""
        return f"{self._empties_rewarded:,} of {self._empties:,} empty answers were rewarded"

    def _extraction_text(self) -> str:
        """A sentence if rewards do not follow the answers: right answers get low rewards, or right and wrong ones get the same;
        else empty.
        """
        is_low = self._value <= (self._drop_low if self._has_moved else 0.0)
        right, looked = self._looks_right, self._looked
        if self._has_moved and (not is_low or looked < self._low_looked):
            right, looked = self._low_looks_right, self._low_looked
        if right < 5 or not _is_often(right, looked):
            return ""
        if is_low or self._has_moved:
            return f"{right:,} of {looked:,} of these answers end in the expected one"
        if not _is_often(looked - right, looked):
            return ""
        return f"of these answers {right:,} end in the expected one and {looked - right:,} do not"


def _is_often(count: int, n: int) -> bool:
    """Whether the share is above a tenth with confidence."""
    return share(count, n).low > 0.1
