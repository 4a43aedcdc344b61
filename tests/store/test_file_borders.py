"""Files of a run: numbers and conditions that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import os
import stat
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollforge.errors import UsageError
from rollforge.store import RunFiles, bucket, lean, object_file
from rollforge.store.bucket import WorkingCopy, _is_local, split_run
from rollforge.store.costs import MOST_COST, CostFacts, CostTally, cost_text, read_costs
from rollforge.store.failure_reasons import attempt_failures, failures_by_verifier
from rollforge.store.files import _holds_our_verdicts
from rollforge.store.find import _is_run, find_runs
from rollforge.store.lean import Span, TextInBucket
from rollforge.store.ledger import Ledger
from rollforge.store.lock import was_killed
from rollforge.store.object_file import ObjectFile
from rollforge.store.object_lines import pack, piece_name
from rollforge.store.objects import ObjectFolder
from rollforge.store.outputs import LOOK_BYTES, belongs_to_run, holds_rollouts, refuse_output
from rollforge.store.scratch import PRIVATE_UIDS, _is_ours
from rollforge.store.shard_storage import DiskStorage


def test_a_rollout_is_given_up_at_its_last_attempt_and_a_terminal_failure_stays_one() -> None:
    ledger = Ledger(np.arange(2), 2)
    for _ in range(3):
        ledger.fail(0, 0, is_terminal=False)
    ledger.fail(0, 1, is_terminal=True)
    ledger.fail(0, 1, is_terminal=False)
    ledger.finish(1, 0, is_unjudged=True)
    ledger.finish(1, 0, is_unjudged=True)
    assert [ledger.attempts(0, 0), ledger.attempts(0, 1), ledger.attempts(1, 0)] == [3, 0, 0]
    assert (ledger.finished, ledger.fresh_unjudged) == (1, 1)
    for most, owed, given_up in ((3, 1, 2), (4, 2, 1), (1000, 2, 1)):
        assert (ledger.owed(most), ledger.given_up(most)) == (owed, given_up)
        assert ledger.owed_samples(0, most) == [0] * (owed - 1) and ledger.owed_samples(1, most) == [1]
        by_task = ledger.counts_by_task(most)
        assert [one.tolist() for one in by_task] == [[owed - 1, 1], [given_up, 0]]


def test_a_range_is_read_from_the_objects_that_it_touches(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = copy.objects
    for name, data in (("a", b"0123"), ("b", b"4567"), ("c", b"89")):
        objects.put(name, data)
    text = TextInBucket(objects, [Span("a", 0, 4), Span("b", 4, 4), Span("c", 8, 2)])
    asked: list[str] = []
    read_range = ObjectFolder.read_range

    def note(folder: ObjectFolder, name: str, first: int, last: int) -> bytes:
        asked.append(f"{name}{first}-{last}")
        return read_range(folder, name, first, last)

    monkeypatch.setattr(ObjectFolder, "read_range", note)
    assert list(text.read_spans([(0, 4), (4, 4), (3, 6)])) == [b"0123", b"4567", b"345678"]
    assert asked == ["a0-4", "b0-4", "a3-4", "b0-4", "c0-1"] and text.fetched == 14


def test_the_last_unpacked_objects_are_held(copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "CACHED_OBJECTS", 2)
    names = [piece_name("rollouts.jsonl", number) for number in (1, 2, 3)]
    for number, name in enumerate(names):
        copy.objects.put(name, pack(b"%d\n" % number))
    text = TextInBucket(copy.objects, [Span(name, 2 * at, 2) for at, name in enumerate(names)])
    once = [len(pack(b"%d\n" % number)) for number in range(3)]
    assert list(text.read_spans([(0, 2), (2, 2), (0, 2), (2, 2)])) == [b"0\n", b"1\n", b"0\n", b"1\n"]
    assert text.fetched == once[0] + once[1]
    assert list(text.read_spans([(4, 2), (2, 2), (4, 2)])) == [
        b"2\n",
        b"1\n",
        b"2\n",
    ] and text.fetched == sum(once)
    assert list(text.read_spans([(0, 2)])) == [b"0\n"] and text.fetched == sum(once) + once[0]


@pytest.mark.parametrize(("pieces", "most", "objects"), [(1, 100, 1), (2, 100, 1), (2, 8, 1), (2, 7, 2)])
def test_pieces_are_condensed_up_to_a_size(
    copy: WorkingCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, most: int, objects: int
) -> None:
    monkeypatch.setattr(object_file, "CONDENSED_BYTES", most)
    file = ObjectFile(copy.objects, "rows.jsonl", shown=tmp_path / "rows.jsonl")
    for _ in range(pieces):
        file._commit([b"abc"])
    before = [one.name for one in copy.objects.walk()]
    file.condense()
    after = [one.name for one in copy.objects.walk()]
    assert len(after) == objects and (after != before) is (pieces == 2 and objects == 1)


def test_names_of_a_folder_come_in_order(copy: WorkingCopy, tmp_path: Path) -> None:
    for name in ("b", "a/x", "c"):
        copy.objects.put(f"folder/{name}", b"")
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text("")
    assert copy.objects.names("folder") == DiskStorage(tmp_path).names("folder") == ["a", "b", "c"]
    assert DiskStorage(tmp_path).names("none") == []


def test_pieces_of_which_one_is_missing_are_left(copy: WorkingCopy, tmp_path: Path) -> None:
    file = ObjectFile(copy.objects, "rows.jsonl", shown=tmp_path / "rows.jsonl")
    for _ in range(3):
        file._commit([b"abc"])
    name = next(one.name for one in copy.objects.walk())
    copy.objects.put(name, pack(b"ab\n"))
    file.condense()
    assert len(list(copy.objects.walk())) == 3, "the lines are not those that were written"
    copy.objects.delete(name)
    file.condense()
    assert len(list(copy.objects.walk())) == 2


@pytest.mark.parametrize(("age", "is_taken"), [(bucket.STALE_S - 1, False), (bucket.STALE_S, True)])
def test_a_lock_is_taken_over_once_it_is_stale(
    copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch, age: float, is_taken: bool
) -> None:
    copy.objects.create(copy._lock, b"{}")
    written = copy.objects.modified(copy._lock)
    assert written is not None
    monkeypatch.setattr(copy.objects, "now", lambda: written + timedelta(seconds=age))
    if is_taken:
        copy._take_lock()
        assert copy._lock_tag is not None
        return
    with pytest.raises(UsageError, match="another process is writing"):
        copy._take_lock()


def test_a_file_of_a_bucket_is_pulled_where_it_is_missing_or_another(copy: WorkingCopy) -> None:
    copy.objects.prefix = "one.jsonl"
    copy.folder = copy.folder / "one.jsonl"
    store, library = copy.objects._store, copy.objects._obstore
    library.put(store, "one.jsonl", b"a")
    path = copy._pull_file()
    assert path.read_bytes() == b"a"
    path.write_bytes(b"kept")
    assert copy._pull_file().read_bytes() == b"kept", "the tag has not changed"
    path.unlink()
    assert copy._pull_file().read_bytes() == b"a"
    path.write_bytes(b"kept")
    path.with_name(f".{path.name}.tag").unlink()
    assert copy._pull_file().read_bytes() == b"a"
    library.put(store, "one.jsonl", b"b")
    assert copy._pull_file().read_bytes() == b"b"


@pytest.mark.parametrize(
    ("name", "is_local"),
    [
        ("rollouts.jsonl", False), ("a/rollouts.jsonl", False), ("index/x", True), ("rollouts_index/x", True), (".lock", True),
        ("a/.marks/x", True), ("rollouts_verdicts.parts/a/verdicts.jsonl", True), ("rollouts_index", False),
    ],
)  # fmt: skip
def test_indexes_marks_and_unjoined_verdicts_are_local(tmp_path: Path, name: str, is_local: bool) -> None:
    assert _is_local(tmp_path / name, tmp_path) is is_local


def test_an_address_names_a_file_below_a_bucket() -> None:
    assert split_run("s3://data/run/rollouts.jsonl") == ("s3://data/run", "rollouts.jsonl")
    assert split_run("s3://data/run") == ("s3://data/run", "")
    assert split_run("s3://rollouts.jsonl") == ("s3://rollouts.jsonl", "")


def test_a_lock_of_a_process_that_died_is_there_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not was_killed(path)
    path.write_text("")
    assert was_killed(path)


@pytest.mark.parametrize(
    ("name", "is_run"),
    [
        ("rollouts.jsonl", True), ("a.jsonl.gz", True), ("a.json", True), ("a_tasks.jsonl", False), ("a.txt", False),
        ("a_index/state.json", False), ("a_index/a.jsonl", True), ("manifest.json", False), ("folder", False), ("run", True),
    ],
)  # fmt: skip
def test_a_match_is_a_run_unless_it_is_a_part_of_one(tmp_path: Path, name: str, is_run: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rollouts.jsonl").write_text("{}\n")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if not path.is_dir():
        path.write_text("{}\n")
    assert _is_run(path) is is_run


def test_runs_are_found_by_path_folder_and_glob_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c[1]"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rollouts.jsonl").write_text("{}\n")
    assert [run.rollouts.parent.name for run in find_runs(str(tmp_path / "*"))] == ["a", "b", "c[1]"]
    assert [
        run.rollouts.parent.name for run in find_runs([tmp_path / "b", tmp_path / "c[1]", tmp_path / "b"])
    ] == ["b", "c[1]"]
    assert RunFiles(tmp_path / "a").name == str(tmp_path / "a")
    for missing, why in (
        ("none", "no such file"),
        ("none*", "nothing matches"),
        ("", "there is no rollouts.jsonl"),
    ):
        with pytest.raises(UsageError, match=why):
            find_runs(str(tmp_path / missing))
    with pytest.raises(UsageError, match="no run given"):
        find_runs([])
    os.mkfifo(tmp_path / "a" / "rollouts_verdicts.jsonl")
    with pytest.raises(UsageError, match="is a device or a pipe"):
        find_runs(tmp_path / "a")


@pytest.mark.parametrize(
    ("row", "has_rollout"),
    [
        ('{"response": {}, "reward": 1}', True), ('{"completion": "a", "reward": 1}', True),
        ('{"trajectory": [], "responses_create_params": {}}', True), ('{"response": {}}', False), ('{"reward": 1}', False),
        ('{"response": "text", "reward": 1}', False), ("[1]", False), ("", False), ("not JSON", False),
        ('{"response": {' + " " * LOOK_BYTES, True), ('{"response": {"', False), ('{"text": "' + "a" * LOOK_BYTES, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_holds_rollouts_if_its_first_line_is_one(
    tmp_path: Path, row: str, has_rollout: bool, ending: str
) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    with pa.output_stream(str(path), compression="gzip" if ending else None) as file:
        file.write(row.encode() + b"\n{}\n")
    assert holds_rollouts(path) is has_rollout
    assert not holds_rollouts(tmp_path / "none")


def test_an_output_replaces_no_input_and_no_part_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "a_run.json").write_text("{}")
    for name in ("a.jsonl", "a_tasks.jsonl", "b.jsonl", "c.jsonl"):
        (tmp_path / name).write_text("{}\n")
    assert [belongs_to_run(tmp_path / name) for name in ("a.jsonl", "a_tasks.jsonl", "b.jsonl")] == [
        True,
        True,
        False,
    ]
    refuse_output(tmp_path / "b.jsonl", reads=[tmp_path / "c.jsonl"])
    refuse_output(tmp_path / "none.jsonl")
    for name, why in (("c.jsonl", "is what this command reads"), ("a_tasks.jsonl", "belongs to a run")):
        with pytest.raises(UsageError, match=why):
            refuse_output(tmp_path / name, reads=[tmp_path / "b.jsonl", tmp_path / "c.jsonl"])


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ('{"rollout_id": 1, "findings": []}', False), ('{"rollout_id": 1}', True), ('{"findings": []}', True),
        ('{"rollout_id": 1, "findings": [], "verifier": "a"}', True), ("", True),
    ],
)  # fmt: skip
def test_lines_of_findings_or_without_a_verifier_are_verdicts_of_another_tool(
    tmp_path: Path, line: str, is_ours: bool
) -> None:
    path = tmp_path / "verdicts.jsonl"
    assert _holds_our_verdicts(path)
    path.write_text(line + '\n{"verifier": "b", "findings": [], "rollout_id": 1}\n')
    assert _holds_our_verdicts(path) is is_ours
    path.write_text(line + "\n")
    assert _holds_our_verdicts(path) is ("verifier" in line or not line)
    for damaged in ('{"_ng_task_index": 0, "_ng_rol', '{"_ng_task_index": 0, "_ng_rol\n', "[1]\n"):
        path.write_text(damaged)
        assert _holds_our_verdicts(path)


def test_failures_are_counted_by_what_failed(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    rows = [
        ("verifier", "boom", None),
        ("verifier", "bang", "exact"),
        ("verifier", "late", "judge"),
        ("timeout", "slow", None),
    ]
    lines = (json.dumps({"class": kind, "message": text, "verifier": name}) for kind, text, name in rows)
    files.failures.write_text("".join(line + "\n" for line in lines))
    assert attempt_failures(files) == [("slow", 1)]
    every = failures_by_verifier([files])
    assert all(word in every for word in ("boom", "bang", "late"))
    own = failures_by_verifier([files], "exact")
    assert "boom" in own and "the verifier exact" in own and "late" not in own


def test_costs_that_cannot_be_are_unknown() -> None:
    tally = CostTally()
    for cost in (0.0, 2.0, None, -0.5, MOST_COST, 1e10):
        for add in (tally.add_rollout, tally.add_failure, tally.add_judge):
            add(cost)
    facts = tally.facts()
    assert (facts.total, facts.rollouts, facts.failures, facts.judges) == (6.0, 2.0, 2.0, 2.0)
    assert (facts.unknown_rollouts, facts.unknown_failures, facts.unknown_judges) == (4, 4, 4)
    assert MOST_COST == 1e9


@pytest.mark.parametrize(
    ("kinds", "hourly", "known"),
    [
        ("", None, (None, None, None, None, None)), ("", 2.0, (1.0, None, None, None, 1.0)),
        ("r", None, (0.5, 0.5, 0.0, None, None)), ("f", None, (None, None, 0.5, None, None)),
        ("j", None, (0.5, None, None, 0.5, None)), ("rfj", 2.0, (2.5, 0.5, 0.5, 0.5, 1.0)),
    ],
)  # fmt: skip
def test_a_total_is_known_with_a_price_of_rollouts_judges_or_hours(
    kinds: str, hourly: float | None, known: tuple[float | None, ...]
) -> None:
    tally = CostTally()
    for kind, add in (("r", tally.add_rollout), ("f", tally.add_failure), ("j", tally.add_judge)):
        if kind in kinds:
            add(0.5)
    made = tally.facts(price_per_hour=hourly, more_s=1800.0)
    assert (made.total, made.rollouts, made.failures, made.judges, made.hours) == known


def test_costs_are_read_from_the_lines_of_a_run(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    own = [
        {"cost": 1.0, "judge_cost": 0.5, "started": 0.0, "seconds": 10.0}, {"cost": 2.0, "started": 5.0}, {"seconds": 9.0},
        {"cost": 1.0, "started": 5.0, "seconds": 10.0},
    ]  # fmt: skip
    files.rollouts.write_text("".join(json.dumps({"_rf": one}) + "\n" for one in own))
    files.failures.write_text('{"_rf": {"cost": 0.25}}\n{"_rf": {}}\n')
    files.verdicts.write_text('{"_rf": {"judge_cost": 0.125}}\n{"_rf": {"cost": 9.0}}\n')
    tally = read_costs(files)
    assert (tally.dollars, tally.unknown_rollouts, tally.unknown_failures, tally.active_s) == (
        4.875,
        1,
        0,
        15.0,
    )


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "unknown, the price is not known"), ({"price": "$1"}, "unknown"), ({"total": 1.0}, "$1.00"),
        ({"total": 1.0, "judges": 0.5, "unknown_failures": 3}, "$1.00, $0.5000 of it judges, cost of 3 failed attempts unknown"),
    ],
)  # fmt: skip
def test_a_price_that_is_not_known_is_named_where_the_total_is_not(facts: dict[str, Any], text: str) -> None:
    assert cost_text(CostFacts(**facts)) == text


@pytest.mark.parametrize(
    ("user", "owner", "mode", "is_ours"),
    [
        (5, 5, stat.S_IFDIR, True), (5, 5, stat.S_IFREG, False), (5, 6, stat.S_IFDIR, False), (0, 6, stat.S_IFDIR, False),
        (0, PRIVATE_UIDS[0], stat.S_IFDIR, True), (5, PRIVATE_UIDS[0], stat.S_IFDIR, False), (0, 0, stat.S_IFDIR, True),
    ],
)  # fmt: skip
def test_a_folder_is_ours_by_its_owner_and_roots_also_by_a_private_one(
    user: int, owner: int, mode: int, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    entry: Any = SimpleNamespace(stat=lambda follow_symlinks: SimpleNamespace(st_uid=owner, st_mode=mode))
    assert _is_ours(entry) is is_ours


def test_a_run_is_sharded_by_its_plan_unless_its_file_is_named(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    assert not run.is_sharded and run.verify_failures == run.failures
    run.shards.mkdir()
    (run.shards / "plan.json").write_text("{}")
    assert run.is_sharded and run.verify_failures == run.shards / "verify_failures.jsonl"
    run.rollouts.write_text("")
    assert RunFiles(tmp_path).is_sharded and not RunFiles(run.rollouts).is_sharded
    other = RunFiles(tmp_path / "other.jsonl")
    other.shards.mkdir(exist_ok=True)
    (other.shards / "plan.json").write_text("{}")
    assert not other.is_sharded
