"""Shared Markdown parts of loading instructions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


def fenced(language: str, lines: Iterable[str]) -> str:
    """The lines as a Markdown code block."""
    return "\n".join([f"```{language}", *lines, "```"])


def load_lines(files: Mapping[str, list[str]]) -> list[str]:
    """Python code that loads the files with `datasets` by name, so that other files in the directory are ignored."""
    names = [name for group in files.values() for name in group]
    kind = "parquet" if names and names[0].endswith(".parquet") else "json"
    wanted = {split: group if len(group) > 1 else group[0] for split, group in files.items()}
    return ["from datasets import load_dataset", f"data = load_dataset({kind!r}, data_files={wanted!r})"]


def read_lines(files: Mapping[str, list[str]]) -> list[str]:
    """Python code that parses the files line by line, because a loader that infers types would round numbers."""
    return [
        "import json",
        f"files = {dict(files)!r}",
        "data = {",
        '    split: [json.loads(line) for name in names for line in open(name, encoding="utf-8")]',
        "    for split, names in files.items()",
        "}",
    ]


def files_of(files: Mapping[str, list[str]], split: str = "train") -> list[str]:
    """All files of a split, or of the first split: a loader that gets one shard of several would not complain."""
    return files.get(split) or next(iter(files.values()), ["train.jsonl"])


def config(value: object) -> str:
    """An excerpt of a configuration file as a Markdown code block."""
    import yaml

    # Decode a copy: YAML writes a reference where two values are one object.
    plain = msgspec.json.decode(msgspec.json.encode(value))
    return fenced("yaml", [yaml.safe_dump(plain, sort_keys=False, width=120).rstrip()])
