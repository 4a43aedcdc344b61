"""Docs match code: every command and member is documented, generated pages are fresh. Blocks: `test_docs_blocks.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.cli.app import COMMANDS, build_app
from rollforge.cli.commands.list_ import FAMILIES, describe_family

ROOT = Path(__file__).resolve().parent.parent


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_a_page_in_words_and_an_example(verb: str) -> None:
    page = (ROOT / "docs" / "commands" / f"{verb}.md").read_text()
    prose = re.sub(r"<!-- help:.*?<!-- /help -->", "", page, flags=re.DOTALL)
    assert len(prose.split()) > 20, f"docs/commands/{verb}.md has no words of its own"
    assert f"rollforge {verb}" in page
    build_app(verb)


def test_every_page_of_a_command_is_of_one_that_exists() -> None:
    assert {path.stem for path in (ROOT / "docs" / "commands").glob("*.md")} == set(COMMANDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_member_says_in_a_line_what_it_does(family: str) -> None:
    members = describe_family(family)
    assert members
    for member in members:
        assert 10 < len(member.summary) < 160, f"{family} {member.name}: {member.summary!r}"


def test_no_name_is_registered_twice() -> None:
    """A family's table is a dict in its `__init__`; a repeated key would silently win."""
    for target in FAMILIES.values():
        module = target.partition(":")[0]
        path = ROOT / "src" / Path(*module.split(".")) / "__init__.py"
        names = re.findall(r'^\s+"([\w-]+)": "rollforge\.', path.read_text(), flags=re.MULTILINE)
        assert len(names) == len(set(names)), path
