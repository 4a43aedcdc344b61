"""The compiled passes over texts do what the Python ones do, whatever the bytes are."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollforge.exporters import guard, texts
from rollforge.exporters.texts import (
    is_utf8,
    python_is_spelled_once,
    python_on_one_line,
    python_shorten,
)

compiled: Any = pytest.importorskip("rollforge.exporters._texts", reason="installed without a compiler")

SEARCH = settings(max_examples=300, derandomize=True, deadline=None)

PIECE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"\xc2", b"\x85", b"\xe2", b"\x80", b"\xa8", b"\xa9", b"\\u", b"\\\\/", b"\\", b"/", b'"', b"\n"]
    ),
    st.text(st.sampled_from("\u2028\u2029\x85éऩअ≥ab "), max_size=40).map(str.encode),
)
BYTES = st.lists(PIECE, max_size=12).map(b"".join)
TEXT = st.one_of(
    st.text(max_size=200),
    st.text(st.sampled_from('ab\\"/\n\u2028é😀\x1f'), max_size=200),
    st.sampled_from(["a" * 64, "a" * 65, "é" * 32, "é" * 33, "\ud800" + "a" * 80, "\x7f" * 70]),
)
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def spelled(value: object, is_ascii: bool) -> bytes:
    """The value as JSON, its characters escaped or not."""
    return json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")


@SEARCH
@given(BYTES)
@example("a\u2028b\u2029c\x85".encode() * 9)
def test_the_same_characters_are_escaped(line: bytes) -> None:
    assert compiled.on_one_line(line) == python_on_one_line(line)


@SEARCH
@given(BYTES)
def test_the_same_escapes_are_seen(data: bytes) -> None:
    assert compiled.is_spelled_once(msgspec.Raw(data)) == python_is_spelled_once(msgspec.Raw(data))


def outline(value: object) -> object:
    """The value without its texts and keys: what a check of types sees."""
    if isinstance(value, dict):
        return [outline(item) for item in value.values()]
    if isinstance(value, list):
        return [outline(item) for item in value]
    return str if isinstance(value, str) else value


@SEARCH
@given(st.lists(st.tuples(VALUE, st.booleans()), min_size=1, max_size=4))
def test_shortened_lines_are_read_exactly_when_the_lines_are_and_have_the_same_shape(
    values: list[tuple[object, bool]],
) -> None:
    lines = b"\n".join(spelled(value, is_ascii) for value, is_ascii in values)
    decode = msgspec.json.Decoder().decode_lines
    short = compiled.shorten(lines)
    if short is None:
        assert not is_utf8(lines)
        return
    assert len(short) <= len(lines)
    try:
        before = decode(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode(short)
    else:
        if all(len(value) == len(set(value)) for value in map(keys_of, before)):
            assert outline(decode(short)) == outline(before)


def keys_of(value: object) -> list[str]:
    """Every key; those that are long may come to be equal when shortened."""
    if isinstance(value, dict):
        return [*(key[:20] for key in value), *(key for item in value.values() for key in keys_of(item))]
    return [key for item in value for key in keys_of(item)] if isinstance(value, list) else []


@SEARCH
@given(BYTES)
@example(b'{"a": "' + b"x" * 100)
@example(b'{"a": "' + b"x" * 100 + b'\xff"}')
@example(b'{"a": "' + b"x" * 100 + b'"} \xff')
def test_nothing_is_shortened_that_is_not_utf8(data: bytes) -> None:
    assert compiled.shorten(data) is None or python_shorten(data) == data


def test_equal_texts_stay_equal_and_others_differ() -> None:
    a, b, c = (b'"' + text.encode() + b'"' for text in ("x" * 100, "x" * 99 + "y", "x" * 101))
    assert compiled.shorten(a) == compiled.shorten(a)
    assert len({compiled.shorten(text) for text in (a, b, c)}) == 3


def test_short_strings_and_what_the_decoder_must_judge_stay() -> None:
    for line in (b'{"role":"user","n":1.50}', b'"' + b"a" * 64 + b'"', b'"' + b"a" * 90 + b'\\ud800"'):
        assert compiled.shorten(line) == line


def test_the_compiled_ones_are_used_where_they_are() -> None:
    assert texts.shorten is compiled.shorten
    assert texts.on_one_line is compiled.on_one_line


FLAT = st.dictionaries(
    st.sampled_from(["a", "b", "é", 'q"', "t:"]),
    st.one_of(
        st.sampled_from(
            [
                "2020-01-01",
                "1234-",
                "x",
                "é\n",
                True,
                False,
                None,
                0,
                -7,
                10**15,
                2**53,
                2**70,
                0.5,
                1e300,
                {},
                [],
            ]
        ),
        TEXT,
    ),
    max_size=3,
)
WRITTEN = st.one_of(
    st.builds(spelled, FLAT, st.booleans()).map(lambda data: data.decode(errors="replace")),
    st.builds(lambda one, two: f'{{"a": {json.dumps(one)} , "a":{json.dumps(two)}}}', st.integers(), st.text(max_size=3)),
    st.sampled_from(["01", "-", "-0", "1.", "1e3", "9" * 15, "9" * 16, "tru", "true"]).map(lambda one: f"\n{{\"a\":{one}}} "),
    st.text(st.sampled_from('{}":,a1 \\'), max_size=12),
)  # fmt: skip


@SEARCH
@given(st.lists(WRITTEN, max_size=8))
@example(['{"a":1}', '{"a":1}x', '{"a":1,"a":2}', '{"a":"2020-01-01"}'])
def test_a_guard_sees_the_same_damage(calls: list[str]) -> None:
    found = []
    for outline in (compiled.flat_outline, texts.python_flat_outline, lambda text: None):
        with patch.object(guard, "flat_outline", outline):
            watching = guard.ArgumentsGuard()
            found.append([watching.damage(call, 0) for call in calls])
    assert found[0] == found[1] == found[2]


def test_what_is_no_text_has_no_outline() -> None:
    assert compiled.flat_outline(None) is None and compiled.flat_outline("\ud800") is None
    assert compiled.flat_outline('{"' + "k" * 600 + '":1}') is None
