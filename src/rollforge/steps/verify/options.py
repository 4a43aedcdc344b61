"""This module holds what can be chosen about verifying a run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonObject
from rollforge.verifiers.base import Mode, VerifierFunction
from rollforge.verifiers.running.judge import Workers


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to verify a run."""

    run: str | Path
    verifier: str | VerifierFunction
    options: JsonObject = {}
    """The verifier's own options."""
    mode: Mode | None = None
    tasks: str | Path | None = None
    """A task file to take the tasks' fields from, instead of the run's own."""
    is_failed_only: bool = False
    """Only rollouts that have no verdict of this verifier because it failed on them."""
    where: str | None = None
    """An SQL condition over the index's columns."""
    sample: str | None = None
    """`N` or `N%` of the rollouts, the same ones every time."""
    is_following: bool = False
    """Keep reading while another process collects."""
    is_fresh: bool = False
    """Judge again what this verifier has judged already."""
    cache: str | Path | None = None
    workers: Workers = "auto"
    timeout: float = 60.0
    memory_mb: int = 4096


class Sample(msgspec.Struct, frozen=True):
    """How many rollouts to take: a share, or a count."""

    share: float | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> Sample:
        """The sample `text` stands for: `500`, or `1%`."""
        try:
            if text.endswith("%"):
                share = float(text[:-1]) / 100
                if 0 < share <= 1:
                    return cls(share=share)
            elif int(text) > 0:
                return cls(count=int(text))
        except ValueError:
            pass
        raise UsageError(f"{text!r} is no sample", hint="a number of rollouts (500) or a share of them (1%)")
