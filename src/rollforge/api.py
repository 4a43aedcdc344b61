"""This module is the Python door: `rf.collect(...)` and the `Run` it returns. Each method is one command's twin.

It only assembles steps; nothing is computed here and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollforge.records import JsonObject, from_json
from rollforge.store import RunFiles

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectResult
    from rollforge.steps.metrics import RunMetrics
    from rollforge.steps.profile import Profile
    from rollforge.steps.status import Status

Verifier = str | Callable[..., Any]


class Run:
    """A run on disk. Nothing is read until it is asked for."""

    def __init__(self, path: str | Path, *, result: CollectResult | None = None) -> None:
        self.path = Path(path)
        self.files = RunFiles(path)
        self.result = result
        """How the collection that made this object ended; None for a run that was opened."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __iter__(self) -> Iterator[JsonObject]:
        """The rollout rows, one at a time."""
        with self.files.rollouts.open("rb") as file:
            for line in file:
                yield from_json(line)

    def metrics(self, *, verifier: str | None = None) -> RunMetrics:
        """Every number with its count, coverage and interval."""
        from rollforge.steps.metrics import summarize_run

        return summarize_run(self.path, verifier=verifier)

    def profile(self, *, verifier: str | None = None) -> Profile:
        """Statistics per task (`.tasks`) and per agent (`.agents`), as tables."""
        from rollforge.steps.profile import profile_run

        return profile_run(self.path, verifier=verifier)

    def status(self) -> Status:
        """How far the run is."""
        from rollforge.steps.status import read_status

        return read_status(self.path)


def collect(
    tasks: str | Path,
    *,
    model: str,
    out: str | Path,
    base_url: str | Sequence[str] = (),
    verifier: Verifier | None = None,
    samples: int = 1,
    limit: int | None = None,
    **options: Any,
) -> Run:
    """Collect rollouts and return the run; an existing run is resumed.

    Args:
        options: Any other field of `CollectOptions`, such as `concurrency`, `overrides` or `max_total_tokens`.
    """
    from rollforge.loop import run_async
    from rollforge.steps.collect import Collection, CollectOptions

    urls = (base_url,) if isinstance(base_url, str) else tuple(base_url)
    chosen = CollectOptions(
        input=str(tasks),
        out=str(out),
        model=model,
        base_urls=urls,
        verifier=verifier,
        samples=samples,
        limit=limit,
        **options,
    )
    result = run_async(Collection(chosen).run())
    return Run(out, result=result)


def open_run(path: str | Path) -> Run:
    """A run that is already on disk, collected by rollforge or by NeMo Gym."""
    return Run(path)
