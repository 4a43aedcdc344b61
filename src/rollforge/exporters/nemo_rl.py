"""NeMo-RL: SFT messages, preference pairs by rank, and NeMo Gym task rows for GRPO and PPO, as JSONL.

Its preserving loader reads SFT lines with plain JSON, so arguments are objects and `tools` a list, nothing damaged. Preferences are
read by `datasets`, which infers types: their messages have the same keys everywhere, and arguments become strings when an object
would be damaged. A preference trains only the last message of a side, so pairs are step pairs, and it ignores tools, so their
schemas stand in the system text. A column called `task_name` would break its loaders and is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollforge.exporters.base import Container
from rollforge.exporters.contract import ReadMessage, message_problems, struct
from rollforge.exporters.examples import Demonstration, Kind, Pair, Prompt
from rollforge.exporters.guarded import GuardedExporter
from rollforge.exporters.messages import Message
from rollforge.exporters.shape import Shaping, tools_from_system, unshape
from rollforge.exporters.snippets import config, fenced
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject


class _Completion(msgspec.Struct, forbid_unknown_fields=True):
    rank: int
    completion: list[ReadMessage]


class NemoRlExporter(GuardedExporter):
    """Rows for `openai_format`, `PreferenceDataset` and `NemoGymDataset`."""

    name = "nemo-rl"
    recipes = ("sft", "dpo", "rm", "ppo", "grpo")
    shaping = Shaping(arguments="object", tools="list", reasoning="field", keys="present")
    policies = Policies(ends_in_tool_result="cut", unanswered_call="cut")
    pair_form = "step"
    unguarded = frozenset({"messages", "tools"})
    has_task_rows = True

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        return (
            msgspec.structs.replace(cls.shaping, keys="uniform", tools="system")
            if kind == "pair"
            else cls.shaping
        )

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"tools": ("list", "system") if kind == "demonstration" else ("system",)}

    @classmethod
    def containers_for(cls, kind: Kind) -> tuple[Container, ...]:
        return ("jsonl", "parquet") if kind == "pair" else cls.containers

    @classmethod
    def is_inferred(cls, kind: Kind) -> bool:
        return kind == "pair"

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {
            "messages": self.conversation(example.prompt, example.answer, example.tools),
            "tools": self.tools(example.tools),
        }

    def pair(self, example: Pair) -> JsonObject:
        return {
            "context": self.messages(example.prompt, example.tools, column="context"),
            "completions": [
                {"rank": rank, "completion": self.messages(side, column="completion")}
                for rank, side in enumerate((example.chosen, example.rejected))
            ],
        }

    def prompt(self, example: Prompt) -> JsonObject:
        raise TypeError("task rows are written as their bytes")

    def line(self, example: object) -> bytes:
        if isinstance(example, Prompt):
            self.kinds = set()
            return example.fields
        return super().line(example)  # type: ignore[arg-type]

    def row_type(self, recipe: str, kind: Kind) -> Any:
        many = list[ReadMessage]
        if kind == "demonstration":
            return struct("NemoRlSft", messages=many, tools=list[msgspec.Raw] | str | None)
        if kind == "pair":
            return struct("NemoRlPair", context=many, completions=list[_Completion])
        return dict[str, Any]

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        if kind == "prompt":
            yield from task_row_problems(row)
        elif kind == "demonstration":
            yield from message_problems(row.messages, self.shape_as, where="messages", ends_in=("assistant",))
        else:
            yield from message_problems(row.context, self.shape_as, where="context")
            if [side.rank for side in row.completions] != [0, 1]:
                yield "ranks are not 0 and 1"
            for side in row.completions:
                yield from message_problems(
                    side.completion, self.shape_as, where="completion", ends_in=("assistant",)
                )
            if row.completions[0].completion == row.completions[-1].completion:
                yield "chosen equals rejected"

    def back(self, row: JsonObject) -> dict[str, list[Message]]:
        if "completions" not in row:
            return super().back(row)
        chosen, rejected = (unshape(side["completion"], self.shape_as) for side in row["completions"])
        context, _ = tools_from_system(unshape(row["context"], self.shape_as))
        return {"prompt": context, "chosen": chosen, "rejected": rejected}

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        import pyarrow as pa

        from rollforge.exporters.arrow import columns_of, schema

        columns = columns_of(self.keys, "context", "completion")
        side = pa.struct([("rank", pa.int64()), ("completion", columns["completion"])])
        return schema(context=columns["context"], completions=pa.list_(side))

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        entries = {
            split: [
                {"dataset_name": _DATASETS[kind], "data_path": name, **_MORE.get(kind, {})}
                for name in files[split]
            ]
            for split in ("train", "validation")
            if split in files
        }
        data = {split: found if len(found) > 1 else found[0] for split, found in entries.items()}
        load = "load_preference_dataset" if kind == "pair" else "load_response_dataset"
        lines = [
            f"from nemo_rl.data.datasets import {load}",
            f"parts = [{load}(part) for part in {next(iter(entries.values()), [])!r}]",
        ]
        wanted = {"data": {"shuffle": kind != "prompt", **data}}
        return fenced("python", lines) + "\n\n" + config(wanted)


_DATASETS = {"demonstration": "openai_format", "pair": "PreferenceDataset", "prompt": "NemoGymDataset"}
_MORE: dict[str, JsonObject] = {
    "demonstration": {"chat_key": "messages", "tool_key": "tools", "use_preserving_dataset": True}
}


def task_row_problems(row: JsonObject) -> Iterator[str]:
    """What NeMo Gym would not take as a task."""
    params = row.get("responses_create_params")
    if not isinstance(params, dict) or not params.get("input"):
        yield "no responses_create_params.input"
    agent = row.get("agent_ref")
    if not isinstance(agent, dict) or not agent.get("name"):
        yield "no agent_ref.name"
    for key in row:
        if key in ("response", "reward") or key.startswith(("_ng_", "_rf")):
            yield f"{key} belongs to a rollout, not to a task"
