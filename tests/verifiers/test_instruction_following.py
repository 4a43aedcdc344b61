from __future__ import annotations

from typing import Any

import pytest

from rollforge.records import Response, Task
from rollforge.verifiers.instruction_following import CHECKERS, InstructionFollowing, follows, judged_text
from rollforge.verifiers.instruction_following.text import (
    punkt_sentences,
    sentence_tokens,
    split_sentences,
    tokens,
)

PROMPT = "Write about a dog. Make it short!"
LESS, LEAST = "less than", "at least"

GOLDEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "keywords:existence": ({"keywords": ["dog", "c.t"]}, "A DOG, a cut", "a dog"),
    "keywords:frequency": ({"keyword": "a", "frequency": 2, "relation": LEAST}, "banana", "b a"),
    "keywords:word_count_different_numbers": (
        {"keyword": "dog", "frequency": 2, "relation": LESS},
        "dog",
        "dog Dog",
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["dog"]}, "dogs", "a Dog."),
    "keywords:letter_frequency": ({"letter": "a", "let_frequency": 2, "let_relation": LEAST}, "Aa", "a"),
    "letters:letter_counting2": ({"letter": "A", "let_frequency": 2, "let_relation": LESS}, "a", "aA"),
    "keywords:word_once": ({"keyword": "dog"}, "Dog", "dog dogs"),
    "keywords:exclude_word_harder": ({"keyword": "dog"}, "dog here", "the dog here"),
    "keywords:no_adjacent_consecutive": ({}, "a c e", "apple banana"),
    "keywords:palindrome": ({}, "a level road", "no such thing."),
    "keywords:keyword_specific_position": ({"keyword": "dog", "n": 2, "m": 2}, "Hi. A dog!", "A dog. Hi!"),
    "keywords:start_end": ({}, "Dog or dog", "Dog or dog."),
    "language:response_language": (
        {"language": "de"},
        "Das ist ein Hund und er ist sehr groß.",
        "This is a dog and it is very big.",
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": LEAST},
        "Mr. Smith ran. He fell.",
        "Mr. Smith ran.",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a *** *** b"),
    "length_constraints:number_words": ({"num_words": 3, "relation": LESS}, "it-is", "it is so"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Dog"},
        "a\n\n\"dog's b",
        "dog\n\na",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[a] [b]", "[a]"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "x\np. s. y", "PS y"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n - b", "* a\n** b"),
    "detectable_format:constrained_response": ({}, "Well. My answer is no.", "My answer is No."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* *b*", "*a* **"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2 b",
        "Section 1 a Section b",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "<<Dogs>> x", "<< >>"),
    "detectable_format:sentence_hyphens": ({}, "I ran.-I fell.", "I ran. - I fell."),
    "detectable_format:square_brackets": ({}, "[a] [b]", "[a b]"),
    "detectable_format:bigram_wrapping": ({}, "<<a b>> <<c d>> e", "<<a b>> c d>>"),
    "combination:two_responses": ({}, "a ****** b", "a ****** a"),
    "combination:repeat_prompt": ({"prompt_to_repeat": PROMPT}, f"{PROMPT.upper()} Yes", "Yes"),
    "startend:end_checker": ({"end_phrase": "The end."}, '"So. the END."', "The end"),
    "startend:quotation": ({}, ' "all of it" ', '"part" of it'),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": LEAST},
        "A DOG is",
        "A dog is",
    ),
    "change_case:english_capital": ({}, "THIS IS A DOG AND IT IS BIG", "THIS IS a DOG"),
    "change_case:english_lowercase": ({}, "this is a dog and it is big", "This is a dog"),
    "punctuation:no_comma": ({}, "a.", "a, b"),
    "punctuation:punctuation_dot": ({}, "a,", "a."),
    "punctuation:punctuation_exclamation": ({}, "a.", "a!"),
    "copy:repeat_phrase": (
        {"phrase": "the early bird sings", "small_n": 2},
        "the early bird sings, the late bird sings",
        "the late bird sings, the early bird sings",
    ),
    "copy:copy": ({"prompt_to_repeat": PROMPT}, f" {PROMPT.lower()}", f"{PROMPT} x"),
    "copy:copying_simple": ({"prompt_to_repeat": PROMPT}, PROMPT, "x"),
    "copy:copying_multiple": ({"prompt_to_repeat": PROMPT, "N": 2}, f"{PROMPT}******{PROMPT}", PROMPT),
    "new:copy_span_idx": ({"prompt_to_repeat": PROMPT, "n_start": 0, "n_end": 5}, "write", "Write "[1:]),
    "paragraphs:paragraphs": ({}, "a *** b", "a"),
    "paragraphs:paragraphs2": ({}, "a\n\nb\n\n", "a\n\n\n\nb"),
    "first_word:first_word_sent": ({"first_word": "dog"}, "Dog ran. dog fell!", "Dog ran. A dog."),
    "first_word:first_word_answer": ({"first_word": "Dog"}, "dog ran", "a dog"),
    "last_word:last_word_sent": ({"last_word": "dog"}, "A dog. The Dog!", "A dog. No."),
    "last_word:last_word_answer": ({"last_word": "dog"}, 'the "dog"!', "dog x"),
    "count:lowercase_counting": ({"N": 1}, "A dog RAN", "a dog"),
    "letters:letter_counting": ({"N": 3, "relation": LEAST}, "a1b2c", "ab"),
    "count:counting_composition": (
        {"n_sent": 1, "n_words": 3},
        "I ran. *** You fell. *** We sat.",
        "I ran. *** You fell.",
    ),
    "count:count_unique": ({}, "a dog ran", "a dog a"),
    "count:count_increment_word": ({"keyword1": "cat", "keyword2": "dog"}, "dog cat dog", "dog cat"),
}


