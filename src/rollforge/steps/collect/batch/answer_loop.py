"""The collection loop for answers from batch results: judge, write, settle; failures wait for the next round.

The schedule provides samples when requests are made (`next_ask`), and is updated when their answers are on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rollforge.agents.base import Trajectory
from rollforge.endpoint import Model
from rollforge.errors import Failure
from rollforge.records import to_json
from rollforge.steps.collect.batch.results import BatchResults
from rollforge.steps.collect.engine import CollectEngine, TaskGroup, Work
from rollforge.steps.collect.schedule import SampleRequest


@dataclass(slots=True)
class _OpenAsk:
    """Requested samples of a task that are not all settled."""

    unsettled: int
    stage: str


class BatchEngine(CollectEngine):
    """Converts batch results to rollouts. `run` can be called again with further results."""

    def use(self, results: BatchResults, model: Model, api: str) -> None:
        """Set the results to read answers from."""
        self.results = results
        self._model = model
        self._api = api
        self._open_asks: dict[int, _OpenAsk] = {}
        self._retries: deque[SampleRequest] = deque()
        self._held: deque[SampleRequest] = deque()
        """Asks deferred for lack of room in a batch, or of budget."""
        self._left: Iterator[tuple[int, int, int]] = iter(())
        self._taken: set[tuple[int, int, int]] = set()

    async def run(self) -> None:
        """Work until every result is recorded as a rollout or a failure."""
        self._left = iter(self.results.requests())
        self._taken = set()
        await super().run()

    # -- what to ask for ----------------------------------------------------------------------------------------------

    def next_ask(self) -> SampleRequest | None:
        """The next samples to request: earlier failures, then those of the schedule; None if there are none now."""
        if self._retries:
            return self._retries.popleft()
        is_ending = self.is_budget_used()
        if self._held:
            return None if is_ending else self._held.popleft()
        ask = self._schedule.next_ask(is_ending=is_ending)
        if ask is not None:
            self._open_asks[ask.position] = _OpenAsk(len(ask.samples), ask.stage)
        return ask

    def put_back(self, ask: SampleRequest) -> None:
        """Defer an ask to the next round."""
        self._held.appendleft(ask)

    def begin(self, requests: int) -> None:
        """Count requests that are put into a batch."""
        self._begun += requests

    def is_budget_used(self) -> bool:
        """Whether a budget is reached, which stops further requests but not the processing of paid answers."""
        return CollectEngine._is_spent(self)

    def may_cost_too_much(self, pending: int) -> bool:
        """Whether this number of open requests may use up the budget."""
        return self._may_use_up_budget(pending)

    @property
    def is_stopping(self) -> bool:
        """Whether to stop sending and awaiting batches."""
        if not self.reason and self._is_too_late():  # also while the provider does not answer
            self.stop("deadline")
        return self._is_stopping_now() or self.reason == "deadline"

    # -- what came back -----------------------------------------------------------------------------------------------

    def _pull(self) -> Work | None:
        for position, sample, attempt in self._left:
            if (position, sample, attempt) not in self._taken and self._is_owed(position, sample, attempt):
                self._taken.add((position, sample, attempt))
                return self._work(position, sample, attempt)
        self._is_dry = True
        return None

    def _is_owed(self, position: int, sample: int, attempt: int) -> bool:
        ledger = self._plan.ledger
        owed = ledger.owed_samples(position, self.options.attempts)
        return sample in owed and ledger.attempts(position, sample) == attempt

    def _work(self, position: int, sample: int, attempt: int) -> Work:
        task = self._plan.tasks.read(position)
        params = msgspec.Raw(to_json(task.params))
        self._prompt_bytes = len(bytes(params))
        ask = self._open_asks.get(position)
        return Work(TaskGroup(position, task, params, 1, ask.stage if ask else ""), sample, attempt)

    async def _generate(self, work: Work) -> Trajectory:
        """The answer in the results; raises the `Failure` that they report."""
        params = work.group.task.params
        try:
            self.results.report.used += 1
            result, file = self.results.result(work.group.position, work.sample, work.attempt)
            answer = self._model.read(self._api, result.body(), params)
            self._refused_in_a_row = 0
            return Trajectory(response=answer, endpoint=file, api=self._api)
        except Failure as failure:
            if self._model.learn(failure, self._model.body(self._api, params)):
                failure.kind = "transient"  # the next round asks without the field that the server refused
            raise
        finally:
            self._limiter.release()

    def _try_again(self, work: Work, failure: Failure) -> bool:
        """Leave the rollout owed for the next round; an attempt whose result exists follows at once."""
        position, sample, attempt = work.group.position, work.sample, work.attempt + 1
        if attempt >= self.options.attempts:
            return False
        if self.results.has(position, sample, attempt) and (position, sample, attempt) not in self._taken:
            self._taken.add((position, sample, attempt))
            self._push_again(work, 0.0)
        elif position in self._open_asks:
            self._retries.append(SampleRequest(position, [sample]))
        return True

    def _settle(self, group: TaskGroup) -> None:
        """Settle an ask when all its samples are settled; answers not requested in this session settle nothing."""
        ask = self._open_asks.get(group.position)
        if ask is None:
            return
        ask.unsettled -= 1
        if ask.unsettled == 0:
            del self._open_asks[group.position]
            super()._settle(group)
