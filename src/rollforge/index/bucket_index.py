"""The index of a run in a bucket, stored beside the run: built once, downloaded by other machines.

A bundle holds the parts and the state of one index. Its name is derived from the source objects, so a bundle of older or other
rows is never used. A damaged bundle is rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rollforge.errors import RollforgeError
from rollforge.index.cache import IndexCache
from rollforge.index.indexed_parts import IndexUnit, index_units
from rollforge.index.state import VERSION, State, encode_checked, file_id, read_checked
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.store import shipping
from rollforge.store.atomic import replacing
from rollforge.store.bucket import WorkingCopy, split_run
from rollforge.store.bundle_names import ENDING, bundle_name
from rollforge.store.files import file_stem
from rollforge.store.lean import LeanCopy, Span
from rollforge.store.object_lines import is_piece
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.bucket_addresses import ADDRESSES

logger = logging.getLogger(__name__)

MOST_SPANS = 4_000
"""Most objects of one file whose unpacked lengths are looked up, at one small request each."""
HEAD_BYTES = 18
"""Longest header of a compressed frame, which contains the frame's unpacked length."""


class IndexBundle(msgspec.Struct, frozen=True):
    """An index packed as one object."""

    version: int
    size: int
    """Size of the source file in bytes."""
    length: int | None
    """Bytes of the file that are indexed; None means all."""
    spans: list[Span] | None
    """Byte range of each object in the file; None with too many objects."""
    state: State
    files: dict[str, bytes]
    """Index parts by file name."""


@contextmanager
def indexed_run(url: str, *, is_lean: bool = False) -> Iterator[Path]:
    """Local path of a run, with the bucket's index; an index built while the context is open is uploaded.

    Args:
        is_lean: The reader needs only the index and a few lines; only these lines are downloaded, on demand.
    """
    folder, name = split_run(url)
    beginning = file_stem(Path(name)) if name else ""
    copy = (
        LeanCopy(folder, beginning=beginning, version=VERSION)
        if is_lean
        else WorkingCopy(folder, beginning=beginning)
    )
    ADDRESSES.add(str(copy.folder), copy.url)
    with shipping.known(copy.folder, copy.url):
        path = copy.pull()
        path = path / name if name else path
        fetch_indexes(copy, path)
        yield path
        if not is_lean:
            send_quietly(copy, path)


def pulled_run(url: str) -> Path:
    """Download a run from its bucket and return the local path; later writes to it are not uploaded."""
    folder, name = split_run(url)
    copy = WorkingCopy(folder, beginning=file_stem(Path(name)) if name else "")
    ADDRESSES.add(str(copy.folder), copy.url)
    path = copy.pull()
    path = path / name if name else path
    fetch_indexes(copy, path)
    return path


def send_quietly(copy: WorkingCopy, run: Path) -> None:
    """Upload new indexes if this user may write to the bucket; errors are ignored."""
    try:
        send_indexes(copy, run)
    except OSError as error:
        logger.debug("the index of %s stays on this machine: %s", copy.url, error)


def fetch_indexes(copy: WorkingCopy, run: Path) -> int:
    """Copy the bucket's indexes into the working copy; returns how many."""
    bundles = {name for name in copy.listed if name.endswith(ENDING)}
    if not bundles:
        return 0
    wanted = []
    for unit in _units(copy, run):
        name = _bundle_of(copy, unit)
        if name in bundles and not _is_current(unit):
            wanted.append((unit, name))
    return sum(copy.objects.at_once(lambda one: _unpacked(copy, *one), wanted))


def send_indexes(copy: WorkingCopy, run: Path) -> int:
    """Upload indexes of the working copy that the bucket lacks; returns how many."""
    copy.look()
    sent = 0
    for unit in _units(copy, run):
        name = _bundle_of(copy, unit)
        if name is None or name in copy.listed or not _is_current(unit):
            continue
        copy.objects.put(name, msgspec.msgpack.encode(_packed(copy, unit)))
        sent += 1
        folder, kind = name.rpartition("/")[0], unit.kind
        older = [one for one in copy.listed if one.startswith(f"{folder}/{kind}-") and one.endswith(ENDING)]
        if older:
            copy.objects.delete(*older)
    return sent


def _units(copy: WorkingCopy, run: Path) -> Iterator[IndexUnit]:
    """Index units of a run; empty if the path is no run."""
    try:
        yield from index_units(run)
    except RollforgeError:
        return


def _cache(unit: IndexUnit) -> IndexCache:
    return IndexCache(Path(unit.path), unit.kind, Path(unit.folder), unit.length)


def _bundle_of(copy: WorkingCopy, unit: IndexUnit) -> str | None:
    source = copy.source(Path(unit.path))
    if source is None:
        return None
    return bundle_name(
        Path(unit.folder).relative_to(copy.folder).as_posix(), unit.kind, f"{VERSION} {source}"
    )


def _is_current(unit: IndexUnit) -> bool:
    state = read_checked(_cache(unit).folder / "state.json", State)
    path = Path(unit.path)
    return state is not None and state.version == VERSION and state.made_of == file_id(path, unit.length)


def _packed(copy: WorkingCopy, unit: IndexUnit) -> IndexBundle:
    folder = _cache(unit).folder
    state = read_checked(folder / "state.json", State)
    assert state is not None, folder
    return IndexBundle(
        version=VERSION,
        size=Path(unit.path).stat().st_size,
        length=unit.length,
        spans=_spans(copy, Path(unit.path)) if unit.kind == "rollouts" else None,
        state=state,
        files={part.name: (folder / part.name).read_bytes() for part in state.parts()},
    )


def _spans(copy: WorkingCopy, path: Path) -> list[Span] | None:
    """Byte range of each object in a file, from the headers of the objects."""
    names = copy.objects_of(path)
    if len(names) > MOST_SPANS:
        return None
    if not any(map(is_piece, names)):
        return [Span(names[0], 0, path.stat().st_size)] if names else None
    from backports import zstd

    spans: list[Span] = []
    start = 0
    heads = copy.objects.at_once(
        lambda name: copy.objects.read_range(name, 0, min(HEAD_BYTES, copy.listed[name].size)), names
    )
    for name, head in zip(names, heads, strict=True):
        length = zstd.get_frame_info(head).decompressed_size
        if length is None:
            return None
        spans.append(Span(name, start, length))
        start += length
    return spans if start == path.stat().st_size else None


def _unpacked(copy: WorkingCopy, unit: IndexUnit, name: str) -> bool:
    """Unpack a bundle; returns whether it was usable."""
    data = copy.objects.read(name)
    try:
        bundle = decode_msgpack(data or b"", IndexBundle)
    except UNREADABLE:
        logger.warning("%s/%s: cannot be read; the index is built again", copy.url, name)
        return False
    path, folder = Path(unit.path), _cache(unit).folder
    if bundle.version != VERSION or bundle.length != unit.length or bundle.size != path.stat().st_size:
        return False
    if any(Path(part).name != part for part in bundle.files):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in bundle.files.items():
        with replacing(folder / part, syncs=False) as file:
            file.write(content)
    bundle.state.made_of = file_id(path, unit.length)
    with replacing(folder / "state.json", syncs=False) as file:
        file.write(encode_checked(bundle.state))
    return True
