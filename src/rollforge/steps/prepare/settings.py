"""Every option of `prepare` in one record, saved in the manifest and read back by `--from`."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.recipes.base import Dedupe, Order, RecipeOptions, Strategy
from rollforge.registry import refuse_unknown


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a dataset is made, apart from its recipe, its runs and its exporter."""

    # Which rollouts
    where: str | None = None
    min_reward: float | None = None
    per_task: int | None = None
    band: tuple[float, float] | None = None
    dedupe: Dedupe = "none"
    dedupe_prompts: Dedupe = "none"
    near: float = 0.8
    """Share of equal shingles from which two texts count as near duplicates."""
    balance: str | None = None
    min_chars: int | None = None
    max_chars: int | None = None
    max_tokens: int | None = None
    tokenizer: str | None = None
    keep_truncated: bool = False
    keep_error_text: bool = False
    decontaminate: tuple[str, ...] = ()
    ngram: int = 13
    apart: bool = False
    verifier: str | None = None
    # Pairs and labels
    min_gap: float = 0.2
    strategy: Strategy = "inwards"
    high: float | None = None
    low: float | None = None
    chosen_where: str | None = None
    rejected_where: str | None = None
    max_pairs: int | None = None
    max_uses: int | None = None
    length_ratio: float | None = None
    across_prompts: bool = False
    # Prompts and groups
    min_spread: float = 0.0
    ground_truth: str | None = None
    shape: Literal["auto", "pairs", "scored", "prompts", "groups"] = "auto"
    # How rows are written
    arguments: Literal["auto", "object", "string", "text"] = "auto"
    tools: Literal["auto", "list", "string", "system"] = "auto"
    reasoning: Literal["auto", "field", "think", "drop"] = "auto"
    keys: Literal["auto", "uniform", "present"] = "auto"
    pairs: Literal["auto", "whole", "step"] = "auto"
    images: Literal["refuse", "pass"] = "refuse"
    untidy: Literal["auto", "keep", "cut", "refuse"] = "auto"
    template: str | None = None
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    # What becomes of them
    split: tuple[float, ...] = (1.0,)
    order: Order = "file"
    limit: int | None = None
    shards: int = 1
    seed: int = 0

    def recipe_options(self) -> RecipeOptions:
        """The options that recipes read."""
        return RecipeOptions(
            min_reward=self.min_reward,
            per_task=self.per_task,
            band=self.band,
            dedupe=self.dedupe,
            min_gap=self.min_gap,
            strategy=self.strategy,
            high=self.high,
            low=self.low,
            max_pairs=self.max_pairs,
            max_uses=self.max_uses,
            length_ratio=self.length_ratio,
            min_spread=self.min_spread,
            keep_truncated=self.keep_truncated,
            keep_error_text=self.keep_error_text,
            balance_labels=self.balance == "label",
            seed=self.seed,
        )


_LEAST = {
    **dict.fromkeys(("per_task", "max_pairs", "max_uses", "limit", "shards", "ngram", "length_ratio"), 1),
    **dict.fromkeys(("min_gap", "min_spread"), 0),
}
"""Option → its smallest value."""

SPLIT_NAMES = ("train", "validation", "test")


def make_settings(options: dict[str, object]) -> Settings:
    """Make settings from plain values; raise when one is unknown or out of range."""
    refuse_unknown(options, Settings.__struct_fields__, "prepare")
    try:
        settings = msgspec.convert(options, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"prepare: {error}", hint="see the options: rollforge prepare --help") from error
    _refuse_shares(settings.split)
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    for name in ("min_reward", "high", "low"):
        value = getattr(settings, name)
        if value is not None and not isfinite(value):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be a number")
    if not 0 < settings.near <= 1:
        raise UsageError(f"--near {settings.near}: must be a share, above 0 and at most 1", hint="--near 0.8")
    if settings.high is not None and settings.low is not None and settings.low >= settings.high:
        raise UsageError(f"--low {settings.low} is not below --high {settings.high}")
    if settings.band is not None and not settings.band[0] <= settings.band[1]:
        raise UsageError(
            f"--band {settings.band}: the first number is above the second", hint="--band 0.1-0.9"
        )
    if settings.max_tokens is not None and settings.tokenizer is None:
        raise UsageError("--max-tokens needs --tokenizer FILE", hint="or limit characters: --max-chars 20000")
    return settings


def _refuse_shares(shares: tuple[float, ...]) -> None:
    """Raise when the shares do not sum to one."""
    if not 1 <= len(shares) <= len(SPLIT_NAMES) or any(not share > 0 for share in shares):
        raise UsageError(f"--split {shares}: give one to three shares above 0", hint="--split 0.98/0.02")
    if not abs(sum(shares) - 1.0) <= 1e-6:
        raise UsageError(
            f"--split {'/'.join(f'{share:g}' for share in shares)}: the shares sum to {sum(shares):g}, not 1",
            hint="--split 0.98/0.02, or 0.8/0.1/0.1 with a test split",
        )
