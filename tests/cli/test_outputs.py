"""No output replaces what a command reads, or rollouts of any tool; files of tasks and servers that are away are named as such."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from rollforge.cli import run
from rollforge.errors import Exit, IncompleteError, UsageError
from rollforge.store.outputs import holds_rollouts, refuse_output
from rollforge.testing import Shape, healthy_run

SHAPE = Shape(tasks=6, samples=2, unjudged=0.0, failed=0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollouts file without a manifest, as another tool leaves it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(healthy_run(SHAPE, seed=7).write("made"), "f.jsonl")
    shutil.copy("f.jsonl", "other.jsonl")


OUTPUTS = [
    "experiences f.jsonl -o {}",
    "report f.jsonl -o {}",
    "metrics f.jsonl -o {}",
    "metrics f.jsonl --against other.jsonl -o {}",
    'query f.jsonl "select 1" -f csv -o {}',
    "simulate --write-tasks {} -n 3",
    "collect -i tasks.jsonl -o new -m simulated --verifier exact --write-batch {}",
]


@pytest.mark.parametrize("words", OUTPUTS)
@pytest.mark.parametrize("name", ["f.jsonl", "other.jsonl", "link.jsonl"])
def test_no_output_replaces_rollouts_of_another_tool(words: str, name: str) -> None:
    run("simulate --write-tasks tasks.jsonl -n 3".split())  # noqa: SIM905
    Path("link.jsonl").symlink_to("f.jsonl")
    before = Path("f.jsonl").read_bytes()
    with pytest.raises(UsageError, match="not written over") as refused:
        run([word.format(name) for word in shlex.split(words)])
    flag = words.partition(" {}")[0].split()[-1]
    assert name in str(refused.value) and f"with {flag}" in (refused.value.hint or "")
    assert Path("f.jsonl").read_bytes() == Path("other.jsonl").read_bytes() == before


def test_an_output_is_written_anew_where_it_holds_no_rollouts() -> None:
    for _ in range(2):
        assert run(["experiences", "f.jsonl", "-o", "made.jsonl"]) == Exit.DONE
    assert not holds_rollouts(Path("made.jsonl"))


def test_a_task_file_that_is_read_is_not_replaced_by_its_requests() -> None:
    run("simulate --write-tasks tasks.jsonl -n 3".split())  # noqa: SIM905
    before = Path("tasks.jsonl").read_bytes()
    words = "collect -i tasks.jsonl -o new -m simulated --verifier exact --write-batch tasks.jsonl"
    with pytest.raises(UsageError, match="what this command reads"):
        run(words.split())
    assert Path("tasks.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('{"response": {}, "reward": 1}', True),
        ('{"responses_create_params": {}, "response": {}}', True),
        ('{"prompt": "a", "completion": "b", "reward": 0.5}', True),
        ('{"responses_create_params": {"input": "a"}}', False),
        ('{"prompt": "a", "response": "b", "reward": 1}', False),
        ("task,reward", False),
        ("", False),
        ("[1]", False),
        ('{"x": "' + "a" * (1 << 20) + '"}', False),
        ('{"response": {"x": "' + "a" * (1 << 20) + '"}}', True),
    ],
)
def test_rollouts_are_recognised_by_their_first_line(text: str, is_one: bool) -> None:
    Path("x.jsonl").write_text(text + "\n")
    assert holds_rollouts(Path("x.jsonl")) == is_one


def test_compressed_rollouts_are_recognised_too() -> None:
    import gzip

    Path("x.jsonl.gz").write_bytes(gzip.compress(Path("f.jsonl").read_bytes()))
    with pytest.raises(UsageError, match="holds rollouts"):
        refuse_output("x.jsonl.gz")


def test_a_report_of_tasks_asks_whether_they_are_tasks() -> None:
    run("simulate --write-tasks tasks.jsonl -n 3".split())  # noqa: SIM905
    with pytest.raises(IncompleteError, match=r"is this a file of tasks\?") as refused:
        run("report tasks.jsonl -o report.html".split())  # noqa: SIM905
    assert refused.value.exit_code == run(["check", "tasks.jsonl"]) == Exit.INCOMPLETE
    assert not Path("report.html").exists()


def test_an_environment_with_its_own_tasks_takes_no_file_of_tasks() -> None:
    pytest.importorskip("reasoning_gym")
    run("simulate --write-tasks tasks.jsonl -n 3".split())  # noqa: SIM905
    words = (
        "collect -i tasks.jsonl --env reasoning-gym:gcd -o new -m simulated --base-url http://127.0.0.1:9/v1"
    )
    with pytest.raises(UsageError, match="brings its own tasks") as refused:
        run(words.split())
    assert "leave out -i" in (refused.value.hint or "")


def test_a_hub_that_does_not_answer_is_no_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("rollforge.tasks.hub_client.TRIES", 1)
    with pytest.raises(IncompleteError) as refused:
        run("validate hf://datasets/org/gsm".split())  # noqa: SIM905
    assert "127.0.0.1:9" in str(refused.value) and refused.value.hint


def test_a_row_whose_response_is_a_text_is_reported_with_its_line() -> None:
    rows = [json.loads(line) for line in Path("f.jsonl").read_text().splitlines()]
    rows[1]["response"] = "a text"
    Path("odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=r"odd\.jsonl"):
        run(["experiences", "odd.jsonl", "-o", "made.jsonl"])
