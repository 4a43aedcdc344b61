"""The experience record: what a trainer learns from one rollout, or from one model call of it.

Text is always present; token ids, mask and logprobs only if the server returned them. `fidelity` says which case applies.
Experiences are stored as MessagePack with arrays as typed bytes: no pickle, so reading cannot execute code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import DataError
from rollforge.records import JsonFields
from rollforge.runtime.typed_decoding import convert
from rollforge.store.reading import UNREADABLE

Fidelity = Literal["exact", "per-call", "text"]
"""How exact the tokens are. `exact`: sampled tokens of the whole rollout. `per-call`: sampled tokens of one model call, because
calls do not continue each other. `text`: no token ids; a trainer must tokenise the text and may get different ones.
"""

Array = NDArray[Any]

_DTYPE_BY_CODE = {
    1: np.dtype("<i4"),
    2: np.dtype("<f4"),
    3: np.dtype("bool"),
    4: np.dtype("<i8"),
    5: np.dtype("<f8"),
}
_CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}


class Experience(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One unit of training."""

    id: str
    """Unique and deterministic: the same rollout has the same id, so appending it twice stores it once."""
    task: str
    """The task, whose experiences form a group and are compared with each other."""
    run: str
    """The rollout that it belongs to; experiences of a rollout that was split by turn share it."""
    turn: int = 0
    sequence: int | None = None
    """Number of a recorded program's non-main sequence; None for the main or only one."""
    role: str = ""
    """Role of a non-main sequence: branch, sub, auxiliary."""
    taskset: str = ""
    messages: list[JsonFields] = []
    """The prompt as sent: Responses items or chat messages."""
    response: str = ""
    """The answer text, without reasoning and tool output."""
    reward: float | None = None
    """None means unjudged; operators and metrics never treat it as zero."""
    metrics: dict[str, float] = {}
    advantage: float | None = None
    """Advantage of all tokens that the model wrote; `advantages` overrides it per token."""
    fidelity: Fidelity = "text"
    prompt_length: int | None = None
    """Number of tokens before the response, if token ids are known."""
    tokens: Array | None = None
    """int32 [prompt + response]."""
    mask: Array | None = None
    """bool [response]: true for tokens that the model wrote."""
    logprobs: Array | None = None
    """float32 [response]: under the policy that wrote the tokens; 0 where the mask is false."""
    advantages: Array | None = None
    returns: Array | None = None
    model: str | None = None
    model_version: int | None = None
    truncated: bool | None = None
    finish_reason: str | None = None
    output_tokens: int | None = None
    difficulty: float | None = None
    """Share of the group that failed, or any number from 0 (easy) to 1 (hard)."""
    priority: float = 0.0
    created: float | None = None
    uses: int = 0
    """How often a trainer received it before."""
    info: JsonFields = {}

    @property
    def response_length(self) -> int | None:
        """Number of tokens after the prompt, tool results included; without token ids, the server's output count."""
        if self.tokens is not None and self.prompt_length is not None:
            return len(self.tokens) - self.prompt_length
        return self.output_tokens


def _encode_array(value: object) -> msgspec.msgpack.Ext:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.ndim != 1:
        raise DataError(f"an experience holds flat arrays, not one of shape {array.shape}")
    code = _CODE_BY_DTYPE.get(array.dtype)
    if code is None:
        kind = {"i": "<i4", "u": "<i4", "f": "<f4"}.get(array.dtype.kind)
        if kind is None:
            raise DataError(f"an experience cannot hold values of type {array.dtype}")
        array = array.astype(kind)
        code = _CODE_BY_DTYPE[array.dtype]
    return msgspec.msgpack.Ext(code, array.tobytes())


def _decode_array(code: int, data: memoryview) -> Array:
    if code not in _DTYPE_BY_CODE:
        raise DataError(f"unknown array type {code} in an experience")
    return np.frombuffer(bytes(data), dtype=_DTYPE_BY_CODE[code])


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoder = msgspec.msgpack.Decoder(Experience, ext_hook=_decode_array)


def to_bytes(experience: Experience) -> bytes:
    """The experience as stored bytes."""
    return _encoder.encode(experience)


def from_bytes(data: bytes) -> Experience:
    """Read the result of `to_bytes`; raises `DataError` for other data."""
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        raise DataError(f"not an experience: {error}") from error


def to_row(experience: Experience) -> JsonFields:
    """The experience as a JSON row: arrays as lists, absent fields left out."""
    row: JsonFields = msgspec.structs.asdict(experience)
    return {key: _plain(value) for key, value in row.items() if value not in _ABSENT}


class _Absent:
    """Equal to every value that a row omits: null, and an empty text, list or dict. Arrays are never omitted."""

    def __contains__(self, value: object) -> bool:
        return value is None or (isinstance(value, str | list | dict) and not value)


_ABSENT = _Absent()


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


def from_row(row: Mapping[str, Any]) -> Experience:
    """Read an experience from a JSON row made by `to_row`; raises `DataError` naming the invalid field."""
    fields = dict(row)
    arrays = {
        key: np.asarray(fields.pop(key), dtype=dtype)
        for key, dtype in (
            ("tokens", "<i4"),
            ("mask", "bool"),
            ("logprobs", "<f4"),
            ("advantages", "<f4"),
            ("returns", "<f4"),
        )
        if fields.get(key) is not None
    }
    try:
        experience = convert(fields, Experience)
    except msgspec.ValidationError as error:
        raise DataError(f"not an experience: {error}") from error
    return msgspec.structs.replace(experience, **arrays)
