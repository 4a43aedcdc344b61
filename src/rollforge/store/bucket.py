"""Runs, task files and datasets in object storage (`s3://`, `gs://`, `az://`), through local working copies.

The bucket is authoritative. A growing file (rollouts, failures, verdicts) is a series of immutable objects under `NAME.parts/`,
each created once; a line counts only once its object exists. Every other file is one object. A command works on a copy in the
user's cache folder, which is updated first; its writes are uploaded immediately.

A store that ignores conditional writes is refused before anything is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import xxhash

from rollforge.errors import UsageError
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store import shipping
from rollforge.store.absent import absent_text
from rollforge.store.atomic import make_directory, replacing
from rollforge.store.bundle_names import source_of
from rollforge.store.files import file_stem
from rollforge.store.object_lines import PARTS, blocks_of, file_of, is_piece, pack, piece_name, reading_order
from rollforge.store.objects import Listed, ObjectFolder, is_bucket_url
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.bucket_addresses import ADDRESSES

logger = logging.getLogger(__name__)

LOCK = "driver.lock"
STALE_S = 60.0
"""A lock that was not renewed for this time belongs to a dead process."""
RENEW_S = 10.0
LOCAL_ONLY = (".lock",)
GROWING = ("rollouts.jsonl", "_failures.jsonl", "_verdicts.jsonl", "_calls.jsonl", "_batches.jsonl")
"""Files that are uploaded line by line, never as a whole."""
FILES = (".jsonl", ".json", ".gz", ".zst", ".parquet", ".html", ".csv", ".txt", ".md")
"""Suffixes of addresses that name a file, even one that does not exist yet."""
DATED = (".beat", ".owner")
"""Files whose age shows whether a process is alive."""
SHARDS, PLAN = "shards/", "shards/plan.json"


class _Pulled(msgspec.Struct):
    """Objects from which a working copy was made → their tags."""

    tags: dict[str, str] = {}


class _Made(msgspec.Struct, frozen=True):
    """Objects from which a growing file of the copy was made."""

    parts: int
    size: int
    tag: str
    """Tag of the last part; objects of another run with the same name have different tags."""


class WorkingCopy:
    """A local copy of a folder (or one file) of a bucket."""

    variant = ""
    """Kind of copy; each kind has a separate folder."""

    def __init__(self, url: str, *, beginning: str = "") -> None:
        """A copy of the folder or file at `url`.

        Args:
            beginning: Name prefix of the run's objects, since several runs may share a folder.
        """
        self.objects = ObjectFolder(url)
        self._beginning = beginning
        self.url, self.prefix = self.objects.url, self.objects.prefix
        name = re.sub(r"[^\w.-]+", "-", self.prefix.rpartition("/")[2]) or self.objects.bucket
        text = f"{self.url} {beginning} {os.environ.get('AWS_ENDPOINT_URL', '')}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        digest += self.variant
        self.folder = _cache_folder() / digest / name
        self._marks = _cache_folder() / digest / ".marks"
        """File that records the copy's source objects; it is beside the folder, because a dataset's folder contains nothing else."""
        self._next_part: dict[str, int] = {}
        self._last_tag = ""
        self._lock = LOCK if beginning in ("", "rollouts") else f"{beginning}_{LOCK}"
        self._lock_tag: str | None = None
        self._is_locked = False
        self.listed: dict[str, Listed] = {}
        """The objects of the bucket in the last listing."""

    # -- from the bucket ----------------------------------------------------------------------------------------------

    def pull(self, *, shards: bool = True) -> Path:
        """Update the copy; returns its local path: a file if the address names an object, else a folder.

        Args:
            shards: False omits growing files, which a process that collects shards reads from the bucket directly.
        """
        if not self._beginning and self.objects.has_object_of_its_own():
            return self._pull_file()
        make_directory(self.folder)
        make_directory(self._marks)
        with self._alone():
            self._pull_folder(shards=shards)
        return self.folder

    def _pull_folder(self, *, shards: bool) -> None:
        old, new = self._read_pulled(), _Pulled()
        versions = self.look()
        pieces: dict[str, list[str]] = {}
        wanted: list[Listed] = []
        for name, one in versions.items():
            is_left = not shards and (is_piece(name) or (name.startswith(SHARDS) and name != PLAN))
            if _is_of_an_index(name) or is_left:
                if name in old.tags:
                    new.tags[name] = old.tags[name]
                continue
            new.tags[name] = one.tag
            if f"{name} sent" in old.tags:
                new.tags[f"{name} sent"] = old.tags[f"{name} sent"]
            if is_piece(name):
                pieces.setdefault(file_of(name), []).append(name)
            elif self.leaves_out(name, [name]):
                continue
            elif old.tags.get(name) != one.tag or not (self.folder / name).is_file():
                wanted.append(one)
        for name, digest in self.objects.at_once(self._download, wanted):
            new.tags[f"{name} sent"] = digest
        self._date([one for one in wanted if one.name.endswith(DATED)])

        def join(name: str) -> None:
            self._join(name, pieces[name], new)

        list(self.objects.at_once(join, list(pieces)))
        if shards:
            self._drop_missing(old, new, set(pieces))
        self._keep(new)

    def look(self) -> dict[str, Listed]:
        """List the objects of the bucket."""
        self.listed = {one.name: one for one in self.objects.walk() if self._is_ours(one.name)}
        return self.listed

    def objects_of(self, path: Path) -> list[str]:
        """Objects of a file, in order, from the last listing; none if the file is not in the bucket."""
        name = self._name(path)
        if name in self.listed:
            return [name]
        start = f"{name}{PARTS}"
        pieces = [one for one in self.listed if one.startswith(start) and is_piece(one)]
        return reading_order(pieces)[0] if pieces else []

    def source(self, path: Path) -> str | None:
        """Identity of the objects from which a file of the copy was made; None unless it has exactly their bytes."""
        objects = self.objects_of(path)
        if not objects:
            return None
        tag, name = self.listed[objects[-1]].tag, self._name(path)
        if not is_piece(objects[-1]):
            is_same = self._read_pulled().tags.get(name) == tag
        else:
            made = self._read_mark(name)
            is_same = made is not None and made.tag == tag and made.size == path.stat().st_size
        is_same = is_same or absent_text(path) is not None
        return source_of(objects, {objects[-1]: tag}) if is_same else None

    def leaves_out(self, name: str, objects: list[str]) -> bool:
        """Whether a file that was not downloaded yet can be omitted."""
        return False

    def _is_ours(self, name: str) -> bool:
        return name != self._lock and name.startswith((self._beginning, SHARDS))

    def _pull_file(self) -> Path:
        path = self.folder
        make_directory(path.parent)
        make_directory(self._marks)
        with self._alone():
            tag = self.objects.own_object().tag
            mark = path.with_name(f".{path.name}.tag")
            if not path.is_file() or not mark.is_file() or mark.read_text() != tag:
                with replacing(path, syncs=False) as file:  # a download is not sent back
                    file.writelines(self.objects.stream(""))
                mark.write_text(tag)
        return path

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a local lock, so that only one process of this machine changes the copy."""
        with (self._marks / "pull.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _join(self, name: str, pieces: list[str], new: _Pulled) -> None:
        """Build a growing file from its objects; if the earlier ones are unchanged, only new ones are appended."""
        target = self.folder / name
        order, count = reading_order(pieces)
        self._next_part[name] = count + 1
        if self.leaves_out(name, order):
            return
        tag = new.tags[order[-1]]
        made = self._read_mark(name)
        is_ours = target.is_file() and made is not None and made.size == target.stat().st_size
        if is_ours and made is not None and made.parts == count and made.tag == tag:
            return
        later = piece_name(name, made.parts) if made is not None and made.parts else ""
        make_directory(target.parent)
        if is_ours and made is not None and later in order and made.tag == new.tags[later]:
            with target.open("ab") as file:
                file.writelines(self._lines(order[order.index(later) + 1 :]))
        else:
            with replacing(target, syncs=False) as whole:
                whole.writelines(self._lines(order))
        self._write_mark(name, _Made(parts=count, size=target.stat().st_size, tag=tag))

    def _lines(self, names: list[str]) -> Iterator[bytes]:
        for name, data in zip(names, self.objects.read_many(names), strict=True):
            if data is None:
                raise OSError(f"{self.url}/{name}: it was replaced while it was read; run the command again")
            yield from blocks_of(data)

    def _drop_missing(self, old: _Pulled, new: _Pulled, joined: set[str]) -> None:
        """Remove files that are no longer in the bucket, and growing files that were never uploaded."""
        for name in old.tags:
            if name not in new.tags and not is_piece(name):
                (self.folder / name).unlink(missing_ok=True)
        for path in self._marks.rglob("*.made"):
            name = path.relative_to(self._marks).as_posix().removesuffix(".made")
            if name not in joined:
                (self.folder / name).unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def _download(self, one: Listed) -> tuple[str, str]:
        """Download an object; returns its name and the digest of its bytes."""
        path = self.folder / one.name
        make_directory(path.parent)
        digest = xxhash.xxh3_128()
        with replacing(path, syncs=False) as file:  # a download is not sent back
            for chunk in self.objects.stream(one.name):
                digest.update(chunk)
                file.write(chunk)
        return one.name, digest.hexdigest()

    def _date(self, listed: list[Listed]) -> None:
        """Set file times to the store's times, which show whether a writer is alive."""
        if not listed:
            return
        try:
            now = self.objects.now()
        except OSError:  # who may only read trusts this machine's clock
            now = datetime.now(listed[0].modified.tzinfo)
        for one in listed:
            then = time.time() - (now - one.modified).total_seconds()
            os.utime(self.folder / one.name, (then, then))

    # -- to the bucket ------------------------------------------------------------------------------------------------

    def append(self, path: Path, data: bytes) -> None:
        """Make lines of a growing file durable in the bucket, as one new object."""
        name = self._name(path)
        number = self._next_part.get(name, 1)
        tag = self.objects.create(piece_name(name, number), pack(data))
        if tag is None:
            raise OSError(f"{self.url}/{name}: another process writes to this run")
        self._last_tag = tag
        self._next_part[name] = number + 1

    def recorded(self, path: Path, size: int) -> None:
        """Record the size of a growing file whose lines are all in the bucket."""
        name = self._name(path)
        self._write_mark(name, _Made(parts=self._next_part[name] - 1, size=size, tag=self._last_tag))

    def replace(self, path: Path) -> None:
        """Upload a file that was replaced."""
        self.objects.put(self._name(path), path)

    def remove(self, folder: Path) -> None:
        """Remove the objects of an unneeded folder."""
        names = [one.name for one in self.objects.walk(self._name(folder))]
        if names:
            self.objects.delete(*names)

    def refresh(self) -> None:
        """Update the copy with writes of other processes."""
        self.pull()

    def push(self) -> int:
        """Upload all files that the bucket lacks, manifests last; returns their number."""
        old = self._read_pulled()
        growing = {file_of(name) for name in old.tags if is_piece(name)} | set(self._next_part)
        files = [
            path
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not _is_local(path, self.folder)
        ]
        files = [
            path for path in files if self._name(path) not in growing and not path.name.endswith(GROWING)
        ]
        files.sort(key=lambda path: path.name in ("manifest.json",) or path.name.endswith("_run.json"))
        sent = 0
        for path in files:
            digest = _digest(path)
            if old.tags.get(f"{self._name(path)} sent") != digest:
                self.replace(path)
                old.tags[f"{self._name(path)} sent"] = digest
                sent += 1
        self._keep(old)
        return sent

    def probe(self) -> None:
        """Refuse a store that ignores conditional writes."""
        self.objects.probe()

    # -- the lock -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run for writing: others' writes are downloaded first, and everything written here is uploaded at the end."""
        if self._is_locked:
            yield
            return
        with self.locked():
            self.pull()
            try:
                yield
            finally:
                self.push()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers: the lock is a create-only object, renewed every few seconds and taken over from dead processes."""
        self._take_lock()
        self._is_locked = True
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(ended,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._is_locked = False
            ended.set()
            renewing.join(RENEW_S)
            if self._lock_tag is not None:
                self.objects.delete(self._lock)

    def _take_lock(self) -> None:
        text = _lock_text()
        self._lock_tag = self.objects.create(self._lock, text)
        if self._lock_tag is not None:
            return
        written = self.objects.modified(self._lock)
        age = (self.objects.now() - written).total_seconds() if written is not None else STALE_S
        if age < STALE_S:
            raise UsageError(
                f"another process is writing to {self.url} (its lock is {age:.0f} s old)",
                hint=f"wait for it; a lock that nobody renews for {STALE_S:.0f} s is taken over",
            )
        self.objects.delete(self._lock)
        self._lock_tag = self.objects.create(self._lock, text)
        if self._lock_tag is None:
            raise UsageError(f"another process has begun to write to {self.url}", hint="wait for it")

    def _renew(self, ended: threading.Event) -> None:
        """Renew the lock while it is ours. Data is protected by create-only objects; the lock only prevents a second writer from
        starting.
        """
        logged = LoggedOnce(logger, f"cannot renew the lock of {self.url}")
        while self._lock_tag is not None and not ended.wait(RENEW_S):
            with logged:
                self._lock_tag = self.objects.put_if_unchanged(self._lock, _lock_text(), self._lock_tag)
                if self._lock_tag is None:
                    logger.warning("the lock of %s was taken over by another process", self.url)

    # -- names --------------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _read_pulled(self) -> _Pulled:
        try:
            return decode_json((self._marks / "pulled.json").read_bytes(), _Pulled)
        except (OSError, *UNREADABLE):
            return _Pulled()

    def _keep(self, pulled: _Pulled) -> None:
        with replacing(self._marks / "pulled.json") as file:
            file.write(msgspec.json.encode(pulled))

    def _mark(self, name: str) -> Path:
        return self._marks / f"{name}.made"

    def _read_mark(self, name: str) -> _Made | None:
        try:
            return decode_json(self._mark(name).read_bytes(), _Made)
        except (OSError, *UNREADABLE):
            return None

    def _write_mark(self, name: str, made: _Made) -> None:
        self._mark(name).parent.mkdir(parents=True, exist_ok=True)
        self._mark(name).write_bytes(msgspec.json.encode(made))


def split_run(url: str) -> tuple[str, str]:
    """Folder and file name of an address, such as a run's rollouts; the name is empty if the address names no file."""
    folder, _, name = url.rstrip("/").rpartition("/")
    if name.endswith(FILES) and not folder.endswith(":/"):
        return folder, name
    return url, ""


def _lock_text() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}).encode()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


