"""`--map` makes a task's fields from a dataset's own, and says which rows do not fit."""

from __future__ import annotations

import pytest

from rollforge.errors import UsageError
from rollforge.tasks import BadRow, FieldMap, to_task_row

GSM = {"question": "How many?", "answer": "2 + 3 = 5\n#### 1,005", "meta": {"tags": ["a", {"x": "deep"}]}}


def mapped(*words: str, row: dict[str, object] = GSM) -> dict[str, object]:
    mapping = FieldMap.parse(words)
    assert mapping is not None
    return mapping.apply(row)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("v=question", "How many?"),
        ("v=answer|after:####", "1,005"),
        ('v="answer|after:####"', "1,005"),
        ("v=answer|after:####|number", "1005"),
        ("v=answer|before:####", "2 + 3 = 5"),
        ("v=meta.tags[1].x|upper", "DEEP"),
        ("v=meta.tags.0", "a"),
        ("v=meta.tags", ["a", {"x": "deep"}]),
        ("v=j|json", {"a": 1}),
        ("v=l|join:-", "x-y"),
        ('v="l|join:,"', "x,y"),
        ("v=l|join:'|'", "x|y"),
        ("v=a.b", "dotted"),
    ],
)
def test_paths_and_steps(word: str, value: object) -> None:
    assert mapped(word, row={**GSM, "j": '{"a": 1}', "l": ["x", "y"], "a.b": "dotted"})["v"] == value


def test_several_fields_come_in_one_word_or_in_several() -> None:
    one = mapped('prompt=question,expected_answer="answer|after:####"')
    two = mapped("prompt=question", "expected_answer=answer|after:####")
    assert one == two and (one["prompt"], one["expected_answer"]) == ("How many?", "1,005")
    assert one["question"] == "How many?", "the dataset's own fields stay"


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("prompt", "not FIELD=PATH"),
        ("=question", "not FIELD=PATH"),
        ("a=b|aftr:x", "did you mean 'after'"),
        ("a=b|after", "after"),
        ("a=b|strip:x", "strip:x"),
        ("a=b,a=c", "twice"),
        ('a="b', "not closed"),
        ("prompt=a,messages=b", "both"),
    ],
)
def test_a_map_that_means_nothing_is_a_usage_error(word: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        FieldMap.parse([word])


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("v=quesiton", "did you mean 'question'"),
        ("v=meta.tags[7]", "no 'meta.tags"),
        ("v=question|after:####", "has no '####'"),
        ("v=meta|lower", "not a text"),
        ("v=question|number", "could not convert"),
        ("v=question|json", "v=question|json"),
        ("v=question|join:-", "not a list"),
    ],
)
def test_a_row_that_does_not_fit_is_a_bad_row_and_never_an_empty_field(word: str, what: str) -> None:
    with pytest.raises(BadRow) as caught:
        mapped(word)
    assert what in str(caught.value)


def test_a_mapped_prompt_replaces_the_rows_own() -> None:
    row = {"messages": [{"role": "user", "content": "old"}], "q": "new"}
    assert "messages" not in mapped("prompt=q", row=row)
    made = to_task_row(
        b'{"messages": [{"role": "user", "content": "old"}], "q": "new"}',
        mapping=FieldMap.parse(["prompt=q"]),
    )
    assert made["responses_create_params"]["input"][0]["content"] == "new"
    with pytest.raises(BadRow, match="its own"):
        mapped("prompt=q", row={"responses_create_params": {"input": "x"}, "q": "new"})
