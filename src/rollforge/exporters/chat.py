"""Plain chat messages: JSONL or Parquet in OpenAI's message format, for every recipe; scripts and most trainers read it.

Arguments are strings and `tools` is a list, as in the chat API, with rewards beside the messages. Offline scored groups are
written here too: one row per rollout, grouped by task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rollforge.conversations.shape import Shaping
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import (
    PROMPT_COLUMNS,
    RowColumn,
    RowTables,
    bare_prompt,
    conversation,
    field,
    messages,
    number,
    prompt,
    tools,
)
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import fenced, load_lines, read_lines

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


def _token_arrays(name: str, kind: type) -> RowColumn:
    """Token arrays as a JSON array per model call, as returned by the server."""
    return RowColumn(
        list[list[kind]],  # type: ignore[valid-type]
        lambda example, write, column: [getattr(record, name) for record in example.tokens],
    )


class ChatExporter(Exporter):
    """Messages in OpenAI's format, with the rewards that selected them."""

    name = "chat"
    recipes = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {
            "messages": conversation,
            "tools": tools,
            "reward": field("reward", float | None),
        },
        "pair": {
            "prompt": prompt,
            "chosen": messages("chosen"),
            "rejected": messages("rejected"),
            "tools": tools,
            "chosen_reward": field("chosen_reward", float),
            "rejected_reward": field("rejected_reward", float),
            "reward_gap": RowColumn(
                float, lambda example, write, column: example.chosen_reward - example.rejected_reward
            ),
        },
        "labelled": {
            "prompt": prompt,
            "completion": messages("answer"),
            "label": field("label", bool),
            "tools": tools,
            "reward": field("reward", float),
        },
        "prompt": {"prompt": bare_prompt, **PROMPT_COLUMNS},
        "scored": {
            "prompt": prompt,
            "completion": messages("answer"),
            "tools": tools,
            "task_id": field("task", str),
            "rollout": field("rollout", int),
            **{name: number(name) for name in SCORED_NUMBERS},
            "fidelity": field("fidelity", str),
            "prompt_token_ids": _token_arrays("prompt_token_ids", int),
            "generation_token_ids": _token_arrays("generation_token_ids", int),
            "generation_log_probs": _token_arrays("generation_log_probs", float | None),  # type: ignore[arg-type]
        },
    }
    shaping = Shaping(arguments="string", tools="list", reasoning="field", keys="present")
    policies = Policies(developer="keep", join_system=False, bare_reasoning="cut")
    containers = ("jsonl", "parquet")
    takes_images = True
    takes_groups = True

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        names = [name for group in files.values() for name in group]
        if any(name.endswith(".parquet") for name in names):
            return fenced("python", [*load_lines(files), "print(data)"])
        read = fenced(
            "python", [*read_lines(files), "print({split: len(rows) for split, rows in data.items()})"]
        )
        return f"{read}\n\n{_NOT_JSON}"
