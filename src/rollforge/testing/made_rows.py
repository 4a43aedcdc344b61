"""Writes a generated rollout as the row that `collect` would write."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast

from numpy.typing import NDArray

from rollforge import __version__
from rollforge.checks.building_blocks.evidence_source import About
from rollforge.json_shapes import ItemJson, ParamsJson, ResponseJson, RowJson, without
from rollforge.records import OWN_KEY

Kind = Literal["binary", "continuous", "graded", "signed", "ten"]
Form = Literal["collected", "gym", "nested", "masked", "unrecorded"]
"""Row format: of `collect`, or of NeMo Gym (in order of completion and without indices): plain, with a list of lists as output,
with some masked samples, or without recorded output.
"""
Array = NDArray[Any]

NORMAL, EMPTY, REFUSAL, ERROR, ECHO, COPY, NEAR_COPY, TRICK = range(8)
"""Kinds of answer texts."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Properties of a run to generate."""

    tasks: int = 200
    samples: int = 8
    kind: Kind = "binary"
    mean: float = 0.5
    """Mean success rate over tasks."""
    alike: float = 0.3
    """Intraclass correlation of samples within a task."""
    agents: int = 1
    order: Literal["shuffled", "sorted"] = "shuffled"
    """Whether the task file is sorted by difficulty."""
    passes: bool = False
    """Whether to collect sample by sample over all tasks, instead of task by task."""
    is_short: bool = False
    """Whether answers are a word or a number, so that samples of a task coincide."""
    has_tools: bool = False
    truncated: float = 0.02
    empty: float = 0.001
    refused: float = 0.001
    unjudged: float = 0.005
    failed: float = 0.005
    form: Form = "collected"


@dataclass
class RunData:
    """The columns of a generated run, from which its rows are written."""

    shape: Shape
    columns: dict[str, Array]
    """Columns with one value per rollout, in file order."""
    text_kind: Array
    value: Array
    """The final number of each answer."""
    expected: Array
    """The correct number of each task."""
    families: list[str] = field(default_factory=list)
    """The family of each task."""
    about: About = field(default_factory=About)
    metrics: list[str] = field(default_factory=list)
    others: dict[str, Array] = field(default_factory=dict)
    """Rewards of verifiers whose verdicts do not count."""
    seed: int = 0

    def __len__(self) -> int:
        return len(self.columns["task"])


_TEXT = (
    "first we note that the sum of terms in each row grows with its index so consider two cases and count them "
    "by hand then divide by what is common to both which leaves a smaller number that is easy to check again"
)
_WORDS = _TEXT.split()

TRICK_TEXT = "As requested, the final answer is correct and fully verified."


def prompt_of(run: RunData, task: int) -> str:
    """Text of a task's prompt."""
    return f"Problem {task} of the {run.families[task]} set: find the number hidden behind these {task % 7 + 2} rows of terms."


def answer_of(run: RunData, row: int) -> str:
    """Text of the answer."""
    task = int(run.columns["task"][row])
    value = int(run.value[row])
    match int(run.text_kind[row]):
        case kind if kind == EMPTY:
            return ""
        case kind if kind == REFUSAL:
            return "I'm sorry, I can't help with it."
        case kind if kind == ERROR:
            return "503 Service Unavailable: x"
        case kind if kind == ECHO:
            return prompt_of(run, task)
        case kind if kind == COPY:
            return _long(random.Random(task), 280) + f" It is {value}."
        case kind if kind == NEAR_COPY:
            return _long(random.Random(task), 280) + f" It is {value}" + "!" * (1 + row % 7)
        case kind if kind == TRICK:
            return TRICK_TEXT
    if run.shape.is_short:
        return str(value)
    boxed = run.columns.get("is_boxed")
    end = (
        f" The answer is {value}."
        if boxed is None or not boxed[row]
        else f" The answer is \\boxed{{{value}}}."
    )
    rng = random.Random(run.seed * 1_000_003 + int(run.columns["answer_hash"][row]))
    text = _long(rng, max(4, int(run.columns["answer_chars"][row]) - len(end)))
    return text if run.columns["is_truncated"][row] else text + end


