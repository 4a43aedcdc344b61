"""The outcome of a run on disk, from its manifest alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.errors import Exit
from rollforge.interactive.outcome import OVER_BUDGET, SUSPECT, RunOutcome
from rollforge.statistics.counts import count_of
from rollforge.store import RunFiles, is_alive, read_manifest
from rollforge.store.find import find_runs

if TYPE_CHECKING:
    from rollforge.steps.collect import CollectResult

_EXITS = {"incomplete": Exit.INCOMPLETE, "interrupted": Exit.INTERRUPTED}


def outcome_of(files: RunFiles, result: CollectResult | None) -> RunOutcome:
    """How the collection that made the run ended; for an opened run, according to its manifest."""
    if result is not None:
        return RunOutcome.of_result(result)
    manifest = read_manifest(files)
    if manifest is None:
        find_runs([files.rollouts])  # raises when there is no such run
        return RunOutcome("done", "not collected by rollforge: nothing says how it ended")
    counts = f"{manifest.finished:,} of {count_of(manifest.expected, 'rollout')}"
    if manifest.state == "running" and is_alive(files, manifest):
        return RunOutcome("running", f"{counts} so far")
    has_later_verdicts = files.verdicts.exists() and files.verdicts.stat().st_size > 0
    if SUSPECT in manifest.extra and not has_later_verdicts:
        return RunOutcome("broken", f"verification looked broken; {counts}", Exit.BROKEN_VERIFICATION)
    if manifest.state == "interrupted" and OVER_BUDGET in manifest.extra:
        return RunOutcome("over budget", counts, Exit.BUDGET_REACHED)
    word = "interrupted" if manifest.state == "running" else manifest.state
    return RunOutcome(word, counts, _EXITS.get(word, Exit.DONE))