@contextlib.contextmanager
def run_copy(
    url: str, *, writes: bool, labels: bool = False, locks: bool = True, whole: bool = True
) -> Iterator[Path]:
    """Local path of a run in a bucket, by the address of its folder or rollouts file; arguments as in `working_copy`."""
    folder, name = split_run(url)
    beginning = file_stem(Path(name)) if name else ""
    with working_copy(
        folder, writes=writes, labels=labels, locks=locks, whole=whole, beginning=beginning
    ) as path:
        yield path / name if name else path


@contextlib.contextmanager
def working_copy(
    url: str,
    *,
    writes: bool,
    labels: bool = False,
    locks: bool = True,
    whole: bool = True,
    beginning: str = "",
) -> Iterator[Path]:
    """Local path of a file or folder in a bucket; with `writes`, local writes are uploaded.

    Args:
        whole: False omits growing files until the step takes the lock. labels: Only labels are written, which needs no lock, so a
            run can be labelled while it is collected. beginning: Name prefix of the run's objects, since several runs may share a
            folder. locks: False leaves locking to the step, because many processes may collect shards of a run.

    Raises:
        UsageError: the store cannot be reached, ignores conditional writes, or another process writes there.
    """
    copy = WorkingCopy(url, beginning=beginning)
    ADDRESSES.add(str(copy.folder), copy.url)
    if not writes and not labels:
        with shipping.known(copy.folder, copy.url):
            yield copy.pull()
        return
    if not labels:
        copy.probe()
    with contextlib.ExitStack() as stack:
        if not labels and locks:
            stack.enter_context(copy.held())
            path = copy.folder
        else:
            path = copy.pull(shards=whole)
        stack.enter_context(shipping.known(copy.folder, copy.url))
        stack.enter_context(shipping.shipped(copy.folder, copy))
        yield path


@contextlib.contextmanager
def input_copy(url: str) -> Iterator[Path]:
    """Local path of a file or folder in a bucket that is only read.

    Raises:
        UsageError: nothing has that address.
    """
    with working_copy(url, writes=False) as path:
        if path.is_dir() and not any(path.iterdir()):
            raise UsageError(f"{url}: no such object", hint="check the address; upload the file first")
        yield path


def _is_of_an_index(name: str) -> bool:
    """Whether an object belongs to an index; indexes are transferred separately."""
    return name.startswith("index/") or any(part.endswith("_index") for part in name.split("/")[:-1])


def _is_local(path: Path, folder: Path) -> bool:
    """Whether a file is local to this machine: locks, marks, temporary files, the index, unjoined verdicts."""
    relative = path.relative_to(folder)
    return (
        _is_of_an_index(relative.as_posix())
        or any(part.startswith(".") or part.endswith(".parts") for part in relative.parts)
        or path.name.endswith(LOCAL_ONLY)
    )


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "rollforge" / "buckets"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


__all__ = ["WorkingCopy", "input_copy", "is_bucket_url", "run_copy", "working_copy"]
