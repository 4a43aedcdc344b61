"""Datasets on the Hugging Face Hub as task files: `hf://datasets/ORG/NAME[@REVISION][/path or pattern]`.

A revision is resolved to a commit once; then commit and selected files identify the input. The files of a split are determined by
the dataset card, else by file names as in the `datasets` library, else by the Hub's automatic Parquet branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import msgspec

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

SCHEME = "hf://"
PARQUET_BRANCH = "refs/convert/parquet"
DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
_COMPRESSED = (".gz", ".zst")
_NAME = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert/\w+|pr/\d+)|[^/]+))?(?:/(?P<path>.+))?"
)
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHAPE = "hf://datasets/ORG/NAME, with @REVISION and /path/to/file or a pattern if wanted"


def is_hub_name(name: object) -> bool:
    """Whether an input is on the Hub."""
    return isinstance(name, str) and name.startswith(SCHEME)


class HubName(msgspec.Struct, frozen=True):
    """The parts of an `hf://` name."""

    repo: str
    revision: str | None = None
    path: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubName:
        """Parse a name; raises `UsageError`."""
        match = _NAME.fullmatch(name.rstrip("/"))
        if match is None:
            raise UsageError(f"{name}: not a dataset on the Hub", hint=f"write {_SHAPE}")
        revision = unquote(match["revision"]) if match["revision"] else None
        return cls(
            match["repo"], PARQUET_BRANCH if revision == "~parquet" else revision, match["path"] or None
        )


class HubFile(msgspec.Struct, frozen=True):
    """A file of a dataset at one commit."""

    path: str
    size: int | None = None
    sha256: str | None = None
    """Digest, only for files in large-file storage."""


class HubInfo(msgspec.Struct, frozen=True):
    """A dataset at one commit."""

    repo: str
    commit: str
    files: list[HubFile]
    configs: list[dict[str, Any]] = []
    """`configs` of the card's YAML."""


class HubChoice(msgspec.Struct, frozen=True):
    """The files that an input refers to, at one commit."""

    repo: str
    commit: str
    files: list[HubFile]
    split: str | None = None
    config: str | None = None


def choose_path(info: HubInfo, pattern: str) -> HubChoice:
    """The file with this name, or the files that match a pattern."""
    names = [file.path for file in info.files]
    chosen = matching(names, [pattern]) if pattern not in names else [pattern]
    if not chosen:
        raise UsageError(
            f"{info.repo} has no file {pattern!r} at {info.commit[:12]}{did_you_mean(pattern, names)}",
            hint=f"it has: {_listed([name for name in names if _is_data(name)] or names)}",
        )
    return HubChoice(info.repo, info.commit, _files(info, chosen))


def choose_split(info: HubInfo, *, split: str | None, config: str | None) -> HubChoice | None:
    """The files of a split according to card or file names; None if neither determines them."""
    layout = _card_layout(info) or _named_layout([file.path for file in info.files])
    if not layout:
        return None
    config = _one_of(layout, config, "--config", "config", info.repo)
    split = _one_of(layout[config], split, "--split", "split", info.repo)
    files = layout[config][split]
    if not files:
        raise UsageError(
            f"{info.repo}: the card's patterns for split {split!r} match no file",
            hint="choose another: --split NAME, or --config NAME",
        )
    return HubChoice(info.repo, info.commit, _files(info, files), split, config)


def _files(info: HubInfo, names: Sequence[str]) -> list[HubFile]:
    by_name = {file.path: file for file in info.files}
    return [by_name[name] for name in names]


def _one_of(layout: Mapping[str, object], wanted: str | None, flag: str, what: str, repo: str) -> str:
    """The named member, or the only one; ambiguity is an error."""
    names = list(layout)
    if wanted is None:
        if len(names) == 1:
            return names[0]
        if what == "config" and "default" in names:
            return "default"
        raise UsageError(f"{repo} has several {what}s: {', '.join(names)}", hint=f"choose one: {flag} NAME")
    if wanted not in names:
        raise UsageError(
            f"{repo} has no {what} {wanted!r}{did_you_mean(wanted, names)}", hint=f"it has: {_listed(names)}"
        )
    return wanted


