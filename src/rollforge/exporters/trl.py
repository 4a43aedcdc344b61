"""TRL: SFT, DPO, KTO and reward-model rows, and prompt sets for GRPO and RLOO, as JSONL.

Demonstrations whose answers are all single messages are `prompt` and `completion`: TRL then computes loss on the completion only,
with any chat template, and not on assistant turns of the prompt. Answers of several messages are `messages`, whose loss mask
needs a template with generation markers.

No column has a name that TRL reserves for something else. `tools` is a JSON text, because a list column loses numbers. Arguments
are objects, as most templates expect, unless `datasets` would damage one; then all are strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollforge.conversations.shape import Shaping
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import (
    PROMPT_COLUMNS,
    Columns,
    RowTables,
    bare_prompt,
    conversation,
    field,
    messages,
    prompt,
    tools,
)
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Layout
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
    completion_columns: ClassVar[Columns] = {
        "prompt": prompt,
        "completion": messages("answer"),
        "tools": tools,
    }
    shaping = Shaping(arguments="object", tools="string", reasoning="field", keys="uniform")
    containers = ("jsonl", "parquet")
    pair_form = "step"
    keeps_arguments = True

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        yield from super().problems(kind, row, shaping)
        if kind == "pair" and row.margin <= 0:
            yield "margin is not above zero"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        trainer, config, extra = _TRAINERS[recipe]
        if kind == "demonstration" and layout == "completion":
            extra = ", completion_only_loss=True, max_length=None"
        samples = trainer in ("GRPOTrainer", "RLOOTrainer")
        lines = [
            *load_lines(files),
            *([_ADAPTER] if samples and has_verifier else []),
            f"from trl import {config}, {trainer}",
            "",
            *(_REWARD if samples and not has_verifier else ()),
            f"trainer = {trainer}(",
            '    model="YOUR_MODEL",',
            f'    args={config}(output_dir="out"{extra}),',
            '    train_dataset=data["train"],',
        ]
        if samples:
            lines.append(f"    reward_funcs={_FROM_DATASET if has_verifier else 'your_reward'},")
        return fenced("python", [*lines, ")", "trainer.train()"])


_ADAPTER = "from rollforge.rewards import reward"
_FROM_DATASET = 'reward.from_dataset(".")'
"""The verifier that judged the rollouts, with its options, out of the manifest beside the files."""
_REWARD = (
    "def your_reward(completions, ground_truth, **columns):  # replace it by your own; every column comes by its name",
    '    return [float(truth in answer[-1]["content"]) for answer, truth in zip(completions, ground_truth)]',
    "",
)

_TRAINERS = {
    "sft": ("SFTTrainer", "SFTConfig", ", assistant_only_loss=True, max_length=None"),
    "dpo": ("DPOTrainer", "DPOConfig", ", max_length=None"),
    "kto": ("KTOTrainer", "KTOConfig", ", max_length=None"),
    "rm": ("RewardTrainer", "RewardConfig", ", max_length=None"),
    "ppo": ("RLOOTrainer", "RLOOConfig", ""),
    "grpo": ("GRPOTrainer", "GRPOConfig", ", shuffle_dataset=False"),
}
