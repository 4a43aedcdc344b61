"""OpenRLHF: SFT, DPO, reward-model rows and prompt sets as JSONL, as messages with only role and text.

Its loaders never pass tools to the template and fail on messages with different keys: schemas go into the system text, calls into the
assistant's text, reasoning into `<think>`. The prompt is always explicit, because the implicit one cuts the rejected answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollforge.conversations.shape import Shaping
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import (
    PROMPT_COLUMNS,
    Messages,
    RowColumn,
    RowTables,
    conversation,
    field,
    messages,
    prompt,
)
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import fenced, files_of

_RENAMED = {"task_fields": "label", "data_source": "datasource"}
"""Columns with a new name. A reward function receives only the label, so the label is the task row as JSON text, with all fields
that a verifier needs.
"""
_REST = {name: column for name, column in PROMPT_COLUMNS.items() if name not in _RENAMED}


class OpenRlhfExporter(Exporter):
    """Rows for `SFTDataset`, `RewardDataset` and `PromptDataset`."""

    name = "openrlhf"
    recipes = ("sft", "dpo", "rm", "ppo", "grpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": conversation},
        "pair": {
            "prompt": prompt,
            "chosen": messages("chosen"),
            "rejected": messages("rejected"),
            "margin": field("gap", float),
        },
        "prompt": {
            "input": RowColumn(
                Messages, lambda example, write, column: write.messages(example.prompt, column, example.tools)
            ),
            **{new: PROMPT_COLUMNS[old] for old, new in _RENAMED.items()},
            **_REST,
        },
    }
    shaping = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")
    policies = Policies(ends_in_tool_result="cut", assistant_first="refuse")
    containers = ("jsonl", "parquet")
    pair_form = "step"
    prompt_tools = "system"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        yield from super().problems(kind, row, shaping)
        if kind == "demonstration" and row.messages[-1].role != "assistant":
            yield "messages do not end with the assistant"
        first = {"demonstration": "messages", "pair": "prompt"}.get(kind, "input")
        prompt_messages = getattr(row, first)
        if len(prompt_messages) < 2 and all(message.role == "system" for message in prompt_messages):
            yield f"{first} has no message beside the system text"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        file = ",".join(files_of(files))
        module, flags = _COMMANDS[kind if recipe != "rm" else "rm"]
        command = f"python -m openrlhf.cli.{module} {flags.format(file=file)}"
        if kind != "prompt":
            return fenced("sh", [command])
        write = ["rollforge rewards --write openrlhf --dataset . > reward.py"] if has_verifier else []
        return fenced("sh", [*write, f"{command} --reward.remote_url reward.py"])


_COMMANDS = {
    "demonstration": (
        "train_sft",
        "--data.dataset {file} --data.input_key messages --data.multiturn --data.apply_chat_template",
    ),
    "pair": (
        "train_dpo",
        "--data.dataset {file} --data.prompt_key prompt --data.chosen_key chosen --data.rejected_key rejected"
        " --data.apply_chat_template",
    ),
    "rm": (
        "train_rm",
        "--data.dataset {file} --data.prompt_key prompt --data.chosen_key chosen --data.rejected_key rejected"
        " --data.apply_chat_template --model.margin_loss_enable",
    ),
    "prompt": (
        "train_ppo_ray",
        "--data.prompt_dataset {file} --data.input_key input --data.label_key label --data.apply_chat_template",
    ),
}
