"""Metrics of one training batch from plain arrays, with verl's definitions.

`critic/*`, `actor/*`, `response_length/*`, `prompt_length/*`, `global_seqlen/*`, `perf/*`, `time/*`, `timing_per_token_ms/*`.
Token arrays are [batch, response width]; only tokens that the model wrote (`response_mask` is 1) count. Scores and rewards
exclude aborted samples (without response tokens). Misleading definitions are computed only with `profile="verl"`: its
`clip_ratio` compares with the width of the batch; ours needs the actual limit or truncation flags and is otherwise omitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollforge.errors import UsageError
from rollforge.metrics.batch_arrays import TrainerBatch, as_array
from rollforge.metrics.moments import FloatArray
from rollforge.metrics.policy_loss import actor_metrics, critic_loss_metrics, off_policy_metrics
from rollforge.metrics.seqlen import seqlen_metrics
from rollforge.metrics.vectorised_fold import BoolArray

ALL_TOKEN_SECTIONS = frozenset({"ref", "values", "adv", "update_critic", "update_actor"})
"""Timed sections whose cost per token is divided by prompt and response tokens; for `gen` by response tokens."""


def trainer_metrics(batch: TrainerBatch, *, profile: str = "rollforge") -> dict[str, float]:
    """All metrics that the arrays allow. `profile="verl"` adds verl's names with misleading definitions."""
    arrays = _Arrays(batch)
    numbers = _critic(batch, arrays)
    numbers |= _lengths(batch, arrays, profile)
    numbers |= actor_metrics(batch, arrays.mask)
    numbers |= critic_loss_metrics(batch, arrays.mask)
    numbers |= off_policy_metrics(batch, arrays.mask)
    numbers |= seqlen_metrics(arrays.prompt + arrays.response, batch.data_parallel)
    numbers |= timing_metrics(batch.timings, arrays.prompt, arrays.response, batch.num_gpus, profile=profile)
    return numbers


class _Arrays:
    """The batch as numpy arrays: lengths, and the mask of counted tokens."""

    def __init__(self, batch: TrainerBatch) -> None:
        self.prompt = as_array(batch.prompt_lengths)
        self.response = as_array(batch.response_lengths)
        if len(self.prompt) != len(self.response) or not len(self.prompt):
            raise UsageError(
                f"{len(self.prompt)} prompt lengths and {len(self.response)} response lengths make no batch",
                hint="give both lengths for every sample",
            )
        response_mask = batch.response_mask
        width = int(self.response.max()) if response_mask is None else as_array(response_mask).shape[1]
        self.mask: BoolArray = np.arange(width)[None, :] < self.response[:, None]
        if response_mask is not None:
            self.mask = as_array(response_mask).astype(np.bool_)
        self.is_whole = self.response > 0


def spread(prefix: str, values: FloatArray) -> dict[str, float]:
    """`{prefix}/mean|max|min`; nothing for an empty array."""
    if not values.size:
        return {}
    return {
        f"{prefix}/mean": float(values.mean()),
        f"{prefix}/max": float(values.max()),
        f"{prefix}/min": float(values.min()),
    }


def _critic(batch: TrainerBatch, arrays: _Arrays) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, per_sample in (("score", batch.scores), ("rewards", batch.rewards)):
        if per_sample is not None:
            numbers |= spread(f"critic/{name}", as_array(per_sample)[arrays.is_whole])
    for name, per_token in (
        ("advantages", batch.advantages),
        ("returns", batch.returns),
        ("values", batch.values),
    ):
        if per_token is not None:
            numbers |= spread(f"critic/{name}", as_array(per_token)[arrays.mask])
    if batch.values is not None and batch.returns is not None and arrays.mask.sum() > 1:
        returns, values = as_array(batch.returns)[arrays.mask], as_array(batch.values)[arrays.mask]
        unexplained = np.var(returns - values, ddof=1) / (np.var(returns, ddof=1) + 1e-5)
        numbers["critic/vf_explained_var"] = float(1.0 - unexplained)
    return numbers


def _lengths(batch: TrainerBatch, arrays: _Arrays, profile: str) -> dict[str, float]:
    numbers = spread("response_length", arrays.response) | spread("prompt_length", arrays.prompt)
    if batch.truncated is not None:
        numbers["response_length/clip_ratio"] = float(as_array(batch.truncated).mean())
    elif batch.max_response_length is not None:
        numbers["response_length/clip_ratio"] = float((arrays.response >= batch.max_response_length).mean())
    if batch.max_prompt_length is not None:
        numbers["prompt_length/clip_ratio"] = float((arrays.prompt >= batch.max_prompt_length).mean())
    if profile == "verl":
        width = batch.max_response_length or arrays.response.max()
        numbers["response_length/clip_ratio"] = float((arrays.response == width).mean())
        prompt_width = batch.max_prompt_length or arrays.prompt.max()
        numbers["prompt_length/clip_ratio"] = float((arrays.prompt == prompt_width).mean())
        whole = arrays.response[arrays.is_whole]
        numbers |= spread("response_length_non_aborted", whole)
        if len(whole):
            numbers["response_length_non_aborted/clip_ratio"] = float((whole == width).mean())
    numbers["response/aborted_ratio"] = float(1.0 - arrays.is_whole.mean())
    for name, counted in (("num_turns", batch.num_turns), ("tool_call_counts", batch.tool_call_counts)):
        if counted is not None:
            numbers |= spread(name, as_array(counted))
    return numbers


def timing_metrics(
    timings: Mapping[str, float],
    prompt: FloatArray,
    response: FloatArray,
    num_gpus: int = 1,
    *,
    profile: str = "rollforge",
) -> dict[str, float]:
    """`time/*` in seconds, `timing_per_token_ms/*`, and `perf/*` if the whole step was timed (`step`)."""
    prefix = "timing_s" if profile == "verl" else "time"
    tokens = float(prompt.sum() + response.sum())
    numbers = {f"{prefix}/{section}": float(seconds) for section, seconds in timings.items()}
    for section, seconds in timings.items():
        over = tokens if section in ALL_TOKEN_SECTIONS else float(response.sum()) if section == "gen" else 0.0
        if over:
            numbers[f"timing_per_token_ms/{section}"] = 1000.0 * seconds / over
    numbers["perf/total_num_tokens"] = tokens
    step = timings.get("step")
    if step:
        numbers["perf/time_per_step"] = float(step)
        numbers["perf/throughput"] = tokens / (step * num_gpus)
    return numbers
