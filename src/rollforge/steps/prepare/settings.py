"""Options of `prepare`: one record, saved in the manifest and read back by `--from`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.recipes.base import Dedupe, Order, RecipeOptions, Strategy
from rollforge.registry import refuse_unknown
from rollforge.runtime.typed_decoding import convert


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """Options for selecting rollouts."""

    where: str | None = None
    """Condition over any metric: "reward == 1.0 and set_overlap >= 0.95"."""
    min_reward: float | None = None
    """Reward that counts as right; by default 1.0 for rewards of 0 and 1, else 0.95."""
    per_task: int | None = None
    """Keep the best N rollouts of each task."""
    band: tuple[float, float] | None = None
    """Keep tasks with a pass rate in this range: 0.1-0.9; 0-1 drops tasks that always or never pass."""
    dedupe: Dedupe = "none"
    """Drop answers equal, or nearly equal, to a better answer of the same task."""
    dedupe_prompts: Dedupe = "none"
    """Drop tasks whose prompt an earlier task has."""
    near: float = 0.8
    """Share of equal word triples from which two texts are near duplicates."""
    balance: str | None = None
    """Equal numbers per value of: difficulty, label (kto), a column, a task field."""
    min_chars: int | None = None
    """Shortest answer, in characters."""
    max_chars: int | None = None
    """Longest answer, in characters."""
    max_tokens: int | None = None
    """Longest prompt plus answer, tool schemas and results included, in tokens of --tokenizer."""
    tokenizer: str | None = None
    """A tokenizer.json, or the folder that holds it."""
    keep_truncated: bool = False
    """Keep answers that the token limit cut off."""
    keep_error_text: bool = False
    """Keep answers that look like error messages, such as HTML pages."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation prompts: a task file, a run or a bench folder. Tasks that share a word sequence are dropped. Repeatable."""
    ngram: int = 13
    """Words in a shared sequence, for --decontaminate."""
    apart: bool = False
    """With several runs: never group or pair rollouts of different runs."""
    verifier: str | None = None
    """Verifier whose verdicts count; by default the verdict of record."""
    sequences: Literal["main", "all"] = "main"
    """Of a recorded program's rollout: its main sequence, or all but retries, each an example with the rollout's reward."""


@dataclass(frozen=True, kw_only=True)
class PairSettings:
    """Options for combining rollouts into pairs, labels and groups."""

    min_gap: float = 0.2
    """Smallest reward gap between chosen and rejected."""
    strategy: Strategy = "inwards"
    """inwards: best with worst, then the next; all: every pair; best: the best against each; hardest: nearest worse one."""
    high: float | None = None
    """Lowest reward of a chosen (or desirable) rollout."""
    low: float | None = None
    """Highest reward of a rejected (or undesirable) rollout."""
    chosen_where: str | None = None
    """Condition for chosen rollouts."""
    rejected_where: str | None = None
    """Condition for rejected rollouts."""
    max_pairs: int | None = None
    """Most pairs per task."""
    max_uses: int | None = None
    """Most pairs per rollout."""
    length_ratio: float | None = None
    """Match lengths: the longer answer has at most this many times the characters of the shorter."""
    across_prompts: bool = False
    """Tiers across prompts, for unpaired methods (kto) only."""
    min_spread: float = 0.0
    """grpo: a group has signal when its highest reward exceeds its lowest by more than this."""
    ground_truth: str | None = None
    """ppo, grpo: task field with the reference answer; by default expected_answer, answer, …"""
    shape: Literal["auto", "pairs", "scored", "prompts", "groups"] = "auto"
    """rm: pairs or scored; ppo, grpo: prompts, or groups of scored rollouts with advantages."""


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Options for the form of rows; by default the exporter's."""

    arguments: Literal["auto", "object", "string", "text"] = "auto"
    """Call arguments as an object, a JSON string, or text in the message."""
    tools: Literal["auto", "list", "string", "system"] = "auto"
    """Tool schemas as a list, a JSON string, or in the system text."""
    reasoning: Literal["auto", "field", "think", "drop"] = "auto"
    """Reasoning in its own field, as <think> in the text, or dropped."""
    keys: Literal["auto", "uniform", "present"] = "auto"
    """The same keys in every message, or only those with a value."""
    pairs: Literal["auto", "whole", "step"] = "auto"
    """Whole answers, or the first message in which they differ."""
    images: Literal["refuse", "pass"] = "refuse"
    """Images: refuse the rollout, or pass their address on (chat)."""
    layout: Literal["auto", "messages", "completion"] = "auto"
    """sft for trl: prompt and completion apart, or one list of messages; auto takes the first if every answer is one message."""
    untidy: Literal["auto", "keep", "cut", "refuse"] = "auto"
    """Rollouts without a proper end: keep, cut back to the last whole turn, or refuse."""
    template: str | None = None
    """Chat template or tokenizer_config.json: picks the form of rows and proves it by rendering each."""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    """File type, for trainers that read several."""


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Options for the files to write."""

    split: tuple[float, ...] = (1.0,)
    """Shares of train, validation and test, by prompt; they sum to 1: 0.98/0.02."""
    order: Order = "task"
    """Order of the rows: by task and sample, as in the run's file, shuffled, or a curriculum (easy-first)."""
    limit: int | None = None
    """A seeded sample of this many examples."""
    shards: int = 1
    """Files per split."""
    seed: int = 0
    """Seed of everything drawn at random."""


