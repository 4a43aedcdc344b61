from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.verifiers import exact, json_schema, regex

Judged = Callable[..., Any]


@pytest.mark.parametrize(
    ("text", "expected", "reward"),
    [
        ("  Paris. ", "paris", 1.0),
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{4} then \boxed{5}", "5", 1.0),
        (r"\boxed{5", "5", 0.0),
        ("42", 42, 1.0),
        ("two", ["zwei", "two"], 1.0),
        ("two", ["", "two"], 1.0),
        ("", "x", 0.0),
        ("0.5", "1/2", 0.0),
    ],
)
def test_exact_compares_the_box_or_the_whole_text(
    judged: Judged, text: str, expected: Any, reward: float
) -> None:
    assert judged(exact.Exact(), text, expected_answer=expected)["reward"] == reward


def test_exact_options_change_what_counts_as_equal(judged: Judged) -> None:
    def reward(text: str, expected: str, **options: Any) -> float:
        verifier = exact.Exact(exact.ExactOptions(**options))
        return float(judged(verifier, text, expected_answer=expected)["reward"])

    assert reward("Paris", "paris", ignore_case=False) == 0.0
    assert reward("a  b", "a b", ignore_space=False) == 0.0
    assert reward("reasons\n\n42\n", "42", extract="last_line") == 1.0
    assert reward(r"\boxed{42}", "42", extract="all") == 0.0
    assert judged(exact.Exact(exact.ExactOptions(field="gold")), "x", gold="x")["reward"] == 1.0


def test_exact_without_an_expected_answer_fails_to_judge(judged: Judged) -> None:
    with pytest.raises(ValueError, match="expected_answer"):
        judged(exact.Exact(), "x")
    for nothing in ("", "  ", [], [None], ["", " "]):
        for options in (exact.ExactOptions(), exact.ExactOptions(ignore_space=False)):
            with pytest.raises(ValueError, match="expected_answer"):
                judged(exact.Exact(options), "", expected_answer=nothing)


@pytest.mark.parametrize(
    ("options", "text", "reward", "caught"),
    [
        ({"pattern": r"#### (\d+)"}, "#### 1 … #### 42", 1.0, "42"),
        ({"pattern": r"#### (\d+)", "match": "first"}, "#### 1 … #### 42", 0.0, "1"),
        ({"pattern": r"\d+", "match": "whole"}, " 42\n", 1.0, "42"),
        ({"pattern": r"\d+", "match": "whole"}, "42 apples", 0.0, None),
        ({"pattern": r"(?P<unit>\w+)=(?P<n>\d+)", "group": "n"}, "x=42", 1.0, "42"),
        ({"pattern": r"ANSWER", "flags": ("ignorecase",), "expected": None}, "an answer", 1.0, "answer"),
        ({"pattern": r"(x)?42"}, "42", 0.0, None),
        ({"pattern": r"nothing"}, "42", 0.0, None),
        ({"pattern": r"(\d{3})|(\d\d)"}, "42", 1.0, "42"),
        ({"pattern": r"(yes)|(no)", "expected": None}, "no", 1.0, "no"),
        ({"pattern": r"(x)?42", "group": 1, "expected": None}, "42", 1.0, None),
    ],
)
def test_regex_compares_what_the_pattern_catches(
    judged: Judged, options: dict[str, Any], text: str, reward: float, caught: str | None
) -> None:
    verdict = judged(regex.Regex(regex.RegexOptions(**options)), text, expected_answer="42")
    assert verdict == {"reward": reward, "extracted_answer": caught}


def test_regex_takes_the_rows_pattern_and_refuses_a_broken_option_at_once(judged: Judged) -> None:
    assert judged(regex.Regex(), "id: 7", pattern=r"id: \d")["reward"] == 1.0
    with pytest.raises(ValueError, match="pattern"):
        judged(regex.Regex(), "id: 7")
    with pytest.raises(UsageError, match="does not work"):
        regex.Regex(regex.RegexOptions(pattern="("))


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "reward", "is_json"),
    [
        ('{"n": 1}', 1.0, True),
        ('```json\n{"n": 1}\n```', 1.0, True),
        ('```\n{"n": 1}\n```', 1.0, True),
        ('{"n": "1"}', 0.0, True),
        ("{}", 0.0, True),
        ('{"n": 1} and more', 0.0, False),
        ('{"n": NaN}', 0.0, False),
        ('{"n": 1e999}', 0.0, False),
        ("[" * 100_000, 0.0, False),
        ("", 0.0, False),
    ],
)
@pytest.mark.parametrize("field", json_schema.SCHEMA_FIELDS)
def test_json_schema_judges_the_whole_answer(
    judged: Judged, text: str, reward: float, is_json: bool, field: str
) -> None:
    verdict = judged(json_schema.JsonSchema(), text, **{field: SCHEMA})
    assert (verdict["reward"], verdict["is_json"]) == (reward, is_json)
    assert (verdict["error"] is None) == (reward == 1.0)


def test_json_schema_takes_an_answer_that_is_nested_too_deeply_for_a_wrong_one(judged: Judged) -> None:
    nested = {"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert judged(json_schema.JsonSchema(), "[" * 50 + "]" * 50, schema=nested)["reward"] == 1.0
    assert judged(json_schema.JsonSchema(), "[" * 600 + "]" * 600, schema=nested)["reward"] == 0.0
    with pytest.raises(RecursionError):
        judged(json_schema.JsonSchema(), "[]", schema={"$ref": "#"})


def test_json_schema_can_look_for_json_inside_the_answer(judged: Judged) -> None:
    verifier = json_schema.JsonSchema(json_schema.JsonSchemaOptions(schema=SCHEMA, find=True))
    assert judged(verifier, 'Here: {"n": 1}. Done.')["reward"] == 1.0
    assert judged(verifier, 'Here:\n```json\n{"n": 2}\n```\nDone.')["reward"] == 1.0
    assert judged(verifier, "nothing")["reward"] == 0.0


def test_json_schema_fails_to_judge_without_a_sound_schema_and_never_fetches_one(judged: Judged) -> None:
    with pytest.raises(ValueError, match="schema"):
        judged(json_schema.JsonSchema(), "{}")
    with pytest.raises(Exception, match="is not valid"):
        judged(json_schema.JsonSchema(), "{}", schema={"type": "no such type"})
    with pytest.raises(Exception, match=r"http://127\.0\.0\.1:9"):
        judged(json_schema.JsonSchema(), "{}", schema={"$ref": "http://127.0.0.1:9/schema"})


def test_a_pattern_that_backtracks_for_ever_on_an_answer_is_a_zero(judged: Judged) -> None:
    verifier = regex.Regex(regex.RegexOptions(pattern=r"(?:\w+\s?)+#", answer_seconds=0.2))
    verdict = judged(verifier, "many words " * 30)
    assert (verdict["reward"], verdict["timed_out"]) == (0.0, True)
    schema = {"type": "string", "pattern": r"^(?:\w+\s?)+#$"}
    verifier = json_schema.JsonSchema(json_schema.JsonSchemaOptions(schema=schema, answer_seconds=0.2))
    verdict = judged(verifier, json.dumps("many words " * 30))
    assert (verdict["reward"], verdict["timed_out"]) == (0.0, True)


def test_the_field_that_an_option_names_is_the_one_that_is_needed() -> None:
    from rollforge.verifiers.base import load_verifier

    assert load_verifier("exact", {"field": "answer"}).needs == ("answer",)
    assert load_verifier("exact").needs == ("expected_answer",)
