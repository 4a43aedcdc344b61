"""Progress of a run, determined from its files alone."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from rollforge.adaptive.design import GoalProgress, read_progress
from rollforge.checks.building_blocks.stream import SuspectWindow
from rollforge.errors import UsageError
from rollforge.runtime.typed_decoding import convert
from rollforge.store import Ledger, Manifest, RunFiles, is_alive, read_manifest
from rollforge.store.batches import read_batches
from rollforge.store.costs import CostFacts, counted_bytes, recounted
from rollforge.store.failure_reasons import attempt_failures, verifier_failures
from rollforge.store.find import near_run, refuse_devices, runs_in, what_is_there
from rollforge.store.manifest import RunningReward, State
from rollforge.store.outputs import holds_rollouts
from rollforge.store.rollout_parts import parts_of
from rollforge.store.shard_plan import array_text, read_plan
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import ShardState, shard_states
from rollforge.tasks import TaskFile

FRESH_S = 15.0
"""A running process rewrites its manifest every few seconds; after this time without an update it may be stuck."""


RunState = State | Literal["idle"]
"""`idle`: some shards are finished, and no process works on the others."""


class ShardCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of shards by state."""

    count: int
    finished: int
    incomplete: int
    """Shards that ended with finally failed rollouts."""
    open: int
    stale: int
    owed: int
    """Shards not begun, or abandoned by their owner."""
    array: str
    """Shards to submit again (stale and owed), in Slurm's array syntax."""
    listed: list[ShardState]
    """States of the unfinished shards."""


class OpenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at the provider whose results are not all on disk."""

    name: str
    """rollforge's name of the batch, also stored in the provider's metadata."""
    id: str | None
    """The provider's id; None until it is known."""
    state: str
    """planned, uploaded, created (the provider works on it) or ended (results are being read)."""
    requests: int
    age_s: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run."""

    run: str
    state: RunState
    expected: int
    finished: int
    judged: int
    unjudged: int
    failed: dict[str, int]
    rate: float | None
    """Rollouts per second; None if nothing is running."""
    eta_s: float | None
    tokens_per_s: float | None
    reward: RunningReward | None
    in_flight: int
    limit: int | None
    slowest_s: float | None
    updated_s_ago: float
    is_stale: bool
    """Whether it should be running but has not updated its manifest for a while."""
    command: list[str]
    shards: ShardCounts | None = None
    """None for a single-file run."""
    cost: CostFacts | None = None
    """Cost of the run so far; None without a price."""
    goal: GoalProgress | None = None
    """Progress of the goal, as recorded by the last session; None without one."""
    batches: list[OpenBatch] = []
    """Batches in progress at the provider, oldest first."""
    verifier_failures: dict[str, int] = {}
    """The most frequent verifier failures, as raised: text and location."""
    causes: dict[str, int] = {}
    """The most frequent messages of attempts without a rollout."""
    suspect: SuspectWindow | None = None
    """The rollouts whose verdicts `collect` marked as suspect; None without any, and once the run is judged again."""

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import result, table

        rows = [
            ("finished", f"{self.finished:,} of {self.expected:,}"),
            ("judged", f"{self.judged:,}"),
            ("without a verdict", f"{self.unjudged:,}"),
            *((f"failed: {name}", f"{count:,}") for name, count in self.failed.items()),
        ]
        return result(f"{self.run}: {self.state}", table(("", ""), rows))


def read_status(run: str | Path) -> Status:
    """The run's status. A `running` left behind by a dead process is reported as `interrupted`."""
    files = RunFiles(run)
    refuse_devices(files)
    manifest = read_manifest(files)
    if manifest is None:
        if not (Path(run).exists() or files.rollouts.exists()):
            raise UsageError(
                f"{run}: no such run{near_run(run)}", hint="give the folder that collect wrote to (-o)"
            )
        raise UsageError(f"{files.manifest}: no such file", hint=_other_command(Path(run), files))
    if manifest.finished and not files.is_sharded and not files.rollouts.exists():
        raise UsageError(
            f"{files.rollouts}: no such file{near_run(files.rollouts)}",
            hint="give the folder that collect wrote to (-o)",
        )
    if files.is_sharded:
        return _of_shards(str(run), files, manifest)
    is_running = manifest.state == "running" and is_alive(files, manifest)
    age = time.time() - manifest.updated
    if not is_running and not _is_counted(files, manifest):
        _recount(files, manifest)
    state: State = "interrupted" if manifest.state == "running" and not is_running else manifest.state
    return Status(
        run=str(run),
        state=state,
        expected=max(
            manifest.expected, manifest.finished
        ),  # a goal that is killed had asked for more than it wrote down
        finished=manifest.finished,
        judged=manifest.judged,
        unjudged=manifest.unjudged,
        failed=manifest.failed,
        rate=manifest.rate if is_running else None,
        eta_s=manifest.eta_s if is_running else None,
        tokens_per_s=manifest.tokens_per_s if is_running else None,
        reward=manifest.reward,
        in_flight=manifest.in_flight if is_running else 0,
        limit=manifest.concurrency.limit,
        slowest_s=manifest.slowest_s if is_running else None,
        updated_s_ago=age,
        is_stale=is_running and age > FRESH_S,
        command=manifest.command,
        cost=manifest.cost,
        goal=read_progress(manifest.extra),
        batches=open_batches(files),
        verifier_failures=dict(verifier_failures(files)),
        causes=dict(attempt_failures(files)),
        suspect=_suspect(files, manifest),
    )


