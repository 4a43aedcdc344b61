"""verl: SFT, reward-model rows and RL prompt sets as Parquet with a fixed schema.

Parquet structs fill missing keys with null, and templates double-encode string arguments: calls are written in the assistant's
text and tool schemas in the system text. Ground truth is one type everywhere, a text; what the verifier needs beyond it is JSON
text in `extra_info`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollforge.exporters.base import Exporter
from rollforge.exporters.contract import PlainMessage, ReadMessage, struct
from rollforge.exporters.examples import Demonstration, Kind, Pair, Prompt
from rollforge.exporters.messages import Message
from rollforge.exporters.prompts import PROMPT_COLUMNS, prompt_columns
from rollforge.exporters.shape import Shaping, shape, tools_in_system
from rollforge.exporters.snippets import config, fenced, files_of
from rollforge.records import JsonObject

_TEXT = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")


class VerlExporter(Exporter):
    """Rows for `MultiTurnSFTDataset`, `RLHFDataset` and `RMDataset`."""

    name = "verl"
    recipes = ("sft", "rm", "ppo", "grpo")
    shaping = _TEXT
    container = "parquet"
    containers = ("parquet",)
    pair_form = "step"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        if kind == "demonstration":
            return {"arguments": ("text", "string"), "tools": ("system",)}
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {"messages": self.conversation(example.prompt, example.answer, example.tools)}

    def pair(self, example: Pair) -> JsonObject:
        return {
            "prompt": self._plain_text(tools_in_system(example.prompt, example.tools, as_text=True)),
            "chosen": shape(example.chosen, self.shape_as)[-1]["content"],
            "rejected": shape(example.rejected, self.shape_as)[-1]["content"],
        }

    def _plain_text(self, messages: list[Message]) -> str:
        """A prompt for a loader that applies no template: one user text as it is, anything longer with its roles named."""
        if len(messages) == 1 and messages[0].role == "user":
            return messages[0].content
        rows = shape(messages, self.shape_as)
        return "\n\n".join(f"{row['role'].capitalize()}: {row['content']}" for row in rows) + "\n\nAssistant:"

    def prompt(self, example: Prompt) -> JsonObject:
        columns = prompt_columns(example)
        return {
            "data_source": columns.pop("data_source"),
            "prompt": shape(example.prompt, self.shape_as),
            "ability": example.source,
            "reward_model": {"style": "rule", "ground_truth": columns.pop("ground_truth")},
            "extra_info": {"split": example.split, "index": example.index, **columns},
        }

    def row_type(self, recipe: str, kind: Kind) -> Any:
        if kind == "demonstration":
            message: Any = ReadMessage if self.keys else PlainMessage
            return struct("VerlSft", messages=list[message])
        if kind == "pair":
            return struct("VerlRm", prompt=str, chosen=str, rejected=str)
        extra = {
            name: kind for name, kind in PROMPT_COLUMNS.items() if name not in ("ground_truth", "data_source")
        }
        return struct(
            "VerlPrompt",
            data_source=str,
            prompt=list[PlainMessage],
            ability=str,
            reward_model=struct("RewardModel", style=str, ground_truth=str),
            extra_info=struct("ExtraInfo", split=str, index=int, **extra),
        )

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        yield from super().problems(recipe, kind, row)
        if kind == "demonstration" and all(message.role != "assistant" for message in row.messages):
            yield "messages have nothing to train on"

    def back(self, row: JsonObject) -> dict[str, list[Message]]:
        if isinstance(row.get("prompt"), list):
            from rollforge.exporters.shape import unshape

            return {"prompt": unshape(row["prompt"], _TEXT)}
        return super().back(row)

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        import pyarrow as pa

        from rollforge.exporters.arrow import messages_type, prompt_fields, schema

        if kind == "demonstration":
            return schema(messages=messages_type(self.keys.get("messages", frozenset())))
        if kind == "pair":
            return schema(prompt="string", chosen="string", rejected="string")
        fields = prompt_fields()
        del fields["ground_truth"], fields["data_source"]
        return schema(
            data_source="string",
            prompt=messages_type(frozenset()),
            ability="string",
            reward_model=pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
            extra_info=pa.struct(schema(split="string", index="int64", **fields)),
        )

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
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
        wanted: JsonObject = {"train_files": train, "val_files": validation}
        if kind == "demonstration":
            wanted |= {"messages_key": "messages", "truncation": "right", "ignore_input_ids_mismatch": True}
            return _command("sft_trainer", {"data": wanted})
        wanted |= {"prompt_key": "prompt", "reward_fn_key": "data_source", "shuffle": False}
        scoring = {"path": "your_reward.py", "name": "score"}
        return _command("main_ppo", {"data": wanted, "custom_reward_function": scoring})


def _command(program: str, wanted: JsonObject) -> str:
    """A command that starts a trainer with these settings, and the same as a piece of its configuration file."""
    words = [
        f"{section}.{key}={_word(value)}"
        for section, values in wanted.items()
        for key, value in values.items()
    ]
    lines = [f"python -m verl.trainer.{program} {words[0]} {words[1]} \\", "  " + " ".join(words[2:])]
    return fenced("sh", lines) + "\n\n" + config(wanted)


def _word(value: object) -> str:
    if isinstance(value, list):
        return str(value[0]) if len(value) == 1 else f"'[{','.join(value)}]'"
    return str(value)
