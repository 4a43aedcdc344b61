"""Writes the output of `--fix`: a clean copy of a file, and the rejected lines with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rollforge.errors import UsageError
from rollforge.steps.validate.row_reader import lines_of
from rollforge.store.atomic import replacing
from rollforge.store.files import file_stem


class Copies(NamedTuple):
    """Paths of the output files of one input file."""

    clean: Path
    rejects: Path


def copies_of(path: Path, out: str | None) -> Copies:
    """Output paths for an input file."""
    folder = Path(out) if out else path.parent
    stem = file_stem(path)
    return Copies(folder / f"{stem}.clean.jsonl", folder / f"{stem}.rejects.jsonl")


def refuse_overwriting(paths: Sequence[Path], out: str | None) -> None:
    """Refuse, before anything is written, if an output would overwrite another output or an input."""
    taken = {path.resolve(): path for path in paths}
    maker_by_copy: dict[Path, Path] = {}
    for path in paths:
        for copy in copies_of(path, out):
            target = copy.resolve()
            if target in taken:
                raise UsageError(
                    f"the copy of {path} would overwrite {taken[target]}, which is validated too",
                    hint="give another folder with --out, or leave that file out",
                )
            other = maker_by_copy.setdefault(target, path)
            if other is not path:
                raise UsageError(
                    f"{other} and {path} would both be written to {copy}",
                    hint="validate them one at a time, each with its own --out, or rename one",
                )


def write_clean(path: Path, copies: Copies, reasons: Mapping[int, Sequence[str]]) -> None:
    """Copy good lines unchanged, the others with their reasons."""
    with replacing(copies.clean) as good, replacing(copies.rejects) as bad:
        for number, data in lines_of(path):
            if number in reasons:
                text = data.decode("utf-8", "replace")
                record = {"line": number, "reasons": reasons[number], "text": text}
                bad.write(msgspec.json.encode(record) + b"\n")
            elif data.strip():
                good.write(data + b"\n")
