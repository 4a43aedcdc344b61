"""A line of any size costs bounded memory, packed or not: beyond the limit it is skipped and listed."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rollforge import rollouts, tasks
from rollforge.errors import DataError
from rollforge.index import jsonl, open_index
from rollforge.steps.verify.verify_worker import lines_between
from rollforge.store import RunFiles, reading
from rollforge.store.object_lines import pack
from rollforge.store.shard_storage import lines_within
from rollforge.tasks import containers
from tests.builders import make_rollout, write_rows

LIMIT = 1 << 16


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", LIMIT)
    monkeypatch.setattr(jsonl, "BLOCK", 1 << 12)


def lines_with(long: bytes) -> bytes:
    rows = [json.dumps(make_rollout(n, 0, n / 2)).encode() for n in range(3)]
    return b"\n".join([rows[0], long, rows[1], rows[2]]) + b"\n"


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("end", [b'"}', b""])
def test_a_line_beyond_the_limit_is_skipped_and_listed(
    small_limit: None, tmp_path: Path, ending: str, end: bytes
) -> None:
    text = lines_with(b'{"reward":1,"t":"' + b"x" * (3 * LIMIT) + end)
    path = tmp_path / f"rollouts.jsonl{ending}"
    path.write_bytes(gzip.compress(text) if ending else text)
    with open_index(path) as index:
        assert index.table(["task", "line"]).to_pylist() == [
            {"task": 0, "line": 1}, {"task": 1, "line": 3}, {"task": 2, "line": 4},
        ]  # fmt: skip
        [bad] = index.rejects
    assert bad.line == 2 and "longer than" in bad.reason and not bad.is_kept


def test_a_last_line_beyond_the_limit_is_listed_once(small_limit: None, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(lines_with(b"{}") + b'{"t":"' + b"x" * (3 * LIMIT))
    with open_index(path) as index:
        assert len(index) == 4 and [bad.line for bad in index.rejects] == [5]


def test_a_bomb_costs_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(make_rollout(0, 0, 1.0)).encode() + b'\n{"t":"')
        for _ in range(256):
            file.write(b"x" * (4 << 20))
        file.write(b'"}\n')
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from rollforge.index import open_index\n"
        "with open_index(sys.argv[1]) as index: print(len(index), index.rejected_lines, index.rejects[0].reason)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    first, peak = done.stdout.splitlines()
    assert first == "1 1 the line is longer than 256 MB; skipped"
    assert int(peak) < 900 << 10


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, containers, rollouts):
        monkeypatch.setattr(module, "LONGEST_LINE", LIMIT)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1 << 12)


def packed(ending: str, text: bytes) -> bytes:
    return gzip.compress(text) if ending == ".gz" else pack(text) if ending == ".zst" else text


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_task_line_beyond_the_limit_is_a_bad_row_and_hides_no_other(
    short_lines: None, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    rows = [b'{"prompt":"a"}', b'{"prompt":"' + b"x" * (3 * LIMIT) + b'"}', b'{"prompt":"b"}']
    path.write_bytes(packed(ending, b"\n".join(rows) + b"\n"))
    lines = dict(tasks.read_lines(path))
    assert sorted(lines) == [1, 2, 3] and max(map(len, lines.values())) < 100
    assert [tasks.to_task_row(lines[n])["prompt"] for n in (1, 3)] == ["a", "b"]
    with pytest.raises(tasks.BadRow, match="a line longer than 256 MB"):
        tasks.to_task_row(lines[2])


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_an_array_is_read_by_blocks_and_its_elements_are_bounded(
    short_lines: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(containers, "ARRAY_CHUNK", 1 << 12)
    path = tmp_path / f"tasks.json{ending}"
    rows = [{"prompt": f"{number} ü" * 9} for number in range(5000)]
    text = "\ufeff" + json.dumps(rows, ensure_ascii=False)  # one line
    path.write_bytes(packed(ending, text.encode()))
    assert max(map(len, containers._text_chunks(path))) <= 1 << 12
    assert [json.loads(row) for _, row in tasks.read_lines(path)] == rows
    path.write_bytes(packed(ending, b'[{"prompt":"a"},{"prompt":"' + b"x" * (3 * LIMIT) + b'"}]'))
    with pytest.raises(DataError, match="element 2 of the JSON array"):
        list(tasks.read_lines(path))
    path.write_bytes(packed(ending, b'[{"prompt":\n"a"},\n{"prompt":"\xff"}]'))
    with pytest.raises(DataError, match=":3: not UTF-8"):
        list(tasks.read_lines(path))


def test_a_line_of_a_table_beyond_the_limit_is_an_error(short_lines: None, tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(b"prompt\na\n" + b"x" * (3 * LIMIT) + b"\n")
    with pytest.raises(DataError, match=":3: NUL bytes, or a line longer"):
        list(tasks.read_lines(path))


def test_lines_of_a_part_are_bounded_and_end_where_the_part_does(short_lines: None, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"{}\n" + b"x" * (3 * LIMIT) + b"\n[]\n{} later\n")
    assert list(lines_within(path, 3 * LIMIT + 7)) == [b"{}\n", b"\0\n", b"[]\n"]
    assert list(lines_within(path, 3 * LIMIT - 50)) == [b"{}\n", b"\0"]


def test_a_line_that_grows_beyond_the_limit_is_not_held(short_lines: None, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    lines = rollouts.GrowingLines(path)
    seen = []
    with path.open("wb", buffering=0) as file:
        for piece in (b"{}\n", *[b"x" * (LIMIT // 2)] * 7, b"\n[]\n"):
            file.write(piece)
            seen += lines.read()
            assert len(lines._rest) <= LIMIT
    lines.close()
    assert [number for number, _ in seen] == [1, 2, 3]
    assert seen[1][1].startswith(b"\0") and seen[2][1] == b"[]\n"


def test_verify_finds_the_lines_behind_one_that_is_too_long(short_lines: None, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [b'{"prompt":"a"}', b'{"prompt":"' + b"x" * (3 * LIMIT) + b'"}', b'{"prompt":"b"}']
    path.write_bytes(b"\n".join(rows) + b"\n")
    for name in ("tasks.jsonl", "tasks.jsonl.gz"):
        (tmp_path / name).write_bytes(packed(Path(name).suffix, b"\n".join(rows) + b"\n"))
        with rollouts.TaskFields(RunFiles(tmp_path / "run"), tmp_path / name) as fields:
            found = {index: task for index in range(3) if (task := fields.get(index)) is not None}
            places = fields._scan_prompts()
        assert {index: task["prompt"] for index, task in found.items()} == {0: "a", 2: "b"}
        assert sorted(place.line for place in places.values()) == [1, 3]
    assert list(lines_between(path, 0, path.stat().st_size)) == [rows[0] + b"\n", b"\0\n", rows[2] + b"\n"]
    assert list(lines_between(path, 20, path.stat().st_size)) == [rows[2] + b"\n"]
    assert list(lines_between(path, 3, 20)) == [b"\0\n"]


def test_a_bomb_of_tasks_costs_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(256):
            file.write(b"x" * (4 << 20))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from rollforge.tasks.containers import container_of, read_lines\n"
        "print(container_of(sys.argv[1]), list(read_lines(sys.argv[1])))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    ).replace("sys.argv[1]", "__import__('pathlib').Path(sys.argv[1])")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    first, peak = done.stdout.splitlines()
    assert first == r"lines [(1, b'\x00')]"
    assert int(peak) < 900 << 10


def test_offsets_that_lead_out_of_an_arrow_file_have_a_message(tmp_path: Path) -> None:
    """They ended the process with a signal."""
    texts = pa.table({"prompt": pa.array([["a", "b"], ["c"]])})
    with (
        pa.OSFile(str(tmp_path / "tasks.arrow"), "wb") as file,
        pa.ipc.new_stream(file, texts.schema) as writer,
    ):
        writer.write_table(texts)
    data = (tmp_path / "tasks.arrow").read_bytes()
    offsets = struct.pack("<4i", 0, 1, 2, 3)
    assert data.count(offsets) == 1
    wild = struct.pack("<4i", 0, 1 << 30, (1 << 30) + 5, (1 << 30) + 6)
    (tmp_path / "tasks.arrow").write_bytes(data.replace(offsets, wild))
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "validate", "tasks.arrow"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "cannot be read as Arrow" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "run"), 0),
        (("verify", "run", "--verifier", "exact", "--progress", "none"), 3),
        (("collect", "-i", "tasks.jsonl", "-o", "new", "-m", "simulated", "--no-verify"), 2),
    ],
)
def test_a_line_nested_200_000_deep_is_a_bad_line(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    (tmp_path / "tasks.jsonl").write_bytes(b'{"prompt":' + deep + b"}\n")
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, None)])
    (tmp_path / "run" / "rollouts_run.json").write_text('{"rollforge": "0.1.0", "state": "done"}')
    task = {**make_rollout(0, 0, None), "expected_answer": "7"}
    write_rows(tmp_path / "run" / "rollouts_tasks.jsonl", [task])
    for name in ("rollouts.jsonl", "rollouts_failures.jsonl"):
        with (tmp_path / "run" / name).open("ab") as file:
            file.write(b'{"_ng_task_index":0,"_ng_rollout_index":1,"x":' + deep + b"}\n")
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
