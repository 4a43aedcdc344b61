"""Names of a run's files; does not open them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE

ENDINGS = (".gz", ".zst", ".jsonl", ".json", ".parquet")
"""Suffixes that are not part of a run's name; compressed files have two of them."""


def file_stem(path: Path) -> str:
    """The file name without its format suffixes; other dots stay (`qwen2.5-7b`), as in NeMo Gym."""
    stem = path.name
    for ending in ENDINGS:
        stem = stem.removesuffix(ending)
    return stem


def _holds_our_verdicts(path: Path) -> bool:
    """Whether a verdicts file is ours or missing: NeMo Gym's lines have `findings`, and no line of another tool has `verifier`.

    A file whose first line is damaged is ours, so that the line is counted as rejected.
    """
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return True
    first, _, rest = head.lstrip().partition(b"\n")
    if b'"verifier"' in first:
        return True
    if b'"findings"' in first and b'"rollout_id"' in first:
        return False
    try:
        decode_json(first, dict[str, msgspec.Raw])
    except UNREADABLE:
        return True
    return b'"verifier"' in rest


class RunFiles:
    """The paths of one run: a rollouts file and its siblings, all sharing its stem.

    A directory means `DIR/rollouts.jsonl`; a path with a file suffix is the rollouts file itself.
    """

    def __init__(self, run: str | Path) -> None:
        path = Path(run)
        is_file = path.is_file() or (not path.is_dir() and path.suffix in {".jsonl", ".json", ".gz", ".zst"})
        self.rollouts = path if is_file else path / "rollouts.jsonl"
        self._is_named = is_file and path.is_file()
        """Whether the path names the rollouts file itself instead of the run's folder."""
        self._verdicts: Path | None = None

    @property
    def stem(self) -> str:
        """Common prefix of the run's file names."""
        return file_stem(self.rollouts)

    @property
    def name(self) -> str:
        """Name of the run in commands: its folder if unambiguous, else the file."""
        return str(self.rollouts.parent if self.rollouts.name == "rollouts.jsonl" else self.rollouts)

    def _sibling(self, ending: str) -> Path:
        return self.rollouts.with_name(self.stem + ending)

    @property
    def tasks(self) -> Path:
        """The tasks as sent, one line per task."""
        return self._sibling("_tasks.jsonl")

    @property
    def materialized_inputs(self) -> Path:
        """NeMo Gym's own tasks as sent, one line per rollout."""
        return self._sibling("_materialized_inputs.jsonl")

    @property
    def repeat_level_metrics(self) -> Path:
        """NeMo Gym's statistics per repeat, written on request."""
        return self._sibling("_repeat_level_metrics.json")

    @property
    def failures(self) -> Path:
        """One line per failed attempt."""
        return self._sibling("_failures.jsonl")

    @property
    def calls(self) -> Path:
        """Every finished model call of recorded programs."""
        return self._sibling("_calls.jsonl")

    @property
    def artifacts(self) -> Path:
        """Files that programs left behind, by their hash."""
        return self._sibling("_artifacts")

    @property
    def verdicts(self) -> Path:
        """Later verdicts; the newest per (rollout, verifier) wins.

        NeMo Gym's health check writes a file of the same name beside a `rollout.jsonl`; ours then has another name.
        """
        if self._verdicts is None:
            path = self._sibling("_verdicts.jsonl")
            self._verdicts = path if _holds_our_verdicts(path) else self._sibling("_rf_verdicts.jsonl")
        return self._verdicts

    @property
    def manifest(self) -> Path:
        """Resolved config, fingerprint, versions, progress."""
        return self._sibling("_run.json")

    @property
    def reward_profiling(self) -> Path:
        """Per-task profile, under NeMo Gym's name."""
        return self._sibling("_reward_profiling.jsonl")

    @property
    def agent_metrics(self) -> Path:
        """Per-agent profile, under NeMo Gym's name."""
        return self._sibling("_agent_metrics.json")

    @property
    def aggregate_metrics(self) -> Path:
        """Metrics that `collect` prints at its end."""
        return self._sibling("_aggregate_metrics.json")

    @property
    def batches(self) -> Path:
        """Batches sent to a provider, one line per step of each."""
        return self._sibling("_batches.jsonl")

    @property
    def batch_files(self) -> Path:
        """Request and result files of batches in progress."""
        return self._sibling("_batches")

    @property
    def labels(self) -> Path:
        """Labels of verdicts by people, one line per label."""
        return self._sibling("_labels.jsonl")

    @property
    def metrics(self) -> Path:
        """Metrics per step: default output of the jsonl sink."""
        return self._sibling("_metrics.jsonl")

    @property
    def experiences(self) -> Path:
        """Default output of `experiences`."""
        return self._sibling("_experiences.jsonl")

    @property
    def evaluation(self) -> Path:
        """The last result of `eval`."""
        return self._sibling("_eval.json")

    @property
    def shards(self) -> Path:
        """Shards of a run collected by several processes: plan, epochs, end records, parts."""
        return self.rollouts.parent / "shards"

    @property
    def verdict_parts(self) -> Path:
        """Verdicts of several workers, until the driver has joined them into the verdicts file."""
        return self._sibling("_verdicts.parts")

    @property
    def verify_failures(self) -> Path:
        """Where `verify` writes failures: the run's failures file, or for a sharded run a separate file, since shards' files have
        owners.
        """
        return self.shards / "verify_failures.jsonl" if self.is_sharded else self.failures

    @property
    def is_sharded(self) -> bool:
        """Whether the run is sharded; then a rollouts file beside the shards is only a merged copy."""
        return (
            self.rollouts.name == "rollouts.jsonl"
            and not self._is_named
            and (self.shards / "plan.json").is_file()
        )

    def files_read(self) -> tuple[Path, ...]:
        """Every file of the run that commands read."""
        return (
            *(self.rollouts, self.tasks, self.materialized_inputs, self.failures),
            self._sibling("_verdicts.jsonl"),
            *(self._sibling("_rf_verdicts.jsonl"), self.calls, self.manifest, self.batches, self.labels),
            *(self.metrics, self.experiences, self.evaluation, self.aggregate_metrics, self.agent_metrics),
            *(self.reward_profiling, self.repeat_level_metrics, self.lock, self.verdicts_lock),
        )

    @property
    def index(self) -> Path:
        """The columnar index, safe to delete."""
        return self._sibling("_index")

    @property
    def verdicts_lock(self) -> Path:
        """Lock of the single process that may append verdicts."""
        return self._sibling("_verdicts.lock")

    @property
    def lock(self) -> Path:
        """Lock of the single process that may append rollouts."""
        return self._sibling(".lock")
