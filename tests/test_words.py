"""Plain technical English: phrases that CONTRIBUTING.md advises against appear nowhere, and prose is wrapped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.module_graph import MODULES, ROOT, parsed

BANNED = ("This module", "data set", " is told", "is had ")
"""Openings and phrases that CONTRIBUTING.md shows with a better one beside them."""

TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def without_examples(text: str) -> str:
    """CONTRIBUTING.md quotes what it advises against, in a table."""
    return re.sub(r"^\|.*\|$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("phrase", BANNED)
def test_a_banned_phrase_is_nowhere_in_the_source(phrase: str) -> None:
    found = [name for name, path in MODULES.items() if phrase in " ".join(path.read_text().split())]
    assert not found


VAGUE = {"told", "found", "place", "places", "at_hand", "known", "given", "asked", "kept", "said"}
"""Names that say how a value came or that it is somewhere, and not what it is."""

JSON_KEYS = {
    ("steps.check.readiness", "asked"),
    ("steps.prepare.dataset_manifest", "kept"),
}
"""Fields whose names are keys of a file or of `--json`: scripts read them."""


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_no_parameter_field_or_variable_has_a_vague_name(name: str) -> None:
    """A name is a noun that says the thing: `findings`, `rows`, `match`, `path`, `position`."""
    tree = parsed(name)
    fields = {
        field.target
        for record in ast.walk(tree)
        if isinstance(record, ast.ClassDef)
        for field in record.body
        if isinstance(field, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        named = (
            node.arg
            if isinstance(node, ast.arg)
            else node.id
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else None
        )
        is_key = node in fields and (name, named) in JSON_KEYS
        assert named not in VAGUE or is_key, f"{name}:{getattr(node, 'lineno', '')}"


@pytest.mark.parametrize("phrase", BANNED)
def test_a_banned_phrase_is_nowhere_in_the_docs(phrase: str) -> None:
    found = [path.name for path in TEXTS if phrase in " ".join(without_examples(path.read_text()).split())]
    assert not found


def test_a_module_opens_with_one_line_that_says_what_it_is() -> None:
    for name in MODULES:
        opening = (ast.get_docstring(parsed(name)) or "x").splitlines()[0]
        assert len(opening) > 0 and not opening.startswith(("This ", "Here ")), name


def test_prose_is_wrapped() -> None:
    """`make fix` wraps it."""
    words = [sys.executable, str(Path("scripts") / "wrap.py"), "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
