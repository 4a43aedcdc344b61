"""The keys that begin lines, with the compiled reader and without it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.runtime.native import load_native
from rollforge.store import leading_keys as module

LINES = [
    (b'{"_ng_task_index":12,"_ng_rollout_index":3,"reward":1}', (12, 3)),
    (b'{"_ng_task_index":0,"_ng_rollout_index":0}', (0, 0)),
    (b'{"_ng_task_index":%s,"_ng_rollout_index":7}' % (b"9" * 18), (10**18 - 1, 7)),
    (b'{"_ng_task_index":%s,"_ng_rollout_index":7}' % (b"1" * 19), None),
    (b'{"_ng_task_index":1,"_ng_rollout_index":2', None),
    (b'{"_ng_task_index":1,"_ng_rollout_index":2.5}', None),
    (b'{"_ng_task_index":1,"_ng_rollout_index":-2}', None),
    (b'{"_ng_task_index":,"_ng_rollout_index":2}', None),
    (b'{"_ng_task_index":1,"_ng_rollout_index":', None),
    (b'{"_ng_task_index":', None),
    (b'{"_ng_task_index":"1","_ng_rollout_index":2}', None),
    (b'{"_ng_rollout_index":2,"_ng_task_index":1}', None),
    (b' {"_ng_task_index":1,"_ng_rollout_index":2}', None),
    (b"", None),
    (b"\0\0\xff", None),
]


@pytest.fixture(params=["compiled", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(module, "load_native", lambda name: None)
    elif load_native("rollforge.index._rows") is None:
        pytest.skip("rollforge was installed without a compiler")
    return str(request.param)


@pytest.mark.usefixtures("reader")
def test_only_lines_that_begin_as_our_rows_do_have_a_key() -> None:
    text = b"".join(line + b"\n" for line, _ in LINES)
    found = module.leading_keys(memoryview(text + b'{"_ng_task_index":5,"_ng_rollout_index":5}'))
    assert [tuple(row) for row in found[:, :2].tolist()] == [key or (-1, -1) for _, key in LINES]
    ends, end = [], 0
    for line, _ in LINES:
        ends.append(end := end + len(line) + 1)
    assert found[:, 2].tolist() == ends  # the torn last line has none


@pytest.mark.usefixtures("reader")
def test_a_block_without_a_whole_line_has_no_keys() -> None:
    for text in (b"", b'{"_ng_task_index":1,"_ng_rollout_index":2}'):
        assert module.leading_keys(memoryview(text)).shape == (0, 3)


@given(text=st.lists(st.sampled_from([part for line, _ in LINES for part in (line, b"\n", line[:9], b",")])))
def test_both_readers_find_the_same_keys(text: list[bytes]) -> None:
    if load_native("rollforge.index._rows") is None:
        pytest.skip("rollforge was installed without a compiler")
    block = memoryview(b"".join(text))
    with pytest.MonkeyPatch.context() as patch:
        compiled = module.leading_keys(block).tolist()
        patch.setattr(module, "load_native", lambda name: None)
        assert module.leading_keys(block).tolist() == compiled


@given(task=st.integers(0, 10**18 - 1), rollout=st.integers(0, 10**18 - 1))
def test_every_key_that_is_written_is_read(task: int, rollout: int) -> None:
    row = {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": None}
    line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    assert module.leading_keys(memoryview(line)).tolist() == [[task, rollout, len(line)]]
