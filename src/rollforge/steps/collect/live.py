"""Counters of a running collection: constant cost per rollout, memory bounded by what is in flight.

These numbers are for display only; final numbers are computed from the files at the end of the run.
"""

from __future__ import annotations

import time
from collections import Counter, deque

import msgspec

from rollforge.adaptive.design import GoalProgress
from rollforge.endpoint import MOST_TOKENS
from rollforge.errors import Failure
from rollforge.records import Response, Verdict
from rollforge.statistics.intervals import ClusterMean
from rollforge.store.costs import CostFacts
from rollforge.store.failure_reasons import OTHER_REASONS
from rollforge.store.manifest import RunningReward
from rollforge.verifiers.running.ready_verifier import JudgeCounters

FAILURES_KEPT = 5
RECENT_REWARDS = 2000
"""Number of recent rewards in the live histogram and trend."""
CHARACTERS_PER_TOKEN = 4
"""Good enough for servers that report no usage."""
UNLIMITED_OUTPUT = 1000
"""Tokens to reckon with for an answer without a limit, before the first one has come."""
CAUTION = 1.5
"""Rollouts in flight are reckoned at this many times the mean: the cheap ones end first, and waiting costs only time."""


class LiveSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The counters at one moment, for the display."""

    elapsed_s: float
    expected: int
    finished: int
    """Rollouts on disk, with those of earlier sessions."""
    fresh: int
    """Rollouts on disk that this process made."""
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
    retry_causes: dict[str, int] = {}
    """Failure class → retries that it caused."""
    reward_histogram: tuple[int, ...] = ()
    """Recent rewards in equal bins between their lowest and highest."""
    reward_recent: float | None = None
    """Mean of the last hundred rewards; None with fewer than two hundred."""
    model: str = ""
    server: str = ""
    served: str = ""
    """The name that the server gives its model, if it is another than the one asked for."""
    notice: str = ""
    light: str = "green"
    """Whether verdicts look trustworthy: green, yellow (one signal), red (two independent signals)."""
    goal: GoalProgress | None = None
    """Progress of the goal; None without one."""
    judging: JudgeCounters | None = None
    """Queue, busy workers, seconds per verdict, shared verdicts; None without a verifier."""
    cost: CostFacts | None = None
    """Cost of the run so far; None without a price."""


class Live:
    """The counters of one process."""

    def __init__(self, *, expected: int, finished: int) -> None:
        self.expected = expected
        self.finished = finished
        self.fresh = self.judged = self.unjudged = self.given_up = 0
        self.truncated = self.empty = self.tokens = self.bytes = 0
        self.failures: Counter[str] = Counter()
        self.verifier_failures: Counter[str] = Counter()
        """The first distinct messages of a failing verifier, with their counts."""
        self.tokens_elsewhere = 0
        """Tokens that other workers of the same run have used."""
        self.timeout_s = 0.0
        """Seconds spent in attempts that ended in a time-out."""
        self.tool_s = 0.0
        """Seconds of rollouts spent in tool calls."""
        self.tool_start_s = 0.0
        """Seconds of rollouts spent starting tool servers and shaking hands with them."""
        self.tool_starts = 0
        self.is_remote = False
        """Whether a remote server makes the rollouts, instead of model calls from here."""
        self.redrawn_after_timeout = 0
        """Rollouts tried again after a time-out: the new answer may be a shorter one."""
        self.reward = ClusterMean(may_be_share=True)
        self._recent_rewards: deque[float] = deque(maxlen=RECENT_REWARDS)
        self.tokens_per_rollout = ClusterMean()
        self.seconds_per_rollout = ClusterMean()
        self.model_s = self.verify_s = self.verify_wait_s = 0.0
        self.started = time.monotonic()
        self._window: deque[tuple[float, int, int]] = deque([(self.started, 0, 0)], maxlen=120)

    def verifier_failed(self, message: str) -> None:
        """Count a failed verdict; the first few distinct messages are kept."""
        is_kept = message in self.verifier_failures or len(self.verifier_failures) < FAILURES_KEPT
        self.verifier_failures[message if is_kept else OTHER_REASONS] += 1

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
        is_representative: bool = True,
    ) -> int:
        """Count a rollout on disk and its tokens. The running reward of an adaptive run includes only the first stage."""
        self.finished += 1
        self.fresh += 1
        self.bytes += size
        self.truncated += response.is_truncated
        self.empty += response.is_empty
        used = response.usage.get("total_tokens")
        # A token budget must hold for servers that do not count, and for agents whose server counts nonsense.
        if not isinstance(used, int) or not 0 <= used <= MOST_TOKENS:
            used = (prompt_bytes + len(response.text)) // CHARACTERS_PER_TOKEN
        self.tokens += used
        self.tokens_per_rollout.add(task, used)
        self.seconds_per_rollout.add(task, seconds)
        if verdict.reward is not None:
            self.judged += 1
            if is_representative and (reward := verdict.measured) is not None:
                self.reward.add(task, reward)
                self._recent_rewards.append(reward)
        elif is_judging:
            self.unjudged += 1
        return used

    def may_exceed_tokens(
        self, budget: int | None, *, pending: int, prompt_bytes: int, max_output: object
    ) -> bool:
        """Whether the tokens used and the `pending` rollouts, begun and not finished, may use up the budget together."""
        if budget is None:
            return False
        expected = self.tokens_per_rollout.mean
        if expected is None:
            written = max_output if isinstance(max_output, int) else UNLIMITED_OUTPUT
            expected = prompt_bytes // CHARACTERS_PER_TOKEN + written
        return self.tokens + self.tokens_elsewhere + pending * CAUTION * expected >= budget

    def judged_elsewhere(self, task: int, reward: float) -> None:
        """Add the reward of a rollout judged by a worker to the running mean."""
        self.reward.add(task, reward)
        self._recent_rewards.append(reward)

    def failure(self, failure: Failure) -> None:
        """Count a failed attempt."""
        self.failures[failure.kind] += 1

    def _recent_mean(self) -> float | None:
        rewards = list(self._recent_rewards)
        return sum(rewards[-100:]) / 100 if len(rewards) >= 200 else None

    def settle(self, task: int) -> None:
        """Settle a task whose samples are all finished or given up."""
        for mean in (self.reward, self.tokens_per_rollout, self.seconds_per_rollout):
            mean.close(task)

    def tick(self) -> None:
        """Record the current counts, for rates over the last minute."""
        self._window.append((time.monotonic(), self.fresh, self.tokens))

    def rates(self) -> tuple[float | None, float | None]:
        """Recent rollouts and tokens per second."""
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
        retry_causes: dict[str, int],
        model: str,
        server: str,
        served: str = "",
        notice: str,
        light: str,
        judging: JudgeCounters | None = None,
        goal: GoalProgress | None = None,
        cost: CostFacts | None = None,
    ) -> LiveSnapshot:
        """The counters at this moment, joined with values that other parts of the engine provide."""
        rate, tokens_per_s = self.rates()
        left = self.expected - self.finished - self.given_up
        eta_s = left / rate if rate else None
        if goal is not None and not goal.is_reached:
            needed = goal.needed_tokens
            eta_s = needed.value / tokens_per_s if needed is not None and tokens_per_s else None
        return LiveSnapshot(
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
            eta_s=eta_s,
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
            retry_causes=retry_causes,
            reward_histogram=_histogram(list(self._recent_rewards)),
            reward_recent=self._recent_mean(),
            model=model,
            server=server,
            served=served,
            notice=notice,
            light=light,
            judging=judging,
            goal=goal,
            cost=cost,
        )


def _histogram(values: list[float], bins: int = 8) -> tuple[int, ...]:
    """Count values in equal bins between the lowest and the highest; empty without two distinct values."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if not low < high:
        return ()
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    return tuple(counts)


def reward_facts(live: Live) -> RunningReward | None:
    """The running reward for the manifest: over the whole run, or since it was resumed."""
    reward = live.reward.estimate()
    if reward.value is None:
        return None
    return RunningReward(
        mean=reward.value,
        ci=reward.ci,
        n=live.judged,
        coverage=live.judged / max(live.fresh, 1),
        is_whole=live.fresh == live.finished,
    )
