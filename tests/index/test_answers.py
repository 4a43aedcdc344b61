"""What is said of an answer does not depend on how its text is escaped, nor on which rows it is read with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollforge.index import open_index
from rollforge.records import Response
from tests.builders import Row, make_rollout, write_rows

TEXT = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\\\\\\"/u\n\té😀')), max_size=30
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_the_spelling_of_a_text_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    rows = [make_rollout(n, text=text) for n, text in enumerate(texts)]
    spellings = [
        [json.dumps(row, ensure_ascii=False) for row in rows],
        [json.dumps(row).replace("/", "\\/") for row in rows],
    ]
    found = []
    for lines in spellings:
        path = tmp_path_factory.mktemp("run") / "rollouts.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with open_index(path) as index:
            found.append(index.table(["answer_chars", "answer_hash"]).to_pylist())
    assert found[0] == found[1]
    assert [row["answer_chars"] for row in found[0]] == [len(text) for text in texts]


def test_rows_of_many_shapes_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [make_rollout(n, 0, n / 100, **{f"extra_{n % 7}": n}) for n in range(100)]
    del rows[5]["agent_ref"], rows[6]["response"]
    rows[9] = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "reward": 9.0,
    }
    index = open_index(write_rows(tmp_path / "rollouts.jsonl", rows))
    found = index.table(["reward", "agent", "answer_chars", "extra_3", "line"], order_by="row").to_pylist()
    assert [row["reward"] for row in found] == [row["reward"] for row in rows]
    assert [row["line"] for row in found] == list(range(1, 101))
    assert [n for n, row in enumerate(found) if row["agent"] is None] == [5, 9]
    assert found[6]["answer_chars"] is None and found[9]["answer_chars"] == 1
    assert [row["extra_3"] for row in found] == [n if n % 7 == 3 else None for n in range(100)]


def test_a_plain_run_is_profiled_without_starting_the_database(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(n // 2, n % 2, n % 3 / 2) for n in range(8)])
    code = (
        "import sys; from rollforge.index import open_index; from rollforge.steps.profile import profile_index, write_profile\n"
        "with open_index(sys.argv[1]) as index: write_profile(profile_index(index), index)\n"
        "assert 'duckdb' not in sys.modules and 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert len((tmp_path / "rollouts_reward_profiling.jsonl").read_bytes().splitlines()) == 4


STACK = "\n".join(f"    at com.example.Service.call(Service.java:{line})" for line in range(20))
LONG = " and so on" * 60

ERRORS = [
    "ERROR", "Failed.", "error: no route to host", "502 Bad Gateway", "[FATAL] worker lost", "The request timed out",
    "requests.exceptions.ConnectionError: refused", '{"type": "error", "message": "overloaded"}', '{"error": "quota"}',
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\n' * 20,
    "<!DOCTYPE html>\n<html><head><meta charset='utf-8'>\n<title>502 Bad Gateway</title></head>" + LONG,
    '{\n  "error": {\n    "message": "Rate limit reached' + LONG + '"}}',
    '{"type":"error","error":{"message":"overloaded' + LONG + '"}}',
    "java.lang.NullPointerException: nothing there\n" + STACK, "TypeError: f is not a function\n" + STACK,
]  # fmt: skip
ANSWERS = [
    "It failed, so we try again", "Error bars show the spread", "42", "", "Traceback" + LONG, "The error is 3 %",
    "<!DOCTYPE html>\n<html><head><title>My shop</title></head>" + LONG, '{"error": 0.3, "loss": 1}' + LONG,
    "TypeError is raised when the types differ" + LONG, "To fix the 502 Bad Gateway, restart it" + LONG,
]  # fmt: skip


def test_error_messages_are_told_from_answers_that_speak_of_errors(tmp_path: Path) -> None:
    rows = [make_rollout(n, text=text) for n, text in enumerate([*ERRORS, *ANSWERS])]
    found = (
        open_index(write_rows(tmp_path / "rollouts.jsonl", rows)).table(["error_text"]).column(0).to_pylist()
    )
    assert found == [True] * len(ERRORS) + [False] * len(ANSWERS)


def test_an_error_message_is_told_however_it_is_escaped(tmp_path: Path) -> None:
    rows = [make_rollout(n, text=text) for n, text in enumerate(ERRORS)]
    lines = [json.dumps(row).replace("/", "\\/").replace("r", "\\u0072").encode() for row in rows]
    lines = [line.replace(b"\\u0072", b"r", 1) for line in lines]
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    found = open_index(path).table(["error_text"]).column(0).to_pylist()
    assert found == [True] * len(ERRORS)


def test_what_a_simulated_user_says_is_no_answer(tmp_path: Path) -> None:
    def said(role: str, content: object) -> Row:
        return {"type": "message", "role": role, "content": content}

    rows = [make_rollout(0, number, 1.0) for number in range(2)]
    one, two = ([{"type": "output_text", "text": text}] for text in "ab")
    rows[0]["response"]["output"] = [said("assistant", one), said("user", "x" * 500), said("assistant", two)]
    rows[1]["response"]["output"] = [said("assistant", [*one, *two])]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        found = index.table(["answer_chars", "answer_hash", "turns"], order_by="row").to_pylist()
    assert [row["answer_chars"] for row in found] == [2, 2]
    assert [row["turns"] for row in found] == [2, 1]
    assert found[0]["answer_hash"] == found[1]["answer_hash"]
    answer = Response(rows[0]["response"])
    assert (answer.text, answer.last_text) == ("ab", "b")
