"""The objects of one folder in a bucket: read, list, create, replace. Retries transient errors; independent of runs.

Credentials come from the environment or the machine, as in the store's own tools, never from options. Safety depends only on
`create`, which must succeed for exactly one caller per name; otherwise the store is refused (`probe`).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollforge.errors import UsageError
from rollforge.text_safety.bucket_addresses import SCHEMES
from rollforge.text_safety.outgoing import cut

PROBE = ".rollforge-probe"
"""How the names of objects begin that ask the store something, and are removed at once."""
PROBE_TRIES = 5
TRIES = 11
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 20.0
"""Pauses between tries double; in total, an outage of a minute is tolerated."""
AT_ONCE = 16
"""Concurrent requests when many objects are read."""
CHUNK = 1 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def is_bucket_url(text: object) -> bool:
    """Whether a text is a bucket address."""
    return isinstance(text, str) and text.startswith(SCHEMES)


class Listed(msgspec.Struct, frozen=True):
    """An entry of an object listing."""

    name: str
    """Name relative to the folder."""
    size: int
    tag: str
    modified: datetime


class ObjectFolder:
    """A folder of a bucket."""

    def __init__(self, url: str) -> None:
        obstore = _library()
        self.url = url.rstrip("/")
        scheme, _, rest = url.partition("://")
        rest = rest.rstrip("/")
        self.bucket, _, self.prefix = rest.partition("/")
        if not self.bucket:
            raise UsageError(f"{url!r} names no bucket", hint=f"write {scheme}://BUCKET/PATH")
        if "@" in self.bucket or "?" in rest:
            raise UsageError(
                "the address of a bucket holds a key or a query, which would reach the run's files",
                hint="keys come from the environment, such as AWS_ACCESS_KEY_ID",
            )
        address = os.environ.get("AWS_ENDPOINT_URL", "")
        if scheme == "s3" and address and not address.startswith(("http://", "https://")):
            raise UsageError(f"AWS_ENDPOINT_URL={address} is no web address", hint="begin it with https://")
        self._obstore = obstore
        self._errors = obstore.exceptions
        try:
            self._store: Any = obstore.store.from_url(
                f"{scheme}://{self.bucket}",
                client_options={
                    "timeout": timedelta(seconds=120),
                    "connect_timeout": timedelta(seconds=5),
                    "allow_http": address.startswith("http://"),
                },
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
            )
        except (
            ValueError,
            self._errors.BaseError,
        ) as error:  # a key of another shape, a name that no bucket has
            raise self._unreachable(error) from error

    def key(self, name: str) -> str:
        """The object key of a name relative to the folder."""
        return f"{self.prefix}/{name}" if self.prefix else name

    # -- reading ------------------------------------------------------------------------------------------------------

    def has_object_of_its_own(self) -> bool:
        """Whether the address names an object rather than a folder."""
        if not self.prefix:
            return False
        try:
            self._obstore.head(self._store, self.prefix)
        except FileNotFoundError:
            return False
        except self._errors.BaseError as error:
            raise self._unreachable(error) from error
        return True

    def own_object(self) -> Listed:
        """The object that the address names."""
        return self._listed(self._obstore.head(self._store, self.prefix), name="")

    def walk(self, folder: str = "") -> Iterator[Listed]:
        """All objects below a folder, sorted by name."""
        start = self.key(folder) if folder else self.prefix
        try:
            for batch in self._obstore.list(self._store, f"{start.rstrip('/')}/" if start else None):
                for one in batch:
                    listed = self._listed(one)
                    if not listed.name.rpartition("/")[2].startswith(PROBE):
                        yield listed
        except self._errors.BaseError as error:
            raise self._unreachable(error) from error

    def names(self, folder: str) -> list[str]:
        """Sorted names directly in a folder, including subfolders."""
        listed = self._tried(
            folder, lambda: self._obstore.list_with_delimiter(self._store, f"{self.key(folder)}/")
        )
        keys = [str(one["path"]) for one in listed["objects"]] + [
            str(one) for one in listed["common_prefixes"]
        ]
        return sorted(key.rstrip("/").rpartition("/")[2] for key in keys)

    def read(self, name: str, *, tries: int = TRIES) -> bytes | None:
        """The bytes of an object; None if it does not exist."""
        try:
            return bytes(
                self._tried(name, lambda: self._obstore.get(self._store, self.key(name)).bytes(), tries=tries)
            )
        except FileNotFoundError:
            return None

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """A byte range of an object."""
        return bytes(
            self._tried(
                name, lambda: self._obstore.get_range(self._store, self.key(name), start=start, end=end)
            )
        )

    def read_many(self, names: list[str]) -> Iterator[bytes | None]:
        """The bytes of several objects, in order, fetched concurrently."""
        return self.at_once(self.read, names)

    def at_once(self, act: Callable[[_Item], _Result], items: list[_Item]) -> Iterator[_Result]:
        """Map over items with a few in flight, results in order, so that memory stays bounded."""
        if len(items) < 2:
            yield from map(act, items)
            return
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for first in range(0, len(items), AT_ONCE):
                yield from threads.map(act, items[first : first + AT_ONCE])

    def stream(self, name: str) -> Iterator[bytes]:
        """The bytes of an object in blocks; an empty name means the object that the address names."""
        key = self.key(name) if name else self.prefix
        try:
            for chunk in self._obstore.get(self._store, key).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)
        except self._errors.BaseError as error:
            raise OSError(f"{self.url}/{name}: {_first_line(error)}") from error

    def modified(self, name: str) -> datetime | None:
        """Modification time of an object by the store's clock; None if it does not exist."""
        try:
            head = self._tried(name, lambda: self._obstore.head(self._store, self.key(name)))
        except FileNotFoundError:
            return None
        written: datetime = head["last_modified"]
        return written

    def now(self) -> datetime:
        """Current time by the store's clock, which also dates its objects; the local clock may be wrong."""
        name = f"{PROBE}-{uuid.uuid4().hex}"
        self.put(name, b"now")
        try:
            modified = self.modified(name)
        finally:
            self.delete(name)
        assert modified is not None, name
        return modified

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(self, name: str, data: bytes) -> str | None:
        """Create a new object and return its tag; None if one with other bytes exists.

        If the answer to an earlier try was lost, the object is recognised by its bytes. Concurrent creations may get a conflict
        although no object exists yet; such a try is repeated.
        """

        def act() -> str | None:
            try:
                return str(self._obstore.put(self._store, self.key(name), data, mode="create")["e_tag"])
            except self._errors.AlreadyExistsError:
                try:
                    answer = self._obstore.get(self._store, self.key(name))
                    return str(answer.meta["e_tag"]) if bytes(answer.bytes()) == data else None
                except FileNotFoundError as error:
                    raise _Passing from error

        return self._tried(name, act)

    def put(self, name: str, data: bytes | Path, *, tries: int = TRIES) -> str:
        """Write an object, replacing an existing one; a file is uploaded in pieces."""
        return str(
            self._tried(
                name, lambda: self._obstore.put(self._store, self.key(name), data)["e_tag"], tries=tries
            )
        )

    def put_if_unchanged(self, name: str, data: bytes, tag: str) -> str | None:
        """Replace an object only if it still has this tag; None if it does not."""

        def act() -> str | None:
            try:
                mode = {"e_tag": tag}
                return str(self._obstore.put(self._store, self.key(name), data, mode=mode)["e_tag"])
            except (self._errors.PreconditionError, FileNotFoundError):
                return None

        return self._tried(name, act)

    def delete(self, *names: str) -> None:
        """Remove objects; errors are ignored."""
        with contextlib.suppress(self._errors.BaseError, FileNotFoundError):
            self._obstore.delete(self._store, [self.key(name) for name in names])

    def probe(self) -> None:
        """Refuse a store that accepts a second creation of the same object, since two writers could then overwrite each other."""
        name = f"{PROBE}-{uuid.uuid4().hex}"
        try:
            self._create_probe(name)
            try:
                self._obstore.put(self._store, self.key(name), b"2", mode="create")
            except self._errors.AlreadyExistsError:
                return
            raise UsageError(
                f"{self.url}: the store ignores conditional writes, so finished rollouts could be overwritten",
                hint="use a store that honours If-None-Match, or collect to a disk and copy the run",
            )
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._unreachable(error) from error
        finally:
            self.delete(name)

    def _create_probe(self, name: str) -> None:
        """Create an object whose name nobody else knows: an answer that it exists is a conflict, which passes."""
        for attempt in range(PROBE_TRIES):
            try:
                self._obstore.put(self._store, self.key(name), b"1", mode="create")
            except self._errors.AlreadyExistsError:
                if attempt == PROBE_TRIES - 1:
                    raise
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            else:
                return

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def _tried(self, name: str, act: Callable[[], _Result], *, tries: int = TRIES) -> _Result:
        """Retry an operation; raises `OSError` if it fails for more than a minute, `FileNotFoundError` at once."""
        for attempt in range(tries):
            try:
                return act()
            except FileNotFoundError:
                raise
            except (*_final(self._errors),) as error:
                raise OSError(f"{self.url}/{name}: {_first_line(error)}") from error
            except (_Passing, self._errors.BaseError) as error:
                if attempt == tries - 1:
                    raise OSError(f"{self.url}/{name}: {_first_line(error)}") from error
                time.sleep(min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        raise AssertionError("the last try returns or raises")

    def _listed(self, shown: Any, name: str | None = None) -> Listed:
        key = str(shown["path"])
        relative = key.removeprefix(f"{self.prefix}/" if self.prefix else "") if name is None else name
        return Listed(relative, int(shown["size"]), str(shown["e_tag"]), shown["last_modified"])

    def _unreachable(self, error: Exception) -> UsageError:
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in str(error):
            return UsageError(
                f"{self.url}: there is no bucket {self.bucket!r}",
                hint="check the address, or create the bucket first",
            )
        return UsageError(
            f"{self.url}: {_first_line(error)}",
            hint="check the address, and the keys in the environment (AWS_ACCESS_KEY_ID, …)",
        )


class _Passing(Exception):
    """A conflict answer that is already outdated, so that the operation can be repeated."""


def _final(errors: Any) -> tuple[type[Exception], ...]:
    """Whether an error cannot be fixed by retrying."""
    return (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.InvalidPathError)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return cut(text.splitlines()[0], 300) if text else type(error).__name__


def _library() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise UsageError(
            "addresses in buckets need the package obstore", hint="pip install 'rollforge[cloud]'"
        ) from error
    return obstore
