"""Judges answers for a trainer: one judge per process, in its own event loop, for sync and async callers.

Equal answers to equal tasks share a call, as in `collect`. A failed call is repeated. The value of an answer without a verdict is
the user's policy, because no number is safe for every trainer.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self

import msgspec

from rollforge.errors import Failure, RollforgeError, UsageError
from rollforge.records import JsonFields, Response, Task, Verdict, has_field
from rollforge.runtime.on_error import OnError
from rollforge.verifiers.base import Mode, Verifier, load_verifier
from rollforge.verifiers.running.ready_verifier import RunningJudge, Workers, make_judge

logger = logging.getLogger(__name__)

UNJUDGED = "rollforge/unjudged"
"""Name of the counter in a trainer's log."""
RETRIES = 2
"""Number of retries after a failed call."""
WARNINGS = 20
"""Number of unjudged answers that are logged individually; later ones are only counted."""
START_S = 600.0
"""Time limit for starting the verifier, which may load a model."""


class Unjudged(RollforgeError):
    """An answer has no verdict, and the policy is to stop instead of training on an invented number."""


class UnjudgedPolicy(msgspec.Struct, frozen=True):
    """Reward of an answer without a verdict."""

    is_none: bool = False
    """Whether it is None, for trainers that omit missing rewards."""
    value: float | None = None
    """A number, only if the user set one."""

    @classmethod
    def parse(cls, text: str | float, *, label: str = "on_unjudged=") -> UnjudgedPolicy:
        """Parse `none`, `retry-then-raise` (or `raise`), `value=NUMBER` or a number; `label` is how users spell the option."""
        words = str(text).strip()
        if words == "none":
            return cls(is_none=True)
        if words in ("raise", "retry-then-raise"):
            return cls()
        with contextlib.suppress(ValueError):
            number = float(words.removeprefix("value="))
            if number - number == 0:  # neither infinite nor NaN
                return cls(value=number)
        raise UsageError(
            f"{label}{text!r} is not understood",
            hint=f"{label}none, {label}retry-then-raise, or a number of your own: {label}value=0",
        )


class Judgement(msgspec.Struct, frozen=True):
    """Result for one answer, as given to the trainer."""

    reward: float | None
    """None only with the policy `none`."""
    numbers: dict[str, bool | int | float] = {}
    """The verifier's other numbers."""
    cause: str | None = None
    """Why there is no verdict; None for a judged answer."""

    @property
    def is_judged(self) -> bool:
        return self.cause is None


class ScorerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Verifier and how it runs."""

    verifier: Any
    """A built-in verifier's name, `file.py:function`, `module:function`, or a function."""
    options: JsonFields = {}
    mode: Mode | None = None
    workers: Workers = "auto"
    timeout_s: float = 60.0
    retries: int = RETRIES
    on_unjudged: str | float = "retry-then-raise"


