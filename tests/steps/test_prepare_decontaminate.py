"""`--decontaminate` reads what evaluations are kept in, and says how much it read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollforge.errors import UsageError
from rollforge.steps.prepare import prepare, prepare_again
from tests.builders import make_rollout, write_rows

HELD_OUT = (
    "how many apples does the third farmer sell on the second day of the market if it rains all morning long"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    asked = [HELD_OUT, *(f"what is {n} plus {n}" for n in range(5))]
    rows = [make_rollout(task, 0, 1.0, prompt=prompt, text=f"t{task}") for task, prompt in enumerate(asked)]
    return write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent


def plain(folder: Path) -> Path:
    path = folder / "eval.jsonl"
    path.write_text(json.dumps({"question": HELD_OUT}) + "\n")
    return path


def packed(folder: Path) -> Path:
    path = folder / "eval.jsonl.gz"
    path.write_bytes(gzip.compress(plain(folder).read_bytes()))
    return path


def parquet(folder: Path) -> Path:
    path = folder / "eval.parquet"
    pq.write_table(pa.table({"problem": [HELD_OUT]}), path)
    return path


def templated(folder: Path) -> Path:
    path = folder / "templated.jsonl"
    path.write_text(json.dumps({"id": "a1", "story": HELD_OUT, "expected_answer": "4"}) + "\n")
    return path


def lines(folder: Path) -> Path:
    path = folder / "eval.txt"
    path.write_text(HELD_OUT + "\nanother line of text\n")
    return path


def other_run(folder: Path) -> Path:
    write_rows(folder / "other" / "rollouts.jsonl", [make_rollout(0, 0, 1.0, prompt=HELD_OUT)])
    return folder / "other"


def bench(folder: Path) -> Path:
    task = {
        "_ng_task_index": 0,
        "responses_create_params": {"input": [{"role": "user", "content": HELD_OUT}]},
    }
    write_rows(folder / "bench" / "add" / "rollouts_tasks.jsonl", [task])
    write_rows(
        folder / "bench" / "add" / "rollouts.jsonl", [make_rollout(0, 0, 1.0, prompt="something else")]
    )
    return folder / "bench"


@pytest.mark.parametrize("make", [plain, packed, parquet, templated, lines, other_run, bench])
def test_held_out_prompts_are_found_in_every_container(make: object, run: Path, tmp_path: Path) -> None:
    source = make(tmp_path)  # type: ignore[operator]
    made = prepare("sft", run, to="chat", out=tmp_path / "data", decontaminate=(str(source),))
    assert made.counts.rollouts["prompt overlaps an evaluation"] == 1 and made.files[0].rows == 5
    assert [(item.prompts > 0, item.tasks) for item in made.decontamination] == [(True, 1)]
    again = prepare_again(tmp_path / "data", out=tmp_path / "again")
    assert again.files == made.files


@pytest.mark.parametrize("content", [b"", b'{"id": 1}\n{"id": 2}\n', b"\n\n"])
def test_a_file_without_prompts_is_refused(content: bytes, run: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match="no prompt in it"):
        prepare("sft", run, to="chat", out=tmp_path / "data", decontaminate=(str(tmp_path / "none.jsonl"),))
    assert not (tmp_path / "data").exists()


def test_a_folder_without_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="a folder without a run"):
        prepare("sft", run, to="chat", out=tmp_path / "data", decontaminate=(str(tmp_path / "empty"),))


def test_a_damaged_line_is_refused_because_its_prompt_would_leak(run: Path, tmp_path: Path) -> None:
    source = plain(tmp_path)
    source.write_bytes(source.read_bytes() + b'{"prompt": "torn\n')
    with pytest.raises(UsageError, match="line 2 cannot be read"):
        prepare("sft", run, to="chat", out=tmp_path / "data", decontaminate=(str(source),))
