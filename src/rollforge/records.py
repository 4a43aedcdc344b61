"""The nouns: task, response, verdict, and the rows they become on disk.

A record never reads a file, a clock or a socket. Rows follow NeMo Gym's names so that files move both ways; rollforge's own
fields are nested under the single key `_rf`, so that other tools do not mistake them for metrics.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, cast

import msgspec

from rollforge.json_shapes import ItemJson, ParamsJson, PartJson, ResponseJson, UsageJson, parts_in

JsonFields = dict[str, object]
"""A JSON object with unchecked values, which must be narrowed before use."""

JsonObject = dict[str, Any]
"""A JSON object from outside, with values of any type."""

TASK_KEY: Final = "_ng_task_index"
ROLLOUT_KEY: Final = "_ng_rollout_index"

Index = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Task or sample number in a file; a number beyond 64 bits makes the line unreadable."""
ATTEMPT_KEY: Final = "_ng_attempt_index"
FAILURE_KEY: Final = "_ng_failure_class"
TERMINAL_KEY: Final = "_ng_failure_terminal"
PARAMS_KEY: Final = "responses_create_params"
OWN_KEY: Final = "_rf"
RECORDED: Final = "recorded"
"""In place of a verifier's name: the rewards in the rollouts file, whichever verifier gave them."""

MASK_KEY: Final = "mask_sample"
SKIPPED_KEY: Final = "verification_skipped"
"""NeMo Gym's marks for a reward that is no measurement; a masked rollout must not be trained on either."""

UNANSWERED = ("failed", "cancelled")
"""Values of `response.status` for a model call without an answer."""

RESERVED_KEYS = frozenset(
    {
        PARAMS_KEY,
        "response",
        "agent_ref",
        TASK_KEY,
        ROLLOUT_KEY,
        ATTEMPT_KEY,
        FAILURE_KEY,
        TERMINAL_KEY,
        OWN_KEY,
    }
)
"""Row keys that a verifier may not return."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def to_json(value: object) -> bytes:
    """Compact JSON without a newline; raises for a value that JSON cannot represent."""
    return _encode(value)


def from_json(data: bytes | str) -> Any:
    """Decode JSON; raises `msgspec.DecodeError` with the byte position."""
    return _decode(data)


class Task(dict[str, Any]):
    """One input row: a mapping of the row's own keys, plus its index and properties for the prompt.

    A verifier reads its fields with `task["expected_answer"]` or `task.get(...)`.
    """

    __slots__ = ("index",)

    def __init__(self, row: Mapping[str, Any], index: int = 0) -> None:
        super().__init__(row)
        self.index = index

    @property
    def params(self) -> ParamsJson:
        """`responses_create_params` as sent to the model."""
        params: ParamsJson = self[PARAMS_KEY]
        return params

    @property
    def agent(self) -> str | None:
        """The name in `agent_ref`, if the row has one."""
        ref = self.get("agent_ref")
        return ref.get("name") if isinstance(ref, dict) else None

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        items = self.params.get("input")
        if isinstance(items, str):
            return items
        for item in reversed(items) if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("role") == "user":
                return content_text(item.get("content"))
        return ""


def has_field(row: Mapping[str, Any], need: str) -> bool:
    """Whether a row has a field that a verifier needs: `field`, `outer.inner`, or one of `this|that`."""
    for path in need.split("|"):
        value: Any = row
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return True
    return False


def is_mark(value: object) -> bool:
    """Whether a mark such as `mask_sample` is set; some tools write 1 or "true"."""
    return value == 1 or (isinstance(value, str) and value.strip().lower() in ("true", "1"))


def content_text(content: object) -> str:
    """The text of a message's content, from a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(
        part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


class ToolCall(msgspec.Struct, frozen=True):
    """A function call the model made."""

    name: str
    arguments: str
    """The arguments as the model wrote them: usually JSON, sometimes broken JSON."""
    call_id: str
    output: str | None = None
    """The tool's output, if the call was answered."""

    def parsed(self) -> Any:
        """The decoded arguments; raises `msgspec.DecodeError` for broken JSON."""
        return from_json(self.arguments)


def _objects(items: list[Any]) -> Iterator[Any]:
    """Objects of a list, with nested lists flattened: some agents write one item list per step."""
    for item in items:
        if isinstance(item, dict):
            yield item
        elif isinstance(item, list):
            yield from (inner for inner in item if isinstance(inner, dict))


SAID_BY_AGENTS = ("workdir", "artifacts_root")
"""Fields of a response that name directories of this machine: neither a server nor a file of rollouts is believed about them."""
_KEPT = re.compile(r"[^/.\0][^/\0]*/[0-9a-f]{2}/[0-9a-f]{64}")
"""Where a kept file is, relative to the run's directory: below its artifacts, by its SHA-256."""


