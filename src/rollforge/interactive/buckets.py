"""Bucket addresses in the Python API: a run is read from a working copy, and output is uploaded to the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rollforge.errors import UsageError
from rollforge.text_safety.bucket_addresses import SCHEMES, refuse_other_scheme


def is_address(argument: object) -> bool:
    """Whether an argument is a bucket address."""
    return isinstance(argument, str) and argument.startswith(SCHEMES)


def read_here(path: str | Path) -> Path:
    """A path to read from: the updated working copy of an address; any other path unchanged."""
    if not is_address(path):
        return Path(path)
    from rollforge.index.bucket_index import pulled_run

    return pulled_run(str(path))


@contextmanager
def written_run(run: str | Path, *, is_collected: bool = False) -> Iterator[str]:
    """A path of a run to write to; for a bucket, writes are acknowledged only after the upload."""
    if not is_address(run):
        if isinstance(run, str):
            refuse_other_scheme(run)
        yield str(run)
        return
    from rollforge.store.bucket import run_copy

    locks = not is_collected  # a collection takes the lock itself
    with run_copy(str(run), writes=True, locks=locks, whole=locks) as path:
        yield str(path)


@contextmanager
def written_folder(folder: str | Path | None) -> Iterator[str | Path | None]:
    """A path of a dataset or report to write; for a bucket, uploaded when the context ends."""
    if not is_address(folder):
        yield folder
        return
    from rollforge.store.bucket import working_copy

    with working_copy(str(folder), writes=True) as path:
        yield path


@contextmanager
def read_file(tasks: object) -> Iterator[object]:
    """A task file to read; other arguments unchanged."""
    if not is_address(tasks):
        yield tasks
        return
    from rollforge.store.bucket import input_copy

    with ExitStack() as stack:
        yield stack.enter_context(input_copy(str(tasks)))


def refuse_address(argument: object, what: str) -> None:
    """Raise for a bucket address where only a local path is supported."""
    if is_address(argument):
        raise UsageError(
            f"{what} writes to a folder on disk, not to {argument}",
            hint="give a folder, or use the command line",
        )
