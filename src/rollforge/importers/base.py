"""What an importer gives: rollouts of another tool, with the reward only where that tool gave one.

An importer reads; it does not write, number or judge. A reward is mapped explicitly: a single score is taken, several need a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from rollforge.errors import DataError, UsageError
from rollforge.importers import IMPORTERS
from rollforge.json_shapes import ItemJson, Shape, UsageJson
from rollforge.records import JsonFields, Verdict, from_json
from rollforge.store.reading import UNREADABLE


class ImportedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of another tool."""

    task: str
    """What the tool calls the task: equal for the samples of one task."""
    prompt: list[ItemJson]
    """Responses items before the model's first turn."""
    output: list[ItemJson]
    verdict: Verdict | None = None
    """None where nothing was scored."""
    scores: tuple[str, ...] = ()
    """Names of the scores that the log has of it."""
    failure: str | None = None
    """Why the rollout ended early: it is then a failure, with what there is of it."""
    task_fields: JsonFields = {}
    """Other fields of the task: the expected answer and so on."""
    model: str | None = None
    agent: str = "imported"
    verifier: str | None = None
    usage: UsageJson | None = None
    """Over all model calls."""
    incomplete: str | None = None
    """Why the last answer or the whole rollout was cut short: `max_output_tokens`, a limit of the tool; None: it was not."""
    started: float | None = None
    seconds: float | None = None


Importer = Callable[[Path, str | None], Iterator[ImportedRollout]]
"""(path, name of the reward or None) → rollouts."""


def load_importer(name: str) -> Importer:
    """The importer of this name."""
    importer: Importer = IMPORTERS.load(name)
    return importer


def chosen_score(scores: Mapping[str, object], name: str | None, where: str) -> tuple[str, object] | None:
    """The score that is the reward: the one that was named, or the only one; None when this rollout has none."""
    if name is not None:
        return (name, scores[name]) if name in scores else None
    if len(scores) > 1:
        raise UsageError(
            f"{where}: {len(scores)} scores, and no word which is the reward",
            hint=f"add --reward {next(iter(scores))} (there are {', '.join(scores)})",
        )
    return next(iter(scores.items()), None)


OTHER_LOGS = "is it another tool's log? rollforge list importers"


def read_object(path: Path, shape: type[Shape], data: bytes | None = None) -> Shape:
    """The JSON object in a file; raises `DataError` with its place.

    Args:
        shape: What the object is taken for; its fields are not checked.
    """
    try:
        value = read_json(path.read_bytes() if data is None else data)
    except (OSError, *UNREADABLE) as error:
        raise DataError(f"{path}: {error}", hint=OTHER_LOGS) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object", hint=OTHER_LOGS)
    return cast("Shape", value)


def read_json(data: bytes) -> object:
    """A JSON value; also with the words NaN and Infinity in it, which Python's own writer leaves for a missing score."""
    try:
        return from_json(data)
    except UNREADABLE:
        if not _WORDS.search(data):
            raise
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
        raise


_WORDS = re.compile(rb"\b(?:NaN|Infinity)\b")


def finite(value: object) -> float | None:
    """A finite number, or None for anything else; yes and no count as 1 and 0."""
    if isinstance(value, bool | int | float) and value == value and abs(value) != float("inf"):
        return float(value)
    return None
