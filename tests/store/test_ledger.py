"""What is owed is (tasks × samples) − finished, by key."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollforge.store import Ledger


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def key(task: int, rollout: int, **more: object) -> dict[str, object]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": 1.0, **more}


@given(
    tasks=st.integers(1, 8),
    samples=st.integers(1, 5),
    drawn=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=60),
)
def test_owed_is_what_no_line_holds_whatever_the_order(
    tasks: int, samples: int, drawn: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rollouts = write_rows(Path(folder) / "r.jsonl", [key(task, rollout) for task, rollout in drawn])
        ledger = Ledger(np.arange(tasks), samples)
        ledger.read(rollouts, Path(folder) / "none.jsonl")
    inside = {(task, rollout) for task, rollout in drawn if task < tasks and rollout < samples}
    owed = {(task, sample) for task in range(tasks) for sample in ledger.owed_samples(task, 3)}
    assert owed == {(task, sample) for task in range(tasks) for sample in range(samples)} - inside
    assert ledger.owed(3) == len(owed)
    assert ledger.finished == len(inside)


def test_failures_use_up_attempts_and_terminal_ones_all_of_them(tmp_path: Path) -> None:
    failures = write_rows(
        tmp_path / "f.jsonl",
        [
            key(0, 0, _ng_failure_class="timeout"),
            key(0, 1, _ng_failure_class="timeout"),
            key(0, 1, _ng_failure_class="transient"),
            key(0, 2, _ng_failure_class="context-overflow", _ng_failure_terminal=True),
        ],
    )
    ledger = Ledger(np.arange(1), 4)
    ledger.read(tmp_path / "none.jsonl", failures)
    assert ledger.owed_samples(0, 2) == [0, 3]
    assert ledger.owed_samples(0, 9) == [0, 1, 3], (
        "terminal stays terminal, however many attempts are allowed"
    )
    assert ledger.attempts(0, 1) == 2
    assert ledger.given_up(2) == 2
    assert ledger.failed_by_class(failures) == {"timeout": 1, "transient": 1, "context-overflow": 1}


def test_a_verifier_failure_does_not_make_a_rollout_owed_or_used_up(tmp_path: Path) -> None:
    rollouts = write_rows(tmp_path / "r.jsonl", [{**key(0, 0), "reward": None}])
    failures = write_rows(tmp_path / "f.jsonl", [key(0, 0, _ng_failure_class="verifier")])
    ledger = Ledger(np.arange(1), 1)
    ledger.read(rollouts, failures)
    assert ledger.owed(3) == 0
    assert (ledger.finished, ledger.unjudged) == (1, 1)
    assert ledger.failed_by_class(failures) == {}


def test_unreadable_lines_are_counted_and_what_they_held_is_owed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(
        json.dumps(key(0, 0)).encode() + b'\n{"torn\n[1]\n\xff\xfe\n\n' + json.dumps(key(0, 2)).encode()
    )
    ledger = Ledger(np.arange(1), 3)
    ledger.read(path, tmp_path / "none.jsonl")
    assert ledger.owed_samples(0, 3) == [1]
    assert ledger.unreadable_lines == 3


def test_stamped_task_ids_are_found_by_their_own_number(tmp_path: Path) -> None:
    rollouts = write_rows(tmp_path / "r.jsonl", [key(700, 0), key(5, 0), key(6, 0)])
    ledger = Ledger(np.asarray([700, 5, 90]), 1)
    ledger.read(rollouts, tmp_path / "none.jsonl")
    assert [ledger.owed_samples(position, 3) for position in range(3)] == [[], [], [0]]
    assert ledger.foreign == 1


def test_a_finished_rollout_costs_one_byte() -> None:
    ledger = Ledger(np.arange(1000), 8)
    assert ledger._states.nbytes == ledger.expected
