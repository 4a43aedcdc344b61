"""Experiences from rollout rows: text always, tokens where captured, stitched only where the calls continue
each other."""

import pytest

from rollforge.experience import RowSource, experiences_from_row


def message(text, **tokens):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
        **tokens,
    }


def call(prompt, generated, logprobs=None):
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generated,
        "generation_log_probs": logprobs or [-0.5] * len(generated),
    }


def row(*output, **fields):
    return {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "reward": 1.0,
        "accuracy": True,
        "extracted_answer": "42",
        "responses_create_params": {"input": "6 * 7?"},
        "response": {
            "status": "completed",
            "model": "m",
            "output": list(output),
            "usage": {"output_tokens": 5},
        },
        "_rf": {"started": 10.0, "verifier": "exact"},
    } | fields


def test_text_is_always_there_and_says_that_it_is_only_text():
    (experience,) = experiences_from_row(row(message("42")), RowSource(run="math", model_version=7))
    assert (experience.id, experience.task, experience.run) == ("math/3/1", "math/3", "math/3/1")
    assert experience.fidelity == "text"
    assert experience.messages == [{"role": "user", "content": "6 * 7?"}]
    assert (experience.response, experience.reward, experience.metrics) == ("42", 1.0, {"accuracy": 1.0})
    assert (experience.model, experience.model_version, experience.truncated) == ("m", 7, False)
    assert experience.tokens is None


def test_an_unjudged_rollout_has_no_reward():
    (experience,) = experiences_from_row(row(message("?"), reward=None))
    assert experience.reward is None


def test_calls_that_continue_each_other_are_stitched_with_a_mask():
    (experience,) = experiences_from_row(
        row(
            {"type": "function_call", "name": "f", **call([1, 2], [3, 4])},
            {"type": "function_call_output", "output": "x"},
            message("42", **call([1, 2, 3, 4, 9, 9], [5])),
        )
    )
    assert experience.fidelity == "exact"
    assert experience.prompt_length == 2
    assert experience.tokens.tolist() == [1, 2, 3, 4, 9, 9, 5]
    assert experience.mask.tolist() == [True, True, False, False, True]
    assert experience.logprobs.tolist() == [-0.5, -0.5, 0.0, 0.0, -0.5]
    assert experience.response_length == 5


def test_calls_that_do_not_continue_each_other_become_one_experience_each():
    parts = experiences_from_row(
        row(message("a", **call([1, 2], [3, 4])), message("b", **call([1, 2, 8], [5])))
    )
    assert [part.fidelity for part in parts] == ["per-call", "per-call"]
    assert [part.id for part in parts] == ["3/1/0", "3/1/1"]
    assert {part.run for part in parts} == {"3/1"}
    assert parts[1].tokens.tolist() == [1, 2, 8, 5]
    assert [part.response for part in parts] == ["a", "b"]


def test_logprobs_that_do_not_fit_are_left_out():
    (experience,) = experiences_from_row(row(message("a", **call([1], [2, 3], [-0.1]))))
    assert experience.logprobs is None
    assert experience.tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("with_tokens", [True, False])
def test_step_wise_training_gets_one_experience_per_call(with_tokens):
    first, second = (call([1], [2]), call([1, 2], [3])) if with_tokens else ({}, {})
    parts = experiences_from_row(row(message("a", **first), message("b", **second)), RowSource(per_turn=True))
    assert [(part.turn, part.response) for part in parts] == [(0, "a"), (1, "b")]
