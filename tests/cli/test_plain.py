"""Plain command lines are read without cyclopts, and exactly as it reads them."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cyclopts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.cli.app import build_app
from rollforge.cli.plain import NotPlain, read_plainly
from rollforge.cli.verbs import COMMANDS, load_command

PLAIN = [
    "profile runs/math",
    "profile a.jsonl b.jsonl --workers 2 --json",
    "profile --json a.jsonl --threshold 0.25 -o out --where 'reward > 0'",
    "metrics runs/math --against runs/before --compat nemo-gym --strict",
    "prepare sft runs/a runs/b -o data --to trl --min-reward 1 --keep-truncated --limit=5",
    "prepare --from manifest.json -o data",
    "prepare dpo run -o data --to trl --split 0.98/0.02 --format parquet --dry-run",
    "show runs/math --rollout 3 --raw",
    "show",
    "status runs/math --json",
    "validate a.jsonl b.jsonl --fix --out clean",
    "list verifiers",
    "demo",
]
LEFT = [
    "profile",
    "profile --help",
    "profile run --wokers 2",
    "profile run --workers two",
    "profile run --workers -1",
    "profile run --threshold 1e-3",
    "profile run --json=true",
    "profile run --no-json",
    "profile run --workers 1 --workers 2",
    "profile run --verifier",
    "profile run --verifier none",
    "profile -- run",
    "metrics run --compat other",
    "query a b 'select 1'",
    "prepare sft run --decontaminate a.jsonl",
    "show runs/math --task 3",
    "profile a --json b",
    "status a b",
    "status",
    "init verifier",
]


@cache
def app(verb: str) -> cyclopts.App:
    return build_app(verb)


def by_cyclopts(verb: str, words: list[str]) -> dict[str, Any]:
    _, bound, _ = app(verb).parse_args([verb, *words], exit_on_error=False, print_error=False)
    bound.apply_defaults()
    return dict(bound.arguments)


def plainly(verb: str, words: list[str]) -> dict[str, Any]:
    function = load_command(verb).function
    positional, named = read_plainly(function, words)
    bound = inspect.signature(function).bind(*positional, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_is_read_alike(line: str) -> None:
    verb, *words = shlex.split(line)
    assert plainly(verb, words) == by_cyclopts(verb, words)


@pytest.mark.parametrize("line", LEFT)
def test_any_other_line_is_left(line: str) -> None:
    verb, *words = shlex.split(line)
    with pytest.raises(NotPlain):
        plainly(verb, words)


VALUES = [
    "a",
    "runs/b.jsonl",
    "1",
    "007",
    "12.50",
    "0.5",
    "1.",
    "~",
    "none",
    "NULL",
    "",
    "-1",
    "1e3",
    "true",
    "a=b",
    "sft",
    "exact",
    "é",
]


app("demo")  # loads rich, which draws from `random` when it is loaded; a strategy must not


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Words of a command, most of which are flags that it has."""
    verb = draw(st.sampled_from(sorted(COMMANDS)))
    flags = sorted(
        {name for argument in app(verb)[verb].assemble_argument_collection() for name in argument.names}
    )
    words = draw(st.lists(st.sampled_from(["runs/a", "b.jsonl"]), max_size=2))
    for _ in range(draw(st.integers(0, 3))):
        value = draw(st.sampled_from(VALUES))
        flag = draw(st.sampled_from(flags))
        words += draw(st.sampled_from([[value], [flag], [flag, value], [f"{flag}={value}"]]))
    return verb, words


@given(lines())
def test_what_is_read_plainly_is_read_alike(line: tuple[str, list[str]]) -> None:
    verb, words = line
    try:
        found = plainly(verb, words)
    except NotPlain:
        return
    assert found == by_cyclopts(verb, words)


def test_a_plain_command_does_not_load_cyclopts(tmp_path: Path) -> None:
    code = (
        "import sys; from rollforge.cli import run; from rollforge.errors import RollforgeError\n"
        "try: run(['profile', 'absent.jsonl'])\n"
        "except RollforgeError: print('cyclopts' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == "False\n"