def _suspect(files: RunFiles, manifest: Manifest) -> SuspectWindow | None:
    """The suspect window of the manifest, unless later verdicts are there."""
    if not manifest.extra.get("suspect") or any(part.size() for part in parts_of(files).verdicts):
        return None
    try:
        return convert(manifest.extra["suspect"], SuspectWindow, strict=False)
    except msgspec.ValidationError:
        return None


def _other_command(path: Path, files: RunFiles) -> str:
    """Next step for files that rollforge did not collect."""
    if path.is_file() and not holds_rollouts(path):
        tasks = shlex.quote(str(path))
        return f"it holds no rollouts; to collect some for its tasks: rollforge collect -i {tasks} -o RUN -m MODEL"
    if not files.rollouts.exists() and (runs_in(path) or path.is_dir()):
        return what_is_there(path, [run for run in runs_in(path) if run.is_dir() or holds_rollouts(run)])
    return f"status reads runs that rollforge collected; for other files: rollforge metrics {shlex.quote(str(path))}"


def open_batches(files: RunFiles) -> list[OpenBatch]:
    """Batches whose results are not all on disk."""
    if not files.batches.exists():
        return []
    now = time.time()
    return [
        OpenBatch(
            name=batch.name,
            id=batch.batch_id,
            state=batch.step,
            requests=batch.requests,
            age_s=max(0.0, now - batch.planned_at),
        )
        for batch in read_batches(files.batches).values()
        if batch.is_open
    ]


def _is_counted(files: RunFiles, manifest: Manifest) -> bool:
    """Whether the manifest's counts cover every line on disk, so that no text must be read."""
    return bool(manifest.counted) and manifest.counted == counted_bytes(files)


def _recount(files: RunFiles, manifest: Manifest) -> None:
    """Count what is on disk, because the manifest of a killed process may lag seconds behind."""
    if manifest.cost is not None:
        manifest.cost = recounted(files, manifest.cost, manifest.config.get("price_per_hour"))
    if not files.tasks.exists():
        return
    tasks = TaskFile.open(files.tasks, count=manifest.tasks)
    tasks.close()
    ledger = Ledger(tasks.ids, manifest.samples)
    ledger.read(files.rollouts, files.failures)
    manifest.finished = ledger.finished
    manifest.failed = ledger.failed_by_class(files.failures)
    if manifest.config.get("verifier"):
        manifest.unjudged = ledger.unjudged
        manifest.judged = ledger.finished - ledger.unjudged


def _of_shards(run: str, files: RunFiles, manifest: Manifest) -> Status:
    """Status of a sharded run from its shards; facts that shards lack come from the driver's manifest."""
    storage = DiskStorage(files.shards)
    plan = read_plan(storage)
    assert plan is not None, files.shards
    states = list(shard_states(storage, plan))
    counts = Counter(one.state for one in states)
    again = [one.shard + plan.first_number for one in states if one.state in ("stale", "owed")]
    is_running = counts["open"] > 0
    expected, finished = sum(one.expected for one in states), sum(one.finished for one in states)
    rates = [one.rate for one in states if one.rate is not None]
    rate = _rate_of(states) if is_running else None
    unjudged = sum(one.unjudged for one in states)
    state: RunState = (
        "running" if is_running else "done" if finished == expected and not unjudged else "incomplete"
    )
    if state == "incomplete" and again and any(one.epochs for one in states):
        was_left = any(one.epochs for one in states if one.state in ("stale", "owed"))
        state = "interrupted" if was_left else "idle"
    is_judged = manifest.config.get("verifier") is not None
    return Status(
        run=run,
        state=state,
        expected=expected,
        finished=finished,
        judged=finished - unjudged if is_judged else 0,
        unjudged=unjudged if is_judged else 0,
        failed=manifest.failed
        or ({"given up": sum(one.given_up for one in states)} if any(one.given_up for one in states) else {}),
        rate=rate,
        eta_s=(expected - finished) / rate if rate else None,
        tokens_per_s=manifest.tokens_per_s if is_running and rates else None,
        reward=manifest.reward,
        in_flight=sum(one.in_flight for one in states),
        limit=manifest.concurrency.limit,
        slowest_s=manifest.slowest_s if is_running else None,
        updated_s_ago=min(
            (one.heard_s_ago for one in states if one.heard_s_ago is not None),
            default=time.time() - manifest.updated,
        ),
        is_stale=counts["stale"] > 0,
        command=manifest.command,
        shards=ShardCounts(
            count=len(plan),
            finished=counts["finished"],
            incomplete=counts["incomplete"],
            open=counts["open"],
            stale=counts["stale"],
            owed=counts["owed"],
            array=array_text(again),
            listed=[one for one in states if one.state != "finished"],
        ),
        cost=_cost_of_shards(files, manifest),
        goal=read_progress(manifest.extra),
        verifier_failures={},
        suspect=_suspect(files, manifest),
    )


def _cost_of_shards(files: RunFiles, manifest: Manifest) -> CostFacts | None:
    if manifest.cost is None or _is_counted(files, manifest):
        return manifest.cost
    return recounted(files, manifest.cost, manifest.config.get("price_per_hour"))


def _rate_of(states: list[ShardState]) -> float | None:
    """Rollouts per second over all processes; several open shards of one process report its rate only once."""
    by_process = {
        (one.owner.host, one.owner.pid): one.rate
        for one in states
        if one.state == "open" and one.owner and one.rate is not None
    }
    return sum(by_process.values()) or None


def owed_shards(run: str | Path) -> ShardCounts:
    """Shards to submit again.

    Raises:
        UsageError: the run has no shards.
    """
    status = read_status(run)
    if status.shards is None:
        raise UsageError(
            f"{run} is a run in one file, without shards", hint=f"rollforge status {shlex.quote(str(run))}"
        )
    return status.shards
