"""NeMo Gym's health check and our `verify` both want the name `rollout_verdicts.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import main
from tests.steps.test_verify_join import rollout, write

HEALTH = {
    "task_index": 0,
    "rollout_index": 0,
    "rollout_id": "0-0",
    "verdict": "healthy",
    "findings": [],
    "unobserved": [],
}


def test_verify_never_appends_to_the_health_check_of_nemo_gym(tmp_path: Path) -> None:
    rows = [rollout("What is 1 + 1?", "2", expected_answer="2", _ng_task_index=0, _ng_rollout_index=0)]
    run = write(tmp_path / "rollout.jsonl", rows)
    theirs = write(tmp_path / "rollout_verdicts.jsonl", [HEALTH])
    before = theirs.read_bytes()
    for command in (["verify", str(run), "--verifier", "exact"], ["metrics", str(run), "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert not ended.value.code
    assert theirs.read_bytes() == before
    (ours,) = (tmp_path / "rollout_rf_verdicts.jsonl").read_text().splitlines()
    assert json.loads(ours)["reward"] == 1.0
