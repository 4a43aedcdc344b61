"""verl: SFT, reward-model rows and RL prompt sets as Parquet with a fixed schema.

Parquet structs fill missing keys with null, and templates encode string arguments twice: calls are written into the assistant's
text and tool schemas into the system text. Ground truth is always a string; further task fields are JSON text in `extra_info`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollforge.conversations.messages import ChatMessage
from rollforge.conversations.shape import Shaping, shape, tools_in_system
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import PROMPT_COLUMNS, RowColumn, RowTables, conversation, field, nested
from rollforge.exporters.contract import PlainMessage
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import config, fenced, files_of
from rollforge.records import JsonFields, JsonObject


def _side(name: str) -> RowColumn:
    """The text of one side of a pair."""
    return RowColumn(
        str, lambda example, write, column: shape(getattr(example, name), write.form.shaping)[-1]["content"]
    )


def _plain_text(messages: list[ChatMessage], shaping: Shaping) -> str:
    """A prompt for a loader without a chat template: a single user text unchanged, anything longer with role names."""
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    rows = shape(messages, shaping)
    return "\n\n".join(f"{row['role'].capitalize()}: {row['content']}" for row in rows) + "\n\nAssistant:"


class VerlExporter(Exporter):
    """Rows for `MultiTurnSFTDataset`, `RLHFDataset` and `RMDataset`."""

    name = "verl"
    recipes = ("sft", "rm", "ppo", "grpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": conversation},
        "pair": {
            "prompt": RowColumn(
                str,
                lambda example, write, column: _plain_text(
                    tools_in_system(example.prompt, example.tools, as_text=True), write.form.shaping
                ),
            ),
            "chosen": _side("chosen"),
            "rejected": _side("rejected"),
        },
        "prompt": {
            "data_source": PROMPT_COLUMNS["data_source"],
            "prompt": RowColumn(
                list[PlainMessage], lambda example, write, column: shape(example.prompt, write.form.shaping)
            ),
            "ability": field("source", str),
            "reward_model": nested(
                "RewardModel",
                {
                    "style": RowColumn(str, lambda example, write, column: "rule"),
                    "ground_truth": PROMPT_COLUMNS["ground_truth"],
                },
            ),
            "extra_info": nested(
                "ExtraInfo",
                {
                    "split": field("split", str),
                    "index": field("index", int),
                    **{
                        name: column
                        for name, column in PROMPT_COLUMNS.items()
                        if name not in ("ground_truth", "data_source")
                    },
                },
            ),
        },
    }
    shaping = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")
    container = "parquet"
    containers = ("parquet",)
    pair_form = "step"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        if kind == "demonstration":
            return {"arguments": ("text", "string"), "tools": ("system",)}
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        yield from super().problems(kind, row, shaping)
        if kind == "demonstration" and all(message.role != "assistant" for message in row.messages):
            yield "messages have nothing to train on"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        train, validation = files_of(files), files_of(files, "validation")
        if kind == "pair":
            return fenced(
                "python",
                [
                    "from verl.utils.dataset.rm_dataset import RMDataset",
                    f'data = RMDataset({train!r}, tokenizer="YOUR_MODEL", prompt_key="prompt",',
                    '                 chosen_key="chosen", rejected_key="rejected")',
                ],
            )
        wanted: JsonFields = {"train_files": train, "val_files": validation}
        if kind == "demonstration":
            wanted |= {"messages_key": "messages", "truncation": "right", "ignore_input_ids_mismatch": True}
            return _command("sft_trainer", {"data": wanted})
        wanted |= {"prompt_key": "prompt", "reward_fn_key": "data_source", "shuffle": False}
        if not has_verifier:
            scoring = {"path": "your_reward.py", "name": "compute_score"}
            return _command("main_ppo", {"data": wanted, "reward.custom_reward_function": scoring})
        return _command("main_ppo", {"data": wanted, "reward.custom_reward_function": _SCORING})


_SCORING: JsonFields = {
    "path": '"$(rollforge rewards --path verl)"',
    "name": "compute_score",
    "+reward_kwargs.dataset": '"$PWD"',
}
"""Reward configuration: the adapter of `rollforge.rewards` with the verifier in the manifest; the shell expands both paths."""


def _command(program: str, wanted: JsonObject) -> str:
    """Shell command that starts a trainer with these settings, and their part on data as a config file."""
    words = [
        f"{'+' if key.startswith('+') else ''}{section}.{key.removeprefix('+')}={_word(value)}"
        for section, values in wanted.items()
        for key, value in values.items()
    ]
    lines = [f"python -m verl.trainer.{program} {words[0]} {words[1]} \\", "  " + " ".join(words[2:])]
    return fenced("sh", lines) + "\n\n" + config({"data": wanted["data"]})


def _word(value: object) -> str:
    if isinstance(value, list):
        return str(value[0]) if len(value) == 1 else f"'[{','.join(value)}]'"
    return str(value)
