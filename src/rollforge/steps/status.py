"""How far a run is, from its files alone."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.store import Ledger, Manifest, RunFiles, is_alive, read_manifest
from rollforge.store.find import near_run
from rollforge.store.manifest import RunningReward, State
from rollforge.store.verifier_failures import verifier_failures
from rollforge.tasks import TaskFile

FRESH_S = 15.0
"""A running process rewrites its manifest every few seconds; an older one may be stuck."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is."""

    run: str
    state: State
    expected: int
    finished: int
    judged: int
    unjudged: int
    failed: dict[str, int]
    rate: float | None
    """Rollouts per second; None when nothing is running."""
    eta_s: float | None
    tokens_per_s: float | None
    reward: RunningReward | None
    in_flight: int
    limit: int | None
    slowest_s: float | None
    updated_s_ago: float
    is_stale: bool
    """It should be running, but has not said so for a while."""
    command: list[str]
    verifier_failures: dict[str, int] = {}
    """The most frequent failures of the verifier: text and place, as it raised them."""


def read_status(run: str | Path) -> Status:
    """The run's status. A process that died leaves `running` behind: that is `interrupted`."""
    files = RunFiles(run)
    manifest = read_manifest(files)
    if manifest is None:
        raise UsageError(
            f"{files.manifest}: no such file{near_run(run)}",
            hint=f"status reads runs that rollforge collected; for other files: rollforge metrics {shlex.quote(str(run))}",
        )
    is_running = manifest.state == "running" and is_alive(files, manifest)
    age = time.time() - manifest.updated
    if not is_running:
        _recount(files, manifest)
    state: State = "interrupted" if manifest.state == "running" and not is_running else manifest.state
    return Status(
        run=str(run),
        state=state,
        expected=manifest.expected,
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
        verifier_failures=dict(verifier_failures(files)),
    )


def _recount(files: RunFiles, manifest: Manifest) -> None:
    """The manifest may be seconds behind the files when the process was killed: count what is on disk."""
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
