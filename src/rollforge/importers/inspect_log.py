"""Logs of inspect_ai: a `.eval` file (a zip archive with zstd members) or its `.json` form.

The values of inspect's scorers are mapped as inspect does: C, yes and true are 1, P is 0.5, I, N, no and false are 0, digits are
their number. A score with several values becomes several scores named `SCORER/KEY`. A sample without a score, or with one that
inspect says is invalid, is unjudged; a sample with an error is a failure.
"""

from __future__ import annotations

import lzma
import sys
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from rollforge.conversations.chat_items import items_of
from rollforge.errors import DataError
from rollforge.importers.base import ImportedRollout, chosen_score, finite, read_object
from rollforge.json_shapes import ChatMessageJson, UsageJson
from rollforge.records import Verdict
from rollforge.store.reading import LONGEST_LINE

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
ATTACHMENT = "attachment://"
"""Name prefix of texts and images that the sample stores separately."""
CUT = {
    "max_tokens": "max_output_tokens",
    "model_length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""inspect's reasons for a cut answer → those of the Responses API."""


def read_inspect(path: Path, reward: str | None) -> Iterator[ImportedRollout]:
    """The samples of a log, in order of epochs."""
    if not path.is_file():
        what = "a folder, not a log" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}", hint="give a .eval or .json log of inspect")
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    for sample in _archived(path) if is_archive else _listed(path):
        yield _rollout(sample, reward, f"{path}, sample {sample.get('id')}")


class _ScoreJson(TypedDict, total=False):
    value: object
    answer: str


class _UsageJson(TypedDict, total=False):
    """Tokens of one or several calls, with their cached and reasoning parts."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_cache_read: int | None
    reasoning_tokens: int | None


class _ChoiceJson(TypedDict, total=False):
    stop_reason: str


class _LimitJson(TypedDict, total=False):
    type: str


class _OutputJson(TypedDict, total=False):
    """The last answer of the model."""

    model: str
    choices: list[_ChoiceJson]
    usage: _UsageJson | None


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
    attachments: dict[str, str] | None
    model_usage: dict[str, _UsageJson] | None
    """Tokens of the whole sample by model, including judges."""
    invalidation: object
    """Who marked the sample as invalid; None for a valid sample."""
    limit: _LimitJson | None
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
                yield read_object(path / name, _SampleJson, _member(archive, name, path))
    except (
        zipfile.BadZipFile,
        EOFError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: an encrypted member
        raise DataError(f"{path}: {error}", hint="is this a .eval log of inspect?") from error


def _member(archive: Any, name: str, path: Path) -> bytes:
    """An unpacked member of the archive; no more than `LONGEST_LINE` of it enters memory."""
    with archive.open(name) as member:
        try:
            data: bytes = member.read(LONGEST_LINE + 1)
        except _damage() as error:
            raise DataError(f"{path}: {name} is damaged: {error}", hint="copy the log again") from error
    if len(data) > LONGEST_LINE:
        raise DataError(
            f"{path}: {name} is larger than {LONGEST_LINE >> 20} MB when unpacked",
            hint="is this a .eval log of inspect?",
        )
    return data


def _zipfile() -> Any:
    """A zipfile module with zstd support."""
    if sys.version_info >= (3, 14):
        import zipfile
    else:
        from backports.zstd import zipfile
    return zipfile


def _damage() -> tuple[type[Exception], ...]:
    """What the libraries raise for the bytes of a damaged member."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zlib.error, lzma.LZMAError, zstd.ZstdError


def _listed(path: Path) -> Iterator[_SampleJson]:
    samples = read_object(path, _LogJson).get("samples")
    if not isinstance(samples, list):
        raise DataError(f"{path}: no samples", hint="is this a log of inspect?")
    yield from (sample for sample in samples if isinstance(sample, dict))


