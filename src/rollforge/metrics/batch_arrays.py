"""Input arrays for the metrics of one training batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rollforge.metrics.moments import FloatArray


class TrainerBatch(msgspec.Struct, kw_only=True):
    """The arrays of one training step. All but the lengths are optional; metrics of missing arrays are omitted."""

    prompt_lengths: ArrayLike
    response_lengths: ArrayLike
    """Number of tokens after the prompt, tool results included."""
    response_mask: ArrayLike | None = None
    """[B, R], 1 for tokens that the model wrote; by default every token of the response."""
    scores: ArrayLike | None = None
    """[B], rewards from the verifier."""
    rewards: ArrayLike | None = None
    """[B], rewards used in training (scores minus penalties)."""
    advantages: ArrayLike | None = None
    returns: ArrayLike | None = None
    values: ArrayLike | None = None
    """[B, R], the critic's values at the time the batch was made."""
    new_values: ArrayLike | None = None
    old_logprobs: ArrayLike | None = None
    logprobs: ArrayLike | None = None
    ref_logprobs: ArrayLike | None = None
    rollout_logprobs: ArrayLike | None = None
    """[B, R], logprobs reported by the serving engine."""
    entropies: ArrayLike | None = None
    truncated: ArrayLike | None = None
    """[B], whether the response was cut off at the token limit."""
    max_response_length: int | None = None
    max_prompt_length: int | None = None
    num_turns: ArrayLike | None = None
    tool_call_counts: ArrayLike | None = None
    timings: Mapping[str, float] = {}
    """Section → seconds: gen, ref, values, adv, update_critic, update_actor, old_log_prob, step, …"""
    num_gpus: int = 1
    data_parallel: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 3.0
    clip_value: float = 0.5


def as_array(value: Any) -> FloatArray:
    """A float array from a list, a numpy array or a torch tensor on any device."""
    if hasattr(value, "detach"):
        value = value.detach().float().cpu().numpy()
    return np.asarray(value, dtype=np.float64)
