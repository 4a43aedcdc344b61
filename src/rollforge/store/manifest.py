"""The manifest `rollouts_run.json`: how a run was made, and its progress. It never contains secrets."""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Literal

import msgspec

from rollforge.records import JsonObject
from rollforge.store.atomic import write_atomically
from rollforge.store.costs import CostFacts
from rollforge.store.files import RunFiles
from rollforge.store.lock import is_held
from rollforge.store.reading import read_json

State = Literal["running", "done", "interrupted", "incomplete"]


class TaskInput(msgspec.Struct, frozen=True, kw_only=True):
    """Source of the tasks."""

    path: str = ""
    digest: str = ""
    tasks: int = 0
    bad_lines: int = 0
    """Number of lines skipped with `--skip-bad`."""
    commit: str | None = None
    """Commit of a Hub dataset; resolved once, and used again when the run is resumed."""
    hub: JsonObject | None = None
    """Dataset, commit, split and files on the Hub."""
    tasksets: JsonObject | None = None
    """Of an evaluation: task set → its path, map, and dataset on the Hub."""


class RunningReward(msgspec.Struct, frozen=True, kw_only=True):
    """The running mean over judged rollouts."""

    mean: float
    ci: list[float] | None = None
    n: int = 0
    coverage: float = 0.0
    is_whole: bool = True
    """False if the mean covers only rollouts since a resume."""


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the concurrency limit: seconds since the start, new limit, reason."""

    at: float
    limit: int
    reason: str


class ConcurrencyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The concurrency limit, and the history of its changes."""

    limit: int | None = None
    peak: int = 0
    history: list[LimitChange] = []


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one base URL: breaker, requests, failures by class."""

    url: str = ""
    breaker: str = "closed"
    opened: int = 0
    requests: int = 0
    failures: dict[str, int] = {}


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of first requests, of retries, and of retries denied by the budget."""

    fresh: int = 0
    retries: int = 0
    retries_denied: int = 0


class Manifest(msgspec.Struct, kw_only=True):
    """How a run was made, and its progress. Reading ignores unknown keys of newer versions; only the run's writer rewrites it."""

    rollforge: str
    """rollforge version of the last writer."""
    state: State = "running"
    created: float = 0.0
    updated: float = 0.0
    pid: int = 0
    host: str = ""
    command: list[str] = []
    """Command that resumes the run."""
    fingerprint: JsonObject = {}
    """Values that must not change when the run is resumed, flat, by option; values can be any JSON."""
    config: JsonObject = {}
    """All options, resolved."""
    input: TaskInput = TaskInput()
    tasks: int = 0
    samples: int = 1
    expected: int = 0
    finished: int = 0
    judged: int = 0
    unjudged: int = 0
    failed: dict[str, int] = {}
    """Number of unfinished rollouts with failures, by class of the last failure."""
    reward: RunningReward | None = None
    rate: float | None = None
    """Rollouts per second over the last minute."""
    eta_s: float | None = None
    tokens_per_s: float | None = None
    in_flight: int = 0
    slowest_s: float | None = None
    api: str | None = None
    model_names: list[str] = []
    """Model names in the server's answers."""
    concurrency: ConcurrencyFacts = ConcurrencyFacts()
    endpoints: list[EndpointFacts] = []
    requests: RequestFacts = RequestFacts()
    notes: list[str] = []
    cost: CostFacts | None = None
    """Cost of the run so far; null without a price."""
    counted: dict[str, int] = {}
    """Bytes of rollouts, failures and verdicts that counts and costs cover; empty during the collection."""
    verdict_of_record: str | None = None
    """The verifier whose verdicts later commands use; `recorded` for the rewards in the rollouts file."""
    extra: JsonObject = {}

    def write(self, files: RunFiles) -> None:
        """Replace the manifest on disk atomically."""
        write_atomically(files.manifest, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_manifest(files: RunFiles) -> Manifest | None:
    """The run's manifest, or None."""
    if not files.manifest.exists():
        return None
    return read_json(
        files.manifest, Manifest, hint="mend the file, or move the run aside with collect --fresh"
    )


def run_id(files: RunFiles, manifest: Manifest | None) -> str:
    """A unique id, derived from the start time, so that it survives a move; for runs of other tools, from the path."""
    if manifest is None:
        path = files.rollouts.resolve()
        return f"{path.parent.name}-{_short_digest(str(path))}"
    begun = time.strftime("%Y%m%d-%H%M%S", time.gmtime(manifest.created))
    digest = _short_digest(f"{manifest.created} {manifest.input.digest or None}")
    return f"{begun}-{digest}"


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_alive(files: RunFiles, manifest: Manifest) -> bool:
    """Whether the process that writes this run is still alive."""
    if files.is_sharded:
        from rollforge.store.rollout_parts import is_being_collected  # most runs have no shards

        return is_being_collected(files)
    if manifest.host and manifest.host != socket.gethostname():
        return manifest.state == "running"  # another machine's process cannot be asked
    return is_held(files.lock)
