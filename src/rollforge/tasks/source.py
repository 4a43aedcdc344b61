"""The source of tasks: a local file or a Hub dataset, opened once, with an identifying digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from rollforge.errors import UsageError
from rollforge.tasks.containers import CONTAINERS, read_lines
from rollforge.tasks.hub import PARQUET_BRANCH, HubChoice, HubName, choose_path, choose_split, is_hub_name

if TYPE_CHECKING:
    from rollforge.tasks.hub_client import HubClient

DIGEST_BYTES = 16
BLOCK = 4 << 20


class SourceLine(NamedTuple):
    """A row as a JSON line, with its location."""

    file: str
    number: int
    data: bytes


class TaskSource(Protocol):
    """An opened input."""

    digest: str
    """Digest of the rows: equal digests mean equal rows."""
    choice: HubChoice | None
    """Commit and files of a Hub dataset."""

    def lines(self) -> Iterator[SourceLine]:
        """All rows; can be iterated several times."""

    def files(self) -> Iterator[tuple[str, Path]]:
        """Name and local path of every file."""


class HubSplit(msgspec.Struct, frozen=True):
    """Split and config of a Hub dataset."""

    split: str | None = None
    config: str | None = None

    def allows(self, choice: HubChoice) -> bool:
        """Whether an earlier choice is of this split and config; one that is not named may be any."""
        named = (self.split or choice.split, self.config or choice.config)
        return named == (choice.split, choice.config)

    def refuse_elsewhere(self, name: str) -> None:
        """Raise if a split is given for an input that is not a Hub dataset."""
        flags = [flag for flag, value in (("--split", self.split), ("--config", self.config)) if value]
        if flags and (not is_hub_name(name) or HubName.parse(name).path is not None):
            raise UsageError(
                f"{flags[0]} chooses among the files of a whole dataset on the Hub, and {name} names a file",
                hint="leave it out, or give -i hf://datasets/ORG/NAME",
            )


def open_tasks(
    name: str,
    *,
    part: HubSplit | None = None,
    earlier_choice: HubChoice | None = None,
    shown: str | None = None,
) -> TaskSource:
    """Open an input by its name.

    Args:
        part: split and config of a dataset on the Hub.
        earlier_choice: commit and files from an earlier call, used instead of a new request. shown: name of a local file in
            messages.
    """
    part = part or HubSplit()
    part.refuse_elsewhere(shown or name)
    if is_hub_name(name):
        from rollforge.tasks.hub_client import HubClient  # only who asks the Hub loads an event loop

        client = HubClient()
        return _HubTasks(name, client, earlier_choice or _choose(client, HubName.parse(name), part))
    if Path(name).is_dir():
        raise UsageError(f"{name}: a folder, not a file", hint=_file_in(Path(name)))
    if not Path(name).is_file():
        raise UsageError(f"{name}: no such file", hint=_where_else(name))
    return _LocalTasks(Path(name), shown or name)


def _where_else(name: str) -> str:
    """How to name what was meant by the name of a file that is not there."""
    if page := re.fullmatch(r"https?://(?:www\.)?huggingface\.co/datasets/([^/?#]+/[^/?#]+)[^?#]*", name):
        return f"a dataset on the Hub is named hf://datasets/{page[1]}"
    if "://" in name:
        return "download it first; - reads stdin"
    return "check -i/--input; - reads stdin"


def _file_in(folder: Path) -> str:
    """Which file of a folder is meant: of a run, its tasks."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    tasks = [path for path in files if path.name.endswith(("_tasks.jsonl", "_materialized_inputs.jsonl"))]
    if not files:
        return f"give a task file: {CONTAINERS}"
    if tasks:
        return f"it is a run; to collect for its tasks again: -i {tasks[0]}"
    return f"give a file in it: {' '.join(map(str, files[:5]))}"


def _choose(client: HubClient, name: HubName, part: HubSplit) -> HubChoice:
    from rollforge.tasks.hub_client import RevisionMissing

    info = client.info(name.repo, name.revision or "main")
    if name.path is not None:
        return choose_path(info, name.path)
    chosen = choose_split(info, split=part.split, config=part.config)
    if chosen is None and name.revision is None:
        try:
            converted = client.info(name.repo, PARQUET_BRANCH)
        except RevisionMissing:
            converted = None
        if converted is not None:
            chosen = choose_split(converted, split=part.split, config=part.config)
    if chosen is None:
        raise UsageError(
            f"{name.repo} has no file that holds rows at {info.commit[:12]}",
            hint="name one: hf://datasets/ORG/NAME/path/to/file.jsonl",
        )
    return chosen


class _LocalTasks:
    choice: HubChoice | None = None

    def __init__(self, path: Path, shown: str) -> None:
        self._path, self._shown = path, shown
        self.digest = _digest(path)

    def lines(self) -> Iterator[SourceLine]:
        for number, data in read_lines(self._path):
            yield SourceLine(self._shown, number, data)

    def files(self) -> Iterator[tuple[str, Path]]:
        yield self._shown, self._path


class _HubTasks:
    """Tasks of a Hub dataset. Files are downloaded when their first row is read, so `-n 100` downloads one of many shards."""

    def __init__(self, name: str, client: HubClient, choice: HubChoice) -> None:
        self.choice: HubChoice | None = choice
        self._client, self._chosen = client, choice
        paths = "\n".join(file.path for file in choice.files)
        text = f"{choice.repo}@{choice.commit}\n{paths}"  # a commit names the bytes of its files
        self.digest = hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()

    def lines(self) -> Iterator[SourceLine]:
        for shown, path in self.files():
            for number, data in read_lines(path):
                yield SourceLine(shown, number, data)

    def files(self) -> Iterator[tuple[str, Path]]:
        choice = self._chosen
        for file in choice.files:
            shown = f"hf://datasets/{choice.repo}@{choice.commit[:12]}/{file.path}"
            yield shown, self._client.fetch(choice.repo, choice.commit, file)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
