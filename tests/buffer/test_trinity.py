"""The bridge to Trinity-RFT: what we write reads back, and nothing that could run code is unpickled."""

import itertools
import os
import pickle
import sqlite3
import struct

import numpy as np
import pytest

from rollforge.buffer.trinity import read_trinity, write_trinity
from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience


def make(number, **fields):
    fields = {
        "tokens": np.array([1, 2, 3, 4], dtype=np.int32),
        "prompt_length": 2,
        "mask": np.array([True, False]),
        "logprobs": np.array([-0.5, 0.0], dtype=np.float32),
        "advantage": 0.5,
        "model_version": 3,
        "created": 10.0,
        "messages": [{"role": "user", "content": "?"}],
    } | fields
    return Experience(
        id=f"m/{number}/0", task=f"m/{number}", run=f"m/{number}/0", reward=1.0, fidelity="exact", **fields
    )


def test_what_is_written_reads_back(tmp_path):
    path = tmp_path / "t.db"
    assert write_trinity(path, [make(0), make(1, truncated=True)], table="math") == 2
    first, second = read_trinity(path, table="math")
    assert (first.id, first.task, first.reward, first.model_version) == ("m/0/0", "m/0", 1.0, 3)
    assert first.created == 10.0
    assert first.tokens.tolist() == [1, 2, 3, 4]
    assert first.mask.tolist() == [True, False]
    assert first.advantages.tolist() == [0.5, 0.0]
    assert second.truncated is True


def test_trinitys_conditions_hold_for_every_row(tmp_path):
    path = tmp_path / "t.db"
    write_trinity(path, [make(7)], table="math")
    with sqlite3.connect(path) as connection:
        ((task_id, run_id, version, consumed),) = connection.execute(
            "select task_id, run_id, model_version, consumed from math"
        ).fetchall()
        ((blob,),) = connection.execute("select experience_bytes from math_blob").fetchall()
    connection.close()
    assert (task_id, run_id, version, consumed) == ("7", 0, 3, 0)
    magic, frame_version, meta_length, block_length = struct.unpack("<4sBQQ", blob[:21])
    assert (magic, frame_version) == (b"TRXP", 1)
    assert len(blob) == 21 + meta_length + block_length
    (item,) = pickle.loads(blob[21 : 21 + meta_length])["items"]
    assert item["info"]["model_version"] == 3
    assert item["info"]["use_count"] == 0
    assert (item["eid"]["batch"], item["eid"]["task"]) == ("m", 7)


def test_text_alone_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(DataError, match="no token ids") as raised:
        write_trinity(tmp_path / "t.db", [make(0, tokens=None)])
    assert "prepare" in raised.value.hint
    with pytest.raises(DataError, match="no logprobs"):
        write_trinity(tmp_path / "t.db", [make(0, logprobs=None)])


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return (os.system, ("touch /nowhere/evil",))


@pytest.mark.parametrize("framed", [True, False])
def test_a_blob_with_a_class_in_it_is_refused_and_not_run(tmp_path, framed, monkeypatch):
    path = tmp_path / "t.db"
    write_trinity(path, [make(0)])
    payload = pickle.dumps({"items": [Evil()]})
    blob = struct.pack("<4sBQQ", b"TRXP", 1, len(payload), 0) + payload if framed else payload
    with sqlite3.connect(path) as connection:
        connection.execute("update experiences_blob set experience_bytes = ?", (blob,))
    connection.close()
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(DataError, match="row 1"):
        list(read_trinity(path))
    assert ran == []


def framed(item, header=None):
    """A blob with this description, and these arrays' descriptions, as any other tool might write them."""
    metadata = pickle.dumps({"version": 1, "num_items": 1, "items": [item]})
    block = b"" if header is None else struct.pack("<Q", len(header)) + header
    return struct.pack("<4sBQQ", b"TRXP", 1, len(metadata), len(block)) + metadata + block


@pytest.mark.parametrize(
    "blob",
    [
        None,
        "text",
        framed([1]),
        framed({"eid": "a/b/c"}),
        framed({"eid": {"step": "x"}}),
        framed({"info": [1]}),
        framed({"info": {"rollforge": "x"}}),
        framed({"metrics": {"a": None}}),
        framed({}, b"xyz"),
        framed({}, b"[1]"),
        framed({}, b'{"0:tokens": {"dtype": "I32"}}'),
        framed({}, b'{"0:tokens": {"dtype": "I32", "shape": [7], "data_offsets": [0, 0]}}'),
        framed({}, b"{}").replace(struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2**60) + b"{}"),
    ],
    ids=itertools.count(),
)
def test_a_blob_of_the_wrong_shape_is_told_with_its_row(tmp_path, blob):
    path = tmp_path / "t.db"
    write_trinity(path, [make(0)])
    with sqlite3.connect(path) as connection:
        connection.execute("update experiences_blob set experience_bytes = ?", (blob,))
    connection.close()
    with pytest.raises(DataError, match="row 1"):
        list(read_trinity(path))


def test_a_torn_blob_and_a_missing_table_are_told(tmp_path):
    path = tmp_path / "t.db"
    write_trinity(path, [make(0)])
    with sqlite3.connect(path) as connection:
        connection.execute("update experiences_blob set experience_bytes = substr(experience_bytes, 1, 60)")
    connection.close()
    with pytest.raises(DataError, match="cut off"):
        list(read_trinity(path))
    with pytest.raises(DataError, match="no table 'other'"):
        list(read_trinity(path, table="other"))
    with pytest.raises(UsageError, match="no such file"):
        list(read_trinity(tmp_path / "nothing.db"))
