"""Flags that spread a step over processes and machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

SPREADING = Group("More than one process", sort_key=6)


@Parameter(name="*", group=SPREADING, negative=())
@dataclass(frozen=True, kw_only=True)
class ExecutorFlags:
    """Flags that choose the executor."""

    workers: Annotated[int | None, Parameter()] = None
    """Processes that share the work; with --on ray, actors (default there: one per node)."""
    on: str | None = None
    """Where the workers run: local, or ray (ray:HOST:PORT names a cluster; needs rollforge[ray])."""

    def __post_init__(self) -> None:
        if self.workers is not None:
            from rollforge.executors.base import check_workers  # costs the start of every command

            check_workers(self.workers)

    @property
    def is_spread(self) -> bool:
        """Whether work is to run outside this process."""
        return self.workers is not None or self.on not in (None, "local")
