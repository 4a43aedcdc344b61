"""Options of `collect` about batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollforge.endpoint.batch_lines import MOST_REQUESTS
from rollforge.errors import UsageError

USUAL_POLL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options for collecting through files of requests instead of single requests."""

    batch: bool = False
    """Collect through the provider's batch API (OpenAI's files and batches): half the price, answers within a day. A killed run is resumed without paying twice."""  # noqa: E501  (help keeps the line breaks of a field's docstring)
    batch_size: int = MOST_REQUESTS
    """Most requests in one batch file, at most 50,000."""
    batch_poll_s: float = USUAL_POLL_S
    """Time between two looks at a batch."""
    write_batch: str | None = None
    """Write the owed rollouts as a file of requests for `vllm run-batch` or another offline engine, and send nothing. A file holds at most 50,000 requests or 200 MB; more go into files with -2, -3, … in their names."""  # noqa: E501
    read_batch: tuple[str, ...] = ()
    """Take the answers from a file of results, in any order; repeatable. Exit code 3 when rollouts are still owed."""

    @property
    def is_offline(self) -> bool:
        """Whether the mode needs no server."""
        return self.write_batch is not None or bool(self.read_batch)

    @property
    def uses_batches(self) -> bool:
        """Whether answers come from batches, in any mode."""
        return self.batch or self.is_offline

    def check_batch(self, agent: str) -> None:
        """Refuse contradictory modes, and agents that need more than one model call."""
        ways = {
            "--batch": self.batch,
            "--write-batch": self.write_batch is not None,
            "--read-batch": bool(self.read_batch),
        }
        flags = [flag for flag, is_given in ways.items() if is_given]
        if len(flags) > 1:
            raise UsageError(f"{' and '.join(flags)} contradict each other", hint="give one of them")
        if flags and agent != "model_call":
            raise UsageError(
                f"{flags[0]} makes rollouts of one model call, and the agent is {agent}",
                hint="collect tool loops and remote agents without a batch",
            )
        for path in self.read_batch:
            refuse_missing(Path(path))
        if not 1 <= self.batch_size <= MOST_REQUESTS:
            raise UsageError(
                f"--batch-size must be from 1 to {MOST_REQUESTS:,}, not {self.batch_size:,}",
                hint="leave it out: more requests go into several files",
            )
        if not self.batch_poll_s > 0:
            raise UsageError(
                f"--batch-poll must be above 0 s, not {self.batch_poll_s:g}", hint="--batch-poll 30s"
            )


def refuse_missing(path: Path) -> None:
    """Raise if a file of results is not there."""
    if not path.is_file():
        raise UsageError(
            f"--read-batch {path}: no such file", hint="give the file that the batch engine wrote"
        )
