"""A command opens the index of a run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge import open_run
from rollforge.cli import main
from rollforge.index import Index
from rollforge.testing import Shape, healthy_run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs opened so far."""
    names: list[str] = []
    whole = Index.__init__

    def count(index: Index, runs: list[object], **options: object) -> None:
        names.extend(map(str, runs))
        whole(index, runs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "__init__", count)
    return names


@pytest.mark.parametrize(
    "words",
    [
        "prepare dpo RUN --to trl -o OUT",
        "profile RUN",
        "check RUN",
        "metrics RUN",
        "show RUN --limit 1",
    ],
)
def test_a_command_opens_the_index_once(words: str, tmp_path: Path, opened: list[str]) -> None:
    run = tmp_path / "run"
    healthy_run(Shape(tasks=40, samples=4), seed=1).write(run)
    with pytest.raises(SystemExit) as stopped:
        main([word.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")) for word in words.split()])
    assert stopped.value.code == 0 and len(opened) == 1


def test_preparing_from_python_opens_the_index_once(tmp_path: Path, opened: list[str]) -> None:
    healthy_run(Shape(tasks=40, samples=4), seed=1).write(tmp_path / "run")
    open_run(tmp_path / "run").prepare("dpo", to="trl", out=tmp_path / "out")
    assert len(opened) == 1
