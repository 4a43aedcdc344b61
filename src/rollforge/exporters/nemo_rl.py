"""NeMo-RL: SFT messages, preference pairs by rank, and NeMo Gym task rows for GRPO and PPO, as JSONL.

Its preserving loader reads SFT lines with plain JSON, so arguments are objects and `tools` a list. It reads preferences with
`datasets`, which infers types: there all messages have the same keys, and arguments become strings if an object would be damaged.
Preference training uses only the last message of a side, so pairs are step pairs; it ignores tools, so schemas are written into
the system text. A column named `task_name` would break its loaders and is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypedDict

import msgspec

from rollforge.conversations.shape import Shaping
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import Messages, RowColumn, RowTables, conversation, tools
from rollforge.exporters.contract import ReadMessage, message_problems
from rollforge.exporters.examples import Kind, Pair
from rollforge.exporters.form import Container, Form, Layout
from rollforge.exporters.snippets import config, fenced
from rollforge.exporters.writer import RowWriter
from rollforge.json_shapes import RowJson


class _Completion(msgspec.Struct, forbid_unknown_fields=True):
    rank: int
    completion: list[ReadMessage]


class _CompletionLine(TypedDict):
    rank: int
    completion: object


def _completions(example: Pair, write: RowWriter, column: str) -> list[_CompletionLine]:
    """Both sides ordered by rank; their messages have the keys of one column."""
    return [
        {"rank": rank, "completion": write.messages(side, "completion")}
        for rank, side in enumerate((example.chosen, example.rejected))
    ]


class NemoRlExporter(Exporter):
    """Rows for `openai_format`, `PreferenceDataset` and `NemoGymDataset`."""

    name = "nemo-rl"
    recipes = ("sft", "dpo", "rm", "ppo", "grpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": conversation, "tools": tools},
        "pair": {
            "context": RowColumn(
                Messages, lambda example, write, column: write.messages(example.prompt, column, example.tools)
            ),
            "completions": RowColumn(list[_Completion], _completions),
        },
    }
    shaping = Shaping(arguments="object", tools="list", reasoning="field", keys="present")
    policies = Policies(ends_in_tool_result="cut", unanswered_call="cut")
    pair_form = "step"
    has_task_rows = True
    keeps_arguments = True

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        if kind == "pair":
            return msgspec.structs.replace(cls.shaping, keys="uniform", tools="system")
        return cls.shaping

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"tools": ("list", "system") if kind == "demonstration" else ("system",)}

    @classmethod
    def containers_for(cls, kind: Kind) -> tuple[Container, ...]:
        return ("jsonl", "parquet") if kind == "pair" else cls.containers

    @classmethod
    def is_inferred(cls, kind: Kind) -> bool:
        return kind == "pair"

    def row_type(self, kind: Kind, form: Form) -> Any:
        return dict[str, object] if kind == "prompt" else super().row_type(kind, form)

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        if kind == "prompt":
            yield from task_row_problems(row)
        elif kind == "demonstration":
            yield from message_problems(row.messages, shaping, where="messages", ends_in=("assistant",))
        else:
            yield from message_problems(row.context, shaping, where="context")
            if [side.rank for side in row.completions] != [0, 1]:
                yield "ranks are not 0 and 1"
            for side in row.completions:
                yield from message_problems(
                    side.completion, shaping, where="completion", ends_in=("assistant",)
                )
            if row.completions[0].completion == row.completions[-1].completion:
                yield "chosen equals rejected"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        entries = {
            split: [
                {"dataset_name": _DATASETS[kind], "data_path": name, **_MORE.get(kind, {})}
                for name in files[split]
            ]
            for split in ("train", "validation")
            if split in files
        }
        data = {split: paths if len(paths) > 1 else paths[0] for split, paths in entries.items()}
        load = "load_preference_dataset" if kind == "pair" else "load_response_dataset"
        lines = [
            f"from nemo_rl.data.datasets import {load}",
            f"parts = [{load}(part) for part in {next(iter(entries.values()), [])!r}]",
        ]
        wanted = {"data": {"shuffle": kind != "prompt", **data}}
        parts = [fenced("python", lines), config(wanted)]
        if kind == "prompt" and has_verifier:
            parts.append(fenced("sh", ["rollforge rewards --write nemo-rl --dataset . > environment.yaml"]))
        return "\n\n".join(parts)


_DATASETS = {"demonstration": "openai_format", "pair": "PreferenceDataset", "prompt": "NemoGymDataset"}
_MORE: dict[str, dict[str, str | bool]] = {
    "demonstration": {"chat_key": "messages", "tool_key": "tools", "use_preserving_dataset": True}
}


def task_row_problems(row: RowJson) -> Iterator[str]:
    """Reasons why NeMo Gym would refuse the row as a task."""
    params = row.get("responses_create_params")
    if not isinstance(params, dict) or not params.get("input"):
        yield "no responses_create_params.input"
    agent = row.get("agent_ref")
    if not isinstance(agent, dict) or not agent.get("name"):
        yield "no agent_ref.name"
    for key in row:
        if key in ("response", "reward") or key.startswith(("_ng_", "_rf")):
            yield f"{key} belongs to a rollout, not to a task"