class Scorer:
    """A verifier that a trainer can call from any thread, with or without an event loop.

    It starts at the first call, in the process that calls; a copy in another process (a fork, a pickle) starts its own.
    """

    def __init__(self, options: ScorerOptions) -> None:
        self.options = options
        self.policy = UnjudgedPolicy.parse(options.on_unjudged)
        if options.retries < 0:
            raise UsageError(f"retries={options.retries}: must be at least 0", hint="retries=0 asks once")
        self.verifier: Verifier = load_verifier(options.verifier, options.options, options.mode)
        if self.verifier.is_group:
            raise UsageError(
                f"{self.verifier.name} scores the samples of a task together; a trainer's reward gets one answer at a time",
                hint="judge the run with it (rollforge verify RUN --verifier NAME), write one of single answers for the trainer",
            )
        self.judged = 0
        self.unjudged = 0
        """Number of answers without a verdict so far, under any policy."""
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._judge: RunningJudge | None = None
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> ScorerOptions:
        return self.options

    def __setstate__(self, options: ScorerOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_fields(self, row: JsonFields) -> None:
        """Refuse a row without the fields that the verifier needs, because all answers to it would be unjudged."""
        for need in self.verifier.needs:
            if not has_field(row, need):
                present = ", ".join(sorted(key for key in row if key != "responses_create_params")) or "none"
                raise UsageError(
                    f"the verifier {self.verifier.name} needs the field {need!r}; the row has: {present}",
                    hint="prepare the prompt set with rollforge, which keeps every field, or name the column: "
                    f'fields={{"{need.partition("|")[0]}": "YOUR_COLUMN"}}',
                )

    def score(self, pairs: Sequence[tuple[Task, Response]]) -> list[Judgement]:
        """Judge answers, in order; blocks the calling thread."""
        return self._submit(pairs).result()

    async def score_async(self, pairs: Sequence[tuple[Task, Response]]) -> list[Judgement]:
        """Judge answers, in order, for callers in an event loop."""
        start = asyncio.to_thread(self._submit, pairs)  # the first call may load a model
        return await asyncio.wrap_future(await start)

    def _submit(self, pairs: Sequence[tuple[Task, Response]]) -> Future[list[Judgement]]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(self._judge_all(list(pairs)), self._loop)

    def _start(self) -> None:
        """Start a thread with an event loop and the judge in it; after a fork, the parent's judge is not reused."""
        self._pid = os.getpid()
        loop = asyncio.new_event_loop()
        judge = make_judge(
            self.verifier, workers=self.options.workers, timeout=self.options.timeout_s, sharing="auto"
        )
        thread = threading.Thread(target=loop.run_forever, name="rollforge-reward", daemon=True)
        thread.start()
        with OnError(lambda: _end_loop(loop, thread)):
            asyncio.run_coroutine_threadsafe(judge.start(), loop).result(START_S)
        self._loop, self._judge, self._thread = loop, judge, thread
        atexit.register(self.close)

    async def _judge_all(self, pairs: list[tuple[Task, Response]]) -> list[Judgement]:
        return list(await asyncio.gather(*(self._judged(task, response) for task, response in pairs)))

    async def _judged(self, task: Task, response: Response) -> Judgement:
        assert self._judge is not None
        cause = ""
        for _ in range(1 + self.options.retries):
            try:
                verdict = await self._judge.judge(task, response)
            except Failure as failure:
                cause = failure.message
                continue
            if verdict.reward is not None:
                self.judged += 1
                return Judgement(verdict.reward, verdict.numbers)
            cause = _reason(verdict)
            if self.verifier.is_deterministic:
                break  # asked again, it would say the same
        return self._without_verdict(cause)

    def _without_verdict(self, cause: str) -> Judgement:
        self.unjudged += 1
        if self.unjudged <= WARNINGS:
            logger.warning("%s: no verdict (%d so far): %s", self.verifier.name, self.unjudged, cause)
        if self.policy.is_none or self.policy.value is not None:
            return Judgement(self.policy.value, {}, cause)
        raise Unjudged(
            f"{self.verifier.name} gave no verdict: {cause}",
            hint="a number in its place would be learned from; if you want that: on_unjudged='value=0'",
        )

    def close(self) -> None:
        """Stop the judge and its worker processes; the next call starts them again."""
        with self._lock:
            loop, judge, thread = self._loop, self._judge, self._thread
            self._loop = self._judge = self._thread = None
        atexit.unregister(self.close)
        if loop is None or judge is None or thread is None or self._pid != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(judge.close(), loop).result(30)
        except TimeoutError:
            logger.warning("%s: its tear-down takes more than 30 s and is abandoned", self.verifier.name)
        except RuntimeError:
            pass  # the interpreter ends and starts no more threads: worker processes end with their closed lines
        finally:
            _end_loop(loop, thread)


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    if not thread.is_alive():
        loop.close()


def _reason(verdict: Verdict) -> str:
    """Why the verifier could not judge, in its own words if it gave any."""
    for key in ("reason", "cause", "error", "failure_reason"):
        if isinstance(verdict.details.get(key), str):
            return str(verdict.details[key])
    return "the verifier returned None: it cannot judge this answer"


_SCORERS: dict[str, Scorer] = {}
_SCORERS_LOCK = threading.Lock()


def shared_scorer(key: object, make: Callable[[], Scorer]) -> Scorer:
    """The shared scorer for a configuration, one per process, for trainers that call a plain function."""
    name = repr(key)
    with _SCORERS_LOCK:
        scorer = _SCORERS.get(name)
        if scorer is None:
            scorer = _SCORERS[name] = make()
        return scorer
