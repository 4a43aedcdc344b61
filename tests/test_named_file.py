"""Files that a user named: the modules beside one belong to it alone."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.registry import load_target


def write(folder: Path, **source_by_name: str) -> Path:
    for name, source in source_by_name.items():
        path = folder / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
    return folder


@pytest.mark.parametrize(
    "source",
    [
        "import helpers\ndef verify(task, response):\n    return helpers.VALUE\n",
        "from helpers import VALUE\ndef verify(task, response):\n    return VALUE\n",
        "def verify(task, response):\n    import helpers\n    return helpers.VALUE\n",
        "def verify(task, response):\n    from helpers import VALUE\n    return VALUE\n",
        "from deeper import verify\n",
    ],
)
def test_equally_named_helpers_of_two_files_do_not_meet(tmp_path: Path, source: str) -> None:
    """Imports at the top, inside functions and through another helper; the files themselves have one name too."""
    deeper = "import helpers\ndef verify(task, response):\n    return helpers.VALUE\n"
    verifiers = {
        name: load_target(
            f"{write(tmp_path / name, mine=source, deeper=deeper, helpers=f'VALUE = {value}') / 'mine.py'}:verify"
        )
        for name, value in (("a", 0.25), ("b", 0.75))
    }
    assert (verifiers["a"](None, None), verifiers["b"](None, None)) == (0.25, 0.75)
    assert load_target(f"{tmp_path / 'a' / 'mine.py'}:verify") is verifiers["a"], "executed once"


def test_a_package_beside_a_file_imports_its_own_modules(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        mine="import parts.rules as rules\nfrom parts import limits\nfrom parts.rules import score\nimport parts\n"
        "def verify(task, response):\n    return (rules.score(), limits.TOP, score(), parts.rules.score())\n",
        parts_in___init__="",
        parts_in_rules="from parts import limits\nfrom . import limits as same\nimport plain\n"
        "def score():\n    return limits.TOP + same.TOP + plain.ONE\n",
        parts_in_limits="TOP = 2",
        plain="ONE = 1",
    )
    assert load_target(f"{folder / 'mine.py'}:verify")(None, None) == (5, 2, 5, 5)


def test_the_folder_of_a_named_file_is_on_no_search_path(tmp_path: Path) -> None:
    """A file there cannot pose as an optional package that is not installed."""
    write(tmp_path, mine="def verify(task, response):\n    return 1\n", no_such_package="raise SystemExit(9)")
    before = list(sys.path)
    load_target(f"{tmp_path / 'mine.py'}:verify")
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package")


def test_an_installed_module_wins_over_one_beside_the_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import json\ndef verify(task, response):\n    return json.dumps([1])\n",
        json="raise SystemExit(9)",
    )
    assert load_target(f"{tmp_path / 'mine.py'}:verify")(None, None) == "[1]"


def test_what_a_helper_defines_can_be_pickled_and_annotated(tmp_path: Path) -> None:
    helper = (
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "@dataclass\nclass Score:\n    value: int\n    more: list[int] = field(default_factory=list)\n"
    )
    write(
        tmp_path,
        mine="from helpers import Score\ndef verify(task, response):\n    return Score(3)\n",
        helpers=helper,
    )
    score = load_target(f"{tmp_path / 'mine.py'}:verify")(None, None)
    assert pickle.loads(pickle.dumps(score)) == score


@pytest.mark.parametrize("source", ["import helpers\n", "import no_such_module_at_all\n", "1 / 0\n"])
def test_an_error_while_importing_names_the_file_and_leaves_nothing_loaded(
    tmp_path: Path, source: str
) -> None:
    write(tmp_path, mine=source, helpers="raise ValueError('helper')")
    with pytest.raises(UsageError, match=r"mine\.py: (ValueError|ModuleNotFoundError|ZeroDivisionError)"):
        load_target(f"{tmp_path / 'mine.py'}:verify")
    assert not [
        name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))
    ]


def test_two_verifiers_with_equal_helpers_judge_one_run_in_workers(tmp_path: Path) -> None:
    """Whole commands: worker processes import the file again."""
    source = "import helpers\ndef verify(task, response):\n    return helpers.VALUE + len(response.text) % 2 / 10\n"
    for name, value in (("a", 0.25), ("b", 0.75)):
        write(tmp_path / name, mine=source, helpers=f"VALUE = {value}")

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rollforge", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("simulate", "--write-tasks", "tasks.jsonl", "-n", "4")
    run(
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--verifier",
        "a/mine.py:verify",
        "--stop-on",
        "never",
    )
    run("verify", "run", "--verifier", "b/mine.py:verify")
    said = (tmp_path / "run" / "rollouts_verdicts.jsonl").read_text()
    assert '"reward":0.75' in said.replace(" ", "") or '"reward":0.85' in said.replace(" ", "")
    assert '"reward":0.25' not in said.replace(" ", "") and '"reward":0.35' not in said.replace(" ", "")
