"""The compiled reader of rollout lines makes the same columns as the Python code, whatever the lines look like."""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollforge.index import native_reader
from rollforge.index.build import ByteRange, read_range
from rollforge.index.schema import Kind
from rollforge.index.state import Scanned
from rollforge.runtime.native import load_native

native = load_native("rollforge.index._rows")
pytestmark = pytest.mark.skipif(native is None, reason="rollforge was installed without a compiler")

IS_LONG = "ROLLFORGE_TORTURE" in os.environ
SEARCH = settings(max_examples=5000 if IS_LONG else 300, derandomize=not IS_LONG, deadline=None)
"""The same examples every time, so that a change is what breaks it; many new ones when asked for: ROLLFORGE_TORTURE=1."""

KINDS: tuple[Kind, ...] = ("rollouts", "tasks")
TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from('\\"/\n\t é😀\x00\x7f')), max_size=20
)  # lone surrogates too: JSON can spell them
NUMBER = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(0, 1),
    st.integers(-3, 30),
    st.sampled_from([1e22, 1e23, 9007199254740993, 123456789012345678, 5e-324, 1.7976931348623157e308, -0.0]),
)
SCALAR = st.one_of(st.none(), st.booleans(), NUMBER, TEXT)
ANYTHING = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The usual value; now and then anything at all."""
    return st.one_of(usual, usual, usual, usual, usual, ANYTHING)


def some_of(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these keys, and sometimes others, in any order."""
    known = st.fixed_dictionaries({}, optional=members)
    both = st.tuples(known, st.dictionaries(TEXT, ANYTHING, max_size=2)).map(lambda two: two[1] | two[0])
    shuffled = both.flatmap(lambda found: st.permutations(list(found.items()))).map(dict)
    return st.one_of(known, shuffled)


PART = some_of(type=mostly(st.sampled_from(["output_text", "refusal", "text"])), text=mostly(TEXT))
ITEM = some_of(
    type=mostly(st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])),
    role=mostly(st.sampled_from(["assistant", "user"])),
    content=mostly(st.one_of(st.lists(mostly(PART), max_size=3), TEXT, st.none())),
    generation_token_ids=mostly(st.lists(st.integers(0, 9), max_size=2)),
)
USAGE = some_of(
    input_tokens=mostly(st.integers(0, 999)),
    output_tokens=mostly(NUMBER),
    output_tokens_details=mostly(some_of(reasoning_tokens=mostly(st.integers(0, 99)))),
)
RESPONSE = some_of(
    output=mostly(st.lists(mostly(ITEM), max_size=4)),
    usage=mostly(st.one_of(st.none(), USAGE)),
    status=mostly(st.sampled_from(["completed", "incomplete"])),
    incomplete_details=mostly(
        st.one_of(st.none(), some_of(reason=mostly(st.sampled_from(["max_output_tokens", "content_filter"]))))
    ),
    model=mostly(st.sampled_from(["a", "b/c"])),
)
ASKED = some_of(
    role=mostly(st.sampled_from(["user", "system"])),
    content=mostly(
        st.one_of(TEXT, TEXT, st.lists(some_of(type=st.just("input_text"), text=TEXT), max_size=2))
    ),
    type=mostly(st.sampled_from(["message", None])),
)
PARAMS = some_of(
    input=mostly(st.one_of(TEXT, st.lists(mostly(ASKED), max_size=3))),
    instructions=mostly(st.one_of(st.none(), st.none(), TEXT)),
)
ROW = some_of(
    responses_create_params=mostly(PARAMS),
    response=mostly(RESPONSE),
    reward=mostly(NUMBER),
    _ng_task_index=mostly(st.integers(0, 3)),
    _ng_rollout_index=mostly(st.integers(0, 3)),
    _ng_attempt_index=mostly(st.integers(0, 3)),
    agent_ref=mostly(some_of(name=mostly(st.sampled_from(["x", "y"])))),
    reward_components=mostly(some_of(style=mostly(NUMBER), note=mostly(TEXT))),
    _rf=mostly(
        some_of(
            started=mostly(NUMBER),
            seconds=mostly(NUMBER),
            verifier=mostly(st.just("exact")),
            mode=mostly(TEXT),
        )
    ),
    messages=mostly(st.just([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])),
    prompt=mostly(TEXT),
    input_tokens=mostly(NUMBER),
    verdict=mostly(TEXT),
)


def spell(row: Any, style: int) -> bytes:
    """One line in one of several spellings, all of them JSON (or nearly: NaN)."""
    separators = (",", ":") if style & 1 else (", ", ": ")
    text = json.dumps(row, ensure_ascii=bool(style & 2), separators=separators)
    if style & 4:
        text = text.replace("/", "\\/")
    return text.encode("utf-8", "surrogatepass") + (b"\r" if style & 8 else b"")


