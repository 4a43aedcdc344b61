"""This module keeps `rollouts_run.json`: how a run was made and how far it is. Secrets never enter it."""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Literal

import msgspec

from rollforge.errors import DataError
from rollforge.records import JsonObject
from rollforge.store.files import RunFiles
from rollforge.store.lock import is_held

State = Literal["running", "done", "interrupted", "incomplete"]


class Manifest(msgspec.Struct, kw_only=True):
    """The manifest of a run. Unknown keys of a newer version are dropped on reading, so it is only rewritten by the writer."""

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
    """What must not change when the run is resumed."""
    config: JsonObject = {}
    """Every option, resolved."""
    input: JsonObject = {}
    """Where the tasks came from: path, digest, rows, bad lines left out."""
    tasks: int = 0
    samples: int = 1
    expected: int = 0
    finished: int = 0
    judged: int = 0
    unjudged: int = 0
    failed: dict[str, int] = {}
    """Rollouts given up or still failing, by class of their last failure."""
    reward: JsonObject | None = None
    """Running mean over judged rollouts, with interval and coverage; `is_whole` is false when it is over those since a resume only."""
    rate: float | None = None
    """Rollouts per second of late."""
    eta_s: float | None = None
    tokens_per_s: float | None = None
    in_flight: int = 0
    slowest_s: float | None = None
    api: str | None = None
    model_names: list[str] = []
    """What the server called itself."""
    concurrency: JsonObject = {}
    """The limit, and the history of its changes with their reasons."""
    endpoints: list[JsonObject] = []
    requests: JsonObject = {}
    notes: list[str] = []
    verdict_of_record: str | None = None
    """The verifier whose verdicts later commands use."""
    extra: JsonObject = {}

    def write(self, files: RunFiles) -> None:
        """Replace the manifest on disk as a whole."""
        # Here, because asyncio comes with it, and readers do without.
        from rollforge.store.atomic import write_atomically

        write_atomically(files.manifest, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_manifest(files: RunFiles) -> Manifest | None:
    """The run's manifest; None when the run was not collected by rollforge."""
    if not files.manifest.exists():
        return None
    try:
        return msgspec.json.decode(files.manifest.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{files.manifest}: {error}", hint="mend the file, or move the run aside with collect --fresh"
        ) from error


def run_id(files: RunFiles, manifest: Manifest | None) -> str:
    """What tells the run from every other: when it was begun, wherever it is moved; its path when others made it."""
    if manifest is None:
        path = files.rollouts.resolve()
        return f"{path.parent.name}-{_short_digest(str(path))}"
    begun = time.strftime("%Y%m%d-%H%M%S", time.gmtime(manifest.created))
    digest = _short_digest(f"{manifest.created} {manifest.input.get('digest')}")
    return f"{begun}-{digest}"


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_alive(files: RunFiles, manifest: Manifest) -> bool:
    """Whether the process that writes this run is still at work."""
    if manifest.host and manifest.host != socket.gethostname():
        return manifest.state == "running"  # another machine's process cannot be asked
    return is_held(files.lock)