def test_every_one_of_the_54_instructions_is_checked() -> None:
    assert len(CHECKERS) == 54
    assert GOLDEN.keys() == CHECKERS.keys()


@pytest.mark.parametrize("instruction", GOLDEN)
def test_each_instruction_passes_and_fails_as_documented(instruction: str) -> None:
    arguments, right, wrong = GOLDEN[instruction]
    assert follows(instruction, right, arguments)
    assert not follows(instruction, wrong, arguments)


@pytest.mark.parametrize("instruction", GOLDEN)
def test_an_empty_answer_follows_nothing(instruction: str) -> None:
    assert not follows(instruction, " \n", GOLDEN[instruction][0])


@pytest.mark.parametrize(
    ("instruction", "name"), [(instruction, name) for instruction, case in GOLDEN.items() for name in case[0]]
)
def test_a_missing_argument_is_an_error_not_a_random_number(instruction: str, name: str) -> None:
    arguments = {key: value for key, value in GOLDEN[instruction][0].items() if key != name}
    with pytest.raises(ValueError, match=name):
        follows(instruction, GOLDEN[instruction][1], arguments)
    with pytest.raises(ValueError, match=name):
        follows(instruction, "", {**arguments, name: None})


def judge(task: dict[str, Any], text: str) -> dict[str, Any]:
    return InstructionFollowing().verify(Task(task), Response({"output": [message(text)]}))


def message(*texts: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts]}


ROW = {
    "id": 1,
    "instruction_id_list": ["punctuation:no_comma", "keywords:word_once"],
    "kwargs": [None, {"keyword": "dog", "frequency": None}],
    "prompt": PROMPT,
}


@pytest.mark.parametrize("is_nested", [True, False])
def test_reward_is_all_or_the_share_from_either_place_in_the_row(is_nested: bool) -> None:
    def reward(text: str, **extra: Any) -> Any:
        row = {**ROW, **extra}
        return judge({"verifier_metadata": row} if is_nested else row, text)["reward"]

    assert reward("a dog") == 1.0
    assert reward("a, dog") == 0.0
    assert reward("a, dog", grading_mode="fraction") == 0.5
    with pytest.raises(ValueError, match="grading_mode"):
        reward("a dog", grading_mode="some")


def test_details_say_which_instructions_were_followed() -> None:
    verdict = judge(ROW, "a, dog")
    assert verdict["follow_instruction_list"] == [False, True]
    assert verdict["follow_all_instructions"] is False


def test_faults_of_the_task_are_failures_to_judge() -> None:
    with pytest.raises(ValueError, match="did you mean 'punctuation:no_comma'"):
        judge({**ROW, "instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "x")
    with pytest.raises(ValueError, match="2 instructions have 1"):
        judge({**ROW, "kwargs": [{}]}, "x")
    with pytest.raises(ValueError, match="lists"):
        judge({}, "x")
    with pytest.raises(ValueError, match="neither"):
        follows("length_constraints:number_words", "x", {"num_words": 1, "relation": "at most"})
    assert judge({"instruction_id_list": [], "kwargs": []}, "x")["reward"] is None


def test_the_first_part_of_the_last_item_is_judged() -> None:
    assert judged_text(Response({"output": [message("a"), message("b", "c")]})) == "b"
    assert judged_text(Response({"output": [message("a"), {"type": "function_call", "name": "f"}]})) == ""
    assert judged_text(Response({"output": []})) == ""
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert judged_text(Response({"output": [refusal]})) == ""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ("Mr. Smith of Acme Corp. went to D.C. yesterday.", 1),
        ("He works at Acme Corp. He likes it.", 2),
        ("Version 3.5 is out. It costs 5. no more.", 2),
        ("J. Smith ran. Plan Q. The end.", 3),
        ("Wait... what? Well... He left.", 3),
        ('He said "stop." Then (he ran.) Done.', 3),
        ("Really?! Yes.", 2),
        ("", 0),
    ],
)
def test_sentences_are_counted_as_a_trained_splitter_would(text: str, count: int) -> None:
    assert len(punkt_sentences(text)) == count


def test_the_simple_splitter_protects_what_its_rules_name() -> None:
    assert split_sentences("Dr. A. B. saw 3.5 e.g. x.com. Ok... So") == [
        "Dr. A. B. saw 3.5 e.g. x.com.",
        "Ok...",
        "So",
    ]
    assert split_sentences('He said "no." Then left!') == ['He said "no".', "Then left!"]


def test_tokens_are_words_and_marks() -> None:
    assert sentence_tokens('He said "don\'t" (twice), cannot.') == [
        *("He", "said", "``", "do", "n't", "''", "(", "twice", ")", ",", "can", "not", "."),
    ]
    assert tokens("A dog's 50% off. It's --- so!") == [
        *("A", "dog", "'s", "50", "%", "off", ".", "It", "'s", "--", "-", "so", "!"),
    ]
