"""The manifest `rollouts_run.json`: how a run was made and how far it is. Secrets never enter it."""

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
    """Where the tasks came from."""

    path: str = ""
    digest: str = ""
    tasks: int = 0
    bad_lines: int = 0
    """Lines left out with `--skip-bad`."""
    commit: str | None = None
    """The commit of a dataset on the Hub: its revision is resolved once, and a resumed run stays with it."""
    hub: JsonObject | None = None
    """Dataset, commit, split and files on the Hub."""


class RunningReward(msgspec.Struct, frozen=True, kw_only=True):
    """The running mean over judged rollouts."""

    mean: float
    ci: list[float] | None = None
    n: int = 0
    coverage: float = 0.0
    is_whole: bool = True
    """False when the mean covers only the rollouts since a resume."""


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the concurrency limit: seconds since the start, the new limit, and why."""

    at: float
    limit: int
    reason: str


class ConcurrencyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The concurrency limit, and the history of its changes."""

    limit: int | None = None
    peak: int = 0
    history: list[LimitChange] = []


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one base URL did: its breaker, its requests, its failures by class."""

    url: str = ""
    breaker: str = "closed"
    opened: int = 0
    requests: int = 0
    failures: dict[str, int] = {}


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests were first tries, how many were retries, and how many retries the budget denied."""

    fresh: int = 0
    retries: int = 0
    retries_denied: int = 0


class Manifest(msgspec.Struct, kw_only=True):
    """How a run was made and how far it is. Reading drops the unknown keys of a newer version; only the writer rewrites it."""

    rollforge: str
    """Version that wrote it last."""
    state: State = "running"
    created: float = 0.0
    updated: float = 0.0
    pid: int = 0
    host: str = ""
    command: list[str] = []
    """The words that resume the run."""
    fingerprint: JsonObject = {}
    """What must not change when the run is resumed: flat, by option; the values are anybody's JSON."""
    config: JsonObject = {}
    """Every option, resolved."""
    input: TaskInput = TaskInput()
    tasks: int = 0
    samples: int = 1
    expected: int = 0
    finished: int = 0
    judged: int = 0
    unjudged: int = 0
    failed: dict[str, int] = {}
    """Rollouts given up or still failing, by class of their last failure."""
    reward: RunningReward | None = None
    rate: float | None = None
    """Rollouts per second over the last minute."""
    eta_s: float | None = None
    tokens_per_s: float | None = None
    in_flight: int = 0
    slowest_s: float | None = None
    api: str | None = None
    model_names: list[str] = []
    """Model names that the server's answers carried."""
    concurrency: ConcurrencyFacts = ConcurrencyFacts()
    endpoints: list[EndpointFacts] = []
    requests: RequestFacts = RequestFacts()
    notes: list[str] = []
    cost: CostFacts | None = None
    """What the run has cost so far; null when no price was given."""
    counted: dict[str, int] = {}
    """Bytes of rollouts, failures and verdicts that the counts and costs above cover; empty while the run is collected."""
    verdict_of_record: str | None = None
    """The verifier whose verdicts later commands use."""
    extra: JsonObject = {}

    def write(self, files: RunFiles) -> None:
        """Replace the manifest on disk as a whole."""
        write_atomically(files.manifest, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_manifest(files: RunFiles) -> Manifest | None:
    """The run's manifest; None when there is none."""
    if not files.manifest.exists():
        return None
    return read_json(
        files.manifest, Manifest, hint="mend the file, or move the run aside with collect --fresh"
    )


def run_id(files: RunFiles, manifest: Manifest | None) -> str:
    """A unique id: derived from the start time, so that it survives a move; from the path for runs of other tools."""
    if manifest is None:
        path = files.rollouts.resolve()
        return f"{path.parent.name}-{_short_digest(str(path))}"
    begun = time.strftime("%Y%m%d-%H%M%S", time.gmtime(manifest.created))
    digest = _short_digest(f"{manifest.created} {manifest.input.digest or None}")
    return f"{begun}-{digest}"


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_alive(files: RunFiles, manifest: Manifest) -> bool:
    """Whether the process that writes this run still runs."""
    if files.is_sharded:
        from rollforge.store.rollout_parts import is_being_collected  # most runs have no shards

        return is_being_collected(files)
    if manifest.host and manifest.host != socket.gethostname():
        return manifest.state == "running"  # another machine's process cannot be asked
    return is_held(files.lock)
