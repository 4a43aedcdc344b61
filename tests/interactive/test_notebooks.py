"""Real notebooks in a real kernel: the examples run from top to bottom, sync calls work in the kernel's loop, an interrupt drains."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.simulate import SimulatedProcess, SimulateOptions

nbformat = pytest.importorskip("nbformat", reason="the extra `integration` has nbclient and ipykernel")
pytest.importorskip("nbclient", reason="the extra `integration` has nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the extra `integration` has nbclient and ipykernel")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    # Jupyter's own packages warn about their platform folders and event loops.
    pytest.mark.filterwarnings("ignore"),
]


def client(notebook: Any, folder: Path) -> Any:
    from nbclient import NotebookClient

    return NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})


def notebook(*cells: str) -> Any:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    return made


def htmls(cell: Any) -> list[str]:
    return [one["data"]["text/html"] for one in cell.outputs if "text/html" in one.get("data", {})]


def texts(cell: Any) -> str:
    return "".join(one.get("text", "") for one in cell.outputs)


def test_there_are_three_examples() -> None:
    assert len(NAMES) == 3


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_committed_without_outputs(name: str) -> None:
    data = json.loads((EXAMPLES / name).read_text())
    code = [cell for cell in data["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    nbformat.validate(nbformat.from_dict(data))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    done = nbformat.read(EXAMPLES / name, as_version=4)
    client(done, tmp_path).execute()
    shown = [html for cell in done.cells if cell.cell_type == "code" for html in htmls(cell)]
    assert sum("<table>" in html for html in shown) >= 3
    assert any("data:image/svg+xml" in html for html in shown)
    assert not any("<script" in html for html in shown)


def test_a_run_resumes_in_another_kernel_with_the_verifier_of_a_cell(tmp_path: Path) -> None:
    cells = (
        "import rollforge as rf\nfrom rollforge.simulate import example_tasks",
        "def verify(task, response):\n    return max([float(w == task['expected_answer']) for w in response.text.split()])",
        "run = rf.collect(list(example_tasks(6)), model='simulated', verifier=verify, out='run')\nprint(run.result.fresh)",
    )
    for fresh in ("6", "0"):
        done = notebook(*cells)
        client(done, tmp_path).execute()
        assert texts(done.cells[-1]).strip() == fresh


COLLECT = """
import rollforge as rf
from rollforge.simulate import example_tasks

run = rf.collect(
    list(example_tasks(300)), model="m", base_url={url!r}, verifier="exact", out="run", concurrency=2
)
"""


@pytest.fixture
def slow_model() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(latency=0.15)) as process:
        yield process.base_url


def test_a_kernel_interrupt_drains_shows_progress_and_the_cell_goes_on_from_there(
    tmp_path: Path, slow_model: str
) -> None:
    done = notebook(COLLECT.format(url=slow_model), "print(run.outcome, run.status().finished)")
    runner = client(done, tmp_path)

    def interrupt() -> None:
        while not _finished(tmp_path / "run") > 2:
            time.sleep(0.05)
        time.sleep(1.0)
        _interrupt(runner.km)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    runner.execute()
    pressing.join()
    word, finished = texts(done.cells[1]).split()
    assert word == "interrupted" and 2 < int(finished) < 300
    assert any("rollouts" in html and "<pre>" in html for html in htmls(done.cells[0])), (
        "progress below the cell"
    )
    assert "ended as 'interrupted'" in texts(done.cells[0])
    found = rf.open_run(tmp_path / "run")
    assert found.outcome == "interrupted" and _finished(tmp_path / "run") == int(finished)


def _interrupt(manager: Any) -> None:
    """What the stop button of a notebook does: SIGINT to the kernel."""
    os.kill(manager.provisioner.process.pid, signal.SIGINT)


def _finished(folder: Path) -> int:
    file = folder / "rollouts.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0
