"""The collection loop: pull work lazily, run the agent, judge, write, settle.

Memory is bounded by concurrency, not by the number of tasks; large answers are further limited in number (`LargeSlots`). A
failure of a rollout does not end the run, unless every other rollout would fail too (a wrong key, an unknown model) or the disk
is not writable. Every generated answer is written, unless its row exceeds the size limit.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import cast

import msgspec

from rollforge.agents.base import Agent, NotKept, Trajectory, cut_short
from rollforge.agents.nemo_gym.gym_rows import failure_kind
from rollforge.checks.building_blocks.stream import Watch
from rollforge.checks.building_blocks.text_samples import concludes, expected_answer
from rollforge.endpoint import LargeSlots, Limiter
from rollforge.endpoint.breaker import RetryBudget
from rollforge.endpoint.client import Outage
from rollforge.endpoint.time_limit import TimeLimit
from rollforge.errors import FATAL, Failure, RollforgeError
from rollforge.json_shapes import FailureRowJson, OwnJson, ParamsJson, RowJson
from rollforge.records import (
    ATTEMPT_KEY,
    FAILURE_KEY,
    OWN_KEY,
    PARAMS_KEY,
    ROLLOUT_KEY,
    TASK_KEY,
    TERMINAL_KEY,
    Response,
    Task,
    Verdict,
    as_received,
    from_json,
    to_json,
)
from rollforge.steps.collect.collect_options import Allowance, CollectOptions
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.live import Live
from rollforge.steps.collect.observer import Observer
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import PlainSchedule, Schedule
from rollforge.steps.collect.stop_reason import Reason
from rollforge.store import DurableFile, Ledger
from rollforge.text_safety.outgoing import cut, outgoing_bytes
from rollforge.verifiers.base import Judge
from rollforge.verifiers.probes import SprinkledProbes

logger = logging.getLogger(__name__)

REFUSED_IN_A_ROW = 10
"""Consecutive refusals (403, 404) from which they concern the run; fewer concern only their rollouts."""

NO_VERDICT = Verdict()
"""Placeholder verdict after a verifier failure; a verifier that cannot judge returns its own empty verdict."""

ROW_SHARE = 2
"""Size limit of a row in multiples of `max_response_bytes`: it contains the prompt and the answers of all turns."""


@dataclass(slots=True)
class TaskGroup:
    """The rollouts of one task that this process owes."""

    position: int
    task: Task
    params: msgspec.Raw
    """The encoded params, shared by all samples."""
    unsettled: int
    stage: str = ""
    """For an adaptive run: the reason for these samples."""


@dataclass(slots=True, eq=False)
class Work:
    """One rollout to be made."""

    group: TaskGroup
    sample: int
    attempt: int
    started: float = 0.0


class CollectEngine:
    """Collects what a plan owes."""

    def __init__(
        self,
        plan: CollectPlan,
        options: CollectOptions,
        *,
        agent: Agent,
        judge: Judge | None,
        limiter: Limiter,
        budget: RetryBudget,
        large: LargeSlots | None = None,
        rollouts: DurableFile,
        failures: DurableFile,
        live: Live,
        meter: CostMeter | None = None,
        observer: Observer | None = None,
        probes: SprinkledProbes | None = None,
        watch: Watch | None = None,
        allowance: Allowance | None = None,
        verify_slots: asyncio.Semaphore | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.live = live
        self._schedule = schedule or PlainSchedule(plan, options.attempts)
        self._pending: deque[Work] = deque()
        self._has_no_fresh = False
        self.meter = meter or CostMeter(options)
        self._observer = observer
        self._probes = probes
        self.reason: Reason = ""
        self.error: RollforgeError | Failure | None = None
        self.watch = watch or Watch()
        """The detectors of broken verification; unused without a verifier."""
        self.verifying = 0
        self.last_verdict_failure = ""
        self.notice = ""
        """What the collection waits for, if not for a request."""
        self._plan = plan
        self.options = options
        self._agent = agent
        self._judge = judge
        self._limiter = limiter
        self._budget = budget
        self._large = large or LargeSlots()
        self._rollouts = rollouts
        self._failures = failures
        self._running: dict[asyncio.Task[None], Work] = {}
        self._again: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._time_limit = TimeLimit(options.rollout_deadline_s)
        self._verify_slots = verify_slots or asyncio.Semaphore(options.verify_concurrency)
        self._allowance = allowance or Allowance.parse(options.max_failures)
        self._prompt_bytes = 0  # of the group pulled last
        self._given_up_before = live.given_up
        self._begun = 0  # rollouts of the groups pulled so far
        self._refused_in_a_row = REFUSED_IN_A_ROW  # before the first answer, one refusal is enough
        self._is_draining = False  # all fresh work is started
        self.is_dry = asyncio.Event()
        """Whether no fresh work is left; rollouts in flight and retries still run."""

    async def run(self) -> None:
        """Work until nothing is owed, or until a reason to stop; then let rollouts in flight finish."""
        try:
            while True:
                await self._limiter.acquire()
                work = await self._next_work()
                if work is None:
                    self._limiter.release()
                    break
                self._start(work)
                await self._wait_for_room()
                while len(self._running) >= self._resident_limit():
                    await self._wait_for_change(1.0)
            while self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abort()
            raise

    async def _wait_for_room(self) -> None:
        """Wait while the disk or the observer lags behind; an unwritable disk ends the run."""
        try:
            for file in (self._rollouts, self._failures):
                await file.room()
        except RollforgeError as error:
            self.stop("disk", error)
        if self._observer is not None:
            await self._observer.room()

    def stop(self, reason: Reason, error: RollforgeError | Failure | None = None) -> None:
        """Take no new work; the first reason is kept."""
        if not self.reason:
            self.reason, self.error = reason, error
            self._changed.set()

    @property
    def ledger(self) -> Ledger:
        """Finished, failed and owed rollouts."""
        return self._plan.ledger

    def ages(self) -> list[float]:
        """Current duration of each rollout in flight, longest first."""
        now = time.monotonic()
        return sorted((now - work.started for work in self._running.values()), reverse=True)

    def agent_notes(self) -> list[str]:
        """The agent's messages for the user."""
        return list(getattr(self._agent, "notes", ()))

    async def _abort(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _resident_limit(self) -> int:
        """Limit on rollouts in memory: those being generated, and a bounded queue of those being judged."""
        return self._limiter.limit + self.options.verify_concurrency + 64

    def _start(self, work: Work) -> None:
        work.started = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._attempt(work))
        self._running[task] = work
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, RollforgeError):
            self.stop("disk", error)
        elif error is not None:
            logger.error("a rollout ended in an unexpected error", exc_info=error)
            self.stop("fatal", RollforgeError(f"unexpected {type(error).__name__}: {error}"))

    # -- work ---------------------------------------------------------------------------------------------------------

    def _pull(self) -> Work | None:
        """The next owed work, group by group. Budgets are checked between groups, so that no group stays incomplete."""
        if not self._pending:
            is_ending = self._has_no_fresh or self._is_spent()
            if not is_ending and self._may_exceed_budget():
                return (
                    None  # a rollout in flight ends first; its cost decides whether another group can be paid
                )
            ask = None if self._has_no_fresh else self._schedule.next_ask(is_ending=is_ending)
            if ask is None:
                self._has_no_fresh = not self._schedule.may_ask_again
                return None
            task = self._plan.tasks.read(ask.position)
            params = msgspec.Raw(to_json(task.params))
            group = TaskGroup(ask.position, task, params, len(ask.samples), ask.stage)
            self._begun += len(ask.samples)
            self._prompt_bytes = len(bytes(group.params))
            for sample in ask.samples:
                attempt = self._plan.ledger.attempts(group.position, sample)
                self._pending.append(Work(group, sample, attempt))
        return self._pending.popleft()

    def _is_spent(self) -> bool:
        options, live = self.options, self.live
        if self._is_too_late():
            self.stop("deadline")
        elif (
            options.max_total_tokens is not None
            and live.tokens + live.tokens_elsewhere >= options.max_total_tokens
        ):
            self.stop("tokens")
        elif options.max_cost is not None and self.meter.spent >= options.max_cost:
            self.stop("cost")
        elif options.pilot is not None and self._begun >= options.pilot:
            self.stop("pilot")
        return bool(self.reason)

    def _is_too_late(self) -> bool:
        limit = self.options.deadline_s
        return limit is not None and time.monotonic() - self.live.started >= limit

    def _may_exceed_budget(self) -> bool:
        """Whether the budget may not last for another group beside the rollouts in flight: then it waits for their end."""
        if not self._running or (self.options.max_cost is None and self.options.max_total_tokens is None):
            return False
        begun = self._begun - self.live.fresh - (self.live.given_up - self._given_up_before)
        return self._may_use_up_budget(self.options.samples + max(begun, self._schedule.committed))

    def _may_use_up_budget(self, pending: int) -> bool:
        """Whether this number of rollouts, begun and not finished, may use up a budget of tokens or dollars."""
        longest = self.options.overrides.get("max_output_tokens")
        prompt_bytes = self._prompt_bytes
        return self.live.may_exceed_tokens(
            self.options.max_total_tokens, pending=pending, prompt_bytes=prompt_bytes, max_output=longest
        ) or self.meter.may_exceed_budget(pending=pending, prompt_bytes=prompt_bytes, max_output=longest)

    async def _next_work(self) -> Work | None:
        """The next rollout to make: a retry that is due, else a fresh one; None if nothing is left."""
        while not self._is_stopping_now():
            now = time.monotonic()
            if self._again and self._again[0][0] <= now:
                return heapq.heappop(self._again)[2]
            work = self._pull()
            if work is not None:
                return work
            self._is_draining = self._has_no_fresh
            if self._has_no_fresh:
                self.is_dry.set()
            if not self._again and not self._running:
                return None
            # The place goes to a retry meanwhile: with `-c 1` it is the only one, and all wait for that retry.
            await self._limiter.lend(self._wait_for_change(self._again[0][0] - now if self._again else None))
        return None

    def _is_stopping_now(self) -> bool:
        """Whether a budget stops fresh groups; samples and retries of groups already begun still run."""
        return self.reason not in ("", "deadline", "tokens", "cost", "pilot")

    async def _wait_for_change(self, seconds: float | None) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    # -- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self, work: Work) -> None:
        try:
            await self._make_rollout(work)
        finally:
            self._large.release()

    async def _make_rollout(self, work: Work) -> None:
        begun = time.time() - (
            time.monotonic() - work.started
        )  # the clock time at which `seconds` began to count
        try:
            trajectory = await self._generate(work)
        except Outage as outage:
            self.stop("outage", outage)  # not this rollout's failure: it stays owed, with no attempt used up
            return
        except NotKept:
            self._settle(work.group)  # stays owed, with no attempt used up, until the run is resumed
            return
        except Failure as failure:
            await self._fail(work, failure, begun)
            return
        response = Response(trajectory.response)
        received = as_received(response)
        judged = Response({**received, **trajectory.judged}) if trajectory.judged else received
        try:
            verdict, verify_s = await self._verify(work, judged, trajectory, begun)
        finally:
            if trajectory.release is not None:
                await asyncio.shield(asyncio.to_thread(trajectory.release))
        # Before the disk is waited for: a suspicion must not wait with the row. Later stages are chosen by their task's rewards.
        if self._judge is not None and (work.group.stage in ("", "first") or verdict is NO_VERDICT):
            self._watch_verdict(work.group.task, response, verdict, verify_s)
        row = self._row(work, trajectory, verdict, begun, verify_s)
        line = to_json(row | {"response": response.encoded})
        clean = outgoing_bytes(line)
        if clean is not line:
            line, row = clean, from_json(clean)  # the observer gets only rollouts that are on disk
        if len(line) > ROW_SHARE * self.options.max_response_bytes:
            too_large = f"the row would have {len(line):,} bytes (--max-response-bytes)"
            oversized = Failure("agent", "oversized", too_large)
            oversized.usage = response.usage or None
            await self._fail(work, oversized, begun)
            return
        await self._rollouts.append(line)
        self._plan.ledger.finish(work.group.position, work.sample, is_unjudged=verdict.reward is None)
        tokens = self.live.rollout(
            work.group.task.index,
            response,
            verdict,
            seconds=time.monotonic() - work.started,
            size=len(line),
            prompt_bytes=len(bytes(work.group.params)),
            is_judging=self._judge is not None or trajectory.verifier is not None,
            is_representative=work.group.stage in ("", "first"),
        )
        self._schedule.finished(work.group.position, work.sample, response.encoded, verdict, tokens)
        own = row[OWN_KEY]
        assert isinstance(own, dict)
        self.meter.add_rollout(
            work.group.task.index,
            own.get("cost"),
            own.get("judge_cost"),
            verdict=verdict,
            response=response,
            prompt_bytes=len(bytes(work.group.params)),
        )
        if self._observer is not None:
            self._observer.finished(row)
        self._settle(work.group)
        if self._probes is not None:
            self._probes.offer(work.group.task, response)

    async def _generate(self, work: Work) -> Trajectory:
        """Run the agent within the rollout's deadline; any exception becomes a `Failure`."""
        try:
            with self._time_limit:
                trajectory = await self._agent.run(work.group.task, work.sample)
            self._refused_in_a_row = 0
            self.live.tool_s += trajectory.tool_times.calling_s
            self.live.tool_start_s += trajectory.tool_times.starting_s
            self.live.tool_starts += trajectory.tool_times.starts
            if trajectory.is_remote:
                self.live.is_remote = True
                now = time.monotonic()
                self._limiter.succeed(now - work.started, now)
            return trajectory
        except (Failure, NotKept):
            raise
        except TimeoutError as error:
            failure = Failure(
                "agent", "timeout", f"the rollout took longer than {self._time_limit.seconds:g} s"
            )
            raise cut_short(failure, error.__cause__) from None
        except Exception as error:  # an agent is user code: its error is a failure of the rollout
            raise Failure("agent", "agent", f"{type(error).__name__}: {error}") from error
        finally:
            self._limiter.release()
            self.live.model_s += time.monotonic() - work.started

    async def _verify(
        self, work: Work, response: Response, trajectory: Trajectory, begun: float
    ) -> tuple[Verdict, float | None]:
        if self._judge is None:
            if trajectory.verdict_failure is not None:
                failure = trajectory.verdict_failure
                await self._record_failure(work, failure, begun, is_terminal=failure.is_terminal)
            self.live.verify_s += trajectory.verify_seconds or 0.0
            self.live.model_s -= trajectory.verify_seconds or 0.0
            return trajectory.verdict or Verdict(), trajectory.verify_seconds
        queued = time.monotonic()
        self.verifying += 1
        started = queued
        try:
            async with self._verify_slots:
                started = time.monotonic()
                verdict = await self._judge.judge(work.group.task, response)
        except Failure as failure:
            self.live.verifier_failed(failure.message)
            await self._record_failure(work, failure, begun, is_terminal=False)
            verdict = NO_VERDICT
        finally:
            self.verifying -= 1
            self.live.verify_wait_s += started - queued
            self.live.verify_s += time.monotonic() - started
        return verdict, time.monotonic() - started

    def _watch_verdict(
        self, task: Task, response: Response, verdict: Verdict, verify_s: float | None
    ) -> None:
        """Pass a verdict to the detectors; the run stops on failures only, or on two independent signs of broken verification."""
        text = response.text
        self.watch.observe(
            task.index,
            verdict.reward,
            answer_hash=hash((len(text), text[-200:])) if text else None,
            is_empty=not text and response.is_empty,
            verify_seconds=verify_s,
            has_failure=verdict is NO_VERDICT,
            at=time.time(),
            is_draining=self._is_draining,
            looks_right=lambda: _ends_as_expected(task, text),
        )
        if self.watch.tripped and self.options.stop_on == "broken":
            self.stop("broken")

    def _row(
        self, work: Work, trajectory: Trajectory, verdict: Verdict, begun: float, verify_s: float | None
    ) -> RowJson:
        row: RowJson = {TASK_KEY: work.group.task.index, ROLLOUT_KEY: work.sample}
        if work.attempt:
            row[ATTEMPT_KEY] = work.attempt
        row["agent_ref"] = {"name": work.group.task.agent or self._agent.name}
        row = cast("RowJson", {**row, **verdict.to_fields()})
        # Encoded once for all samples: the file gets the bytes, and an observer decodes them.
        row[PARAMS_KEY] = cast("ParamsJson", work.group.params)
        row["response"] = trajectory.response
        own: OwnJson = {
            "started": begun,
            "seconds": time.monotonic() - work.started,
            "endpoint": trajectory.endpoint,
            "requests": trajectory.requests,
        }
        if trajectory.api:
            own["api"] = trajectory.api
        if self._judge is not None:
            own |= {
                "verify_seconds": verify_s,
                "verifier": self._judge.name,
                "fingerprint": self._judge.fingerprint,
                "mode": getattr(self._judge, "mode", None),
            }
        elif trajectory.verifier is not None:
            own |= {"verify_seconds": verify_s, "verifier": trajectory.verifier}
        if work.group.stage:
            own["stage"] = work.group.stage
        if self.options.asks_price:
            own["cost"] = self.meter.of_rollout(trajectory)
            if self.meter.has_judge(verdict):
                own["judge_cost"] = self.meter.of_judge(verdict.numbers)
        row[OWN_KEY] = {**own, **trajectory.own}
        return row

    # -- failures -----------------------------------------------------------------------------------------------------

    async def _fail(self, work: Work, failure: Failure, begun: float) -> None:
        """Record a failed attempt, and schedule a retry if it can help and the limits allow."""
        if failure.kind in FATAL:
            if failure.status == 401 or self._refused_in_a_row >= REFUSED_IN_A_ROW:
                self.stop("fatal", failure)
                return
            self._refused_in_a_row += 1
            failure.kind = "permanent"  # the key and the model are right: others were answered
        is_terminal = not failure.is_retryable
        await self._record_failure(work, failure, begun, is_terminal=is_terminal)
        if failure.stops_run:
            self.stop("fatal", failure)
            return
        self._plan.ledger.fail(work.group.position, work.sample, is_terminal=is_terminal)
        if not is_terminal and self._try_again(work, failure):
            self.live.redrawn_after_timeout += failure.kind == "timeout"
            return
        self.live.given_up += 1
        if self._observer is not None:
            self._observer.gave_up(work.group.task.index)
        self._settle(work.group)
        self._give_up_if_hopeless()

    def _try_again(self, work: Work, failure: Failure) -> bool:
        """Schedule another attempt; returns whether there will be one."""
        attempts_left = self.options.attempts - work.attempt - 1
        if attempts_left <= 0 or self._is_stopping_now() or not self._budget.take():
            return False
        self._push_again(work, max(failure.retry_after or 0.0, min(60.0, 2.0**work.attempt)))
        return True

    def _push_again(self, work: Work, delay_s: float) -> None:
        again = Work(work.group, work.sample, work.attempt + 1)
        heapq.heappush(self._again, (time.monotonic() + delay_s, next(self._numbers), again))
        self._changed.set()

    async def _record_failure(self, work: Work, failure: Failure, begun: float, *, is_terminal: bool) -> None:
        self.live.failure(failure)
        if failure.kind == "timeout":
            self.live.timeout_s += time.monotonic() - work.started
        if failure.boundary == "verifier":
            self.last_verdict_failure = failure.message
        row: FailureRowJson = {
            TASK_KEY: work.group.task.index,
            ROLLOUT_KEY: work.sample,
            ATTEMPT_KEY: work.attempt,
            FAILURE_KEY: failure.kind,
            TERMINAL_KEY: is_terminal,
            "class": failure.kind,
            "boundary": failure.boundary,
            "message": cut(failure.message, 2000),
            "failure_kind": failure_kind(failure),
            "failure_reason": cut(failure.message, 2000),
            "attempt": work.attempt,
            "status": failure.status,
            "at": begun,
            "seconds": time.monotonic() - work.started,
            "requests": failure.requests,
            "agent_ref": {"name": work.group.task.agent or self._agent.name},
            "response": failure.partial,
        }
        if self.options.asks_price:
            costs = self.meter.add_failure(work.group.task.index, failure)
            row[OWN_KEY] = {**costs, "started": begun, "seconds": row["seconds"]}
        await self._failures.append(to_json(row))

    def _settle(self, group: TaskGroup) -> None:
        group.unsettled -= 1
        if group.unsettled == 0:
            self.live.settle(group.task.index)
            self.meter.settle(group.task.index)
            self.watch.settle(group.task.index)
            is_over = self._schedule.settled(group.position)
            if is_over and self._observer is not None:
                self._observer.settled(group.task.index)

    def _give_up_if_hopeless(self) -> None:
        settled = self.live.fresh + self.live.given_up
        if self._allowance.is_exceeded(self.live.given_up, settled):
            self.stop("failures")


def _ends_as_expected(task: Task, text: str) -> bool | None:
    """Whether the answer ends in the expected one; None if the task has no expected answer."""
    expected = expected_answer(task)
    return None if expected is None else concludes(text, expected)