class Artifact(msgspec.Struct, frozen=True):
    """A file that a program left behind, kept beside the run."""

    path: str
    """Relative to the program's working directory."""
    size: int
    """Size in bytes."""
    sha256: str | None = None
    """None if the file was too large to keep."""
    file: str | None = None
    """Where the file is stored; None if it was not kept."""

    def read(self) -> bytes:
        """The file's bytes; raises `FileNotFoundError` when it was not kept, or is not what was kept."""
        if self.file is None:
            raise FileNotFoundError(f"{self.path} was too large to keep")
        import hashlib  # records import nothing that they need not

        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(self.file, "rb", opener=lambda path, mode: os.open(path, mode | flags)) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != self.file[-64:]:
            raise FileNotFoundError(f"{self.path}: {self.file} is not what was kept")
        return data

    def text(self) -> str:
        """The file as text."""
        return self.read().decode("utf-8", "replace")


class Response(Mapping[str, Any]):
    """The answer of a model or agent: properties for verifiers over the raw Responses-shaped object.

    `response["output"]` and `response.get("usage")` read the raw object; most verifiers only need `response.text`.
    """

    __slots__ = ("__dict__", "raw")

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = cast("ResponseJson", raw)

    @classmethod
    def from_text(cls, text: str) -> Response:
        """A response with a single finished message, for tests and probes of verifiers."""
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        return cls(
            {"object": "response", "status": "completed", "incomplete_details": None, "output": [item]}
        )

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]  # type: ignore[literal-required]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return self.text

    @cached_property
    def encoded(self) -> msgspec.Raw:
        """The raw object as JSON, encoded once and cached: the object must not change afterwards."""
        return msgspec.Raw(to_json(self.raw))

    @property
    def output(self) -> list[ItemJson]:
        """The items of the whole rollout: reasoning, messages, tool calls and their outputs, in order."""
        items = self.raw.get("output")
        return list(_objects(items)) if isinstance(items, list) else []

    @cached_property
    def text(self) -> str:
        """Concatenated answer text of all assistant messages, without reasoning and tool output."""
        return "".join(
            text
            for part in self._parts()
            if part.get("type") == "output_text" and isinstance(text := part.get("text"), str)
        )

    @property
    def output_text(self) -> str:
        """Alias of `text`, under the name that the OpenAI SDK and NeMo Gym use."""
        return self.text

    @property
    def messages(self) -> list[ItemJson]:
        """The model's messages, without those of a simulated user."""
        return [
            item
            for item in self.output
            if item.get("type") == "message" and item.get("role") in (None, "assistant")
        ]

    @property
    def last_text(self) -> str:
        """The text of the last assistant message."""
        messages = self.messages
        return content_text(messages[-1].get("content")) if messages else ""

    @property
    def reasoning(self) -> str:
        """All reasoning text, summaries or content, joined by newlines."""
        lines = []
        for item in self.output:
            if item.get("type") == "reasoning":
                lines += [
                    text
                    for key in ("summary", "content")
                    for part in parts_in(item.get(key))
                    if isinstance(text := part.get("text"), str)
                ]
        return "\n".join(lines)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Every function call, with its output if there is one."""
        output_by_call = {
            item.get("call_id"): _tool_text(item.get("output"))
            for item in self.output
            if item.get("type") == "function_call_output"
        }
        return [
            ToolCall(
                name=str(item.get("name") or ""),
                arguments=str(item.get("arguments") or ""),
                call_id=str(item.get("call_id") or ""),
                output=output_by_call.get(item.get("call_id")),
            )
            for item in self.output
            if item.get("type") == "function_call"
        ]

    @property
    def refusal(self) -> str | None:
        """The model's refusal text, if the response has an explicit refusal."""
        for part in self._parts():
            if part.get("type") == "refusal":
                return str(part.get("refusal") or "")
        return None

    @property
    def workdir(self) -> str | None:
        """The program's working directory, while the rollout is judged; None later, and for other agents."""
        value = self.raw.get("workdir")
        return value if isinstance(value, str) else None

    @property
    def result(self) -> str | None:
        """Content of the program's result file; None without one."""
        value = self.raw.get("result")
        return value if isinstance(value, str) else None

    @property
    def artifacts(self) -> list[Artifact]:
        """The files kept from a program's working directory (`--artifacts`)."""
        entries = self.raw.get("artifacts")
        root = self.raw.get("artifacts_root")
        artifacts = []
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("path"), str):
                file, size = entry.get("file"), entry.get("bytes")
                is_kept = isinstance(file, str) and _KEPT.fullmatch(file)  # a run may be somebody else's
                where = f"{root}/{file}" if is_kept and root else None
                artifacts.append(
                    Artifact(entry["path"], size if isinstance(size, int) else 0, entry.get("sha256"), where)
                )
        return artifacts

    @property
    def usage(self) -> UsageJson:
        usage = self.raw.get("usage")
        return usage if isinstance(usage, dict) else {}

    @property
    def finish_reason(self) -> str | None:
        """Why the last model call ended: stop, length, content_filter, tool_calls, failed, cancelled; None if unknown."""
        if isinstance(self.raw.get("finish_reason"), str):
            return str(self.raw["finish_reason"])
        details = self.raw.get("incomplete_details")
        if isinstance(details, dict) and details.get("reason"):
            reason = str(details["reason"])
            return "length" if reason in ("max_output_tokens", "length", "max_tokens") else reason
        status = self.raw.get("status")
        if status in UNANSWERED:
            return str(status)
        if status != "completed":
            return None
        output = self.output
        return "tool_calls" if output and output[-1].get("type") == "function_call" else "stop"

    @property
    def is_truncated(self) -> bool:
        """Whether the answer was cut off at the token limit."""
        return self.finish_reason == "length"

    @property
    def is_empty(self) -> bool:
        """Whether there is neither answer text nor a tool call, so nothing to judge."""
        return not self.text.strip() and not any(item.get("type") == "function_call" for item in self.output)

    def _parts(self) -> Iterator[PartJson]:
        for item in self.messages:
            content = item.get("content")
            if isinstance(content, str):
                yield {"type": "output_text", "text": content}
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict):
                    yield part


