"""Options of `verify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields
from rollforge.verifiers.base import Mode, VerifierFunction
from rollforge.verifiers.running.ready_verifier import Workers


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Options for selecting rollouts to judge."""

    is_failed_only: bool = False
    """Only rollouts that this verifier failed on, or that have no verdict."""
    where: str | None = None
    """An SQL condition over the index's columns, such as "is_truncated and reward > 0"."""
    sample: str | None = None
    """Only this many rollouts (500) or this share of them (1%); the same ones every time."""
    is_following: bool = False
    """Keep reading while another process collects the run."""
    is_fresh: bool = False
    """Judge again what this verifier has judged; the newest verdict counts."""
    tasks: str | Path | None = None
    """Task file with the fields that the verifier needs, if the run lacks them."""


@dataclass(frozen=True, kw_only=True)
class RunningOptions:
    """Options for running the verifier."""

    mode: Mode | None = None
    """Mode of a verifier that has two; its default is precise."""
    options: JsonFields = field(default_factory=dict)
    """Option of the verifier as key=value; repeatable."""
    cache: str | Path | None = None
    """Directory that keeps verdicts across runs."""
    output: str | Path | None = None
    """File that gets what the verifier prints; by default it is dropped, or shown on stderr with --verify-workers 0."""
    workers: Workers = "auto"
    """Worker processes for a synchronous verifier; auto uses idle cores, 0 runs it in this process without protection."""
    timeout: float = 60.0
    """Longest time for one verdict."""
    memory_mb: int = 4096
    """Megabytes that one worker may use on top of the loaded verifier; 0 = no limit."""


@dataclass(frozen=True, kw_only=True)
class JudgeCostOptions:
    """Price of the verifier's judge model, and the budget for it."""

    judge_price: str | None = None
    """Price of the judge model: dollars per million tokens as IN/OUT[,cached=C][,reasoning=R], a model's name in the price table, or auto for the verifier's option `model` (names need the extra prices). Costs then go into every verdict, status, metrics and the report."""  # noqa: E501
    max_cost: float | None = None
    """Stop once this many dollars are spent on the judge, earlier verifications of the run included; exit code 6."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ChoiceOptions, RunningOptions, JudgeCostOptions):
    """How to verify a run. `rollforge verify` reads its flags, defaults and help texts from the three groups."""

    run: str | Path
    verifier: str | VerifierFunction


class SampleSize(msgspec.Struct, frozen=True):
    """Number of rollouts to sample: a share, or a count."""

    share: float | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> SampleSize:
        """Parse `500` or `1%`."""
        try:
            if text.endswith("%"):
                share = float(text[:-1]) / 100
                if 0 < share <= 1:
                    return cls(share=share)
            elif int(text) > 0:
                return cls(count=int(text))
        except ValueError:
            pass
        raise UsageError(
            f"--sample {text!r} is neither a count nor a share", hint="write --sample 500 or --sample 1%"
        )
