"""The schedule of a collection with a goal: batches of tasks, each task a chain of stages.

Decisions on a task depend on its own finished samples and on its batch's rules, which are fitted to all tasks of earlier, settled
batches. So every decision is a function of the task file, the options and the results on disk, independent of arrival order and
kills. A few batches are in flight concurrently, so that the server is not idle while the last answer of a batch is pending.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from rollforge.adaptive.design import GOALS, Expectation, GoalProgress, SamplingDesign
from rollforge.adaptive.sampling_rule import OUT_OF_REACH, is_audited
from rollforge.index import Index, floats, response_facts
from rollforge.recipes.recipe_columns import RolloutFacts, candidate_columns, facts_at, facts_of
from rollforge.records import Verdict
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.collect.goal.from_options import recipe_options
from rollforge.steps.collect.goal.task_book import (
    Mask,
    Rules,
    TaskBook,
    TaskJudge,
    TaskSummary,
    moments,
    needed_for,
)
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import SampleRequest

logger = logging.getLogger(__name__)

LAG = 4
"""Number of batches in flight."""

SMALLEST, LARGEST = 8, 2048
"""Smallest and largest batch, in tasks; in between, a quarter of the tasks begun so far."""

EARLY = 64
"""Settled tasks needed before their results decide which tasks continue beyond the first stage."""

DOUBTED = 1.5
"""Tasks that continue are a selection and may yield this multiple of the fit's expectation, which must not overshoot the goal."""

CAUTION = 0.8
"""Share of the estimated remaining tasks to begin at once: too many cost tokens, too few only time."""


class TaskRollouts(msgspec.Struct, array_like=True):
    """The rollouts of one task."""

    facts: dict[int, RolloutFacts] = {}
    """Facts of each rollout by sample number."""
    tokens: dict[int, int] = {}
    earlier: set[int] = set()
    """Samples that existed before this design began."""

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens.values())

    def known(self, samples_asked: int) -> list[RolloutFacts]:
        """Facts of requested samples and of earlier ones, ordered by sample.

        Other samples on disk after a kill are excluded, because they were unknown when the decision was made.
        """
        return [
            self.facts[sample]
            for sample in sorted(self.facts)
            if sample < samples_asked or sample in self.earlier
        ]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TaskRollouts)


class Recorded:
    """Rollouts per task: those on disk at the start, and later ones of tasks that may continue."""

    def __init__(self, index: Index | None, earlier: int = 0) -> None:
        """
        Args:
            earlier: number of rows in the file before this design began.
        """
        self._columns: dict[str, np.ndarray] = {}
        self._order = np.zeros(0, dtype=np.int64)
        self._tasks = np.zeros(0, dtype=np.int64)
        self._tokens = np.zeros(0)
        self._earlier = earlier
        self._kept: dict[int, bytes] = {}
        if index is None:
            return
        self._columns = candidate_columns(index)
        self._order = np.argsort(self._columns["task"], kind="stable")
        self._tasks = self._columns["task"][self._order]
        self._tokens = _tokens(index, self._columns["answer_chars"])

    def of(self, task: int) -> TaskRollouts:
        """The rollouts of a task."""
        if task in self._kept:
            return _DECODER.decode(self._kept[task])
        rows = self._rows(task)
        samples = self._columns["rollout"][rows].tolist() if self._columns else []
        return TaskRollouts(
            {facts.sample: facts for facts in facts_at(self._columns, rows)} if samples else {},
            dict(zip(samples, self._tokens[rows].astype(int).tolist(), strict=True)),
            {
                sample
                for sample, row in zip(samples, rows.tolist(), strict=True)
                if self._row(row) < self._earlier
            },
        )

    def _rows(self, task: int) -> Ints:
        start, end = np.searchsorted(self._tasks, [task, task + 1])
        return self._order[start:end]

    def _row(self, row: int) -> int:
        """Row number of a rollout in the file."""
        return int(self._columns["row"][row])

    def keep(self, task: int, rollouts: TaskRollouts) -> None:
        """Store a task that may continue; packed, because there may be a million of them."""
        self._kept[task] = _ENCODER.encode(rollouts)

    def forget(self, task: int) -> None:
        """Drop a task that gets no more samples."""
        self._kept.pop(task, None)


