"""The importer protocol: converts another tool's log to rollouts; a missing reward stays missing.

An importer reads; it does not write, number or judge. A single score becomes the reward; with several, the user names one.
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
from rollforge.store.reading import UNREADABLE, read_whole, reason_of


class ImportedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of another tool."""

    task: str
    """The tool's id of the task, equal for all samples of the task."""
    prompt: list[ItemJson]
    """Responses items before the model's first turn."""
    output: list[ItemJson]
    verdict: Verdict | None = None
    """None if the rollout was not scored."""
    scores: tuple[str, ...] = ()
    """Names of the scores that the log contains for it."""
    failure: str | None = None
    """Why the rollout ended early; it is then imported as a failure with its partial response."""
    task_fields: JsonFields = {}
    """Other task fields, such as the expected answer."""
    model: str | None = None
    agent: str = "imported"
    verifier: str | None = None
    usage: UsageJson | None = None
    """Token usage summed over all model calls."""
    incomplete: str | None = None
    """Why the last answer or the rollout was cut short (`max_output_tokens`, a limit of the tool); None if it was not."""
    started: float | None = None
    seconds: float | None = None


Importer = Callable[[Path, str | None], Iterator[ImportedRollout]]
"""(path, name of the score that is the reward, or None) → rollouts."""


def load_importer(name: str) -> Importer:
    """The importer with this name."""
    importer: Importer = IMPORTERS.load(name)
    return importer


def chosen_score(scores: Mapping[str, object], name: str | None, where: str) -> tuple[str, object] | None:
    """The score used as reward: the named one, or the only one; None if this rollout has none."""
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
    """The JSON object in a file; raises `DataError` with file and position.

    Args:
        shape: The static type of the result; fields are not checked.
    """
    try:
        value = read_json(read_whole(path) if data is None else data)
    except (OSError, *UNREADABLE) as error:
        raise DataError(f"{path}: {reason_of(error)}", hint=OTHER_LOGS) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object", hint=OTHER_LOGS)
    return cast("Shape", value)


def read_json(data: bytes) -> object:
    """Parse a JSON value, accepting NaN and Infinity, which Python's json writes for missing scores."""
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
    """A finite number (true and false are 1 and 0); None for other values."""
    if isinstance(value, bool | int | float) and value == value and abs(value) != float("inf"):
        return float(value)
    return None
