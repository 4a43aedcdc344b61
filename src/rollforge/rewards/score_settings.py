"""Makes a scorer from `reward_kwargs` of verl's configuration."""

from __future__ import annotations

from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields
from rollforge.registry import refuse_unknown
from rollforge.rewards.dataset_verifier import OnChange, read_dataset
from rollforge.rewards.scoring import RETRIES, Scorer, ScorerOptions, UnjudgedPolicy, shared_scorer
from rollforge.runtime.typed_decoding import convert
from rollforge.verifiers.base import Mode
from rollforge.verifiers.running.ready_verifier import Workers

_VERLS_OWN = ("reward_router_address", "reward_model_tokenizer")
"""Keywords that verl adds when a reward model is served as well."""


class ScoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`reward.custom_reward_function.reward_kwargs` of verl's configuration."""

    verifier: str | None = None
    """A built-in verifier's name, `file.py:function` or `module:function`."""
    dataset: str | None = None
    """Alternative to `verifier`: the folder of a prepared dataset whose manifest names the verifier."""
    on_change: OnChange = "refuse"
    options: JsonFields = {}
    mode: Mode | None = None
    workers: Workers = "auto"
    timeout_s: float = 60.0
    retries: int = RETRIES
    on_unjudged: str | float = "retry-then-raise"
    splits_reasoning: bool = False


def scorer_of(config: JsonFields) -> tuple[Scorer, bool]:
    """The scorer for verl's configuration, shared by all calls, and whether reasoning is separated from the answer."""
    wanted = {name: _plain(value) for name, value in config.items() if name not in _VERLS_OWN}
    refuse_unknown(wanted, ScoreSettings.__struct_fields__, "compute_score")
    try:
        settings = convert(wanted, ScoreSettings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"compute_score: {error}", hint="see reward_kwargs in docs/rewards.md") from error
    return shared_scorer(settings, lambda: _make_scorer(settings)), settings.splits_reasoning


def _plain(value: Any) -> object:
    """A value of verl's configuration as plain data, since OmegaConf has its own mapping types."""
    return {name: _plain(item) for name, item in value.items()} if hasattr(value, "items") else value


def _make_scorer(settings: ScoreSettings) -> Scorer:
    verifier, options, mode = settings.verifier, settings.options, settings.mode
    if settings.dataset is not None:
        dataset = read_dataset(settings.dataset, on_change=settings.on_change)
        verifier, options, mode = dataset.verifier, dataset.options, dataset.mode
    if verifier is None:
        raise UsageError(
            "compute_score: no verifier is named",
            hint="reward.custom_reward_function.reward_kwargs.verifier=math, or …reward_kwargs.dataset=DIR",
        )
    if UnjudgedPolicy.parse(settings.on_unjudged).is_none:
        raise UsageError(
            "on_unjudged=none: verl would drop the scores of the whole batch",
            hint="leave it out to stop, or say a number: on_unjudged=value=0",
        )
    return Scorer(
        ScorerOptions(
            verifier=verifier,
            options=options,
            mode=mode,
            workers=settings.workers,
            timeout_s=settings.timeout_s,
            retries=settings.retries,
            on_unjudged=settings.on_unjudged,
        )
    )
