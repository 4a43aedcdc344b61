"""Records that several threads meet for the first time at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS_MEET_NEW_RECORDS = """
import sys
import threading

import msgspec

from rollforge.runtime.typed_decoding import convert, decode_json, decode_msgpack

sys.setswitchinterval(1e-6)
WAYS = {
    "json": lambda kind: decode_json(b'{"f1": 1, "inner": {"f2": "x"}}', kind),
    "msgpack": lambda kind: decode_msgpack(msgspec.msgpack.encode({"f1": 1, "inner": {"f2": "x"}}), kind),
    "convert": lambda kind: convert({"f1": 1, "inner": {"f2": "x"}}, kind),
}
way = WAYS[sys.argv[1]]


def record(name, **more):
    fields = {f"f{number}": "int | str | None | list[int]" for number in range(12)} | more
    return type(msgspec.Struct)(
        name, (msgspec.Struct,), {"__annotations__": fields, "__module__": __name__} | dict.fromkeys(fields)
    )


for number in range(60):
    kind = record(f"Outer{number}", inner=record(f"Inner{number}") | None)
    start, read = threading.Barrier(8), []

    def meet():
        start.wait()
        read.append(way(kind).inner.f2)

    threads = [threading.Thread(target=meet) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == ["x"] * 8, read
"""


@pytest.mark.parametrize("way", ["json", "msgpack", "convert"])
def test_threads_that_meet_a_record_at_the_same_time_all_read_it(way: str) -> None:
    """With msgspec's own functions this program ends by a segmentation fault."""
    words = [sys.executable, "-c", THREADS_MEET_NEW_RECORDS, way]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
