"""The SHA-256 of a file, cached beside its index while the file is unchanged.

Hashing a gigabyte takes about a second. `Digests` computes it in a thread in parallel with other work; hashlib releases the
interpreter lock.
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
"""Bytes hashed per step."""


_LOCKS: dict[Path, Lock] = {}
"""One lock per file: callers wait for a digest that is being computed."""


class _Remembered(msgspec.Struct):
    """A cached digest and the identity of its file."""

    file: str
    sha256: str


class _Stopped(Exception):
    """Raised when a digest is no longer needed."""


class Digests:
    """Computes digests in a background thread; a context manager."""

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
        """Start computing digests; each file comes with the folder that caches its digest."""
        self._pending += [self._pool.submit(digest_of, path, folder, self._stop) for path, folder in files]


def digest_of(path: str | Path, folder: str | Path | None = None, stop: Event | None = None) -> str:
    """The file's SHA-256, computed or from the cache in `folder`."""
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
    """Identity of a file, which differs after any change."""
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
    """Replace the cache record atomically, with a checksum."""
    record = msgspec.json.encode(remembered)
    with replacing(digest_file, syncs=False) as file:
        file.write(hashlib.sha256(record).hexdigest().encode() + b" " + record)
