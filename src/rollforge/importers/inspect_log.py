"""Logs of inspect_ai: a `.eval` file (a zip archive with zstd members) or its `.json` form.

The letters of inspect's scorers are mapped as inspect does: C is 1, P is 0.5, I and N are 0. A sample without a score is unjudged,
a sample with an error is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from rollforge.conversations.chat_items import items_of
from rollforge.errors import DataError
from rollforge.importers.base import ImportedRollout, chosen_score, finite, read_object
from rollforge.json_shapes import ChatMessageJson, UsageJson
from rollforge.records import Verdict

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def read_inspect(path: Path, reward: str | None) -> Iterator[ImportedRollout]:
    """The samples of a log, epoch by epoch."""
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="give a .eval or .json log of inspect")
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    for sample in _archived(path) if is_archive else _listed(path):
        yield _rollout(sample, reward, f"{path}, sample {sample.get('id')}")


class _ScoreJson(TypedDict, total=False):
    value: object
    answer: str


class _OutputJson(TypedDict, total=False):
    model: str
    usage: UsageJson


class _ErrorJson(TypedDict, total=False):
    message: str


class _SampleJson(TypedDict, total=False):
    """One sample of a log."""

    id: object
    input: object
    target: object
    messages: list[ChatMessageJson]
    output: _OutputJson | None
    scores: dict[str, _ScoreJson] | None
    error: _ErrorJson | None
    started_at: str
    total_time: float


class _LogJson(TypedDict, total=False):
    samples: list[_SampleJson]


def _archived(path: Path) -> Iterator[_SampleJson]:
    zipfile = _zipfile()
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.startswith("samples/"))
            if not names:
                raise DataError(f"{path} holds no samples", hint="a log of an evaluation that has not begun?")
            for name in names:
                yield read_object(path / name, _SampleJson, archive.read(name))
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise DataError(f"{path}: {error}", hint="is this a .eval log of inspect?") from error


def _zipfile() -> Any:
    """A zipfile module that knows zstd."""
    try:
        from backports.zstd import zipfile
    except ImportError:
        import zipfile  # type: ignore[no-redef]
    return zipfile


def _listed(path: Path) -> Iterator[_SampleJson]:
    samples = read_object(path, _LogJson).get("samples")
    if not isinstance(samples, list):
        raise DataError(f"{path}: no samples", hint="is this a log of inspect?")
    yield from (sample for sample in samples if isinstance(sample, dict))


def _rollout(sample: _SampleJson, reward: str | None, where: str) -> ImportedRollout:
    messages = [one for one in sample.get("messages") or [] if isinstance(one, dict)]
    first = next(
        (position for position, one in enumerate(messages) if one.get("role") == "assistant"), len(messages)
    )
    output_value = sample.get("output")
    output = output_value if isinstance(output_value, dict) else _OutputJson()
    scores, error = sample.get("scores"), sample.get("error")
    task_id = str(sample.get("id"))
    return ImportedRollout(
        task=task_id,
        prompt=items_of(messages[:first]) or items_of(sample.get("input")),
        output=items_of(messages[first:]),
        verdict=_verdict(scores if isinstance(scores, dict) else {}, reward, where),
        failure=str(error.get("message") or "failed") if isinstance(error, dict) else None,
        task_fields={"expected_answer": sample.get("target"), "inspect_id": task_id},
        model=output.get("model"),
        agent="inspect",
        verifier=reward or next(iter(scores), None) if isinstance(scores, dict) else None,
        usage=_usage(output.get("usage")),
        started=_moment(sample.get("started_at")),
        seconds=finite(sample.get("total_time")),
    )


def _verdict(scores: dict[str, _ScoreJson], reward: str | None, where: str) -> Verdict | None:
    chosen = chosen_score(scores, reward, where)
    if chosen is None or not isinstance(chosen[1], dict):
        return None
    value = chosen[1].get("value")
    number = LETTERS.get(value) if isinstance(value, str) else finite(value)
    if number is None:
        return None
    others = {
        name: other
        for name, score in scores.items()
        if name != chosen[0]
        and isinstance(score, dict)
        and (other := _number(score.get("value"))) is not None
    }
    details = {"extracted_answer": chosen[1]["answer"]} if isinstance(chosen[1].get("answer"), str) else {}
    return Verdict(reward=number, numbers=others, details=details)


def _number(value: object) -> float | None:
    return LETTERS.get(value) if isinstance(value, str) else finite(value)


def _usage(usage: UsageJson | None) -> UsageJson | None:
    if not isinstance(usage, dict):
        return None
    return {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None
