"""Shards: one owner at a time by create-only files, and only the bytes that an end record names count."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rollforge.errors import DataError, ResumeRefused, UsageError
from rollforge.store.shard_plan import (
    MOST_SHARDS,
    ShardChoice,
    ShardPlan,
    array_text,
    create_plan,
    default_count,
    even_ranges,
    read_plan,
)
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import STALE_S, Beat, read_epochs, shard_states, take


def make_plan(tasks: int = 6, samples: int = 2, shards: int = 2, **other: object) -> ShardPlan:
    given = {"run": "r", "created": 1.0, "fingerprint": {"model": "m"}, "tasks_bytes": 1, "tasks_sha256": "x"}
    return ShardPlan(tasks=tasks, samples=samples, ranges=even_ranges(tasks, shards), **(given | other))  # type: ignore[arg-type]


def append(place: DiskStorage, name: str, text: str) -> None:
    path = place.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def make_old(path: Path, seconds: float) -> None:
    """Date a file back, as if its writer had been silent."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


# -- ranges and numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "count"), [(10, 3), (3, 10), (1, 1), (4096, 4096), (1000, 7)])
def test_ranges_cover_every_task_once_and_in_order(tasks: int, count: int) -> None:
    ranges = even_ranges(tasks, count)
    assert len(ranges) == count
    assert [position for one in ranges for position in range(one.first, one.end)] == [*range(tasks)]
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_the_default_number_of_shards_depends_on_the_run_alone() -> None:
    assert default_count(3, 8) == 3
    assert default_count(1000, 8) == 32
    assert default_count(1_000_000, 1) == 500
    assert default_count(100_000_000, 8) == MOST_SHARDS


def test_numbers_are_written_as_slurm_writes_an_array() -> None:
    assert array_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert array_text([]) == ""


@pytest.mark.parametrize("text", ["3", "3/", "a/b", "-1/3", "3/3", "0/0", "1/5000", ""])
def test_a_shard_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        ShardChoice.parse(text)


def slurm(number: int, count: int, least: int, most: int) -> dict[str, str]:
    values = {"ID": number, "COUNT": count, "MIN": least, "MAX": most}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def test_an_array_is_numbered_from_its_lowest_task() -> None:
    choice = ShardChoice.parse("slurm", slurm(5, 4, 3, 6))
    choice.check_new()
    assert (choice.number, choice.count, choice.first) == (5, 4, 3)
    assert choice.number_in(make_plan(shards=4, first_number=3)) == 2


def test_a_part_of_an_array_finds_its_shard_in_the_plan_and_cannot_make_one() -> None:
    part = ShardChoice.parse("slurm", slurm(3, 2, 1, 3))
    assert part.number_in(make_plan(tasks=64, shards=64)) == 3
    with pytest.raises(UsageError, match="gaps"):
        part.check_new()


def test_an_array_needs_no_highest_number() -> None:
    """Only ID, COUNT and MIN are asked for; a number beyond them shows that the array has gaps."""
    values = slurm(5, 4, 3, 6)
    del values["SLURM_ARRAY_TASK_MAX"]
    ShardChoice.parse("slurm", values).check_new()
    with pytest.raises(UsageError, match="gaps"):
        ShardChoice.parse("slurm", values | {"SLURM_ARRAY_TASK_ID": "9"}).check_new()


def test_slurm_without_an_array_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="SLURM_ARRAY_TASK_ID is not set"):
        ShardChoice.parse("slurm", {})


def test_the_number_of_shards_is_fixed() -> None:
    with pytest.raises(ResumeRefused, match="2 shards, not 3"):
        ShardChoice.parse("0/3").number_in(make_plan())


# -- create-only ----------------------------------------------------------------------------------------------------------


def _race(root: str, name: str, start: object, won: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    if DiskStorage(Path(root)).create(name, str(os.getpid()).encode()):
        won.put(os.getpid())  # type: ignore[attr-defined]


def test_of_many_processes_that_create_a_file_exactly_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, won = context.Event(), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), "e1.owner", start, won)) for _ in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    for racer in racers:
        racer.join(30)
    winner = won.get(timeout=5)
    assert won.empty()
    assert DiskStorage(tmp_path).read("e1.owner") == str(winner).encode()
    assert DiskStorage(tmp_path).names("") == ["e1.owner"]


def test_a_plan_is_fixed_by_whoever_is_first(tmp_path: Path) -> None:
    place = DiskStorage(tmp_path)
    assert create_plan(place, make_plan(shards=3))
    assert not create_plan(place, make_plan(shards=5))
    found = read_plan(place)
    assert found is not None and len(found) == 3


# -- epochs ---------------------------------------------------------------------------------------------------------------


