"""Files that no command writes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.store.outputs import holds_rollouts


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        ({"response": {}, "reward": 1.0}, True), ({"completion": "a", "reward": 1.0}, True), ({"trajectory": [], "reward": 1.0}, True),
        ({"response": "a", "reward": 1.0}, False), ({"reward": 1.0}, False), ({"response": {}}, False),
    ],
)  # fmt: skip
def test_a_rollout_has_an_answer_in_any_tools_form_and_a_reward(
    row: dict[str, Any], holds: bool, tmp_path: Path
) -> None:
    path = tmp_path / "any.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert holds_rollouts(path) is holds
