"""TRL: SFT, DPO, KTO and reward-model rows, and prompt sets for GRPO and RLOO, as JSONL.

No column has a name to which TRL gives another meaning. `tools` is a JSON text, because a list column loses numbers. Arguments are
objects, which most templates want, until `datasets` would damage one; then all are strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollforge.conversations.shape import Shaping
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import (
    PROMPT_COLUMNS,
    RowTables,
    bare_prompt,
    conversation,
    field,
    messages,
    prompt,
    tools,
)
from rollforge.exporters.examples import Kind
from rollforge.exporters.snippets import fenced, load_lines


class TrlExporter(Exporter):
    """Rows for `SFTTrainer`, `DPOTrainer`, `KTOTrainer`, `RewardTrainer`, `GRPOTrainer` and `RLOOTrainer`."""

    name = "trl"
    recipes = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": conversation, "tools": tools},
        "pair": {
            "prompt": prompt,
            "chosen": messages("chosen"),
            "rejected": messages("rejected"),
            "tools": tools,
            "margin": field("gap", float),
        },
        "labelled": {
            "prompt": prompt,
            "completion": messages("answer"),
            "label": field("label", bool),
            "tools": tools,
        },
        "prompt": {"prompt": bare_prompt, **PROMPT_COLUMNS},
    }
    shaping = Shaping(arguments="object", tools="string", reasoning="field", keys="uniform")
    containers = ("jsonl", "parquet")
    pair_form = "step"
    keeps_arguments = True

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        yield from super().problems(kind, row, shaping)
        if kind == "pair" and row.margin <= 0:
            yield "margin is not above zero"

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
