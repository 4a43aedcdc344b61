"""Commands do not import what they do not need: pandas alone would cost 0.2 s and 40 MB each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.testing import Shape, healthy_run

REFUSAL = 'raise SystemExit("pandas was imported")\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    healthy_run(Shape(tasks=40, samples=4), seed=1).write(folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where pandas can be found, as on most machines, but ends the process that imports it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "pandas").mkdir()
    (folder / "pandas" / "__init__.py").write_text(REFUSAL)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    "words",
    [
        "profile RUN --out OUT",
        "metrics RUN",
        "check RUN",
        "prepare dpo RUN --to trl -o OUT --force",
        "show RUN --limit 1",
        "report RUN -o OUT/report.html",
        "status RUN",
    ],
)
def test_a_command_does_not_import_pandas(
    words: str, run: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rollforge", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
