"""Which rollouts `rollforge show` is asked for: options that contradict each other and numbers that make no sense are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import make_rollout, write_rows
from tests.cli.test_reading_commands import Called


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [make_rollout(t, n, float(n)) for t in range(4) for n in range(2)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        (["--best", "--sort", "task"], ("--best", "--sort")), (["--worst", "--sort", "task"], ("--worst", "--sort")),
        (["--best", "--sample", "2"], ("--best", "--sample")), (["--suspicious", "--sample", "2"], ("--suspicious", "--sample")),
        (["--best", "--worst"], ("--best", "--worst")), (["--sort", "task", "--sample", "2"], ("--sort", "--sample")),
        (["--line", "1", "--where", "task = 3"], ("--line", "--where")), (["--line", "1", "--task", "0"], ("--line", "--task")),
        (["--line", "1", "--best"], ("--line", "--best")), (["--best", "3", "--limit", "2"], ("--best 3", "--limit 2")),
        (["--example", "x.jsonl:1", "--task", "0"], ("--example", "--task")),
    ],
)  # fmt: skip
def test_two_options_that_contradict_each_other_are_named(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], pair: tuple[str, str]
) -> None:
    output = Called(capsys, "show", run, *words)
    assert output.code == 2 and not output.out and "exclude each other" in output.err
    assert all(name in output.err for name in pair)


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf", "abc", ""])
def test_a_reward_that_is_no_number_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], reward: str
) -> None:
    output = Called(capsys, "show", run, f"--reward={reward}")
    assert output.code == 2 and not output.out and "--reward" in output.err and "Traceback" not in output.err


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(run: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
    for words in (("show", run), ("query", run, "select 1")):
        output = Called(capsys, *words, f"--limit={count}")
        assert (
            output.code == 2 and not output.out and f"--limit must be at least 1, not {count}" in output.err
        )
    output = Called(capsys, "show", run, f"--sample={count}")
    assert output.code == 2 and f"--sample must be at least 1, not {count}" in output.err
    output = Called(capsys, "show", run, "--best", "0")
    assert output.code == 2 and "--best must be at least 1, not 0" in output.err


def test_a_sample_is_as_large_as_asked_and_never_larger_than_the_limit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def count(*words: object) -> int:
        return len(Called(capsys, "show", run, "--raw", *words).out.splitlines())

    assert count("--sample", 7) == 7 and count("--sample", 7, "--limit", 2) == 2
    assert (
        count() == 5
        and count("--best", 3) == 3
        and count("--best", "--limit", 6, "--where", "reward = 0") == 4
    )
    assert count("--sort", "task desc", "--limit", 8) == 8 and count("--best", 3, "--limit", 3) == 3
