"""NeMo Gym's command lines, word for word, as `collect` understands them."""

from __future__ import annotations

import pytest

from rollforge.config import is_gym_command, translate_gym_command, translate_gym_words
from rollforge.errors import UsageError


@pytest.mark.parametrize(
    ("word", "flags"),
    [
        (
            "+responses_create_params={max_output_tokens: 16384, temperature: 1.0}",
            ["--set", "max_output_tokens=16384", "--set", "temperature=1.0"],
        ),
        ("+responses_create_params={reasoning: {effort: low}}", ["--set", 'reasoning={"effort":"low"}']),
        ("++responses_create_params.top_p=0.9", ["--set", "top_p=0.9"]),
        ("+num_repeats=null", []),
        ("+num_repeats=4", ["--samples", "4"]),
        ("+num_repeats={_default: 3}", ["--samples", "3"]),
        ("+model=my-model", ["--model", "my-model"]),
        ("+temperature=0.6", ["--set", "temperature=0.6"]),
        ("+agent_map={_default: simple_agent}", ["--agent-name", "simple_agent"]),
        ("+agent_map={a: b, _default: c}", ["--agent-map", "a=b", "--agent-name", "c"]),
        ("+fan_out={a: [b, c], d: [e]}", ["--fan-out", "a=b,c", "--fan-out", "d=e"]),
        ("+agent_name=simple_agent", ["--agent-name", "simple_agent"]),
        ("+h=true", ["--help"]),
    ],
)
def test_a_word_becomes_the_flags_that_mean_the_same(word: str, flags: list[str]) -> None:
    assert translate_gym_words([word]) == (flags, [])


@pytest.mark.parametrize(
    "word", ["+benchmark=aime24", "+num_repeats_add_seed=true", "+config_paths=[a.yaml]"]
)
def test_a_word_without_effect_is_left_out_with_a_note(word: str) -> None:
    flags, (note,) = translate_gym_words([word])
    assert flags == [] and "was left out" in note


def test_samples_per_agent_are_those_of_the_agent_that_is_named() -> None:
    flags, _ = translate_gym_words(["+agent_name=a", "+num_repeats={a: 2, _default: 1}"])
    assert flags == ["--agent-name", "a", "--samples", "2"]
    with pytest.raises(UsageError, match="differs by agent"):
        translate_gym_words(["+num_repeats={a: 2, _default: 1}"])
    with pytest.raises(UsageError, match="did you mean 'num_repeats'"):
        translate_gym_words(["+num_repeat=2"])


def test_gym_eval_run_is_collect() -> None:
    words = "gym eval run --no-serve --agent A --input I --output=O --limit 3 --temperature 0.5 --resume --gym-head URL"
    assert is_gym_command(words.split()) and is_gym_command(words.split()[1:])
    assert not is_gym_command(["eval", "run.jsonl"]) and not is_gym_command(["eval", "run"])
    flags, notes = translate_gym_words(translate_gym_command(words.split()))
    assert notes == []
    assert flags == [
        *("collect", "--agent-name", "A", "--input", "I", "--out", "O", "--limit", "3"),
        *("--set", "temperature=0.5", "--gym-head", "URL"),
    ]
    with pytest.raises(UsageError, match="starts servers"):
        translate_gym_command(["gym", "eval", "run", "--input", "I"])
