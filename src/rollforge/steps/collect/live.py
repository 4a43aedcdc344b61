"""This module counts while a run is collected: constant cost per rollout, memory bounded by what is in flight.

Its numbers are for watching. The numbers of record are computed from the files when the run ends.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass

import msgspec

from rollforge.errors import Failure
from rollforge.records import JsonObject, Response, Verdict
from rollforge.verifiers.running.judge import JudgeCounters

CHARACTERS_PER_TOKEN = 4
"""Good enough for servers that report no usage."""


class ClusterMean:
    """A running mean with an interval that knows that the samples of one task are not independent."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        """Both over all values, those of unsettled tasks included."""
        self._groups = 0
        self._sums2 = self._sums_counts = self._counts2 = 0.0

    def settle(self, total: float, count: int) -> None:
        """No more values of a task will come; those that came were so many and add up to this."""
        if count:
            self._groups += 1
            self._sums2 += total * total
            self._sums_counts += total * count
            self._counts2 += count * count

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def half_width(self) -> float | None:
        """Half of a 95 % interval; None before two groups are settled."""
        if self._groups < 2 or not self.count:
            return None
        mean = self.total / self.count
        spread = self._sums2 - 2 * mean * self._sums_counts + mean * mean * self._counts2
        settled = math.sqrt(
            self._counts2 * self._groups
        )  # equals the number of values when groups are of one size
        return 1.96 * math.sqrt(max(spread, 0.0) * self._groups / (self._groups - 1)) / settled


@dataclass(slots=True)
class _OpenTask:
    """Sums over the finished rollouts of a task of which more may come."""

    rollouts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    judged: int = 0
    reward: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the display shows at one moment."""

    elapsed_s: float
    expected: int
    finished: int
    """On disk, earlier sessions included."""
    fresh: int
    """Of these, made by this process."""
    judged: int
    unjudged: int
    failures: dict[str, int]
    """Failed attempts of this process by class."""
    given_up: int
    rate: float | None
    tokens_per_s: float | None
    eta_s: float | None
    reward: float | None
    reward_half_width: float | None
    truncated: int
    empty: int
    in_flight: int
    limit: int
    verifying: int
    slowest_s: float
    stragglers: int
    retries: int
    notice: str = ""
    light: str = "green"
    """Can the verdicts be trusted: green, yellow (one odd sign), red (two independent ones)."""
    judging: JudgeCounters | None = None
    """Queue, busy workers, seconds per verdict, shared verdicts; None without a verifier."""


class Live:
    """The counters of one process."""

    def __init__(self, *, expected: int, finished: int) -> None:
        self.expected = expected
        self.finished = finished
        self.fresh = self.judged = self.unjudged = self.given_up = 0
        self.truncated = self.empty = self.tokens = self.bytes = 0
        self.failures: Counter[str] = Counter()
        self.reward = ClusterMean()
        self.tokens_per_rollout = ClusterMean()
        self.seconds_per_rollout = ClusterMean()
        self._open: dict[int, _OpenTask] = {}
        self.model_s = self.verify_s = self.verify_wait_s = 0.0
        self.started = time.monotonic()
        self._window: deque[tuple[float, int, int]] = deque([(self.started, 0, 0)], maxlen=120)

    def rollout(
        self,
        task: int,
        response: Response,
        verdict: Verdict,
        *,
        seconds: float,
        size: int,
        prompt_bytes: int,
        is_judging: bool,
    ) -> None:
        """One rollout is on disk."""
        self.finished += 1
        self.fresh += 1
        self.bytes += size
        self.truncated += response.is_truncated
        self.empty += response.is_empty
        used = response.usage.get("total_tokens")
        if not isinstance(used, int):  # a token budget must hold for servers that do not count, too
            used = (prompt_bytes + len(response.text)) // CHARACTERS_PER_TOKEN
        self.tokens += used
        sums = self._open.get(task)
        if sums is None:
            sums = self._open[task] = _OpenTask()
        sums.rollouts += 1
        sums.tokens += used
        sums.seconds += seconds
        self.tokens_per_rollout.count += 1
        self.tokens_per_rollout.total += used
        self.seconds_per_rollout.count += 1
        self.seconds_per_rollout.total += seconds
        if verdict.reward is not None:
            self.judged += 1
            sums.judged += 1
            sums.reward += verdict.reward
            self.reward.count += 1
            self.reward.total += verdict.reward
        elif is_judging:
            self.unjudged += 1

    def failure(self, failure: Failure) -> None:
        """One attempt failed."""
        self.failures[failure.kind] += 1

    def settle(self, task: int) -> None:
        """Every sample of the task is finished or given up."""
        sums = self._open.pop(task, None)
        if sums is not None:
            self.reward.settle(sums.reward, sums.judged)
            self.tokens_per_rollout.settle(sums.tokens, sums.rollouts)
            self.seconds_per_rollout.settle(sums.seconds, sums.rollouts)

    def tick(self) -> None:
        """Remember where we are, for rates over the last minute."""
        self._window.append((time.monotonic(), self.fresh, self.tokens))

    def rates(self) -> tuple[float | None, float | None]:
        """Rollouts and tokens per second, of late."""
        now = time.monotonic()
        then, fresh, tokens = next(
            (entry for entry in self._window if now - entry[0] <= 60), self._window[-1]
        )
        if now - then < 0.5:
            then, fresh, tokens = self.started, 0, 0
        span = max(now - then, 1e-3)
        if self.fresh == fresh:
            return None, None
        return (self.fresh - fresh) / span, (self.tokens - tokens) / span

    def snapshot(
        self,
        *,
        in_flight: int,
        limit: int,
        verifying: int,
        slowest_s: float,
        stragglers: int,
        retries: int,
        notice: str,
        light: str,
        judging: JudgeCounters | None = None,
    ) -> Snapshot:
        rate, tokens_per_s = self.rates()
        left = self.expected - self.finished - self.given_up
        return Snapshot(
            elapsed_s=time.monotonic() - self.started,
            expected=self.expected,
            finished=self.finished,
            fresh=self.fresh,
            judged=self.judged,
            unjudged=self.unjudged,
            failures=dict(self.failures),
            given_up=self.given_up,
            rate=rate,
            tokens_per_s=tokens_per_s,
            eta_s=left / rate if rate else None,
            reward=self.reward.mean,
            reward_half_width=self.reward.half_width(),
            truncated=self.truncated,
            empty=self.empty,
            in_flight=in_flight,
            limit=limit,
            verifying=verifying,
            slowest_s=slowest_s,
            stragglers=stragglers,
            retries=retries,
            notice=notice,
            light=light,
            judging=judging,
        )


def reward_facts(live: Live) -> JsonObject | None:
    """The running reward as the manifest has it: over the whole run, or since it was resumed."""
    if live.reward.mean is None:
        return None
    half = live.reward.half_width()
    return {
        "mean": live.reward.mean,
        "ci": None if half is None else [live.reward.mean - half, live.reward.mean + half],
        "n": live.judged,
        "coverage": live.judged / max(live.fresh, 1),
        "is_whole": live.fresh == live.finished,
    }
