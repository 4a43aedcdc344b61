"""What the simulated model answers: the same for the same sample, right as often as its skill says."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.records import PARAMS_KEY, Response, Task
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from rollforge.simulate.arithmetic import find_expression, work_out
from rollforge.simulate.conversation import Ask, SimulatedMessage
from rollforge.simulate.draws import Chance
from rollforge.simulate.simulated_model import take_turn
from rollforge.simulate.tokens import count, count_prompt, prompt_ids, split, token_ids
from rollforge.verifiers.exact import verify
from tests.simulate.simulated_client import answer_text, ask, chat

QUESTION = "What is 47 × 83 + 12? Put the final answer in \\boxed{}."


async def answers(seed: int, samples: list[int], text: str = QUESTION) -> dict[int, str]:
    async with SimulatedServer(SimulateOptions(seed=seed)) as server:
        return {sample: answer_text(await ask(server, text, sample)) for sample in samples}


async def test_equal_identity_means_equal_answer_after_a_restart_and_in_any_order():
    samples = list(range(12))
    shuffled = random.Random(1).sample(samples, len(samples))
    assert await answers(0, samples) == await answers(0, shuffled)


async def test_samples_differ_and_so_do_server_seeds():
    first, second = await answers(0, list(range(8))), await answers(1, list(range(8)))
    assert len(set(first.values())) > 4
    assert first != second


async def test_header_metadata_and_seed_name_the_same_sample():
    async with SimulatedServer() as server:
        by_header = answer_text(await ask(server, QUESTION, 5))
        by_seed = answer_text(await ask(server, QUESTION, None, seed=5))
        by_metadata = answer_text(await ask(server, QUESTION, None, metadata={"rollforge_sample": "5"}))
    assert by_header == by_seed == by_metadata


async def test_a_seed_beside_a_sample_makes_another_sample():
    async with SimulatedServer() as server:
        texts = [
            answer_text(await ask(server, QUESTION, sample, seed=seed)) for sample, seed in [(3, 5), (5, 3)]
        ]
        texts.append(answer_text(await ask(server, QUESTION, 3)))
    assert len(set(texts)) == 3


async def test_without_an_identity_samples_are_counted_per_prompt():
    async with SimulatedServer() as server:
        counted = [answer_text(await ask(server, QUESTION, None)) for _ in range(4)]
        named = [answer_text(await ask(server, QUESTION, number)) for number in range(4)]
    assert counted == named


async def test_both_apis_give_the_same_answer():
    async with SimulatedServer() as server:
        assert answer_text(await ask(server, QUESTION, 3)) == answer_text(await chat(server, QUESTION, 3))


async def test_temperature_zero_makes_samples_identical():
    async with SimulatedServer() as server:
        texts = {answer_text(await ask(server, QUESTION, number, temperature=0)) for number in range(6)}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", ["math", "mcqa"])
def test_pass_rates_spread_from_never_to_always_and_fall_with_difficulty(kind):
    rates = [(task["difficulty"], pass_rate_of(task)) for task in example_tasks(240, seed=3, kind=kind)]
    tally = Counter("never" if rate == 0 else "always" if rate == 1 else "mixed" for _, rate in rates)
    assert tally["never"] > 12 and tally["always"] > 12 and tally["mixed"] > 80
    easy = [rate for difficulty, rate in rates if difficulty < 0.3]
    hard = [rate for difficulty, rate in rates if difficulty > 0.7]
    assert sum(easy) / len(easy) > sum(hard) / len(hard) + 0.25


def pass_rate_of(task, samples=8):
    params = task[PARAMS_KEY]
    asked = Ask(
        model="simulated", items=tuple(SimulatedMessage("user", item["content"]) for item in params["input"])
    )
    texts = [take_turn(SimulateOptions(), asked, asked.task_key(), sample).text for sample in range(samples)]
    return sum(verify(Task(task), response_of(text))["reward"] for text in texts) / samples


def response_of(text):
    return Response({"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]})


async def test_skill_moves_the_share_of_right_answers():
    tasks = list(example_tasks(60, kind="math"))
    share = {}
    for skill in (0.0, 1.0):
        async with SimulatedServer(SimulateOptions(skill=skill)) as server:
            raws = [(task, await ask(server, task[PARAMS_KEY]["input"][0]["content"])) for task in tasks]
        share[skill] = sum(verify(Task(task), Response(raw.json))["reward"] for task, raw in raws) / len(
            tasks
        )
    assert share[0.0] < 0.4 < 0.7 < share[1.0]


async def test_an_unknown_prompt_gets_a_plausible_stable_answer():
    async with SimulatedServer() as server:
        first = answer_text(await ask(server, "Tell me about gardens.", 1))
        assert len(first) > 40
        assert first == answer_text(await ask(server, "Tell me about gardens.", 1))
        options = "Which is best?\nA) this\nB) that\nC) neither\nAnswer in \\boxed{}."
        assert "\\boxed{" in answer_text(await ask(server, options, 1))


def test_arithmetic_is_worked_out_in_steps():
    solution = work_out("2 + 3 × (10 - 4)")
    assert solution is not None
    assert solution.value == "20"
    assert solution.steps == ("10 - 4 = 6", "3 × 6 = 18", "2 + 18 = 20")


def test_an_expression_is_found_with_its_brackets_and_sign():
    assert find_expression("So what is (2 + 3) × (4 - 1), please?") == "(2 + 3) × (4 - 1)"
    assert find_expression("Compute -5 + 8.") == "-5 + 8"
    assert find_expression("No sums in 1984 here.") is None


@given(st.text(alphabet="0123456789+-*/().x× abc", max_size=60))
def test_no_text_makes_the_arithmetic_crash(text):
    found = find_expression(text)
    assert found is None or work_out(found) is not None


@given(st.text(max_size=300))
def test_tokens_joined_are_the_text_and_lines_are_counted_as_a_whole(text):
    assert "".join(split(text)) == text
    assert count(text) == len(split(text)) == len(token_ids(text))


def test_a_prompt_has_as_many_ids_as_tokens():
    asked = Ask(
        model="m", items=(SimulatedMessage("system", "Be brief."), SimulatedMessage("user", QUESTION))
    )
    assert len(prompt_ids(asked)) == count_prompt(asked)


def test_chance_is_even_and_belongs_to_its_parts():
    draws = [Chance("x", number).uniform() for number in range(4000)]
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02
    assert draws == [Chance("x", number).uniform() for number in range(4000)]
    stream = Chance("stream")
    normals = [stream.normal() for _ in range(4000)]
    assert abs(sum(normals) / 4000) < 0.08
    assert abs(sum(value * value for value in normals) / 4000 - 1) < 0.1
