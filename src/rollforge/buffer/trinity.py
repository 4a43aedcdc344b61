"""Writes and reads the SQLite buffers of Trinity-RFT (0.6 and later).

Trinity keeps two tables, `{name}` with the columns it filters by and `{name}_blob` with the experience: a frame ("TRXP", version,
two lengths), a pickle of plain dicts, then a safetensors block with the arrays. The pickle we write contains only builtins;
pickles are read by an unpickler that refuses every class. Pickled experiences of versions before 0.5.2 are refused for that
reason.
"""

from __future__ import annotations

import io
import pickle
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience
from rollforge.records import JsonObject, from_json, to_json

MAGIC = b"TRXP"
VERSION = 1
_HEAD = struct.Struct("<4sBQQ")
_DTYPES = {
    "I32": "<i4",
    "I64": "<i8",
    "F32": "<f4",
    "F64": "<f8",
    "BOOL": "bool",
    "U8": "u1",
    "F16": "<f2",
    "I8": "i1",
}
_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}

_BROKEN = (
    AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, struct.error, msgspec.MsgspecError
)  # fmt: skip
"""Exceptions that malformed parts raise."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, texts and numbers; every class is refused, so nothing can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise DataError(f"the blob wants to make a {module}.{name}; only plain values are read")

    def persistent_load(self, pid: Any) -> Any:
        raise DataError("the blob refers to something outside itself; only plain values are read")


def write_trinity(path: str | Path, experiences: Iterable[Experience], *, table: str = "experiences") -> int:
    """Append experiences to a Trinity buffer and return how many; the file and tables are made if they are
    not there.

    Trinity reads the newest first and only whole batches, so write a multiple of its `train_batch_size`.

    Raises:
        DataError: an experience has no token ids or no logprobs, which Trinity asserts.
    """
    _check_table(table)
    rows = [_to_columns(experience, number) for number, experience in enumerate(experiences)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f'create table if not exists "{table}" (id integer primary key autoincrement, timestamp datetime,'
            " task_id varchar(64), run_id integer, msg_id varchar(64), model_version integer, reward float,"
            " consumed integer default 0)"
        )
        connection.execute(
            f'create table if not exists "{table}_blob" (id integer primary key, experience_bytes blob)'
        )
        for columns, blob in rows:
            cursor = connection.execute(
                f'insert into "{table}" (timestamp, task_id, run_id, msg_id, model_version, reward, consumed)'
                " values (?, ?, ?, ?, ?, ?, 0)",
                columns,
            )
            connection.execute(f'insert into "{table}_blob" values (?, ?)', (cursor.lastrowid, blob))
    return len(rows)


def read_trinity(path: str | Path, *, table: str = "experiences") -> Iterator[Experience]:
    """The experiences of a Trinity buffer, oldest first; raises `DataError` at the first that is not plain
    data."""
    _check_table(table)
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file", hint="give the SQLite file of a Trinity buffer")
    with closing(sqlite3.connect(f"file:{Path(path).absolute()}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute(
                f"select m.id, m.task_id, m.run_id, m.msg_id, m.model_version, m.reward, m.consumed, m.timestamp,"
                f' b.experience_bytes from "{table}" m join "{table}_blob" b on b.id = m.id order by m.id'
            )
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{path}: no table {table!r} as Trinity-RFT 0.6 makes it ({error})",
                hint="name the table; buffers of older versions hold pickled classes and are not read",
            ) from error
        for row in rows:
            try:
                yield _from_columns(row)
            except DataError as error:
                raise DataError(f"{path}: {table} row {row[0]}: {error}") from error
            except _BROKEN as error:
                what = f"{type(error).__name__}: {error}"
                raise DataError(f"{path}: {table} row {row[0]}: the blob cannot be read: {what}") from error


def _check_table(table: str) -> None:
    if not table.replace("_", "").isalnum():
        raise UsageError(
            f"{table!r} is no table name", hint="a table name has letters, digits and underscores"
        )


def _to_columns(experience: Experience, position: int) -> tuple[tuple[Any, ...], bytes]:
    if experience.tokens is None or experience.prompt_length is None:
        raise DataError(
            f"experience {experience.id} has no token ids; Trinity cannot train on text alone",
            hint="collect with --logprobs, or export it as sft or dpo: rollforge prepare",
        )
    if experience.logprobs is None:
        raise DataError(
            f"experience {experience.id} has no logprobs, which Trinity needs beside a reward",
            hint="collect with --logprobs, or leave the reward out",
        )
    batch, _, task = experience.task.rpartition("/")
    run = experience.run.rpartition("/")[2]
    run_number = int(run) if run.isdecimal() else position
    suffix = f"{position:06x}"
    item = {
        "eid": {
            "batch": batch or "rollforge",
            "task": int(task) if task.isdecimal() else task,
            "run": run_number,
            "step": experience.turn,
            "suffix": suffix,
        },
        "prompt_length": experience.prompt_length,
        "reward": experience.reward,
        "prompt_text": None,
        "response_text": experience.response,
        "messages": experience.messages or None,
        "metrics": dict(experience.metrics),
        "info": {
            **experience.info,
            "model_version": experience.model_version or 0,
            "use_count": experience.uses,
            "task_index": {"index": experience.task, "taskset_id": 0},
            "rollforge": {"id": experience.id, "task": experience.task, "run": experience.run},
        },
        "truncate_status": "response_truncated" if experience.truncated else None,
    }
    version = experience.model_version or 0
    columns = (
        _to_timestamp(experience.created),
        str(task)[:64],
        run_number,
        suffix,
        version,
        experience.reward,
    )
    return columns, _frame(item, _tensors(experience))


def _to_timestamp(at: float | None) -> str:
    """A timestamp in the format in which SQLAlchemy stores it in SQLite."""
    moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _from_timestamp(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _tensors(experience: Experience) -> dict[str, NDArray[Any]]:
    assert experience.tokens is not None
    length = len(experience.tokens) - (experience.prompt_length or 0)
    mask = np.ones(length, dtype=np.bool_) if experience.mask is None else experience.mask
    advantages = experience.advantages
    if advantages is None and experience.advantage is not None:
        advantages = np.where(mask, experience.advantage, 0.0)
    returns = advantages if experience.returns is None else experience.returns
    arrays = {
        "tokens": experience.tokens.astype("<i4"),
        "logprobs": None if experience.logprobs is None else experience.logprobs.astype("<f4"),
        "action_mask": mask.astype(np.bool_),
        "advantages": None if advantages is None else advantages.astype("<f4"),
        "returns": None if returns is None else returns.astype("<f4"),
    }
    return {name: array for name, array in arrays.items() if array is not None}


class _ArrayJson(TypedDict):
    """Position of an array in a safetensors block."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _frame(item: JsonObject, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    metadata = pickle.dumps({"version": VERSION, "num_items": 1, "items": [item]}, protocol=4)
    block = _to_safetensors({f"0:{name}": array for name, array in tensors.items()})
    return _HEAD.pack(MAGIC, VERSION, len(metadata), len(block)) + metadata + block


