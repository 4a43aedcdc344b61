"""Shards in a bucket, on a real S3 server: one owner at a time, and a host without any copy takes over exactly what counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollforge.errors import DataError
from rollforge.store.bucket_storage import BucketStorage
from rollforge.store.object_lines import PARTS, blocks_of, pack, piece_name, reading_order, whole_name
from rollforge.store.objects import ObjectFolder
from rollforge.store.shards import Beat, counted_files, read_epochs, shard_states, take
from tests.object_stores import Store, moto_store, seaweed_store
from tests.store.test_shards import make_plan

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'")


@pytest.fixture(scope="module", params=["moto", "seaweedfs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = moto_store() if request.param == "moto" else seaweed_store(tmp_path_factory.mktemp("weed"))
    with made as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.env(tmp_path_factory.mktemp("cache")).items():
            patch.setenv(name, value)
        yield running


def place_at(name: str) -> BucketStorage:
    """The same shards, as a host sees them that knows nothing yet."""
    return BucketStorage(ObjectFolder(f"s3://data/{name}"), "shards", Path("/shown/shards"))


def write(place: BucketStorage, name: str, *batches: list[bytes]) -> None:
    async def act() -> None:
        file = place.rows(name)
        await file.start()
        for lines in batches:
            for line in lines:
                file.append(line)
            await file.flush()
        await file.close()

    asyncio.run(act())


def test_of_many_writers_that_create_an_object_exactly_one_wins(store: Store) -> None:
    places = [place_at("race") for _ in range(8)]
    for round_ in range(3):
        with ThreadPoolExecutor(8) as threads:
            won = list(
                threads.map(lambda one: one[1].create(f"r{round_}", b"%d" % one[0]), enumerate(places))  # noqa: B023
            )
        assert sum(won) == 1
        assert place_at("race").read(f"r{round_}") == b"%d" % won.index(True)


def test_a_creation_whose_answer_was_lost_is_known_by_its_bytes(store: Store) -> None:
    objects = ObjectFolder("s3://data/lost")
    assert objects.create("x", b"mine") is not None
    assert objects.create("x", b"mine") is not None, "the second try finds its own bytes"
    assert objects.create("x", b"other") is None


def test_a_host_without_a_copy_takes_over_what_is_there_and_later_lines_do_not_count(store: Store) -> None:
    plan, ours = make_plan(), place_at("taken")
    lease = take(ours, plan, 0)
    assert lease is not None
    lease.beat(Beat(finished=2))
    write(ours, f"{lease.folder}/rollouts.jsonl", [b'{"a":1}', b'{"a":2}'], [b'{"a":3}'])
    assert take(place_at("taken"), plan, 0) is None, "its owner lives"
    theirs = take(place_at("taken"), plan, 0, is_lost=True)
    assert theirs is not None and theirs.number == 2
    assert [*theirs.earlier("rollouts")] == [b'{"a":1}\n', b'{"a":2}\n', b'{"a":3}\n']
    zombie = ObjectFolder("s3://data/taken")
    late = piece_name(f"shards/{lease.folder}/rollouts.jsonl", 3)
    from rollforge.store.object_lines import pack

    assert zombie.create(late, pack(b'{"a":4}\n')) is not None
    assert lease.is_taken_over()
    assert lease.end("complete", finished=6).state == "taken over", "whoever ends first wins"
    assert len([*theirs.earlier("rollouts")]) == 3
    epochs = read_epochs(place_at("taken"), 0)
    assert [epoch.number for epoch in epochs] == [1, 2]


def test_an_end_gathers_the_pieces_in_one_object_with_the_same_bytes(store: Store) -> None:
    plan, ours = make_plan(), place_at("whole")
    lease = take(ours, plan, 1)
    assert lease is not None
    write(ours, f"{lease.folder}/rollouts.jsonl", [b"1"], [b"2"], [b"3"])
    before = counted_files(place_at("whole"), 1, read_epochs(place_at("whole"), 1)[-1])["rollouts"]
    end = lease.end("complete", finished=6)
    assert end.files["rollouts"] == before
    assert [*place_at("whole").lines(before)] == [b"1\n", b"2\n", b"3\n"]
    names = [one.name for one in ObjectFolder("s3://data/whole").walk() if PARTS in one.name]
    assert names == [whole_name("shards/00001/e1/rollouts.jsonl", 3)]
    assert (
        next(state for state in shard_states(place_at("whole"), plan) if state.shard == 1).state == "finished"
    )


def test_a_beat_is_as_old_as_the_store_says(store: Store) -> None:
    place = place_at("beat")
    assert place.age_s("00000/e1.beat") is None
    place.replace("00000/e1.beat", b"{}")
    age = place.age_s("00000/e1.beat")
    assert age is not None and age < 60


def test_the_blocks_of_an_object_are_its_lines_and_a_cut_object_is_an_error() -> None:
    lines = b"".join(b'{"number":%d}\n' % number for number in range(200_000))
    assert b"".join(blocks_of(pack(lines))) == lines
    assert max(map(len, blocks_of(pack(lines)))) < len(lines) / 2
    with pytest.raises(EOFError):
        list(blocks_of(pack(lines)[:-100]))


def test_a_missing_piece_is_an_error_and_a_whole_replaces_what_it_holds() -> None:
    names = [piece_name("f", number) for number in (1, 2, 4)]
    with pytest.raises(DataError, match="piece 3 is missing"):
        reading_order(names)
    assert reading_order([*names, whole_name("f", 3)]) == ([whole_name("f", 3), piece_name("f", 4)], 4)
    assert reading_order([]) == ([], 0)