def test_a_shard_has_one_owner(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    first = take(place, plan, 0)
    assert first is not None and first.number == 1
    assert take(place, plan, 0) is None
    assert take(place, plan, 1) is not None


def test_a_complete_epoch_names_its_bytes(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    lease = take(place, plan, 0)
    assert lease is not None
    append(place, "00000/e1/rollouts.jsonl", "{}\n{}\n")
    end = lease.end("complete", finished=2)
    assert end.state == "complete" and end.files["rollouts"].length == 6
    again = take(place, plan, 0)
    assert again is not None and again.number == 2
    assert list(again.earlier("rollouts")) == [b"{}\n", b"{}\n"]


@pytest.mark.parametrize(
    "name", ["../../secret.jsonl", "/etc/passwd", "00000/e1/../../../x.jsonl", "[" * 300]
)
def test_an_end_record_that_names_a_file_elsewhere_is_damaged(tmp_path: Path, name: str) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    lease = take(place, plan, 0)
    assert lease is not None
    append(place, f"{lease.folder}/rollouts.jsonl", "{}\n")
    lease.end("complete", finished=1)
    record = tmp_path / "00000" / "e1.end"
    record.write_text(record.read_text().replace("00000/e1/rollouts.jsonl", name))
    with pytest.raises(DataError, match=r"e1\.end"):
        read_epochs(place, 0)


def test_what_a_lost_owner_writes_later_does_not_count(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    zombie = take(place, plan, 0)
    assert zombie is not None
    append(place, "00000/e1/rollouts.jsonl", '{"a":1}\n{"torn')
    successor = take(place, plan, 0, is_lost=True)
    assert successor is not None and successor.number == 2
    append(place, "00000/e1/rollouts.jsonl", '":2}\n{"a":3}\n')
    assert list(successor.earlier("rollouts")) == [b'{"a":1}\n']
    assert zombie.is_taken_over()
    assert zombie.end("complete", finished=99).state == "taken over"
    third = take(place, plan, 0, is_lost=True)
    assert third is not None
    assert list(third.earlier("rollouts")) == [b'{"a":1}\n']


def test_an_owner_that_ends_first_wins_over_its_successor(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    owner = take(place, plan, 0)
    assert owner is not None
    append(place, "00000/e1/rollouts.jsonl", "{}\n")
    assert owner.end("released", finished=1).state == "released"
    successor = take(place, plan, 0, is_lost=True)
    assert successor is not None and successor.before[0].end is not None
    assert successor.before[0].end.state == "released"


def test_a_silent_owner_elsewhere_is_taken_over_after_two_minutes(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    lease = take(place, plan, 0)
    assert lease is not None
    lease.beat(Beat(finished=1))
    beat = tmp_path / "00000/e1.beat"
    make_old(beat, STALE_S - 20)
    assert take(place, plan, 0) is None
    make_old(beat, 40)
    assert [one.state for one in shard_states(place, plan)] == ["stale", "owed"]
    assert take(place, plan, 0) is not None


def test_an_owner_on_this_machine_that_has_ended_needs_no_waiting(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rollforge.store.shard_storage import DiskStorage;"
        "from rollforge.store.shards import take;"
        "from tests.store.test_shards import make_plan; assert take(DiskStorage(Path(sys.argv[1])), make_plan(), 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert take(DiskStorage(tmp_path), make_plan(), 0) is not None


def test_an_owner_of_another_machine_is_never_looked_for_here(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan()
    lease = take(place, plan, 0)
    assert lease is not None
    elsewhere = msgspec.structs.replace(
        lease.owner, host="other", pid=2**22 + 1, process="other-boot pid:[1] 5"
    )
    (tmp_path / "00000/e1.owner").write_bytes(msgspec.json.encode(elsewhere))
    assert take(place, plan, 0) is None
    (state, _) = shard_states(place, plan)
    assert (
        state.state == "open"
        and state.owner is not None
        and state.owner.host == "other" != socket.gethostname()
    )


def test_parts_of_another_plan_are_refused(tmp_path: Path) -> None:
    place = DiskStorage(tmp_path)
    assert take(place, make_plan(), 0) is not None
    with pytest.raises(ResumeRefused, match="another plan"):
        take(place, make_plan(fingerprint={"model": "other"}), 0)
    with pytest.raises(ResumeRefused, match="another plan"):
        list(shard_states(place, make_plan(fingerprint={"model": "other"})))


def test_states_tell_finished_from_given_up_and_released(tmp_path: Path) -> None:
    place, plan = DiskStorage(tmp_path), make_plan(tasks=4, samples=1, shards=4)
    for shard, (state, finished, given_up) in enumerate(
        [("complete", 1, 0), ("complete", 0, 1), ("released", 0, 0)]
    ):
        lease = take(place, plan, shard)
        assert lease is not None
        lease.end(state, finished=finished, given_up=given_up)  # type: ignore[arg-type]
    assert [one.state for one in shard_states(place, plan)] == ["finished", "incomplete", "owed", "owed"]
    assert len(read_epochs(place, 3)) == 0