@dataclass(frozen=True, kw_only=True)
class Settings(FileSettings, RowSettings, PairSettings, SelectionSettings):
    """All options of `prepare` except recipe, runs and exporter.

    `rollforge prepare` reads its flags, defaults and help texts from the four groups. The bases are in reverse, because
    the first fields of a manifest come from the last base.
    """

    def recipe_options(self) -> RecipeOptions:
        """The options that recipes read."""
        shared = {
            name: getattr(self, name) for name in RecipeOptions.__dataclass_fields__ if hasattr(self, name)
        }
        return RecipeOptions(balance_labels=self.balance == "label", **shared)


SETTING_NAMES = tuple(field.name for field in fields(Settings))

_LEAST = {
    **dict.fromkeys(("per_task", "max_pairs", "max_uses", "limit", "shards", "ngram", "length_ratio"), 1),
    **dict.fromkeys(("min_gap", "min_spread"), 0),
}
"""Smallest allowed value of an option."""

DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "below threshold": ("min_reward",),
    "beyond the best of its task": ("per_task",),
    "gap too small": ("min_gap", "max_pairs", "length_ratio"),
    "left without a pair": (
        "high", "low", "chosen_where", "rejected_where", "min_gap", "max_pairs", "max_uses", "length_ratio", "balance",
    ),
    "in neither tier": ("high", "low", "chosen_where", "rejected_where"),
    "between the tiers": ("high", "low", "chosen_where", "rejected_where"),
    "group without signal": ("min_spread",),
    "outside the difficulty band": ("band",),
    "where does not hold": ("where",),
    "left out for balance": ("balance",),
    "answer too short": ("min_chars",),
    "answer too long": ("max_chars",),
    "too many tokens": ("max_tokens",),
    "prompt overlaps an evaluation": ("decontaminate", "ngram"),
}  # fmt: skip
"""Reason why a rollout is left out → the settings that decide it."""
KEPT_BY: Mapping[str, str] = {"truncated": "--keep-truncated", "error text as answer": "--keep-error-text"}
"""Reason why a rollout is left out → the flag that keeps it."""


def flags_behind(reason: str, settings: Settings, derived: Mapping[str, object]) -> list[str]:
    """The flags behind a reason, each with its value: those that were given, and thresholds `derived` from the rewards."""
    flags = []
    for name in DECIDED_BY.get(reason, ()):
        value = getattr(settings, name)
        if value == getattr(Settings, name):
            value = derived.get(name)
        if value is not None:
            flags.append(f"--{name.replace('_', '-')} {_as_word(name, value)}")
    return flags


def _as_word(name: str, value: object) -> str:
    """A setting's value as its flag takes it."""
    if name == "band" and isinstance(value, tuple):
        return "-".join(f"{number:g}" for number in value)
    if isinstance(value, tuple):
        return shlex.join(str(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))


SPLIT_NAMES = ("train", "validation", "test")


def make_settings(options: dict[str, object]) -> Settings:
    """Make settings from plain values; raises for an unknown name or an invalid value."""
    refuse_unknown(options, SETTING_NAMES, "prepare")
    try:
        # `replace` runs __init__: msgspec leaves defaults to the class, and they would be missing from the manifest.
        settings = replace(convert(options, Settings, strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"prepare: {error}", hint="see the options: rollforge prepare --help") from error
    _refuse_shares(settings.split)
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise UsageError(
                f"--{name.replace('_', '-')} {value}: must be at least {least}",
                hint=f"--{name.replace('_', '-')} {least}",
            )
    for name in ("min_reward", "high", "low"):
        value = getattr(settings, name)
        if value is not None and not isfinite(value):
            raise UsageError(
                f"--{name.replace('_', '-')} {value}: must be a finite number",
                hint=f"--{name.replace('_', '-')} 0.5",
            )
    if not 0 < settings.near <= 1:
        raise UsageError(f"--near {settings.near}: must be a share, above 0 and at most 1", hint="--near 0.8")
    if settings.high is not None and settings.low is not None and settings.low >= settings.high:
        raise UsageError(
            f"--low {settings.low} is not below --high {settings.high}", hint="--low 0.2 --high 0.8"
        )
    if settings.band is not None and not settings.band[0] <= settings.band[1]:
        raise UsageError(
            f"--band {settings.band}: the first number is above the second", hint="--band 0.1-0.9"
        )
    if settings.max_tokens is not None and settings.tokenizer is None:
        raise UsageError("--max-tokens needs --tokenizer FILE", hint="or limit characters: --max-chars 20000")
    return settings


def _refuse_shares(shares: tuple[float, ...]) -> None:
    """Raise unless these are one to three shares that sum to 1."""
    if not 1 <= len(shares) <= len(SPLIT_NAMES) or any(not share > 0 for share in shares):
        raise UsageError(f"--split {shares}: give one to three shares above 0", hint="--split 0.98/0.02")
    if not abs(sum(shares) - 1.0) <= 1e-6:
        raise UsageError(
            f"--split {'/'.join(f'{share:g}' for share in shares)}: the shares sum to {sum(shares):g}, not 1",
            hint="--split 0.98/0.02, or 0.8/0.1/0.1 with a test split",
        )