def scan(
    path: Path, kind: Kind, *, is_native: bool, start: int = 0, end: int | None = None
) -> tuple[Scanned, dict[str, list[Any]]]:
    """What a range holds; without an end, all of the file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(native_reader, "is_available", lambda: is_native),
    ):
        found = read_range(path, kind, ByteRange(start, end), Path(folder) / "0")
        tables = [pq.read_table(Path(folder) / part.name) for part in found.parts]
    if not tables:
        return found, {}
    table = pa.concat_tables(tables, promote_options="default")
    return found, {
        f"{field.name}: {field.type}": table.column(field.name).to_pylist() for field in table.schema
    }


def compare(text: bytes) -> None:
    """The same lines as rollouts and as tasks, read by Python and by the compiled reader."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        path.write_bytes(text)
        for kind in KINDS:
            assert_same(scan(path, kind, is_native=True), scan(path, kind, is_native=False))


def assert_same(
    found: tuple[Scanned, dict[str, list[Any]]], expected: tuple[Scanned, dict[str, list[Any]]]
) -> None:
    assert found[1] == expected[1]
    for name in Scanned.__struct_fields__:
        if name != "parts":
            assert getattr(found[0], name) == getattr(expected[0], name), name


@SEARCH
@given(st.lists(st.tuples(ROW, st.integers(0, 15)), min_size=1, max_size=5))
@example([({"a": "\\" * 300}, 1), ({"reward": 10**400}, 1), ({"a": [[[]]] * 3, "": 1}, 0)])
def test_rows_of_any_shape_and_spelling_make_the_same_columns(rows: list[tuple[Any, int]]) -> None:
    compare(b"\n".join([spell(row, style) for row, style in rows]) + b"\n")


VALID = [
    *(b"\\n", b"\\\\", b'\\"', b"\\u00e9", b"\\/", b"\\ud83d\\ude00"),
    *(
        "é".encode(),
        "\u07ff".encode(),
        "\u0800".encode(),
        "\ud7ff".encode(),
        "\uffff".encode(),
        "😀".encode(),
    ),
]
INVALID = [
    *(b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xe4\xbd", b"\xf0\x8f\xbf\xbf"),
    *(
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xc3\\n",
        b"\xe4\\n",
        b"\x1f",
        b"\\x",
        b"\\u12",
        b"\\",
        b'"',
    ),
]


def answer_line(text: bytes) -> bytes:
    """A row whose answer is this text as it stands, with enough behind it that it is not read near the end of the line."""
    opening = b'{"response":{"output":[{"type":"message","content":[{"type":"output_text","text":"'
    return opening + text + b'"}]}]},"verdict":"' + text[-200:] + b'","rest":"' + b"-" * 100 + b'"}\n'


@SEARCH
@given(
    st.lists(
        st.one_of(
            st.integers(0, 70).map(lambda count: b"a" * count),
            st.sampled_from(VALID),
            st.sampled_from(VALID),
            st.sampled_from([*VALID, *INVALID]),
        ),
        max_size=12,
    )
)
def test_long_texts_are_read_alike(pieces: list[bytes]) -> None:
    compare(answer_line(b"".join(pieces)))


@pytest.mark.parametrize("pieces", [VALID, INVALID], ids=["valid", "invalid"])
def test_a_character_may_stand_anywhere_in_a_text(pieces: list[bytes]) -> None:
    """Texts are read 64 bytes at a time; what begins in one of these blocks may end in the next."""
    lines = [answer_line(b"\xc3\xa9" + b"a" * n + piece + b"a" * 70) for piece in pieces for n in range(66)]
    compare(b"".join(lines))
    if pieces is VALID:
        assert native is not None and native.Rows().take(b"".join(lines), 1, 0) == (len(lines), b"")


@SEARCH
@given(st.lists(ROW, min_size=1, max_size=2), st.randoms(use_true_random=False), st.integers(0, 15))
def test_damaged_lines_are_told_alike(rows: list[Any], chance: random.Random, style: int) -> None:
    text = bytearray(b"\n".join([spell(row, style) for row in rows]) + b"\n")
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(text))
        match chance.randrange(4):
            case 0:
                text[place] = chance.choice(b'"\\{}[],:09eE+-.tfnu\x00\x1f\x80\xc3\xed\xff \n')
            case 1:
                del text[place]
            case 2:
                text.insert(place, chance.choice(b'"\\{}[],:0u\xe2'))
            case _:
                end = min(len(text), place + chance.randrange(1, 9))
                text[place:place] = text[place:end]
        if not text:
            break
    compare(bytes(text))


