"""The public names are these, load lazily, and cost nothing to import."""

from __future__ import annotations

import subprocess
import sys

import rollforge

PUBLIC = [
    "Response",
    "RollforgeError",
    "Run",
    "RunWarning",
    "Task",
    "Verdict",
    "__version__",
    "bench",
    "bench_async",
    "collect",
    "collect_async",
    "evaluate",
    "evaluate_async",
    "open_run",
    "verify",
    "verify_async",
]
HEAVY = ("numpy", "pyarrow", "duckdb", "aiohttp", "pandas", "yaml")


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after the program."""
    code = f"{program}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_public_names_are_pinned() -> None:
    assert sorted(rollforge.__all__) == PUBLIC
    assert all(getattr(rollforge, name) is not None for name in PUBLIC)


def test_a_worker_of_verify_loads_neither_the_http_client_nor_the_index() -> None:
    assert not loaded_by("import rollforge.steps.verify.verify_worker") & {"aiohttp", "pyarrow", "duckdb"}


def test_importing_rollforge_loads_nothing_heavy() -> None:
    assert not loaded_by("import rollforge") & {*HEAVY, "rich", "cyclopts", "msgspec"}


def test_help_loads_nothing_heavy() -> None:
    program = "from rollforge.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not loaded_by(program) & set(HEAVY)


def test_a_wrong_name_is_an_attribute_error() -> None:
    assert not hasattr(rollforge, "colect")
