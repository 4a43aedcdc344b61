"""The index: what it finds in rows of every kind, and how it stays true to the file."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollforge.errors import DataError, UsageError
from rollforge.index import Index, open_index
from tests.builders import make_rollout, write_rows


def test_every_number_of_a_row_becomes_a_column(tmp_path: Path) -> None:
    row = make_rollout(
        3, 1, 0.5, accuracy=True, extracted_answer="42", reward_components={"format": 0.25, "note": "x"},
        usage={"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 7, "total_tokens": 12},
    )  # fmt: skip
    index = open_index(write_rows(tmp_path / "rollouts.jsonl", [row]))
    [found] = index.table().to_pylist()
    assert found["task"] == 3 and found["rollout"] == 1 and found["reward"] == 0.5
    assert found["accuracy"] == 1.0 and found["extracted_answer"] == "42"
    assert found["reward_components.format"] == 0.25
    assert found["input_tokens_details.cached_tokens"] == 2 and found["total_tokens"] == 12
    assert (
        found["answer_chars"] == len("the answer is 42") and found["turns"] == 1 and found["tool_calls"] == 0
    )
    assert found["finish_reason"] == "stop" and not found["is_truncated"] and not found["is_empty"]
    assert found["agent"] == "model_call" and found["model"] == "simulated"
    assert json.loads(next(index.read([0]))) == row


def test_key_order_and_white_space_do_not_change_the_prompt_hash(tmp_path: Path) -> None:
    plain = make_rollout(0, 0)
    turned = json.loads(json.dumps(plain))
    turned["responses_create_params"]["input"] = [
        {"type": "message", "content": "question 0", "role": "user"}
    ]
    as_text = json.loads(json.dumps(plain))
    as_text["responses_create_params"]["input"] = "question 0"
    spaced = json.dumps(turned, indent=1).replace("\n", " ").encode()
    index = open_index(write_rows(tmp_path / "r.jsonl", [plain, spaced, as_text, make_rollout(1, 0)]))
    hashes = index.table(["prompt_hash"], order_by="row").column(0).to_pylist()
    # The first three have the same key too, so only the last of them counts.
    assert index.duplicate_count == 2 and len(set(hashes)) == 2
    assert index.select("select count(distinct prompt_hash) from rollouts where task = 0").to_pylist() == [
        {"count(DISTINCT prompt_hash)": 1}
    ]


def test_rows_without_indices_group_by_prompt(tmp_path: Path) -> None:
    rows = [make_rollout(None, None, prompt=text, agent=None) for text in ("b", "a", "b", "b", "a")]
    index = open_index(write_rows(tmp_path / "r.jsonl", rows))
    found = index.table(["task", "rollout"]).to_pylist()
    assert [(row["task"], row["rollout"]) for row in found] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]


def test_rows_in_chat_form_are_rollouts_too(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
            "reward": 1,
        },
        {"prompt": "hi", "completion": "hello there", "reward": 0.5},
        {
            "prompt": [{"role": "user", "content": "hi"}],
            "completion": [{"role": "assistant", "content": "yo"}],
            "reward": 0,
        },
    ]
    index = open_index(write_rows(tmp_path / "r.jsonl", rows))
    found = index.table(["task", "rollout", "answer_chars", "reward", "turns"]).to_pylist()
    assert [row["task"] for row in found] == [0, 0, 0] and [row["rollout"] for row in found] == [0, 1, 2]
    assert [row["answer_chars"] for row in found] == [5, 11, 2] and [row["turns"] for row in found] == [
        1,
        1,
        1,
    ]


BAD = {
    "torn": b'{"reward": 1, "response": {"out',
    "not an object": b"[1, 2]",
    "a number alone": b"17",
    "invalid UTF-8": json.dumps(make_rollout(9, 0)).encode().replace(b"answer", b"ans\xff\xfeer"),
    "nested too deeply": b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "words": b"reward = 1",
}


def test_a_bad_line_costs_only_itself_and_is_listed_with_its_place(tmp_path: Path) -> None:
    lines: list[bytes] = []
    for number, bad in enumerate(BAD.values()):
        lines += [json.dumps(make_rollout(number, 0)).encode(), bad, b""]
    path = write_rows(tmp_path / "rollouts.jsonl", lines)
    index = open_index(path)
    assert len(index) == len(BAD) and index.rejected_lines == len(BAD)
    data = path.read_bytes()
    for place, (bad, line) in enumerate(zip(index.rejects, BAD.values(), strict=True)):
        assert bad.line == 3 * place + 2 and bad.file == str(path) and bad.reason and not bad.is_kept
        assert data[bad.offset : bad.offset + len(line)] == line


def test_nan_and_repeated_keys_keep_the_row_and_are_noted(tmp_path: Path) -> None:
    nan = json.dumps(make_rollout(0, 0, float("nan"), score=2.0)).encode()
    twice = json.dumps(make_rollout(1, 0, 0.0)).encode()[:-1] + b', "reward": 1.0}'
    index = open_index(write_rows(tmp_path / "r.jsonl", [nan, twice]))
    found = index.table(["reward", "score"]).to_pylist()
    assert found == [{"reward": None, "score": 2.0}, {"reward": 1.0, "score": None}]
    assert index.rejected_lines == 0 and index.noted_lines == 2
    assert "NaN" in index.rejects[0].reason and "'reward'" in index.rejects[1].reason


def test_a_text_in_a_number_field_is_missing_there_and_counted(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, score=1),
        make_rollout(0, 1, score="high"),
        make_rollout(0, 2, score=[1]),
        make_rollout(0, 3, score=2.5),
    ]
    index = open_index(write_rows(tmp_path / "r.jsonl", rows))
    assert index.table(["score"]).column(0).to_pylist() == [1.0, None, None, 2.5]
    assert index.mixed == {"score": 1}


@pytest.mark.parametrize(
    "response", [None, "text", [], {"output": "x"}, {"output": [1, {"content": 5}], "usage": {"a": "b"}}]
)
def test_a_response_of_any_shape_does_not_cost_the_row(tmp_path: Path, response: object) -> None:
    row = make_rollout(0, 0, 0.5) | {"response": response, "agent_ref": "someone", "_ng_task_index": "first"}
    index = open_index(write_rows(tmp_path / "r.jsonl", [row]))
    assert index.table(["reward"]).to_pylist() == [{"reward": 0.5}]


def test_the_last_of_two_rows_with_one_key_counts(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 0.0), make_rollout(0, 1, 0.0), make_rollout(0, 0, 1.0)]
    index = open_index(write_rows(tmp_path / "r.jsonl", rows))
    assert index.table(["row", "reward"]).to_pylist() == [
        {"row": 1, "reward": 0.0},
        {"row": 2, "reward": 1.0},
    ]
    [duplicate] = index.duplicates
    assert (duplicate.row, duplicate.overruled_by, duplicate.line) == (0, 2, 1) and index.duplicate_count == 1


def test_growth_extends_the_index_and_any_other_change_rebuilds_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, n) for n in range(3)])
    open_index(path).close()
    parts = set((tmp_path / "rollouts_index").rglob("*.parquet"))
    with path.open("ab") as file:
        file.write(json.dumps(make_rollout(0, 3, 0.0)).encode() + b"\n")
    with open_index(path) as index:
        assert len(index) == 4 and [json.loads(line)["_ng_rollout_index"] for line in index.read([3, 0])] == [
            3,
            0,
        ]
        assert index.table(["line"]).column(0).to_pylist() == [1, 2, 3, 4]
    assert parts < set((tmp_path / "rollouts_index").rglob("*.parquet"))
    write_rows(path, [make_rollout(0, n, 0.5) for n in range(9)])
    with open_index(path) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [0.5] * 9
    assert not parts & set((tmp_path / "rollouts_index").rglob("*.parquet"))


def test_an_unfinished_last_line_is_read_again_once_it_is_whole(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0)])
    line = json.dumps(make_rollout(0, 1)).encode()
    with path.open("ab") as file:
        file.write(line[:50])
    with open_index(path) as index:
        assert len(index) == 1 and "torn last line" in index.rejects[0].reason and index.rejects[0].line == 2
    with path.open("ab") as file:
        file.write(line[50:])
    with open_index(path) as index:
        assert len(index) == 2 and not index.rejects
    with path.open("ab") as file:
        file.write(b"\n" + json.dumps(make_rollout(0, 2)).encode() + b"\n")
    with open_index(path) as index:
        assert index.table(["rollout"]).column(0).to_pylist() == [0, 1, 2]


def test_the_index_is_safe_to_delete(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0)])
    open_index(path).close()
    shutil.rmtree(tmp_path / "rollouts_index")
    assert len(open_index(path)) == 1


def _zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return bytes(zstd.compress(data))


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", _zstd)])
def test_compressed_files_read_like_plain_ones(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    rows = [make_rollout(task, 0, task / 10) for task in range(10)]
    plain = write_rows(tmp_path / "a" / "rollouts.jsonl", rows)
    packed = tmp_path / "b" / f"rollouts.jsonl.{ending}"
    packed.parent.mkdir()
    packed.write_bytes(pack(plain.read_bytes()))
    one, two = open_index(plain), open_index(packed)
    names = ["row", "line", "offset", "length", "task", "reward", "prompt_hash", "answer_hash"]
    assert one.table(names) == two.table(names)
    assert list(one.read([7, 2, 3])) == list(two.read([7, 2, 3]))


def test_several_files_are_one_run(tmp_path: Path) -> None:
    for shard in range(3):
        write_rows(
            tmp_path / f"part{shard}.jsonl", [make_rollout(shard * 2 + n, 0, float(n)) for n in range(2)]
        )
    write_rows(
        tmp_path / "part0_failures.jsonl", [{"_ng_task_index": 9, "_ng_rollout_index": 0, "class": "timeout"}]
    )
    index = open_index(str(tmp_path / "part*.jsonl"))
    found = index.table(["task", "file", "row"]).to_pylist()
    assert [row["task"] for row in found] == list(range(6)) and len({row["file"] for row in found}) == 3
    assert [json.loads(line)["_ng_task_index"] for line in index.read([5, 0, 3])] == [5, 0, 3]
    assert index.select("select class from failures").to_pylist() == [{"class": "timeout"}]


def test_one_number_for_two_prompts_in_two_files_means_two_tasks(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "one.jsonl", [make_rollout(0, 0, prompt="a"), make_rollout(1, 0, prompt="b")])
    two = write_rows(tmp_path / "two.jsonl", [make_rollout(0, 0, prompt="c"), make_rollout(1, 0, prompt="b")])
    index = open_index([one, two])
    assert index.table(["task"]).column(0).to_pylist() == [0, 2, 1] and index.duplicate_count == 1


def test_two_commands_may_build_at_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0) for task in range(2000)])
    script = f"from rollforge.index import open_index; print(len(open_index({str(path)!r}).table(['row'])))"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == [b"2000"] * 3


def test_ranges_scanned_apart_join_to_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_rollout(task, 0, text="x" * (task % 7) * 40) for task in range(300)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    lines = path.read_bytes().split(b"\n")
    lines.insert(150, b"{bad")
    path.write_bytes(b"\n".join(lines))
    whole = open_index(path)
    table = whole.table()
    bad = whole.rejects
    whole.close()
    shutil.rmtree(tmp_path / "rollouts_index")
    monkeypatch.setattr("rollforge.index.build.RANGE", 5_000)
    monkeypatch.setattr("rollforge.index.build.LEAST_RANGE", 2_000)
    for _ in ("at hand", "from disk"):
        with open_index(path, workers=2) as index:
            assert index.table(table.column_names) == table and index.rejects == bad
            assert [json.loads(line)["_ng_task_index"] for line in index.read([299, 0, 150])] == [299, 0, 150]
    assert len(list((tmp_path / "rollouts_index").rglob("*.parquet"))) > 20


def test_parts_that_have_a_column_in_all_rows_or_in_some_are_one_index(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "rollouts.jsonl", [make_rollout(task, 0, 1.0, style=1) for task in (0, 2, 4)]
    )
    with open_index(path) as index:
        assert len(index) == 3
    part = next((tmp_path / "rollouts_index").rglob("*.parquet"))
    table = pq.read_table(part)
    assert not table.schema.field("task").nullable and table.schema.field("attempt").nullable
    pq.write_table(pa.table(table.columns, names=table.column_names), part)  # every column may be missing now
    more = write_rows(tmp_path / "more.jsonl", [make_rollout(task, 0, None) for task in (1, 3)])
    with path.open("ab") as file:
        file.write(more.read_bytes())
    with open_index(path) as index:
        assert index.table(["task", "reward", "style"]).to_pydict() == {
            "task": [0, 2, 4, 1, 3],
            "reward": [1.0, 1.0, 1.0, None, None],
            "style": [1.0, 1.0, 1.0, None, None],
        }
        assert index.select("select count(reward) as n, max(task) as t from rollouts").to_pylist() == [
            {"n": 3, "t": 4}
        ]
        assert np.isnan(index.floats(["style"])["style"]).tolist() == [False] * 3 + [True] * 2


def write_verdicts(path: Path, *verdicts: dict[str, object]) -> None:
    write_rows(
        path,
        [{"_ng_task_index": 0, "_ng_rollout_index": 0, "verifier": "math", "at": 1.0} | v for v in verdicts],
    )


def test_a_later_verdict_fills_only_what_is_unjudged(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "rollouts.jsonl",
        [make_rollout(0, 0, None), make_rollout(0, 1, 1.0, _rf={"verifier": "exact"})],
    )
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": 0.0}, {"reward": 0.75, "at": 2.0, "library_reward": 1}, {"_ng_rollout_index": 1, "reward": 0.0},
    )  # fmt: skip
    found = open_index(path).table(["reward", "verifier", "library_reward"]).to_pylist()
    assert found[0] == {"reward": 0.75, "verifier": "math", "library_reward": 1.0}
    assert found[1] == {"reward": 1.0, "verifier": "exact", "library_reward": None}


def test_a_verdict_without_a_reward_displaces_no_reward_of_another_verifier(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, n, None) for n in range(4)])
    verdicts: list[dict[str, object]] = [{"_ng_rollout_index": n, "reward": 0.5} for n in range(4)]
    verdicts += [
        {"verifier": "later", "_ng_rollout_index": 0, "reward": None, "error": "crashed", "at": 2.0},
        {"verifier": "later", "_ng_rollout_index": 1, "reward": None, "at": 2.0},
        {"verifier": "later", "_ng_rollout_index": 2, "reward": 1.0, "at": 2.0},
        {"verifier": "later", "_ng_rollout_index": 2, "reward": 1.0, "mask_sample": True, "at": 3.0},
        {"verifier": "math", "_ng_rollout_index": 3, "reward": None, "error": "repeat failed", "at": 2.0},
        {"verifier": "earlier", "_ng_rollout_index": 3, "reward": None, "error": "crashed", "at": 0.5},
    ]
    write_verdicts(tmp_path / "rollouts_verdicts.jsonl", *verdicts)

    def rewards(verifier: str | None) -> list[tuple[float | None, str]]:
        rows = (
            open_index(path, verifier=verifier).table(["reward", "verifier"], order_by="rollout").to_pylist()
        )
        return [(row["reward"], row["verifier"]) for row in rows]

    # A repeat of the same verifier is its newest word, also when it failed.
    assert rewards(None) == [(0.5, "math"), (0.5, "math"), (0.5, "math"), (None, "math")]
    assert [reward for reward, _ in rewards("math")] == [0.5, 0.5, 0.5, None]
    assert [reward for reward, _ in rewards("later")] == [None] * 4


def test_what_verdicts_bring_comes_from_the_chosen_verifier_alone(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, n, 1.0, acc=1.0, note="inline", level=3, other=9, _rf={"verifier": "exact"})
        for n in range(3)
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": 0.25, "acc": 0.5, "note": "later", "other": "text"},
        {"_ng_rollout_index": 1, "reward": 0.75},
    )
    columns = ["reward", "acc", "note", "other", "level", "output_tokens"]
    found = [tuple(row.values()) for row in open_index(path, verifier="math").table(columns).to_pylist()]
    assert found == [(0.25, 0.5, "later", None, 3, 20), (0.75, *[None] * 3, 3, 20), (*[None] * 4, 3, 20)]
    for verifier in ("exact", None):
        found = [
            tuple(row.values()) for row in open_index(path, verifier=verifier).table(columns).to_pylist()
        ]
        assert found == [(1.0, 1.0, "inline", 9, 3, 20)] * 3


def test_the_inline_verdict_is_an_older_one_of_its_verifier(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, n, 1.0, acc=1.0, note="inline", _rf={"verifier": "math", "fingerprint": "old"})
        for n in range(4)
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": 0.25, "note": "mended", "at": 1.0},
        {"reward": 0.5, "note": "mended again", "at": 2.0},
        {"reward": 0.75, "acc": 0.1, "verifier": "other", "at": 3.0},
        {"_ng_rollout_index": 1, "reward": None, "error": "hung", "at": 1.0},
        {"_ng_rollout_index": 1, "reward": 0.75, "verifier": "other", "at": 3.0},
        {"_ng_rollout_index": 2, "reward": 0.75, "verifier": "other", "at": 3.0},
    )
    columns = ["reward", "acc", "note", "verifier"]
    with open_index(path) as index:
        found = [tuple(row.values()) for row in index.table(columns, order_by="rollout").to_pylist()]
    assert found == [
        (0.5, None, "mended again", "math"),
        (None, None, None, "math"),
        *[(1.0, 1.0, "inline", "math")] * 2,
    ]


def test_a_verdict_from_before_a_rollout_was_made_again_is_not_about_it(tmp_path: Path) -> None:
    own = {"verifier": "math", "started": 10.0}
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, n, 1.0, _rf=own) for n in range(3)])
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": 0.0, "at": 5.0},
        {"_ng_rollout_index": 1, "reward": 0.5, "at": 12.0},
        {"_ng_rollout_index": 2, "reward": 0.25, "at": None},
    )
    with open_index(path) as index:
        assert index.table(["reward"], order_by="rollout").column(0).to_pylist() == [1.0, 0.5, 0.25]


def test_recorded_rewards_stay_whatever_was_judged_later(tmp_path: Path) -> None:
    rows = [make_rollout(0, n, 1.0 if n < 2 else None, _rf={"verifier": "math"}) for n in range(3)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": None, "error": "hung"},
        {"_ng_rollout_index": 1, "reward": 0.5},
        {"_ng_rollout_index": 2, "reward": 0.25},
    )

    def rewards(verifier: str | None) -> list[float | None]:
        with open_index(path, verifier=verifier) as index:
            assert index.verifier is None
            return index.table(["reward"], order_by="rollout").column(0).to_pylist()

    assert rewards("recorded") == [1.0, 1.0, 0.25]
    assert rewards(None) == [None, 0.5, 0.25]
    (tmp_path / "rollouts_run.json").write_text('{"verdict_of_record": "recorded"}')
    assert rewards(None) == [1.0, 1.0, 0.25]


def test_the_chosen_verifier_alone_judges(tmp_path: Path) -> None:
    rows = [make_rollout(0, n, 1.0, _rf={"verifier": "exact"}) for n in range(3)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    write_verdicts(
        tmp_path / "rollouts_verdicts.jsonl",
        {"reward": 0.25},
        {"_ng_rollout_index": 2, "reward": None, "error": "hung"},
    )
    assert open_index(path, verifier="math").table(["reward"]).column(0).to_pylist() == [0.25, None, None]
    assert open_index(path, verifier="exact").table(["reward"]).column(0).to_pylist() == [1.0, 1.0, 1.0]
    (tmp_path / "rollouts_run.json").write_text('{"verdict_of_record": "math"}')
    assert open_index(path).table(["reward"]).column(0).to_pylist() == [0.25, None, None]
    with pytest.raises(UsageError, match="did you mean 'math'"):
        open_index(path, verifier="maths")


def test_tasks_come_from_the_tasks_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(4, 0)])
    write_rows(
        tmp_path / "rollouts_tasks.jsonl",
        [{"_ng_task_index": n, "expected_answer": str(n), "level": n} for n in range(6)],
    )
    index = open_index(path)
    assert list(index.task_rows([4, 2, 99])) == [
        (2, {"_ng_task_index": 2, "expected_answer": "2", "level": 2}),
        (4, {"_ng_task_index": 4, "expected_answer": "4", "level": 4}),
    ]
    assert index.select("select expected_answer, level from tasks where task = 3").to_pylist() == [
        {"expected_answer": "3", "level": 3.0}
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')", "select * from '/etc/hostname'", "copy rollouts to 'x.csv'", "drop view rollouts",
        "select 1; select 2", "attach 'x.db'", "set memory_limit = '1GB'", "install httpfs", "select * from read_text('README.md')",
    ],
)  # fmt: skip
def test_sql_reads_the_index_and_nothing_else(tmp_path: Path, sql: str) -> None:
    index = open_index(write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0)]))
    with pytest.raises(UsageError):
        index.select(sql)


def test_a_wrong_column_names_the_nearest_ones(tmp_path: Path) -> None:
    index = open_index(write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0, accuracy=True)]))
    with pytest.raises(UsageError, match="no column 'acuracy'; did you mean 'accuracy'"):
        index.table(where="acuracy > 0.5")
    for wrong in ("reward >", "true; drop view rollouts", "", "reward = 1) group by (1"):
        with pytest.raises(UsageError):
            index.table(where=wrong)


def test_a_run_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        open_index(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"no rollouts\.jsonl in this folder"):
        open_index(tmp_path)


def test_an_empty_file_is_an_empty_run(tmp_path: Path) -> None:
    index = open_index(write_rows(tmp_path / "rollouts.jsonl", []))
    assert len(index) == 0 and index.table(["task", "reward"]).num_rows == 0


def test_a_file_and_its_packed_copy_keep_apart(tmp_path: Path) -> None:
    plain = write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0, 1.0)])
    packed = tmp_path / "r.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(make_rollout(1, 0, 0.0)).encode() + b"\n"))
    assert open_index([plain, packed]).table(["task", "reward"]).to_pylist() == [
        {"task": 0, "reward": 1.0},
        {"task": 1, "reward": 0.0},
    ]


def test_a_huge_line_is_a_row_like_any_other(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "r.jsonl",
        [make_rollout(0, 0), make_rollout(0, 1, text="é" * 3_000_000), make_rollout(0, 2)],
    )
    index = open_index(path)
    assert index.table(["answer_chars"]).column(0).to_pylist() == [16, 3_000_000, 16]
    assert json.loads(next(index.read([2])))["_ng_rollout_index"] == 2


def test_odd_usage_and_odd_numbers_cost_only_themselves(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, usage={"input_tokens": "many", "output_tokens": 3, "seats": 2}),
        make_rollout(0, 1, big=10**400),
        make_rollout(0, 2, usage={"input_tokens": 7}),
    ]
    found = (
        open_index(write_rows(tmp_path / "r.jsonl", rows))
        .table(["input_tokens", "output_tokens", "seats", "reward"])
        .to_pylist()
    )
    assert [row["reward"] for row in found] == [1.0, 1.0, 1.0]
    assert (
        [row["output_tokens"] for row in found] == [3.0, 20.0, None]
        and found[0]["seats"] == 2
        and found[2]["input_tokens"] == 7
    )


def test_the_columns_named_without_sql_are_those_of_the_tables(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0, turns=3, accuracy=0.5, note="x", style="a"), make_rollout(0, 1, style=2)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    tasks = [{"_ng_task_index": 0, "level": 3, "topic": "x", "agent": "taken"}, {"level": "hard"}]
    write_rows(tmp_path / "rollouts_tasks.jsonl", tasks)
    (tmp_path / "plain").mkdir()
    for one in (path, write_rows(tmp_path / "plain" / "rollouts.jsonl", [make_rollout(None, None)])):
        with open_index(one) as index:
            for table in ("rollouts", "tasks", "failures"):
                described = index.connection().execute(f"DESCRIBE {table}").fetchall()
                assert index.columns(table) == [name for name, *_ in described]


def test_rows_and_lines_are_numbered_alike_with_and_without_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollforge.index.build.CHUNK", 3)
    monkeypatch.setattr("rollforge.index.build.RANGE", 4096)
    monkeypatch.setattr("rollforge.index.build.LEAST_RANGE", 1024)
    lines = [b"{" if n % 7 == 3 else make_rollout(n, 0, 0.5) for n in range(40)]
    path = write_rows(tmp_path / "rollouts.jsonl", lines)
    with open_index(path, workers=1) as index:
        names = ["row", "line", "offset", "task"]
        assert index.table(names) == index.select(
            'SELECT row, line, "offset", task FROM rollouts ORDER BY row'
        )


def test_bad_lines_of_the_files_beside_the_rollouts_are_listed_and_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    for name in ("tasks", "failures", "verdicts"):
        write_rows(tmp_path / f"rollouts_{name}.jsonl", [b"{torn"])
    with open_index(path) as index:
        assert index.rejected_lines == 3
        assert [Path(bad.file).name for bad in index.rejects] == [
            f"rollouts_{name}.jsonl" for name in ("tasks", "failures", "verdicts")
        ]


def test_an_edit_in_the_middle_is_seen_although_the_file_has_grown_too(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, 1.0, note="x" * 500) for task in range(400)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    open_index(path).close()
    data = path.read_bytes()
    lines = data.split(b"\n")
    lines[200] = lines[200].replace(b'"reward": 1.0', b'"reward": 0.0')
    with path.open("r+b") as file:
        file.write(b"\n".join(lines))
        file.seek(len(data))
        file.write(lines[0].replace(b'"_ng_task_index": 0', b'"_ng_task_index": 400') + b"\n")
    with open_index(path) as index:
        rewards = index.table(["reward"]).column(0).to_pylist()
    assert (len(rewards), sum(rewards)) == (401, 400)


@pytest.mark.parametrize("number", [2**53, 2**60, 2**70])
def test_a_task_number_too_large_to_be_told_apart_is_noted(tmp_path: Path, number: int) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0) | {"_ng_task_index": number}])
    with open_index(path) as index:
        assert index.noted_lines == 1 and "too large" in index.rejects[0].reason


def test_an_index_removed_while_it_is_read_is_told_so(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    open_index(path).close()
    with open_index(path) as index:
        assert index.select("SELECT reward FROM rollouts").num_rows == 1
        shutil.rmtree(tmp_path / "rollouts_index")
        with pytest.raises(DataError, match="removed while it was read"):
            index.table(["reward"])
        with pytest.raises(DataError, match="removed while it was read"):
            index.select("SELECT sum(reward) FROM rollouts")


def test_no_workers_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    with pytest.raises(UsageError, match="-1 workers"):
        open_index(path, workers=-1)


def test_every_number_of_usage_is_a_column_however_deep_it_stands(tmp_path: Path) -> None:
    usage = {
        "output_tokens": 3,
        "cost": {"total": 0.5, "by": {"input": 0.2, "of": {"cache": 0.1}}},
        "odd": [1],
    }
    deep: Any = {"bottom": 7}
    for _ in range(200):
        deep = {"d": deep}
    rows = [make_rollout(0, 0, usage=usage), make_rollout(0, 1), make_rollout(0, 2, usage={"deep": deep})]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        found = index.table(["cost.total", "cost.by.input", "cost.by.of.cache", "output_tokens"]).to_pydict()
        bottom = index.table(["deep." + "d." * 200 + "bottom"]).column(0).to_pylist()
    assert [found[name][0] for name in found] == [0.5, 0.2, 0.1, 3]
    assert found["cost.by.input"][1:] == [None, None] and bottom == [None, None, 7]


def test_a_number_that_no_float_holds_costs_only_itself(tmp_path: Path) -> None:
    odd = make_rollout(0, 0, 1.0) | {"x": 1}
    line = json.dumps(odd).replace('"x": 1', '"x": 1e999').replace('"reward": 1.0', '"reward": -1e400')
    line = line.replace('"input_tokens": 10', '"input_tokens": 1e999')
    usage = {"input_tokens": 3, "output_tokens_details": {"reasoning_tokens": 7}}
    good = make_rollout(1, 0, 1.0) | {"x": 5}
    good["response"]["usage"] = usage
    with open_index(write_rows(tmp_path / "rollouts.jsonl", [line.encode(), good])) as index:
        names = ["reward", "x", "input_tokens", "output_tokens", "output_tokens_details.reasoning_tokens"]
        found = [list(row.values()) for row in index.table(names, order_by="row").to_pylist()]
        assert "reward: expected a number" in index.rejects[0].reason
    assert found == [[None, None, None, 20, None], [1.0, 5, 3, None, 7]]


@pytest.mark.parametrize("style", ["compact", "spaced"])
@pytest.mark.parametrize("number", ["1e999", "1" * 5000, "-" + "9" * 350])
@pytest.mark.parametrize("word", ["NaN", "1"])
def test_numbers_beyond_all_bounds_never_stop_the_pass(
    tmp_path: Path, style: str, number: str, word: str
) -> None:
    row = f'{{"x": {number}, "y": {word}, "reward": 1.0, "_ng_task_index": 0, "_ng_rollout_index": 0, '
    row += f'"responses_create_params": {{"input": [{{"role": "user", "content": "q", "n": {number}}}]}}}}'
    if style == "compact":
        row = row.replace(" ", "")
    with open_index(
        write_rows(tmp_path / "rollouts.jsonl", [row.encode(), make_rollout(1, 0, 0.0)])
    ) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [1.0, 0.0]


def test_a_reward_that_no_verifier_gave_is_none(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, 1.0) | {"verification_skipped": False},
        make_rollout(0, 1, 0.0) | {"verification_skipped": True},
        make_rollout(0, 2, 0.0) | {"_ng_failure_class": "judge_failed"},
        make_rollout(0, 3, 0.0) | {"_ng_failure_class": None},
    ]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [1.0, None, None, 0.0]


def test_a_model_call_that_failed_is_told(tmp_path: Path) -> None:
    rows = [make_rollout(0, n) for n in range(4)]
    for row, status in zip(rows, ("completed", "failed", "cancelled", "in_progress"), strict=True):
        row["response"]["status"] = status
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        output = index.table(["finish_reason"]).column(0).to_pylist()
    assert output == ["stop", "failed", "cancelled", None]


def test_two_threads_query_one_index_at_once(tmp_path: Path) -> None:
    rows = [make_rollout(row // 4, row % 4, float(row % 3 == 0)) for row in range(400)]
    run = write_rows(tmp_path / "rollouts.jsonl", rows)

    def task_counts(index: Index) -> list[int]:
        return [
            len(index.select(f"SELECT DISTINCT task FROM rollouts WHERE task >= {limit}"))
            for limit in range(100)
        ]

    with open_index(run) as index:
        with index.for_thread() as other, ThreadPoolExecutor(1) as worker:
            theirs = worker.submit(task_counts, other)
            assert task_counts(index) == [100 - limit for limit in range(100)]
            assert theirs.result() == [100 - limit for limit in range(100)]
        assert len(index.select("SELECT 1 FROM rollouts")) == 400, "this index is still open"


def test_a_run_has_failures_only_where_an_attempt_failed(tmp_path: Path) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    (tmp_path / "rollouts_failures.jsonl").write_text("")
    with open_index(tmp_path) as index:
        assert not index.has_failures
    failure = {"_ng_task_index": 0, "_ng_rollout_index": 1, "class": "timeout", "message": "late"}
    write_rows(tmp_path / "rollouts_failures.jsonl", [failure])
    with open_index(tmp_path) as index:
        assert index.has_failures
