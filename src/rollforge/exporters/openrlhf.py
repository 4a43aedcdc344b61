"""OpenRLHF: SFT, DPO, reward-model rows and prompt sets as JSONL, messages of role and text alone.

Its loaders never hand tools to the template and stumble over messages with different keys: schemas go into the system text, calls
into the assistant's text, reasoning into `<think>`. The prompt is always explicit, because its implicit one cuts the rejected answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollforge.exporters.base import Exporter
from rollforge.exporters.contract import PlainMessage, struct
from rollforge.exporters.examples import Demonstration, Kind, Pair, Prompt
from rollforge.exporters.prompts import PROMPT_COLUMNS, prompt_columns
from rollforge.exporters.shape import Shaping
from rollforge.exporters.snippets import fenced, files_of
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject


class OpenRlhfExporter(Exporter):
    """Rows for `SFTDataset`, `RewardDataset` and `PromptDataset`."""

    name = "openrlhf"
    recipes = ("sft", "dpo", "rm", "ppo", "grpo")
    shaping = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")
    policies = Policies(ends_in_tool_result="cut", assistant_first="refuse")
    containers = ("jsonl", "parquet")
    pair_form = "step"
    prompt_tools = "system"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {"messages": self.conversation(example.prompt, example.answer, example.tools)}

    def pair(self, example: Pair) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "chosen": self.messages(example.chosen, column="chosen"),
            "rejected": self.messages(example.rejected, column="rejected"),
            "margin": example.gap,
        }

    def prompt(self, example: Prompt) -> JsonObject:
        columns = prompt_columns(example)
        return {
            "input": self.messages(example.prompt, example.tools, column="input"),
            "label": columns.pop("ground_truth"),
            "datasource": columns.pop("data_source"),
            **columns,
        }

    def row_type(self, recipe: str, kind: Kind) -> Any:
        many = list[PlainMessage]
        if kind == "demonstration":
            return struct("OpenRlhfSft", messages=many)
        if kind == "pair":
            return struct("OpenRlhfPair", prompt=many, chosen=many, rejected=many, margin=float)
        columns = dict(PROMPT_COLUMNS)
        columns = {"label": columns.pop("ground_truth"), "datasource": columns.pop("data_source"), **columns}
        return struct("OpenRlhfPrompt", input=many, **columns)

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        yield from super().problems(recipe, kind, row)
        if kind == "demonstration" and row.messages[-1].role != "assistant":
            yield "messages do not end with the assistant"
        first = {"demonstration": "messages", "pair": "prompt"}.get(kind, "input")
        if (
            all(message.role == "system" for message in getattr(row, first)[:1])
            and len(getattr(row, first)) < 2
        ):
            yield f"{first} has no message beside the system text"

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        from rollforge.exporters.arrow import columns_of, prompt_fields, schema

        if kind == "demonstration":
            return schema(**columns_of({}, "messages"))
        if kind == "pair":
            return schema(**columns_of({}, "prompt", "chosen", "rejected"), margin="double")
        fields = prompt_fields()
        first = {"label": fields.pop("ground_truth"), "datasource": fields.pop("data_source")}
        return schema(**columns_of({}, "input"), **first, **fields)

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        file = ",".join(files_of(files))
        module, flags = _COMMANDS[kind if recipe != "rm" else "rm"]
        return fenced("sh", [f"python -m openrlhf.cli.{module} {flags.format(file=file)}"])


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
