"""NeMo Gym: rollout and task rows copied byte for byte, for every recipe.

`sft` writes the chosen rollout lines unchanged; pairs wrap two of them as `chosen` and `rejected` with the `reward_gap`; `kto`
wraps one as `rollout` with its `label`; `ppo` and `grpo` write task rows. Nothing is converted, so every rollout can be exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollforge.conversations.shape import Shaping
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Form, Layout
from rollforge.exporters.nemo_rl import task_row_problems
from rollforge.exporters.snippets import fenced, files_of
from rollforge.records import to_json


class _Rollout(msgspec.Struct):
    responses_create_params: msgspec.Raw
    response: msgspec.Raw


class _PairRow(msgspec.Struct, forbid_unknown_fields=True):
    chosen: _Rollout
    rejected: _Rollout
    reward_gap: float


class _LabelledRow(msgspec.Struct, forbid_unknown_fields=True):
    rollout: _Rollout
    label: bool


class GymExporter(Exporter):
    """Rollout lines, byte for byte."""

    name = "gym"
    recipes = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
    is_raw = True
    has_task_rows = True

    def frame(self, kind: Kind, value: float | bool) -> tuple[bytes, ...]:
        if kind == "pair":
            return b'{"chosen":', b',"rejected":', b',"reward_gap":' + to_json(value) + b"}\n"
        return b'{"rollout":', b',"label":' + to_json(value) + b"}\n"

    def row_type(self, kind: Kind, form: Form) -> Any:
        types: dict[str, object] = {"pair": _PairRow, "labelled": _LabelledRow, "prompt": dict[str, object]}
        return types.get(kind, _Rollout)

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        if kind == "prompt":
            yield from (
                problem for problem in task_row_problems(row) if not problem.startswith("no agent_ref")
            )
        elif kind == "pair":
            if row.chosen == row.rejected:
                yield "chosen equals rejected"
            if row.reward_gap <= 0:
                yield "reward_gap is not above zero"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        read = f"rows = [json.loads(line) for name in {files_of(files)!r} for line in open(name, encoding='utf-8')]"
        return fenced("python", ["import json", read])
