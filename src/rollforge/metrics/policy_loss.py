"""Diagnostics of a policy update, recomputed from logprobs: clip fractions, KL, losses, off-policy distance.

Masked means are Σ(x·m)/(Σm + 1e-8), as in verl, so the numbers compare with a training log.
"""

from __future__ import annotations

import numpy as np

from rollforge.metrics.batch_arrays import TrainerBatch, as_array
from rollforge.metrics.moments import FloatArray
from rollforge.metrics.vectorised_fold import BoolArray


def masked_mean(values: FloatArray, mask: BoolArray) -> float:
    return float((values * mask).sum() / (mask.sum() + 1e-8))


def _arrays(*values: object) -> list[FloatArray]:
    return [as_array(value) for value in values]


def actor_metrics(batch: TrainerBatch, mask: BoolArray) -> dict[str, float]:
    """`actor/*`: how the update changed the policy."""
    numbers: dict[str, float] = {}
    if batch.entropies is not None:
        numbers["actor/entropy"] = masked_mean(_arrays(batch.entropies)[0], mask)
    if batch.logprobs is None:
        return numbers
    (new,) = _arrays(batch.logprobs)
    if batch.ref_logprobs is not None:
        numbers["actor/kl_loss"] = masked_mean(kl_k3(new, _arrays(batch.ref_logprobs)[0]), mask)
    if batch.old_logprobs is None:
        return numbers
    (old,) = _arrays(batch.old_logprobs)
    numbers["actor/ppo_kl"] = masked_mean(old - new, mask)
    if batch.advantages is not None:
        numbers |= _clipped_loss(batch, new, old, _arrays(batch.advantages)[0], mask)
    return numbers


def _clipped_loss(
    batch: TrainerBatch, new: FloatArray, old: FloatArray, advantages: FloatArray, mask: BoolArray
) -> dict[str, float]:
    ratio = np.exp(np.clip(new - old, -20.0, 20.0))
    free = -advantages * ratio
    clipped = -advantages * np.clip(ratio, 1.0 - batch.clip_low, 1.0 + batch.clip_high)
    worse = np.maximum(free, clipped)
    bound = -advantages * batch.clip_dual
    is_negative = advantages < 0
    loss = np.where(is_negative, np.minimum(bound, worse), worse)
    return {
        "actor/pg_loss": masked_mean(loss, mask),
        "actor/pg_clipfrac": masked_mean((clipped > free).astype(np.float64), mask),
        "actor/pg_clipfrac_lower": masked_mean(((worse > bound) & is_negative).astype(np.float64), mask),
    }


def kl_k3(logprobs: FloatArray, ref: FloatArray) -> FloatArray:
    """The low-variance KL estimate e^d − d − 1, clipped as in verl."""
    distance = np.clip(ref - logprobs, -20.0, 20.0)
    clipped: FloatArray = np.clip(np.exp(distance) - distance - 1.0, -10.0, 10.0)
    return clipped


def critic_loss_metrics(batch: TrainerBatch, mask: BoolArray) -> dict[str, float]:
    """`critic/vf_*`: how well the new values fit the returns."""
    if batch.new_values is None or batch.values is None or batch.returns is None:
        return {}
    new, old, returns = _arrays(batch.new_values, batch.values, batch.returns)
    held = np.clip(new, old - batch.clip_value, old + batch.clip_value)
    free_loss, held_loss = (new - returns) ** 2, (held - returns) ** 2
    return {
        "critic/vf_loss": 0.5 * masked_mean(np.maximum(free_loss, held_loss), mask),
        "critic/vf_clipfrac": masked_mean((held_loss > free_loss).astype(np.float64), mask),
        "critic/vpred_mean": masked_mean(new, mask),
    }


def off_policy_metrics(batch: TrainerBatch, mask: BoolArray) -> dict[str, float]:
    """`training/*`: distance between the probabilities of serving engine and trainer."""
    trained = batch.old_logprobs if batch.old_logprobs is not None else batch.logprobs
    if batch.rollout_logprobs is None or trained is None or mask.sum() < 2:
        return {}
    new, rollout = _arrays(trained, batch.rollout_logprobs)
    gap = np.abs(np.exp(new) - np.exp(rollout))[mask]
    log_ratio = np.clip((new - rollout)[mask], -20.0, 20.0)
    ratio = np.exp(log_ratio)
    return {
        "training/rollout_probs_diff_max": float(gap.max()),
        "training/rollout_probs_diff_mean": float(gap.mean()),
        "training/rollout_probs_diff_std": float(gap.std(ddof=1)),
        "training/rollout_kl": float(-log_ratio.mean()),
        "training/rollout_k3_kl": float((ratio - log_ratio - 1.0).mean()),
        "training/rollout_chi2_token": float((ratio**2).mean() - 1.0),
    }