def as_received(response: Response) -> Response:
    """The response without the fields that only an agent of ours may set: a server, a client or a file may say anything there."""
    if not any(key in response.raw for key in SAID_BY_AGENTS):
        return response
    return Response({key: value for key, value in response.raw.items() if key not in SAID_BY_AGENTS})


def _tool_text(output: object) -> str | None:
    return output if output is None or isinstance(output, str) else content_text(output)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one verifier said about one rollout."""

    reward: float | None = None
    """The number used in training. None means unjudged; it is never averaged as zero."""
    numbers: dict[str, bool | int | float] = {}
    """All other numbers, stored at the top level of the row."""
    details: JsonObject = {}
    """Data other than numbers (an extracted answer, a judge's text); stored in the row, not averaged."""

    @classmethod
    def from_value(cls, value: object) -> Verdict:
        """Convert a verifier's return value to a verdict.

        Raises:
            ValueError: the value is no verdict (a text, a dict without `reward`, a number that is not finite).
        """
        if isinstance(value, Verdict):
            return value
        if value is None:
            return cls()
        if isinstance(value, Mapping):
            return cls._from_mapping(value)
        return cls(reward=_finite("reward", value))

    @classmethod
    def _from_mapping(cls, value: Mapping[str, object]) -> Verdict:
        if "reward" not in value:
            raise ValueError(
                f"the verifier returned a dict without 'reward' (keys: {', '.join(map(str, value))})"
            )
        numbers: dict[str, bool | int | float] = {}
        details: JsonObject = {}
        for key, item in value.items():
            if key == "reward":
                continue
            if key in RESERVED_KEYS:
                raise ValueError(f"the verifier returned the reserved key {key!r}; give it another name")
            plain = _plain_number(item)
            if plain is None:
                details[str(key)] = item
            else:
                _finite(str(key), plain)
                numbers[str(key)] = plain
        try:
            to_json(details)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the verifier returned what JSON cannot hold: {error}") from error
        reward = value["reward"]
        return cls(
            reward=None if reward is None else _finite("reward", reward), numbers=numbers, details=details
        )

    @property
    def is_masked(self) -> bool:
        """Whether the rollout must not be trained on (`mask_sample`)."""
        return self._is_marked(MASK_KEY)

    @property
    def measured(self) -> float | None:
        """The reward; None if the verdict marks it as no measurement, as in the index."""
        return None if self.is_masked or self._is_marked(SKIPPED_KEY) else self.reward

    def _is_marked(self, key: str) -> bool:
        return is_mark(self.numbers.get(key, self.details.get(key)))

    def to_fields(self) -> JsonObject:
        """The verdict as top-level keys of a row."""
        return {"reward": self.reward, **self.numbers, **self.details}


_NUMBERS = (bool, int, float)


def _plain_number(value: object) -> bool | int | float | None:
    """A Python number for bool, int, float and numpy or torch scalars; None for other values."""
    if isinstance(value, _NUMBERS):
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) in ((), (1,)):
        plain = item()
        return plain if isinstance(plain, _NUMBERS) else None
    return None


def finite_number(value: object) -> float | None:
    """A number or bool as a float; None for other values, and for a number beyond float range."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of 400 digits
        return None


def _finite(name: str, value: object) -> float:
    plain = _plain_number(value)
    if plain is None:
        raise ValueError(f"the verifier returned {name} = {value!r}, which is not a number")
    if finite_number(plain) is None:
        raise ValueError(f"the verifier returned {name} = {plain}, which is not finite")
    return float(plain)
