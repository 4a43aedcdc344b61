"""Verdicts that stay suspect from one session to the next, until they are judged again."""

from __future__ import annotations

import time

import msgspec

from rollforge.checks.building_blocks.stream import SuspectWindow
from rollforge.runtime.typed_decoding import convert
from rollforge.steps.collect.resume import SUSPECT, VERIFIER_SOURCE
from rollforge.store import Manifest, RunFiles
from rollforge.store.rollout_parts import parts_of

SUSPECT_VERIFIER = "suspect_verifier"
"""The manifest's key for the fingerprint of the verifier whose verdicts are suspect."""


class SuspectVerdicts:
    """The suspect windows of earlier sessions, joined with that of this one."""

    def __init__(self, manifest: Manifest, files: RunFiles) -> None:
        self._manifest = manifest
        self._earlier = _recorded(manifest)
        if self._earlier is not None and any(part.size() for part in parts_of(files).verdicts):
            self._earlier = None  # judged again since
        source = manifest.fingerprint.get(VERIFIER_SOURCE)
        self._has_changed = manifest.extra.get(SUSPECT_VERIFIER) != source

    def record(self, window: SuspectWindow) -> SuspectWindow:
        """Write the joined window into the manifest; returns it."""
        joined = window if self._earlier is None else _joined(self._earlier, window)
        self._manifest.extra[SUSPECT] = msgspec.to_builtins(joined)
        self._manifest.extra[SUSPECT_VERIFIER] = self._manifest.fingerprint.get(VERIFIER_SOURCE)
        return joined

    def left(self, *, fresh: int, unjudged: int) -> SuspectWindow | None:
        """The window that is still suspect after a session without a new signal.

        Args:
            fresh: rollouts of this session, which the same verifier judged.
            unjudged: rollouts of the whole run without a verdict; where that is all of the window, a changed verifier is
                owed verdicts, and no reward is suspect.
        """
        earlier = self._earlier
        if earlier is None:
            return None
        if self._has_changed:
            return earlier if earlier.rollouts > unjudged else None
        if not fresh:
            return earlier
        return self.record(
            msgspec.structs.replace(earlier, first_at=None, last_at=time.time(), rollouts=fresh)
        )

    def message(self) -> str:
        """Why the session does not end as done."""
        if self._has_changed:
            return (
                "the verifier that looked broken has changed, but what it judged before was not judged again, "
                "so those verdicts stay suspect"
            )
        return "verification looked broken before and nothing has changed since, so its verdicts stay suspect"


def _recorded(manifest: Manifest) -> SuspectWindow | None:
    try:
        return convert(manifest.extra[SUSPECT], SuspectWindow, strict=False)
    except (KeyError, msgspec.ValidationError):
        return None


def _joined(earlier: SuspectWindow, now: SuspectWindow) -> SuspectWindow:
    """One window from the first suspect rollout of all sessions to the last."""
    begins = [at for at in (earlier.first_at, now.first_at) if at is not None]
    return msgspec.structs.replace(
        now,
        first_at=min(begins, default=None),
        last_at=max((at for at in (earlier.last_at, now.last_at) if at is not None), default=None),
        rollouts=earlier.rollouts + now.rollouts,
    )
