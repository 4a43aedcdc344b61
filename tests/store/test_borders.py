"""The store: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rollforge.store import RunFiles, bucket, bucket_storage
from rollforge.store.batches import BatchEvent, SentBatch
from rollforge.store.bucket import WorkingCopy
from rollforge.store.costs import _joined, dollars
from rollforge.store.failure_reasons import SHOWN, cause_text, failures_text, verifier_failures
from rollforge.store.find import runs_in, what_is_there
from rollforge.store.ledger import Ledger
from rollforge.store.manifest import is_alive
from rollforge.store.object_lines import pack
from rollforge.store.objects import _Passing
from rollforge.store.rollout_parts import _verdicts
from rollforge.store.scratch import _start_of
from rollforge.store.shard_plan import default_count
from rollforge.store.shipping import address_of, copy_of, known, shipped


def test_a_shard_holds_2000_rollouts_of_a_large_run() -> None:
    assert default_count(100_000, 8) == 400
    assert default_count(100, 8) == 32


def test_tasks_that_are_not_in_order_are_found_by_their_number() -> None:
    ledger = Ledger(np.array([30, 10, 20]), 2)
    assert [ledger.position(task) for task in (10, 20, 30, 40)] == [1, 2, 0, None]


def test_a_run_of_another_machine_is_alive_while_it_says_so(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    elsewhere = SimpleNamespace(host="another machine", state="running")
    assert is_alive(files, cast("Any", elsewhere))
    import socket

    here = SimpleNamespace(host=socket.gethostname(), state="running")
    assert not is_alive(files, cast("Any", here))


def test_runs_of_a_folder_are_named_in_order(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    assert [path.name for path in runs_in(tmp_path)] == ["a.jsonl", "b.jsonl", "c.jsonl"]


def test_a_rollout_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}
    path.write_text("".join(json.dumps(one) + "\n" for one in (row, row, {**row, "_ng_rollout_index": 1})))
    ledger = Ledger(np.arange(1), 2)
    ledger.read(path, tmp_path / "none.jsonl")
    assert (ledger.finished, ledger.repeated) == (2, 1)


def test_a_batch_keeps_its_requests_when_it_goes_on() -> None:
    batch = SentBatch("b")
    batch.take(BatchEvent(batch="b", step="planned", at=0.0, requests=5, url="/v1/responses"))
    batch.take(BatchEvent(batch="b", step="uploaded", at=1.0, file_id="f"))
    assert (batch.requests, batch.url, batch.file_id, batch.is_open) == (5, "/v1/responses", "f", True)


def test_reasons_are_counted_over_the_first_hundred_thousand_failures(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    line = b'{"class": "verifier", "message": "boom"}\n'
    files.failures.write_bytes(line * 100_001 + line.replace(b"boom", b"late"))
    assert verifier_failures(files) == [("boom", 100_000)]


def test_a_reason_is_cut_after_500_characters_and_other_failures_are_none(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    rows = [("verifier", "x" * 500), ("verifier", "x" * 501), ("timeout", "no"), ("verifier", "y  y")]
    lines = (json.dumps({"class": kind, "message": message}) + "\n" for kind, message in rows)
    files.failures.write_text("".join(lines))
    assert verifier_failures(files) == [("x" * 500, 2), ("y y", 1)]


def test_reasons_beyond_the_most_frequent_are_counted_together(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    messages = ["a", "b", "a", "c", "d", "e", "d", "c", "a"]
    lines = (json.dumps({"class": "verifier", "message": message}) + "\n" for message in messages)
    files.failures.write_text("".join(lines))
    reasons = verifier_failures(files)
    assert reasons == [("a", 3), ("c", 2), ("d", 2), ("other reasons", 2)]
    assert failures_text(reasons) == "the verifier failed 9 times, 3 of them with: a"
    assert failures_text([("boom", 1)]) == "the verifier failed 1 time: boom"


def test_a_copy_is_that_of_the_bucket_only_while_it_holds_the_same_bytes(copy: WorkingCopy) -> None:
    rollouts, report = copy.folder / "rollouts.jsonl", copy.folder / "report.json"
    copy.append(rollouts, b"{}\n")
    copy.objects.put("report.json", b"one")
    assert copy.pull() and rollouts.read_bytes() == b"{}\n"
    known = copy.source(rollouts), copy.source(report)
    assert all(known), "pulled just now"
    rollouts.write_bytes(b"{}\n{}\n")
    assert copy.source(rollouts) is None, "longer than what was pulled"
    rollouts.write_bytes(b"{}\n")
    assert copy.source(rollouts) == known[0]
    copy.append(rollouts, b"[]\n")
    copy.objects.put("report.json", b"two")
    copy.look()
    assert (copy.source(rollouts), copy.source(report)) == (None, None), "the bucket has gone on"
    copy.pull()
    assert all((copy.source(rollouts), copy.source(report))) and report.read_bytes() == b"two"


def test_a_lock_outlives_two_renewals_that_failed(copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    answers = iter([OSError("away"), RuntimeError("odd"), "tag"])

    def renew(name: str, data: bytes, tag: str) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 3

    monkeypatch.setattr(copy.objects, "put_if_unchanged", renew)
    copy._take_lock()
    copy._renew(cast("Any", SimpleNamespace(wait=wait)))
    assert copy._lock_tag == "tag" and sum(waited[:3]) < bucket.STALE_S


def test_the_clock_of_a_store_is_asked_once_in_five_minutes(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(seconds=1000.0)
    asked: list[float] = []
    ask = copy.objects.now

    def now() -> datetime:
        asked.append(clock.seconds)
        return ask()

    monkeypatch.setattr(copy.objects, "now", now)
    monkeypatch.setattr(bucket_storage, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    place = bucket_storage.BucketStorage(copy.objects, "shards", Path("shards"))
    place.replace("a.beat", b"")
    for clock.seconds in (1000.0, 1001.0, 1300.0, 1301.0):
        assert place.age_s("a.beat") is not None
    assert asked == [1000.0, 1301.0]


def test_files_are_sent_in_order_of_name_and_the_manifest_last(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.pull()
    for name in ("b.json", "rollouts_run.json", "z.json", "a.json"):
        (copy.folder / name).write_text("{}")
    sent: list[str] = []
    put = copy.objects.put

    def note(name: str, data: bytes | Path, **more: int) -> str:
        sent.append(name)
        return put(name, data, **more)

    monkeypatch.setattr(copy.objects, "put", note)
    assert (copy.push(), copy.push()) == (4, 0)
    assert sent == ["a.json", "b.json", "z.json", "rollouts_run.json"]


def test_what_may_pass_is_tried_again_until_the_last_try(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr("rollforge.store.objects.time", SimpleNamespace(sleep=paused.append))
    failing = iter([True, True, False])

    def act() -> str:
        if next(failing):
            raise _Passing
        return "done"

    assert copy.objects._tried("a", act, tries=3) == "done" and paused == [0.2, 0.4]
    failing = iter([True, True, False])
    with pytest.raises(OSError, match="s3://data/run/a"):
        copy.objects._tried("a", act, tries=2)
    assert paused == [0.2, 0.4, 0.2]


def test_a_bucket_that_is_gone_is_asked_for_more_than_a_minute_and_less_than_two(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr("rollforge.store.objects.time", SimpleNamespace(sleep=paused.append))

    def act() -> str:
        raise _Passing

    with pytest.raises(OSError, match="s3://data/run/a"):
        copy.objects._tried("a", act)
    assert 60 < sum(paused) < 120 and max(paused) == 20


def test_hours_that_overlap_or_touch_are_paid_once_and_in_order() -> None:
    assert _joined([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (3.0, 4.0)]) == [(0.0, 4.0), (5.0, 6.0)]
    assert _joined([(0.0, 9.0), (1.0, 2.0)]) == [(0.0, 9.0)]


@pytest.mark.parametrize(("runs", "named", "has_more"), [(5, 5, False), (6, 5, True)])
def test_five_runs_of_a_folder_are_named(tmp_path: Path, runs: int, named: int, has_more: bool) -> None:
    for number in range(runs):
        (tmp_path / f"{number}.jsonl").write_text("{}\n")
    text = what_is_there(tmp_path)
    assert (text.count(".jsonl"), text.endswith("…")) == (named, has_more)


def test_verdicts_of_workers_are_read_in_order(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    for name in ("b", "a", "c"):
        folder = files.verdict_parts / name
        folder.mkdir(parents=True)
        (folder / "verdicts.jsonl").write_text("" if name == "c" else "{}\n")
    assert [part.path.parent.name for part in _verdicts(files)] == ["a", "b"]


@pytest.mark.parametrize(
    ("tasks", "samples", "count"), [(31, 8, 31), (32, 1, 32), (8_000, 8, 32), (8_001, 8, 33)]
)
def test_a_small_run_has_32_shards_and_never_more_than_tasks(tasks: int, samples: int, count: int) -> None:
    assert default_count(tasks, samples) == count


def test_a_rollout_is_owed_until_it_is_done_or_has_failed_for_good() -> None:
    ledger = Ledger(np.arange(2), 1)
    assert ledger.owed(3) == 2


def test_a_growing_file_that_was_replaced_in_the_bucket_is_made_again(copy: WorkingCopy) -> None:
    rollouts = copy.folder / "rollouts.jsonl"
    copy.append(rollouts, b'{"a": 1}\n')
    copy.pull()
    (piece,) = [one.name for one in copy.objects.walk()]
    copy.objects.put(piece, pack(b'{"b": 2}\n'))
    copy.pull()
    assert rollouts.read_bytes() == b'{"b": 2}\n'


def test_a_path_has_the_address_of_the_working_copy_that_it_lies_in(tmp_path: Path) -> None:
    copy: Any = SimpleNamespace(url="s3://bucket/runs")
    with known(tmp_path / "copy", "s3://bucket/runs"), shipped(tmp_path / "copy", copy):
        assert address_of(tmp_path / "copy") == "s3://bucket/runs"
        assert address_of(tmp_path / "copy" / "a" / "rollouts.jsonl") == "s3://bucket/runs/a/rollouts.jsonl"
        assert address_of(tmp_path / "other" / "rollouts.jsonl") is None
        sent = ("a/rollouts.jsonl", "rollouts_run.json")
        kept = (".lock", "rollouts_index/part.parquet", "index/part.parquet", "../other/rollouts.jsonl")
        assert [copy_of(tmp_path / "copy" / name) for name in sent] == [copy, copy]
        assert [copy_of((tmp_path / "copy" / name).resolve()) for name in kept] == [None] * 4
    assert address_of(tmp_path / "copy") is None and copy_of(tmp_path / "copy" / sent[0]) is None


def test_a_process_that_ended_has_no_start() -> None:
    assert int(_start_of(os.getpid()) or 0) > 0
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    assert _start_of(child) is None
    os.waitpid(child, 0)
    assert _start_of(child) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "unknown"), (0.0, "$0.00"), (0.00099, "$0.00099"), (0.001, "$0.0010"), (0.9, "$0.9000"),
        (1.0, "$1.00"), (1234.5, "$1,234.50"),
    ],
)  # fmt: skip
def test_small_amounts_have_more_decimals(amount: float | None, text: str) -> None:
    assert dollars(amount) == text


def test_a_cause_is_cut_where_it_is_longer_than_is_shown() -> None:
    assert cause_text([("a" * SHOWN, 1)]) == f"{'a' * SHOWN} (1 of 1 attempt)"
    assert cause_text([("a" * (SHOWN + 1), 20), ("b", 4)]) == f"{'a' * SHOWN}… (20 of 24 attempts)"
