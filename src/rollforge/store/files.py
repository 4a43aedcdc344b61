"""Names of a run's files. It does not open them."""

from __future__ import annotations

from pathlib import Path

ENDINGS = (".gz", ".zst", ".jsonl", ".json", ".parquet")
"""What is no part of a run's name; packed files have two of them."""


def file_stem(path: Path) -> str:
    """The name without what tells the format; a dot inside it stays (`qwen2.5-7b`), as in NeMo Gym."""
    stem = path.name
    for ending in ENDINGS:
        stem = stem.removesuffix(ending)
    return stem


def _holds_our_verdicts(path: Path) -> bool:
    """Whether a verdicts file is ours, or none of anybody's yet: NeMo Gym's lines have `findings` and no `verifier`."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return True
    first = head.lstrip().partition(b"\n")[0]
    return not (b'"findings"' in first and b'"rollout_id"' in first and b'"verifier"' not in first)


class RunFiles:
    """The paths of one run: a rollouts file and its siblings, all sharing its stem.

    A directory means `DIR/rollouts.jsonl`; a path with a file ending is the rollouts file itself.
    """

    def __init__(self, run: str | Path) -> None:
        path = Path(run)
        is_file = path.is_file() or (not path.is_dir() and path.suffix in {".jsonl", ".json", ".gz", ".zst"})
        self.rollouts = path if is_file else path / "rollouts.jsonl"
        self._verdicts: Path | None = None

    @property
    def stem(self) -> str:
        """What all names of the run's files begin with."""
        return file_stem(self.rollouts)

    @property
    def name(self) -> str:
        """How commands name the run: its folder, where that is enough, else the file."""
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
    def verdicts(self) -> Path:
        """Later verdicts; the newest per (rollout, verifier) wins.

        NeMo Gym's health check writes a file of the same name beside a `rollout.jsonl`: ours is then called otherwise.
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
        return self._sibling("_reward_profiling.jsonl")

    @property
    def agent_metrics(self) -> Path:
        return self._sibling("_agent_metrics.json")

    @property
    def aggregate_metrics(self) -> Path:
        return self._sibling("_aggregate_metrics.json")

    @property
    def labels(self) -> Path:
        """What people said about verdicts, one line per label."""
        return self._sibling("_labels.jsonl")

    @property
    def metrics(self) -> Path:
        """Metrics per step: what the jsonl sink appends by default."""
        return self._sibling("_metrics.jsonl")

    @property
    def experiences(self) -> Path:
        """What `experiences` makes of the run by default."""
        return self._sibling("_experiences.jsonl")

    @property
    def evaluation(self) -> Path:
        """The last result of `eval`."""
        return self._sibling("_eval.json")

    @property
    def index(self) -> Path:
        """The columnar cache: safe to delete."""
        return self._sibling("_index")

    @property
    def verdicts_lock(self) -> Path:
        """Held by the one process that may append verdicts."""
        return self._sibling("_verdicts.lock")

    @property
    def lock(self) -> Path:
        """Held by the one process that may append."""
        return self._sibling(".lock")