def test_the_compiled_reader_takes_ordinary_rows_itself() -> None:
    """Otherwise every other test here would compare the Python code with itself."""
    row = {
        "responses_create_params": {"input": "q"},
        "response": {"output": [], "usage": {"input_tokens": 1}},
        "reward": 1.0,
        "_rf": {"seconds": 0.5},
        "agent_ref": {"name": "x"},
        "verdict": "café \u2028 😀",
    }
    assert native is not None
    rows = native.Rows()
    for style in range(4):
        assert rows.take(spell(row, style), style + 1, 0) == (1, b"")
    assert rows.take(b'{"reward": NaN}\n\n{"a":1,"a":2}', 5, 0)[0] == 3
    assert len(rows) == 4


def test_every_row_with_an_odd_prompt_is_told() -> None:
    row = {"responses_create_params": {"input": "q", "instructions": [0]}, "reward": 1}
    compare((spell(row, 1) + b"\n") * 3)


def test_depth_costs_no_stack() -> None:
    for depth in (150, 250, 100_000):
        compare(b'{"a":' + b"[" * depth + b"]" * depth + b',"reward":1}\n')


def test_rows_beyond_one_chunk_and_block_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.build.CHUNK", 7)
    monkeypatch.setattr("rollforge.index.jsonl.BLOCK", 256)
    odd = [b"{", b"[]", b'{"reward":"x"}', b'{"reward":NaN}', b'{"a":1,"a":2}', b"", b'{"messages":[]}']
    lines = [
        odd[n % 14 // 2]
        if n % 2 and n % 14 // 2 < len(odd)
        else msgspec.json.encode({"reward": n, "t": f"é{n}"})
        for n in range(200)
    ]
    compare(b"\n".join(lines))


def test_ranges_that_meet_anywhere_hold_every_line_once(tmp_path: Path) -> None:
    lines = [
        b'{"reward":1}',
        b"",
        b"{torn",
        b'{"reward":"x"}',
        '{"reward":2,"t":"é"}'.encode(),
        b'{"messages":[]}',
    ]
    path = tmp_path / "rollouts.jsonl"
    for text in (b"\n".join(lines), b"\n".join([*lines, b""])):
        path.write_bytes(text)
        whole, columns = scan(path, "rollouts", is_native=True, end=len(text))
        assert whole.rows == 4 and whole.end == len(text)
        for cut in range(len(text) + 1):
            parts = [
                scan(path, "rollouts", is_native=True, start=start, end=end)
                for start, end in ((0, cut), (cut, len(text)))
            ]
            offsets = [offset for _, found in parts for offset in found.get("offset: int64", [])]
            assert offsets == columns["offset: int64"], cut
            assert sum(found.lines for found, _ in parts) == whole.lines
            assert sum(found.rejected for found, _ in parts) == whole.rejected
            assert max(found.end for found, _ in parts) == len(text)


@pytest.mark.parametrize("size", [1 << 20, 5 << 20, 33 << 20])
def test_a_line_longer_than_a_block_is_read_alike(size: int, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    long = b'{"reward":2,"t":"' + b"x" * size + b'"}'
    for text in (
        b'{"reward":1}\n' + long + b'\n{"reward":3}\n',
        b'{"reward":1}\n' + long,
        long[:-1] + b'\n{"reward":3}\n',
    ):
        path.write_bytes(text)
        plain = scan(path, "rollouts", is_native=False)
        assert_same(scan(path, "rollouts", is_native=True, end=len(text)), plain)


def test_a_file_that_becomes_shorter_ends_the_pass(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"reward":1}\n')
    found, _ = scan(path, "rollouts", is_native=True, end=1000)
    assert (found.rows, found.end) == (1, 13)


@pytest.mark.parametrize(
    "line",
    [
        b'{"response":{"output":[{"type":"message","content":[{"type":"output_text","text":"\\ud800 x"}]}]}}',
        b'{"responses_create_params":{"input":"\\ud800 x"}}',
        b'{"verdict":"\\ud800 x","reward":NaN}',
        b'\xef\xbb\xbf{"reward":1}',
    ],
)
def test_half_a_character_or_a_byte_order_mark_costs_no_row_either_way(line: bytes, tmp_path: Path) -> None:
    compare(line + b"\n")
    (tmp_path / "r.jsonl").write_bytes(line + b"\n")
    assert scan(tmp_path / "r.jsonl", "rollouts", is_native=True)[0].rows == 1
