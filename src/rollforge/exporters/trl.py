"""TRL: SFT, DPO, KTO and reward-model rows, and prompt sets for GRPO and RLOO, as JSONL.

Columns have no name that TRL gives a meaning of its own. `tools` is a JSON text, because a list column loses numbers. Arguments
are objects, which most templates want, until a row shows that `datasets` would damage them; then all are strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollforge.exporters.contract import PlainMessage, ReadMessage, struct
from rollforge.exporters.examples import Demonstration, Kind, Labelled, Pair, Prompt
from rollforge.exporters.guarded import GuardedExporter
from rollforge.exporters.prompts import PROMPT_COLUMNS, prompt_columns
from rollforge.exporters.shape import Shaping
from rollforge.exporters.snippets import fenced, load_lines
from rollforge.records import JsonObject


class TrlExporter(GuardedExporter):
    """Rows for `SFTTrainer`, `DPOTrainer`, `KTOTrainer`, `RewardTrainer`, `GRPOTrainer` and `RLOOTrainer`."""

    name = "trl"
    recipes = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
    shaping = Shaping(arguments="object", tools="string", reasoning="field", keys="uniform")
    containers = ("jsonl", "parquet")
    pair_form = "step"

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {
            "messages": self.conversation(example.prompt, example.answer, example.tools),
            "tools": self.tools(example.tools),
        }

    def pair(self, example: Pair) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "chosen": self.messages(example.chosen, column="chosen"),
            "rejected": self.messages(example.rejected, column="rejected"),
            "tools": self.tools(example.tools),
            "margin": example.gap,
        }

    def labelled(self, example: Labelled) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "completion": self.messages(example.answer, column="completion"),
            "label": example.label,
            "tools": self.tools(example.tools),
        }

    def prompt(self, example: Prompt) -> JsonObject:
        return {"prompt": self.prompt_messages(example.prompt), **prompt_columns(example)}

    def row_type(self, recipe: str, kind: Kind) -> Any:
        message: Any = ReadMessage if self.keys or self.shape_as.keys == "present" else PlainMessage
        many, tools = list[message], list[msgspec.Raw] | str | None
        match kind:
            case "demonstration":
                return struct("TrlSft", messages=many, tools=tools)
            case "pair":
                return struct("TrlPair", prompt=many, chosen=many, rejected=many, tools=tools, margin=float)
            case "labelled":
                return struct("TrlKto", prompt=many, completion=many, label=bool, tools=tools)
            case _:
                return struct("TrlPrompt", prompt=many, **PROMPT_COLUMNS)

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        yield from super().problems(recipe, kind, row)
        if kind == "pair" and row.margin <= 0:
            yield "margin is not above zero"

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        from rollforge.exporters.arrow import columns_of, prompt_fields, schema

        match kind:
            case "demonstration":
                return schema(**columns_of(self.keys, "messages"), tools="string")
            case "pair":
                return schema(
                    **columns_of(self.keys, "prompt", "chosen", "rejected"), tools="string", margin="double"
                )
            case "labelled":
                return schema(**columns_of(self.keys, "prompt", "completion"), label="bool", tools="string")
            case _:
                return schema(**columns_of(self.keys, "prompt"), **prompt_fields())

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        trainer, config, extra = _TRAINERS[recipe]
        lines = [
            *load_lines(files),
            f"from trl import {config}, {trainer}",
            "",
            f"trainer = {trainer}(",
            '    model="YOUR_MODEL",',
            f'    args={config}(output_dir="out"{extra}),',
            '    train_dataset=data["train"],',
        ]
        if trainer == "GRPOTrainer":
            lines.append("    reward_funcs=your_reward,  # gets ground_truth and every other column by name")
        return fenced("python", [*lines, ")", "trainer.train()"])


_TRAINERS = {
    "sft": ("SFTTrainer", "SFTConfig", ", assistant_only_loss=True, max_length=None"),
    "dpo": ("DPOTrainer", "DPOConfig", ", max_length=None"),
    "kto": ("KTOTrainer", "KTOConfig", ", max_length=None"),
    "rm": ("RewardTrainer", "RewardConfig", ", max_length=None"),
    "ppo": ("RLOOTrainer", "RLOOConfig", ""),
    "grpo": ("GRPOTrainer", "GRPOConfig", ", shuffle_dataset=False"),
}
