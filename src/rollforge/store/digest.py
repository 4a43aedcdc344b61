"""The SHA-256 of a file, remembered beside its index for as long as the file is unchanged.

Hashing a gigabyte takes about a second. `Digests` does it in a thread while other work goes on; hashlib releases the interpreter lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

import msgspec

from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.atomic import replacing
from rollforge.store.reading import UNREADABLE

STEP = 1 << 20
"""Bytes hashed at a time."""


_LOCKS: dict[Path, Lock] = {}
"""One per file: callers wait for a digest that is being computed."""


class _Remembered(msgspec.Struct):
    """A digest and the file that it is of."""

    file: str
    sha256: str


class _Stopped(Exception):
    """Nobody needs the digest any more."""


class Digests:
    """Digests taken in a thread beside other work. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "rollforge-digest")
        self._stop = Event()
        self._pending: list[Future[str]] = []

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=failed is not None)

    def begin(self, files: Iterable[tuple[Path, Path | None]]) -> None:
        """Take the digests of files; each comes with the folder that remembers its digest."""
        self._pending += [self._pool.submit(digest_of, path, folder, self._stop) for path, folder in files]


def digest_of(path: str | Path, folder: str | Path | None = None, stop: Event | None = None) -> str:
    """The file's SHA-256, taken now or remembered in `folder`."""
    path = Path(path)
    digest_file = (
        Path(folder) / f"digest-{path.name}.json" if folder is not None and Path(folder).is_dir() else None
    )
    with _LOCKS.setdefault(path.absolute(), Lock()):
        return _taken_or_known(path, digest_file, stop)


def _taken_or_known(path: Path, digest_file: Path | None, stop: Event | None) -> str:
    identity = _identity(path)
    remembered = _read(digest_file) if digest_file is not None else None
    if remembered is not None and remembered.file == identity:
        return remembered.sha256
    digest = _sha256(path, stop)
    if digest_file is not None and _identity(path) == identity:
        with suppress(OSError):  # in a read-only place it is taken again next time
            _write(digest_file, _Remembered(identity, digest))
    return digest


def _sha256(path: Path, stop: Event | None) -> str:
    digest, block = hashlib.sha256(), bytearray(STEP)
    with path.open("rb", buffering=0) as file, memoryview(block) as view:
        while size := file.readinto(block):
            digest.update(view[:size])
            if stop is not None and stop.is_set():
                raise _Stopped
    return digest.hexdigest()


def _identity(path: Path) -> str:
    """Differs after any change of the file."""
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"


def _read(digest_file: Path) -> _Remembered | None:
    try:
        data = digest_file.read_bytes()
        checksum, _, record = data.partition(b" ")
        if hashlib.sha256(record).hexdigest().encode() != checksum:
            return None
        return decode_json(record, _Remembered)
    except (OSError, *UNREADABLE):
        return None


def _write(digest_file: Path, remembered: _Remembered) -> None:
    """Replace the record in one step; its checksum tells damage."""
    record = msgspec.json.encode(remembered)
    with replacing(digest_file, syncs=False) as file:
        file.write(hashlib.sha256(record).hexdigest().encode() + b" " + record)