def _to_safetensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    header: dict[str, _ArrayJson] = {}
    data = b""
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = to_json(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _from_safetensors(block: bytes) -> dict[str, NDArray[Any]]:
    if not block:
        return {}
    (length,) = struct.unpack_from("<Q", block)
    if length > len(block) - 8:
        raise DataError("the blob's arrays are cut off")
    header: dict[str, _ArrayJson] = from_json(block[8 : 8 + length])
    data = memoryview(block)[8 + length :]
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise DataError(f"the array {name} has type {entry['dtype']}, which is not read")
        start, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(bytes(data[start:end]), dtype=_DTYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
    return arrays


def _from_columns(row: tuple[Any, ...]) -> Experience:
    number, task_id, run_id, _, model_version, reward, consumed, at, blob = row
    item, tensors = _unframe(bytes(blob))
    eid, info = item.get("eid") or {}, dict(item.get("info") or {})
    own = info.pop("rollforge", {})
    task = own.get("task") or f"{eid.get('batch', '')}/{task_id}"
    run = own.get("run") or f"{task}/{run_id}"
    tokens = tensors.get("tokens")
    return Experience(
        id=own.get("id") or f"{run}/{eid.get('step', 0)}/{number}",
        task=task,
        run=run,
        turn=int(eid.get("step") or 0),
        messages=item.get("messages") or [],
        response=item.get("response_text") or "",
        reward=reward,
        metrics={name: float(value) for name, value in (item.get("metrics") or {}).items()},
        fidelity="text" if tokens is None else "exact",
        prompt_length=item.get("prompt_length"),
        tokens=tokens,
        mask=tensors.get("action_mask"),
        logprobs=tensors.get("logprobs"),
        advantages=tensors.get("advantages"),
        returns=tensors.get("returns"),
        model_version=model_version,
        truncated=True if item.get("truncate_status") == "response_truncated" else None,
        created=_from_timestamp(at),
        uses=consumed or 0,
        info=info,
    )


def _unframe(blob: bytes) -> tuple[JsonObject, dict[str, NDArray[Any]]]:
    if blob[:4] != MAGIC:
        raise DataError("a pickled class of an older Trinity; such blobs can run code and are not read")
    if len(blob) < _HEAD.size:
        raise DataError("the blob is cut off")
    _, version, metadata_length, block_length = _HEAD.unpack_from(blob)
    if version != VERSION:
        raise DataError(f"format version {version} is not known (only {VERSION})")
    end = _HEAD.size + metadata_length
    if len(blob) < end + block_length:
        raise DataError("the blob is cut off")
    try:
        metadata = _PlainUnpickler(io.BytesIO(blob[_HEAD.size : end])).load()
        item = metadata["items"][0]
    except (
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise DataError(f"the blob's description cannot be read: {type(error).__name__}: {error}") from error
    arrays = _from_safetensors(blob[end : end + block_length])
    return item, {name.removeprefix("0:"): array for name, array in arrays.items() if name.startswith("0:")}