def _card_layout(info: HubInfo) -> dict[str, dict[str, list[str]]]:
    """Config → split → files, from `configs` in the card."""
    names = [file.path for file in info.files]
    layout: dict[str, dict[str, list[str]]] = {}
    for config in info.configs:
        folder = str(config.get("data_dir") or "").strip("/")
        below = [name for name in names if name.startswith(f"{folder}/")] if folder else names
        patterns = dict(_patterns(config.get("data_files")))
        if patterns:
            splits = {
                split: matching(below, globs, folder if folder else "") for split, globs in patterns.items()
            }
        else:
            splits = _named_layout(below).get("default", {}) if folder else {}
        if splits:
            layout[str(config.get("config_name") or "default")] = splits
    return layout


def _patterns(data_files: object) -> Iterator[tuple[str, list[str]]]:
    """Split → patterns, for all forms that a card may use."""
    if isinstance(data_files, str):
        yield "train", [data_files]
    elif isinstance(data_files, dict):
        for split, paths in data_files.items():
            yield str(split), _texts(paths)
    elif isinstance(data_files, list):
        plain = [path for path in data_files if isinstance(path, str)]
        if plain:
            yield "train", plain
        for entry in data_files:
            if isinstance(entry, dict) and entry.get("path"):
                yield str(entry.get("split") or "train"), _texts(entry["path"])


def _texts(value: object) -> list[str]:
    return (
        [value]
        if isinstance(value, str)
        else [str(item) for item in value]
        if isinstance(value, list)
        else []
    )


def _named_layout(names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Splits by words in file and folder names; the Hub's Parquet branch is CONFIG/SPLIT/0000.parquet."""
    data = sorted(name for name in names if _is_data(name))
    converted = [re.fullmatch(r"([^/]+)/(?:partial-)?([^/]+)/\d{4,}\.parquet", name) for name in data]
    if data and all(converted):
        layout: dict[str, dict[str, list[str]]] = {}
        for match, name in zip(converted, data, strict=True):
            assert match is not None
            layout.setdefault(match[1], {}).setdefault(match[2], []).append(name)
        return layout
    splits: dict[str, list[str]] = {}
    for name in data:
        if (split := _split_of(name)) is not None:
            splits.setdefault(split, []).append(name)
    if not splits and data:
        splits = {"train": data}  # one unnamed set is a training set, as the `datasets` library has it
    return {"default": splits} if splits else {}


def _split_of(name: str) -> str | None:
    """The split named by a word in the file's name, else in one of its folders."""
    for part in reversed(name.lower().split("/")):
        words = re.split(r"[^a-z]+", part)
        for split, spellings in _SPLIT_WORDS.items():
            if any(word in spellings for word in words):
                return split
    return None


def _is_data(name: str) -> bool:
    plain = name.lower()
    for ending in _COMPRESSED:
        plain = plain.removesuffix(ending)
    return plain.endswith(DATA_SUFFIXES) and not name.startswith(".") and plain not in _NOT_DATA


_NOT_DATA = frozenset(
    {"manifest.json", "dataset_info.json", "dataset_infos.json", "lineage.parquet", "fates.parquet"}
)


def matching(names: Sequence[str], patterns: Sequence[str], folder: str = "") -> list[str]:
    """Names that match a pattern, in the order of the patterns; `*` stays inside a folder, `**` does not."""
    matches: dict[str, None] = {}
    for pattern in patterns:
        whole = f"{folder}/{pattern}" if folder and not pattern.startswith(f"{folder}/") else pattern
        words = whole.removeprefix("./").split("/")
        matches.update(dict.fromkeys(sorted(name for name in names if _matches(name.split("/"), words))))
    return list(matches)


def _matches(parts: list[str], words: list[str]) -> bool:
    """Whether path parts match pattern parts. No regular expression is used, because an untrusted card's pattern could backtrack
    for ever.
    """
    reached = {0}
    for word in words:
        if word == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], word)}
        if not reached:
            return False
    return len(parts) in reached


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