def _rollout(sample: _SampleJson, reward: str | None, where: str) -> ImportedRollout:
    sample = _with_attachments(sample)
    messages = [one for one in sample.get("messages") or [] if isinstance(one, dict)]
    first = next(
        (position for position, one in enumerate(messages) if one.get("role") == "assistant"), len(messages)
    )
    output_value = sample.get("output")
    output = output_value if isinstance(output_value, dict) else _OutputJson()
    scores_value, error = sample.get("scores"), sample.get("error")
    scores = _scores(scores_value) if isinstance(scores_value, dict) else {}
    verdict = _verdict(scores, reward, where)
    task_id = str(sample.get("id"))
    return ImportedRollout(
        task=task_id,
        prompt=items_of(messages[:first]) or items_of(sample.get("input")),
        output=items_of(messages[first:]),
        verdict=None if sample.get("invalidation") else verdict,
        scores=tuple(scores),
        failure=str(error.get("message") or "failed") if isinstance(error, dict) else None,
        task_fields={"expected_answer": sample.get("target"), "inspect_id": task_id},
        model=output.get("model"),
        agent="inspect",
        verifier=reward or next(iter(scores), None),
        usage=_usage(_whole_usage(sample, output)),
        incomplete=_why_incomplete(sample, output),
        started=_moment(sample.get("started_at")),
        seconds=finite(sample.get("total_time")),
    )


def _verdict(scores: dict[str, _ScoreJson], reward: str | None, where: str) -> Verdict | None:
    chosen = chosen_score(scores, reward, where)
    if chosen is None or not isinstance(chosen[1], dict):
        return None
    number = _number(chosen[1].get("value"))
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


def _scores(scores: dict[str, _ScoreJson]) -> dict[str, _ScoreJson]:
    """Scores by name; values of a score with several are named `SCORER/KEY`."""
    single: dict[str, _ScoreJson] = {}
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else None
        if isinstance(value, dict):
            single |= {f"{name}/{key}": {**score, "value": one} for key, one in value.items()}
        else:
            single[name] = score
    return single


def _number(value: object) -> float | None:
    if not isinstance(value, str):
        return finite(value)
    mapped = LETTERS.get(value, WORDS.get(value.lower()))
    try:
        return finite(float(value)) if mapped is None else mapped
    except ValueError:
        return None


def _with_attachments(sample: _SampleJson) -> _SampleJson:
    """The sample with its conversation's references to texts and images resolved."""
    attachments = sample.get("attachments")
    if not isinstance(attachments, dict) or not attachments:
        return sample
    whole = sample.copy()
    whole["messages"] = _resolved(sample.get("messages"), attachments)
    whole["input"] = _resolved(sample.get("input"), attachments)
    return whole


def _resolved(value: Any, attachments: dict[str, str]) -> Any:
    if isinstance(value, str) and value.startswith(ATTACHMENT):
        return attachments.get(value.removeprefix(ATTACHMENT), value)
    if isinstance(value, dict):
        return {key: _resolved(one, attachments) for key, one in value.items()}
    return [_resolved(one, attachments) for one in value] if isinstance(value, list) else value


def _whole_usage(sample: _SampleJson, output: _OutputJson) -> _UsageJson | None:
    """Tokens over all calls of the model. `output` describes only the last answer; its usage is complete only for samples with
    one answer.
    """
    by_model = sample.get("model_usage")
    if isinstance(by_model, dict) and by_model:
        name = str(output.get("model"))
        own = [usage for model, usage in by_model.items() if model == name or model.endswith(f"/{name}")]
        usages = own or list(by_model.values())
        return usages[0] if len(usages) == 1 else None
    turns = [
        one
        for one in sample.get("messages") or []
        if isinstance(one, dict) and one.get("role") == "assistant"
    ]
    return output.get("usage") if len(turns) <= 1 else None


def _usage(usage: _UsageJson | None) -> UsageJson | None:
    if not isinstance(usage, dict):
        return None
    return {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "input_tokens_details": {"cached_tokens": usage.get("input_tokens_cache_read") or 0},
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens") or 0},
    }


def _why_incomplete(sample: _SampleJson, output: _OutputJson) -> str | None:
    """Why the sample ended early: a limit of the sample, or of its last answer."""
    limit = sample.get("limit")
    if isinstance(limit, dict):
        return f"{limit.get('type')}_limit"
    choices = output.get("choices")
    first = (
        choices[0]
        if isinstance(choices, list) and choices and isinstance(choices[0], dict)
        else _ChoiceJson()
    )
    return CUT.get(str(first.get("stop_reason")))


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None
