"""Trainer and validation metrics beside verl's own code, where verl is installed (it is no dependency)."""

import numpy as np
import pytest

from rollforge.metrics import EvalOptions, TrainerBatch, fold_eval, rename, trainer_metrics
from rollforge.metrics.seqlen import balanced_parts

metric_utils = pytest.importorskip("verl.trainer.ppo.metric_utils", reason="verl is not installed")
torch = pytest.importorskip("torch", reason="verl is not installed")

PROMPT, WIDTH = 5, 7


@pytest.fixture
def arrays():
    rng = np.random.default_rng(3)
    prompt = np.array([5, 3, 4, 2])
    response = np.array([7, 4, 6, 1])
    attends = np.arange(WIDTH)[None, :] < response[:, None]
    mask = attends & (rng.random((4, WIDTH)) < 0.8)
    fields = {name: rng.normal(size=(4, WIDTH)) for name in ("advantages", "returns", "values", "scores")}
    return prompt, response, attends, mask, fields


def verl_batch(arrays):
    from verl import DataProto

    prompt, _, attends, mask, fields = arrays
    prompt_mask = np.arange(PROMPT)[None, :] >= PROMPT - prompt[:, None]
    tensors = {
        "prompts": torch.zeros(4, PROMPT, dtype=torch.long),
        "responses": torch.zeros(4, WIDTH, dtype=torch.long),
        "attention_mask": torch.tensor(np.concatenate([prompt_mask, attends], axis=1).astype(np.int64)),
        "response_mask": torch.tensor(mask.astype(np.int64)),
        "token_level_scores": torch.tensor(fields["scores"] * attends, dtype=torch.float64),
        "token_level_rewards": torch.tensor(fields["scores"] * attends * 0.5, dtype=torch.float64),
        **{
            name: torch.tensor(fields[name], dtype=torch.float64)
            for name in ("advantages", "returns", "values")
        },
    }
    return DataProto.from_dict(tensors=tensors)


def our_batch(arrays, **more):
    prompt, response, attends, mask, fields = arrays
    scores = (fields["scores"] * attends).sum(axis=1)
    return TrainerBatch(
        prompt_lengths=prompt,
        response_lengths=response,
        response_mask=mask,
        scores=scores,
        rewards=scores * 0.5,
        advantages=fields["advantages"],
        returns=fields["returns"],
        values=fields["values"],
        max_response_length=WIDTH,
        max_prompt_length=PROMPT,
        **more,
    )


def test_data_metrics_are_verls(arrays):
    theirs = metric_utils.compute_data_metrics(verl_batch(arrays), use_critic=True)
    ours = trainer_metrics(our_batch(arrays), profile="verl")
    shared = set(theirs) & set(ours)
    assert {
        "critic/score/mean",
        "critic/vf_explained_var",
        "critic/advantages/mean",
        "response_length/clip_ratio",
    } <= shared
    assert {name: ours[name] for name in shared} == pytest.approx(
        {name: theirs[name] for name in shared}, rel=1e-5
    )
    assert not {
        name
        for name in set(theirs) - shared
        if name.startswith(("critic/", "response_length", "prompt_length"))
    }


def test_timing_metrics_are_verls(arrays):
    timings = {
        "gen": 2.0,
        "ref": 1.0,
        "values": 0.5,
        "adv": 0.1,
        "update_critic": 3.0,
        "update_actor": 4.0,
        "step": 9.0,
    }
    batch = verl_batch(arrays)
    batch.meta_info["global_token_num"] = (arrays[0] + arrays[1]).tolist()
    theirs = metric_utils.compute_timing_metrics(batch, timings)
    theirs |= metric_utils.compute_throughout_metrics(batch, timings, n_gpus=2)
    ours = trainer_metrics(our_batch(arrays, timings=timings, num_gpus=2), profile="verl")
    for name, value in theirs.items():
        if name.startswith(("timing", "perf/")) and not isinstance(value, torch.Tensor):
            assert ours[name] == pytest.approx(float(value)), name


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_clipped_loss_is_verls(arrays):
    from verl.trainer.ppo import core_algos

    rng = np.random.default_rng(5)
    old, new = rng.normal(-1, 0.5, (4, WIDTH)), rng.normal(-1, 0.8, (4, WIDTH))
    mask, advantages = arrays[3], arrays[4]["advantages"]
    as_tensor = torch.tensor
    loss, clipped, kl, lower = core_algos.compute_policy_loss(
        old_log_prob=as_tensor(old),
        log_prob=as_tensor(new),
        advantages=as_tensor(advantages),
        response_mask=as_tensor(mask.astype(np.float64)),
        cliprange=0.2,
        cliprange_low=0.2,
        cliprange_high=0.2,
        clip_ratio_c=3.0,
    )
    ours = trainer_metrics(our_batch(arrays, old_logprobs=old, logprobs=new))
    theirs = {"pg_loss": loss, "pg_clipfrac": clipped, "ppo_kl": kl, "pg_clipfrac_lower": lower}
    assert {f"actor/{name}": float(value) for name, value in theirs.items()} == pytest.approx(
        {f"actor/{name}": ours[f"actor/{name}"] for name in theirs}, rel=1e-5
    )


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_balanced_parts_are_as_good_as_verls(workers):
    from verl.utils.seqlen_balancing import karmarkar_karp

    lengths = np.random.default_rng(workers).integers(1, 4000, size=64)
    theirs = karmarkar_karp(lengths.tolist(), workers, equal_size=True)
    ours = balanced_parts(lengths.astype(float), workers)
    assert sorted(lengths[part].sum() for part in ours) == sorted(lengths[part].sum() for part in theirs)


def test_validation_metrics_are_verls():
    rng = np.random.default_rng(1)
    uids = [f"u{i // 4}" for i in range(20)]
    reward, accuracy = rng.random(20), (rng.random(20) > 0.5).astype(float)
    answers = [str(i) for i in rng.integers(0, 3, 20)]
    infos = {"reward": reward.tolist(), "acc": accuracy.tolist(), "pred": answers}
    theirs = metric_utils.process_validation_metrics(["gsm8k"] * 20, uids, infos)["gsm8k"]
    folded = fold_eval(
        "gsm8k",
        uids,
        {"reward": reward, "acc": accuracy},
        EvalOptions(k=4, estimator="bootstrap42", keyed_by="observed", success={"reward": 0.5, "acc": 0.5}),
        answers=answers,
    )
    ours = {name.split("/", 2)[2]: value for name, value in rename(folded, "verl").items()}
    compared = 0
    for metric in ("reward", "acc"):
        for statistic, value in theirs[metric].items():
            if not statistic.endswith("/std"):
                assert ours[f"{metric}/{statistic}"] == pytest.approx(value), statistic
                compared += 1
    assert compared == 16