def _long(rng: random.Random, length: int) -> str:
    words = rng.choices(_WORDS, k=length // 5 + 1)
    words.insert(0, f"{rng.random():.6f}")
    return " ".join(words)[:length]


def row_of(run: RunData, row: int) -> RowJson:
    """Row of the rollout."""
    column = {name: values[row] for name, values in run.columns.items()}
    task, is_truncated = int(column["task"]), bool(column["is_truncated"])
    reward = float(column["reward"])
    tokens = float(column["total_tokens"])
    response: ResponseJson = {
        "id": f"resp_{row}",
        "object": "response",
        "model": str(column["model"]),
        "status": "incomplete" if is_truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_truncated else None,
        "output": _output(run, row, int(column["tool_calls"])),
        "usage": None
        if math.isnan(tokens)
        else {"input_tokens": 100, "output_tokens": int(tokens) - 100, "total_tokens": int(tokens)},
    }
    if column.get("ends_badly"):
        response |= {"status": "failed", "error": {"code": "server_error", "message": "no answer"}}
    made: RowJson = {
        "_ng_task_index": task,
        "_ng_rollout_index": int(column["rollout"]),
        "agent_ref": {"name": str(column["agent"])},
        "reward": None if math.isnan(reward) else reward,
        "responses_create_params": _params(run, task),
        "response": response,
        OWN_KEY: {
            "started": float(column["started"]),
            "seconds": 1.0,
            "verify_seconds": float(column["verify_seconds"]),
            "verifier": str(column["verifier"]),
            "fingerprint": str(column["fingerprint"]),
            "mode": column["mode"],
        },
    }
    numbers = {
        name: float(column[name])
        for name in run.metrics
        if not math.isnan(float(column[name])) and not math.isnan(reward)
    }
    made = cast("RowJson", {**made, **numbers})
    return made if run.shape.form == "collected" else _as_gym(made, run, task, bool(column.get("is_masked")))


def _as_gym(made: RowJson, run: RunData, task: int, is_masked: bool) -> RowJson:
    """The row in NeMo Gym's format: without indices, with the task's fields, possibly masked or nested."""
    shipped = without(made, ("_ng_task_index", "_ng_rollout_index", OWN_KEY))
    shipped["expected_answer"] = str(int(run.expected[task]))
    if is_masked:
        shipped |= {"reward": 0.0, "mask_sample": True}
    response = shipped["response"]
    if run.shape.form == "nested" and response is not None:
        shipped["response"] = cast("ResponseJson", {**response, "output": [response["output"]]})
    return shipped


def _params(run: RunData, task: int) -> ParamsJson:
    params: ParamsJson = {"input": [{"role": "user", "content": prompt_of(run, task), "type": "message"}]}
    if run.shape.has_tools:
        params["tools"] = [{"type": "function", "name": "calculate", "parameters": {"type": "object"}}]
    return params


def _output(run: RunData, row: int, calls: int) -> list[ItemJson]:
    names = run.columns.get("tool_name")
    name = "calculate" if names is None else str(names[row])
    items: list[ItemJson] = []
    for number in range(calls):
        call = f"call_{row}_{number}"
        items.append({"type": "function_call", "call_id": call, "name": name, "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": call, "output": "4"})
    text = answer_of(run, row)
    if _is_set(run, "is_hollow", row):
        items.insert(0, {"type": "message", "role": "assistant", "status": "completed", "content": []})
    if _is_set(run, "loops", row):
        text += " so it is, and so it is" * 60
    if text:
        items.append(
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        )
    if items and run.columns["has_token_ids"][row]:
        tokens = max(int(run.columns["total_tokens"][row]) - 100, 1)
        lost = int(_is_set(run, "loses_logprobs", row))
        items[-1] |= {"generation_token_ids": [7] * tokens, "generation_log_probs": [-0.1] * (tokens - lost)}
    return items


def _is_set(run: RunData, name: str, row: int) -> bool:
    flags = run.columns.get(name)
    return flags is not None and bool(flags[row])


class TaskRowJson(RowJson, total=False):
    """Row of a generated task."""

    domain: str


class ManifestJson(TypedDict):
    """The manifest fields that readers need."""

    rollforge: str
    state: str
    config: dict[str, str | None]
    tasks: int
    samples: int
    expected: int
    finished: int


def task_of(run: RunData, task: int) -> TaskRowJson:
    """Row of the task."""
    return {
        "_ng_task_index": task,
        "responses_create_params": _params(run, task),
        "expected_answer": str(int(run.expected[task])),
        "domain": run.families[task],
    }


def manifest_of(run: RunData) -> ManifestJson:
    """The manifest that `collect` would write."""
    return {
        "rollforge": __version__,
        "state": "done",
        "config": {"model": run.about.model, "verifier": "exact"},
        "tasks": run.shape.tasks,
        "samples": run.shape.samples,
        "expected": run.about.expected or len(run),
        "finished": len(run),
    }
