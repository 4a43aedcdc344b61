"""The working copy of a bucket: what is fetched, kept, joined and removed, and what is not."""

from __future__ import annotations

from rollforge.store.bucket import PLAN, WorkingCopy
from rollforge.store.object_lines import PARTS, pack, piece_name


def put(copy: WorkingCopy, *names: str) -> None:
    for name in names:
        copy.objects.put(name, name.encode())


def put_lines(copy: WorkingCopy, number: int, lines: bytes) -> None:
    copy.objects.put(piece_name("rollouts.jsonl", number), pack(lines))


def files(copy: WorkingCopy) -> list[str]:
    return sorted(
        path.relative_to(copy.folder).as_posix() for path in copy.folder.rglob("*") if path.is_file()
    )


OWNER = "shards/00000/e1.owner"


def test_without_shards_only_their_plan_and_small_files_are_fetched(copy: WorkingCopy) -> None:
    put(
        copy,
        "rollouts_run.json",
        PLAN,
        OWNER,
        "rollouts_index/part.parquet",
        "index/part.parquet",
        "driver.lock",
    )
    put_lines(copy, 1, b"{}\n")
    copy.pull(shards=False)
    assert files(copy) == ["rollouts_run.json", PLAN]
    copy.pull()
    everything = ["rollouts.jsonl", "rollouts_run.json", OWNER, PLAN]
    assert files(copy) == everything
    copy.pull(shards=False)
    assert files(copy) == everything and OWNER in copy._read_pulled().tags


def test_a_file_is_fetched_again_only_where_it_is_missing_or_another(copy: WorkingCopy) -> None:
    put(copy, "a.json", "b.json")
    copy.pull()
    kept, lost = copy.folder / "a.json", copy.folder / "b.json"
    kept.write_text("changed here")
    lost.unlink()
    copy.pull()
    assert (kept.read_text(), lost.read_text()) == ("changed here", "b.json")
    copy.objects.put("a.json", b"changed there")
    copy.pull()
    assert kept.read_text() == "changed there"


def test_what_left_the_bucket_leaves_the_copy(copy: WorkingCopy) -> None:
    put(copy, "a.json", "b.json")
    put_lines(copy, 1, b"{}\n")
    copy.pull()
    assert files(copy) == ["a.json", "b.json", "rollouts.jsonl"]
    copy.objects.delete("a.json")
    copy.pull()
    assert files(copy) == ["b.json", "rollouts.jsonl"]
    copy.objects.delete(piece_name("rollouts.jsonl", 1))
    copy.pull(shards=False)
    assert files(copy) == ["b.json", "rollouts.jsonl"]
    copy.pull()
    assert files(copy) == ["b.json"]


def test_a_growing_file_is_joined_from_its_objects_and_only_new_ones_are_added(copy: WorkingCopy) -> None:
    path = copy.folder / "rollouts.jsonl"
    put_lines(copy, 1, b'{"a": 1}\n')
    copy.pull()
    path.write_bytes(b'{"a": 9}\n')  # as long as before: taken for what was joined
    put_lines(copy, 2, b'{"b": 2}\n')
    copy.pull()
    assert path.read_bytes() == b'{"a": 9}\n{"b": 2}\n'
    path.write_bytes(b"torn")
    copy.pull()
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n'
    path.unlink()
    put_lines(copy, 3, b'{"c": 3}\n')
    copy.pull()
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_the_objects_of_a_run_begin_with_its_name(copy: WorkingCopy) -> None:
    put(copy, "a_run.json", "b_run.json", OWNER, "a_driver.lock", "driver.lock")
    assert sorted(copy.look()) == ["a_driver.lock", "a_run.json", "b_run.json", OWNER]
    own = WorkingCopy("s3://data/run", beginning="a")
    own.objects._store = copy.objects._store
    assert sorted(own.look()) == ["a_run.json", OWNER]


def test_a_file_is_made_of_itself_or_of_its_pieces(copy: WorkingCopy) -> None:
    put(copy, "a.json", f"rollouts.jsonl{PARTS}note")
    put_lines(copy, 2, b"{}\n")
    put_lines(copy, 1, b"{}\n")
    copy.look()
    assert copy.objects_of(copy.folder / "a.json") == ["a.json"]
    pieces = [piece_name("rollouts.jsonl", number) for number in (1, 2)]
    assert copy.objects_of(copy.folder / "rollouts.jsonl") == pieces
    assert (
        copy.objects_of(copy.folder / "none.jsonl") == [] and copy.source(copy.folder / "none.jsonl") is None
    )


def test_growing_and_local_files_are_not_uploaded_as_a_whole(copy: WorkingCopy) -> None:
    put_lines(copy, 1, b"{}\n")
    copy.pull()
    for name in (
        "new.json",
        "rollouts_failures.jsonl",
        "rollouts_index/x",
        "a.lock",
        ".hidden",
        "other_verdicts.jsonl",
    ):
        (copy.folder / name).parent.mkdir(exist_ok=True)
        (copy.folder / name).write_text("x")
    assert copy.push() == 1
    assert sorted(one.name for one in copy.objects.walk()) == ["new.json", piece_name("rollouts.jsonl", 1)]
