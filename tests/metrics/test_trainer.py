"""Trainer metrics from plain arrays, on numbers worked by hand."""

import math

import numpy as np
import pytest

from rollforge.errors import UsageError
from rollforge.metrics import TrainerBatch, trainer_metrics
from rollforge.metrics.names import parse_name
from rollforge.metrics.seqlen import balanced_parts


def batch(**fields):
    return TrainerBatch(**({"prompt_lengths": [2, 2, 2], "response_lengths": [4, 3, 2]} | fields))


def test_times_per_token_and_throughput_as_worked_in_the_reference():
    metrics = trainer_metrics(batch(timings={"update_actor": 4.0, "gen": 2.0, "step": 8.0}, num_gpus=2))
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(266.667, abs=1e-3)
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(222.222, abs=1e-3)
    assert "timing_per_token_ms/step" not in metrics
    assert metrics["time/update_actor"] == 4.0
    assert metrics["perf/total_num_tokens"] == 15
    assert metrics["perf/throughput"] == 0.9375
    assert trainer_metrics(batch(timings={"gen": 2.0}), profile="verl")["timing_s/gen"] == 2.0


def test_scores_leave_aborted_samples_out_and_advantages_leave_tool_tokens_out():
    metrics = trainer_metrics(
        batch(
            response_lengths=[2, 2, 0],
            response_mask=[[1, 0], [1, 1], [0, 0]],
            scores=[1.0, 0.0, 9.0],
            advantages=[[0.5, 7.0], [-0.5, -0.5], [0, 0]],
        )
    )
    assert metrics["critic/score/mean"] == 0.5
    assert metrics["critic/score/max"] == 1.0
    assert metrics["critic/advantages/mean"] == pytest.approx(-0.5 / 3)
    assert metrics["critic/advantages/max"] == 0.5
    assert metrics["response/aborted_ratio"] == pytest.approx(1 / 3)


def test_explained_variance_uses_sample_variances_of_the_tokens_that_count():
    returns, values = [[1.0, 2.0], [3.0, 9.0]], [[1.0, 1.5], [2.0, 0.0]]
    mask = [[1, 1], [1, 0]]
    metrics = trainer_metrics(
        batch(
            prompt_lengths=[1, 1], response_lengths=[2, 1], response_mask=mask, returns=returns, values=values
        )
    )
    gap, picked = np.array([0.0, 0.5, 1.0]), np.array([1.0, 2.0, 3.0])
    assert metrics["critic/vf_explained_var"] == pytest.approx(
        1 - gap.var(ddof=1) / (picked.var(ddof=1) + 1e-5)
    )


def test_clip_ratio_is_a_truncation_rate_or_is_not_there():
    assert "response_length/clip_ratio" not in trainer_metrics(batch())
    assert trainer_metrics(batch(max_response_length=8))["response_length/clip_ratio"] == 0.0
    assert trainer_metrics(batch(truncated=[True, False, False]))[
        "response_length/clip_ratio"
    ] == pytest.approx(1 / 3)
    misleading = trainer_metrics(batch(), profile="verl")
    assert misleading["response_length/clip_ratio"] == pytest.approx(1 / 3)


def test_the_clipped_policy_loss_by_hand():
    metrics = trainer_metrics(
        TrainerBatch(
            prompt_lengths=[1],
            response_lengths=[3],
            old_logprobs=[[0.0, 0.0, 0.0]],
            logprobs=[[math.log(1.5), math.log(0.5), math.log(4.0)]],
            advantages=[[1.0, 1.0, -1.0]],
            entropies=[[1.0, 2.0, 3.0]],
        )
    )
    # ratios 1.5 (clipped to 1.2), 0.5 (not worse when clipped), 4.0 with a negative advantage (bounded at 3)
    assert metrics["actor/pg_loss"] == pytest.approx((-1.2 - 0.5 + 3.0) / 3)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 3)
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(1 / 3)
    assert metrics["actor/ppo_kl"] == pytest.approx(-(math.log(1.5) + math.log(0.5) + math.log(4.0)) / 3)
    assert metrics["actor/entropy"] == pytest.approx(2.0)


def test_sequence_lengths_as_cut_and_as_they_could_be():
    metrics = trainer_metrics(
        TrainerBatch(prompt_lengths=[0] * 4, response_lengths=[10, 9, 2, 1], data_parallel=2)
    )
    assert metrics["global_seqlen/min"] == 3
    assert metrics["global_seqlen/max"] == 19
    assert metrics["global_seqlen/minmax_diff"] == 16
    assert metrics["global_seqlen/mean"] == 11
    assert (metrics["global_seqlen/balanced_min"], metrics["global_seqlen/balanced_max"]) == (11, 11)
    parts = balanced_parts(np.arange(12.0), 3)
    assert sorted(row for part in parts for row in part) == list(range(12))
    assert {len(part) for part in parts} == {4}


def test_the_distance_between_serving_and_training_probabilities():
    metrics = trainer_metrics(
        TrainerBatch(
            prompt_lengths=[1],
            response_lengths=[2],
            old_logprobs=[[math.log(0.5), math.log(0.25)]],
            rollout_logprobs=[[math.log(0.25), math.log(0.25)]],
        )
    )
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.125)
    assert metrics["training/rollout_kl"] == pytest.approx(-math.log(2) / 2)


def test_lengths_that_make_no_batch_are_refused():
    with pytest.raises(UsageError, match="make no batch"):
        trainer_metrics(TrainerBatch(prompt_lengths=[1], response_lengths=[]))


def test_every_trainer_metric_has_a_valid_name():
    metrics = trainer_metrics(
        batch(scores=[1, 0, 1], timings={"step": 1.0}, num_turns=[1, 2, 3]), profile="verl"
    )
    assert all(str(parse_name(name)) == name for name in metrics)
