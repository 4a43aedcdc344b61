"""Plain chat messages: JSONL or Parquet in OpenAI's message shape, for every recipe, read by scripts and most trainers.

Arguments are strings and `tools` is a list, as the chat API has them. Rewards stand beside the messages. Offline scored groups
are written here too: one row per rollout, the rollouts of a task together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rollforge.exporters.base import Exporter
from rollforge.exporters.contract import ReadMessage, struct
from rollforge.exporters.examples import Demonstration, Kind, Labelled, Pair, Prompt, Scored
from rollforge.exporters.prompts import PROMPT_COLUMNS, prompt_columns
from rollforge.exporters.shape import Shaping
from rollforge.exporters.snippets import fenced, load_lines, read_lines
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject

SCORED_NUMBERS = (
    "reward",
    "advantage_grpo",
    "advantage_dr_grpo",
    "advantage_rloo",
    "group_size",
    "group_mean",
    "group_std",
)


_NOT_JSON = (
    "`datasets` infers types from JSON, and rounds numbers that stand beside messages or tools of different shapes to ten digits. "
    "For it, write Parquet (`--format parquet`): every number reaches it as it is."
)


class ChatExporter(Exporter):
    """Messages as they are, with the rewards that chose them."""

    name = "chat"
    recipes = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
    shaping = Shaping(arguments="string", tools="list", reasoning="field", keys="present")
    policies = Policies(developer="keep", join_system=False, bare_reasoning="cut")
    containers = ("jsonl", "parquet")
    takes_images = True
    takes_groups = True

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {
            "messages": self.conversation(example.prompt, example.answer, example.tools),
            "tools": self.tools(example.tools),
            "reward": example.reward,
        }

    def pair(self, example: Pair) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "chosen": self.messages(example.chosen, column="chosen"),
            "rejected": self.messages(example.rejected, column="rejected"),
            "tools": self.tools(example.tools),
            "chosen_reward": example.chosen_reward,
            "rejected_reward": example.rejected_reward,
            "reward_gap": example.chosen_reward - example.rejected_reward,
        }

    def labelled(self, example: Labelled) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "completion": self.messages(example.answer, column="completion"),
            "label": example.label,
            "tools": self.tools(example.tools),
            "reward": example.reward,
        }

    def prompt(self, example: Prompt) -> JsonObject:
        return {"prompt": self.prompt_messages(example.prompt), **prompt_columns(example)}

    def scored(self, example: Scored) -> JsonObject:
        return {
            "prompt": self.prompt_messages(example.prompt, example.tools),
            "completion": self.messages(example.answer, column="completion"),
            "tools": self.tools(example.tools),
            "task_id": example.task,
            "rollout": example.rollout,
            **{name: example.numbers.get(name) for name in SCORED_NUMBERS},
            "fidelity": example.fidelity,
            "prompt_token_ids": [record.prompt_token_ids for record in example.tokens],
            "generation_token_ids": [record.generation_token_ids for record in example.tokens],
            "generation_log_probs": [record.generation_log_probs for record in example.tokens],
        }

    def row_type(self, recipe: str, kind: Kind) -> Any:
        many, tools, number = list[ReadMessage], list[msgspec.Raw] | str | None, float | None
        match kind:
            case "demonstration":
                return struct("ChatSft", messages=many, tools=tools, reward=number)
            case "pair":
                sides = {"prompt": many, "chosen": many, "rejected": many}
                rewards = {"chosen_reward": float, "rejected_reward": float, "reward_gap": float}
                return struct("ChatPair", **sides, tools=tools, **rewards)
            case "labelled":
                return struct("ChatKto", prompt=many, completion=many, label=bool, tools=tools, reward=float)
            case "scored":
                ids = {
                    "prompt_token_ids": list[list[int]],
                    "generation_token_ids": list[list[int]],
                    "generation_log_probs": list[list[float | None]],
                }
                numbers = dict.fromkeys(SCORED_NUMBERS, number)
                return struct(
                    "ChatScored",
                    prompt=many,
                    completion=many,
                    tools=tools,
                    task_id=str,
                    rollout=int,
                    **numbers,
                    fidelity=str,
                    **ids,
                )
            case _:
                return struct("ChatPrompt", prompt=many, **PROMPT_COLUMNS)

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        import pyarrow as pa

        from rollforge.exporters.arrow import columns_of, prompt_fields, schema

        match kind:
            case "demonstration":
                return schema(**columns_of(self.keys, "messages"), tools="string", reward="double")
            case "pair":
                rewards = {"chosen_reward": "double", "rejected_reward": "double", "reward_gap": "double"}
                sides = columns_of(self.keys, "prompt", "chosen", "rejected")
                return schema(**sides, tools="string", **rewards)
            case "labelled":
                sides = columns_of(self.keys, "prompt", "completion")
                return schema(**sides, label="bool", tools="string", reward="double")
            case "scored":
                ids = {
                    "prompt_token_ids": pa.list_(pa.list_(pa.int64())),
                    "generation_token_ids": pa.list_(pa.list_(pa.int64())),
                    "generation_log_probs": pa.list_(pa.list_(pa.float64())),
                }
                numbers = dict.fromkeys(SCORED_NUMBERS, "double")
                fixed = {"tools": "string", "task_id": "string", "rollout": "int64"}
                sides = columns_of(self.keys, "prompt", "completion")
                return schema(**sides, **fixed, **numbers, fidelity="string", **ids)
            case _:
                return schema(**columns_of(self.keys, "prompt"), **prompt_fields())

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        names = [name for group in files.values() for name in group]
        if any(name.endswith(".parquet") for name in names):
            return fenced("python", [*load_lines(files), "print(data)"])
        read = fenced(
            "python", [*read_lines(files), "print({split: len(rows) for split, rows in data.items()})"]
        )
        return f"{read}\n\n{_NOT_JSON}"
