"""Files in the current directory that are named like modules we import are never run."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollforge.testing import Shape, healthy_run

TASKS = "run/rollouts_tasks.jsonl"
COMMANDS = {
    "help": ["--help"],
    "list": ["list", "verifiers"],
    "check": ["check", "run", "--for", "grpo"],
    "metrics": ["metrics", "run"],
    "profile": ["profile", "run"],
    "query": ["query", "run", "select count(*) from rollouts"],
    "show": ["show", "run", "--sample", "1"],
    "status": ["status", "run"],
    "validate": ["validate", TASKS],
    "prepare": ["prepare", "dpo", "run", "-o", "data", "--to", "trl", "--force"],
    "verify": ["verify", "run", "--verifier", "exact", "--verify-workers", "1", "--progress", "none"],
    "verify-math": ["verify", "run", "--verifier", "math", "--verify-workers", "1", "--progress", "none"],
    "verify-own": ["verify", "run", "--verifier", "own.py:judge", "--verify-workers", "1", "--progress", "none"],
    "verify-module": ["verify", "run", "--verifier", "own:judge", "--verify-workers", "1", "--progress", "none"],
    "collect": ["collect", "-i", TASKS, "-o", "new", "-m", "simulated", "--verifier", "exact", "-n", "2", "--progress", "none"],
    "config": ["collect", "--config", "run.yaml", "--dry-run"],
    "collect-workers": ["collect", "-i", TASKS, "-o", "new", "-m", "simulated", "--verifier", "math", "-n", "2", "--workers", "2"],
    "report": ["report", "run", "-o", "report.html"],
    "report-data": ["prepare", "sft", "run", "-o", "data", "--to", "openrlhf", "--force", "--min-reward", "0"],
    "experiences": ["experiences", "run", "--buffer", "buffer.db"],
    "test-verifier": ["test-verifier", "own.py:judge", "--cases", "own_cases.jsonl"],
    "rewards": ["rewards", "--write", "trl", "math"],
    "import": ["import", "verifiers", "traces.jsonl", "-o", "new"],
    "merge": ["merge", "run"],
    "index": ["index", "run"],
    "index-on": ["index", "run", "--on", "processes", "--workers", "2"],
    "demo": ["demo", "new"],
    "eval": ["eval", "-i", TASKS, "-m", "simulated", "-k", "2", "-n", "2", "--verifier", "json_schema", "-o", "new"],
    "init": ["init", "verifier", "new_verifier"],
}  # fmt: skip
LAUNCHERS = {
    "module": [sys.executable, "-m", "rollforge"],
    "script": [str(Path(sys.executable).with_name("rollforge"))],
}
OWN = """
import helper  # beside it

def judge(task, response):
    return helper.reward(response)
"""


def _known_modules() -> set[str]:
    """Top-level names of the standard library and of everything installed here.

    A module that is not installed (`_winapi` here) can come from the folder of a verifier that the user named; from no other.
    """
    names = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())
    return {name for name in names if name.isidentifier() and importlib.machinery.PathFinder.find_spec(name)}


def _loaded_before_us() -> set[str]:
    """Modules that `python -m` itself loads before the first line of ours."""
    code = "import sys; print(*sys.modules)"
    words = [[sys.executable, "-c", code], [sys.executable, "-c", f"import runpy; {code}"]]
    loaded = [subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in words]
    return {name.partition(".")[0] for text in loaded for name in text.split()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planted")
    healthy_run(Shape(tasks=6, samples=2), seed=3).write(place / "run")
    (place / "run.yaml").write_text(f"collect:\n  input: {TASKS}\n  out: x\n  model: simulated\n")
    (place / "own.py").write_text(OWN)
    task = {"responses_create_params": {"input": "2 + 2?"}}
    case = {"name": "any", "kind": "full_reward", "task": task, "answer": "4"}
    (place / "own_cases.jsonl").write_text(json.dumps(case) + "\n")
    shutil.copy(Path(__file__).parents[1] / "importers" / "logs" / "traces.jsonl", place)
    (place / "helper.py").write_text("def reward(response):\n    return 1.0\n")
    for name in _known_modules() - _loaded_before_us() - {"rollforge", "own", "helper", "__main__"}:
        (place / f"{name}.py").write_text(
            f"open({str(place / 'ran.txt')!r}, 'a').write('{name}\\n')\nraise SystemExit('planted {name} ran')\n"
        )
    return place


@pytest.mark.parametrize(
    ("launcher", "command"),
    [*(("module", command) for command in COMMANDS), ("script", "check"), ("script", "verify-own")],
)
def test_a_planted_module_never_runs(
    launcher: str, command: str, folder: Path, tried: Callable[..., None]
) -> None:
    tried(planted_modules=len(list(folder.glob("*.py"))) - 2)
    shutil.rmtree(folder / "data", ignore_errors=True)
    shutil.rmtree(folder / "new", ignore_errors=True)
    done = subprocess.run(
        [*LAUNCHERS[launcher], *COMMANDS[command]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    ran = folder / "ran.txt"
    assert not ran.exists(), f"{ran.read_text()}{done.stderr}"
    assert done.returncode in (0, 3), done.stderr