def _tokens(index: Index, chars: np.ndarray) -> np.ndarray:
    """Tokens per rollout as counted by the server; if it did not count, a quarter of the characters."""
    counted = np.full(len(chars), np.nan)
    if "total_tokens" in index.columns():
        counted = floats(index.table(["total_tokens"]).column(0))
    return np.where(np.isnan(counted), chars / 4, counted)


@dataclass(eq=False)
class OpenTask:
    """A task that may get more samples."""

    position: int
    task: int
    samples_asked: int
    """Samples that the task should have by now."""
    rollouts: TaskRollouts
    batch: TaskBatch
    stage: str = "first"
    units: int = 0


@dataclass(eq=False)
class TaskBatch:
    """Tasks that are begun together under the same rules."""

    rules: Rules
    expected: float
    """Expected units of the batch."""
    variance: float
    waiting: deque[tuple[int, int]]
    """Positions not yet begun, with the target number of samples for each."""
    is_further: bool = False
    """Whether each task gets one more group without further decisions."""
    open: set[int] = field(default_factory=set)
    closed: list[tuple[int, TaskSummary]] = field(default_factory=list)


class GoalSchedule:
    """Requests samples until the goal is reached or no task is worth further samples."""

    may_ask_again = True

    def __init__(
        self, plan: CollectPlan, design: SamplingDesign, recorded: Recorded, *, attempts: int
    ) -> None:
        assert design.recipe is not None
        self.design = design
        self._ledger = plan.ledger
        self._order = [int(position) for position in plan.order]
        self._cursor = 0
        self._recorded = recorded
        self._attempts = attempts
        self._judge = TaskJudge(design, recipe_options(design))
        self._book = TaskBook(len(plan.ledger.task_ids), design, recipe_options(design))
        self._flight: deque[TaskBatch] = deque()
        self._asks: deque[SampleRequest] = deque()
        self._open: dict[int, OpenTask] = {}
        self._busy = np.zeros(len(plan.ledger.task_ids), dtype=bool)
        """Tasks of batches in flight."""
        self._usable_in_flight = 0
        self._tokens_in_flight = 0
        self.asked = 0
        """Samples requested so far, including those on disk."""
        if design.base:
            self._take_over()
        self._begin_batches()

    # -- for the engine -----------------------------------------------------------------------------------------------

    def next_ask(self, *, is_ending: bool) -> SampleRequest | None:
        """The next samples, preferring begun tasks so that batches settle."""
        if is_ending:
            return self._next_of_begun_groups()
        while not self._asks:
            batch = next((batch for batch in self._flight if batch.waiting), None)
            if batch is None:
                return None
            self._begin(batch, *batch.waiting.popleft())
        return self._asks.popleft()

    def _next_of_begun_groups(self) -> SampleRequest | None:
        """Samples that groups with usable units still need to be complete."""
        for number, ask in enumerate(self._asks):
            if self._open[ask.position].units:
                del self._asks[number]
                return ask
        return None

    def finished(
        self, position: int, sample: int, response: msgspec.Raw, verdict: Verdict, tokens: int
    ) -> None:
        """Record a rollout that is on disk."""
        task = self._open.get(position)
        if task is None:
            return
        task.rollouts.facts[sample] = facts_of(
            sample, response_facts(response), reward=verdict.measured, is_masked=verdict.is_masked
        )
        task.rollouts.tokens[sample] = tokens
        self._tokens_in_flight += tokens

    def settled(self, position: int) -> bool:
        """All samples of an ask are finished or given up: decide what follows."""
        task = self._open.get(position)
        if task is None:
            return True
        if self._owed(task):  # a retry budget ran out: owed again when the run is resumed
            summary = self._summary(task)
            self._usable_in_flight += summary.units - task.units
            self._close(task, summary)
        else:
            self._advance(task)
        return position not in self._open

    @property
    def committed(self) -> int:
        """Samples that begun tasks may still get: a usable group is filled up even when a budget has ended."""
        whole = self.design.whole
        return sum(max(whole, task.samples_asked) - len(task.rollouts.facts) for task in self._open.values())

    # -- progress -----------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> int:
        """Units of all tasks, as far as they are settled."""
        return self._book.units + self._usable_in_flight

    @property
    def expected(self) -> int:
        """Rollouts requested so far, plus unrequested ones on disk."""
        return max(self.asked, self._ledger.finished)

    @property
    def owed(self) -> int:
        """Requested samples that are neither finished nor given up."""
        return sum(len(self._owed(task)) for task in self._open.values())

    def progress(self, usable: int | None = None) -> GoalProgress:
        """Progress of the goal; `usable` overrides the running count."""
        usable = self.usable if usable is None else usable
        tokens = self._book.tokens + self._tokens_in_flight
        left = self.design.target - usable
        needed = self._book.needed(left) or self._early_needed(left)
        return GoalProgress(
            recipe=str(self.design.recipe),
            unit=GOALS[str(self.design.recipe)],
            target=self.design.target,
            usable=usable,
            tasks=int(self._book.is_known.sum()) + len(self._open),
            tokens=tokens,
            per_1000_tokens=1000 * usable / tokens if tokens else None,
            needed_tokens=needed[0] if needed else None,
            needed_tasks=needed[1] if needed else None,
        )

    def _early_needed(self, left: int) -> tuple[Expectation, Expectation] | None:
        """Estimated remaining need from tasks in unsettled batches, for a pilot without settled ones."""
        closed = [summary for batch in self._flight for _, summary in batch.closed]
        begun = [
            (task.units, task.rollouts.total_tokens) for task in self._open.values() if task.rollouts.tokens
        ]
        tasks = [*((one.units, one.tokens) for one in closed), *begun]
        sums = np.sum([moments(units, tokens) for units, tokens in tasks], axis=0) if tasks else np.zeros(6)
        return needed_for(left, *sums.tolist())

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _begin(self, batch: TaskBatch, position: int, wanted: int) -> None:
        number = int(self._ledger.task_ids[position])
        task = OpenTask(position, number, wanted, self._recorded.of(number), batch)
        if self._book.is_known[position]:
            before = self._book.get(position)
            task.stage, task.units = "more", before.units
            self.asked -= before.samples_asked
            self._tokens_in_flight -= before.tokens
        self._tokens_in_flight += task.rollouts.total_tokens
        self.asked += wanted
        self._open[position] = task
        self._advance(task)

    def _owed(self, task: OpenTask) -> list[int]:
        owed = self._ledger.owed_samples(task.position, self._attempts)
        return [sample for sample in owed if sample < task.samples_asked]

    def _advance(self, task: OpenTask) -> None:
        """Request the samples that the task still lacks; if it lacks none, decide whether it gets more."""
        while not (owed := self._owed(task)):
            summary = self._summary(task)
            self._usable_in_flight += summary.units - task.units
            task.units = summary.units
            more = self._decide(task, summary)
            if not more:
                self._close(task, summary)
                return
            task.samples_asked += more
            self.asked += more
        self._asks.append(SampleRequest(task.position, owed, task.stage))

    def _decide(self, task: OpenTask, summary: TaskSummary) -> int:
        """Number of additional samples for the task; 0 to stop."""
        if task.batch.is_further:
            return 0
        more = min(task.batch.rules.next_samples(summary), self.design.most - task.samples_asked)
        task.stage = "more"
        is_audit = is_audited(task.task, self.design.seed, self.design.audit)
        if more <= 0 and is_audit and task.samples_asked < self.design.whole:
            more, task.stage = self.design.whole - task.samples_asked, "audit"
        return max(more, 0)

    def _summary(self, task: OpenTask) -> TaskSummary:
        all_facts = task.rollouts.known(task.samples_asked)
        return self._judge.summarize(
            task.task,
            [facts for facts in all_facts if facts.sample < task.samples_asked],
            samples_asked=task.samples_asked,
            tokens=task.rollouts.total_tokens,
            everything=all_facts,
        )

    def _close(self, task: OpenTask, summary: TaskSummary) -> None:
        del self._open[task.position]
        if summary.samples_asked < self.design.most:
            self._recorded.keep(task.task, task.rollouts)
        else:
            self._recorded.forget(task.task)
        batch = task.batch
        batch.open.discard(task.position)
        batch.closed.append((task.position, summary))
        while self._flight and not self._flight[0].open:
            self._fold(self._flight.popleft())
            self._begin_batches()

    # -- batches ------------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Take over a finished run: its samples become the first stage of every task."""
        for position in self._order:
            number, base = int(self._ledger.task_ids[position]), self.design.base
            rollouts = self._recorded.of(number)
            early = [rollouts.facts[sample] for sample in sorted(rollouts.facts) if sample < base]
            tokens = sum(count for sample, count in rollouts.tokens.items() if sample < base)
            summary = self._judge.summarize(
                number, early, samples_asked=base, tokens=tokens, everything=early
            )
            self._book.put(position, summary)
            self.asked += self.design.base
        self._cursor = len(self._order)

    def _fold(self, batch: TaskBatch) -> None:
        for position, summary in batch.closed:
            before = self._book.get(position) if self._book.is_known[position] else None
            self._usable_in_flight -= summary.units - (before.units if before else 0)
            self._tokens_in_flight -= summary.tokens - (before.tokens if before else 0)
            self._book.put(position, summary)
            self._busy[position] = False

    def _begin_batches(self) -> None:
        """Begin batches while the goal appears to need them. Called only after a batch was folded, so it depends only on settled
        batches.
        """
        rules: Rules | None = None
        while len(self._flight) < LAG:
            expected = sum(batch.expected for batch in self._flight)
            doubt = math.sqrt(sum(batch.variance for batch in self._flight))
            need = self.design.target - self._book.units - expected - 2 * doubt
            if need <= 0:
                return
            rules = rules or self._rules()
            batch = self._resumed_batch(rules, need) or self._fresh_batch(rules, need)
            batch = batch or self._lowered_batch(rules, need)
            if batch is None:
                return
            positions = [position for position, _ in batch.waiting]
            batch.open = set(positions)
            self._busy[positions] = True
            self._flight.append(batch)

    def _rules(self) -> Rules:
        """Rules of the next batches. With little data, tasks pause after their first stage and can continue later."""
        is_early = int(self._book.is_known.sum()) < EARLY and self._cursor < len(self._order)
        return self._book.rules().at(OUT_OF_REACH) if is_early else self._book.rules()

    def _fresh_batch(self, rules: Rules, need: float) -> TaskBatch | None:
        """A batch of the next tasks in order."""
        left = len(self._order) - self._cursor
        if not left:
            return None
        usual = rules.usual
        # Before anything is known, a task may bring as much as a task can: a small goal must not be overshot.
        known_tasks = int(self._book.is_known.sum())
        per_task = (
            max(usual.units_per_task, self._book.units / known_tasks) if known_tasks else usual.most_units
        )
        wanted = math.ceil(CAUTION * need / max(per_task, 1e-6))
        size = min(left, max(1, wanted), _largest(self._cursor))
        positions = self._order[self._cursor : self._cursor + size]
        self._cursor += size
        return TaskBatch(
            rules=rules,
            expected=size * per_task,
            variance=size * usual.spread**2,
            waiting=deque((position, self.design.first) for position in positions),
        )

    def _lowered_batch(self, rules: Rules, need: float) -> TaskBatch | None:
        """Without fresh tasks: the tasks that clear the highest bar which any task clears, with single samples or another group."""
        free = self._free()
        for bar in self._book.bars(rules):
            lowered = rules.at(bar)
            if batch := self._resumed_batch(lowered, need):
                return batch
            further = self._book.further_groups(lowered, free, bar)
            if len(further[0]):
                return self._batch(lowered, need, *further, is_further=True)
        return None

    def _resumed_batch(self, rules: Rules, need: float) -> TaskBatch | None:
        """Paused tasks that these rules would continue."""
        stopped = self._book.resumable(rules, self._free())
        return self._batch(rules, need, *stopped) if len(stopped[0]) else None

    def _free(self) -> Mask:
        """Tasks of the order that are in no batch in flight."""
        free = np.zeros(len(self._busy), dtype=bool)
        free[self._order] = True
        return free & ~self._busy

    def _batch(
        self,
        rules: Rules,
        need: float,
        positions: Ints,
        wanted: Ints,
        gains: Floats,
        *,
        is_further: bool = False,
    ) -> TaskBatch:
        """A batch of as many of these tasks as the goal appears to need."""
        gains = DOUBTED * gains
        enough = int(np.searchsorted(np.cumsum(gains), CAUTION * need)) + 1
        size = min(enough, _largest(len(self._order)), len(positions))
        return TaskBatch(
            rules=rules,
            expected=float(gains[:size].sum()),
            variance=float(gains[:size].sum()),
            waiting=deque(zip(positions[:size].tolist(), wanted[:size].tolist(), strict=True)),
            is_further=is_further,
        )


def _largest(begun: int) -> int:
    return int(np.clip(begun // 4, SMALLEST, LARGEST))
