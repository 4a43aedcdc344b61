"""A TRL trainer's log under rollforge's names."""

from types import SimpleNamespace

import pytest

from rollforge.metrics import parse_name, rename_trl, trl_callback


def test_a_trainers_log_gets_the_names_used_everywhere_else():
    logs = {
        "reward": 0.5,
        "rewards/accuracy_reward/mean": 0.4,
        "completions/clipped_ratio": 0.1,
        "learning_rate": 1e-6,
        "sampling/importance_sampling_ratio/mean": 1.0,
        "epoch": "one",
    }
    renamed = rename_trl(logs)
    assert renamed == {
        "critic/rewards/mean": 0.5,
        "critic/rewards/accuracy_reward/mean": 0.4,
        "response_length/clip_ratio": 0.1,
        "actor/lr": 1e-6,
        "training/sampling/importance_sampling_ratio/mean": 1.0,
    }
    assert all(str(parse_name(name)) == name for name in renamed)


def test_the_callback_hands_every_log_on_with_its_step():
    pytest.importorskip("transformers", reason="transformers is not installed")
    seen = []
    callback = trl_callback(lambda metrics, step: seen.append((step, dict(metrics))))
    callback.on_log(None, SimpleNamespace(global_step=7), None, logs={"loss": 0.25})
    assert seen == [(7, {"actor/loss": 0.25})]
