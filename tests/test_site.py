"""The docs site builds with strict links, every page is in its nav, and `llms.txt` names every page."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (extra `integration`)")
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists() and (tmp_path / "llms.txt").exists()
    linked = re.findall(r"\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text())
    assert linked and not [link for link in linked if not (tmp_path / link).is_file()]
    assert "fonts.googleapis" not in (tmp_path / "index.html").read_text(), "a page asks no other server"


def test_every_page_is_in_the_nav_and_in_llms_txt() -> None:
    nav, listed = (ROOT / "mkdocs.yml").read_text(), (DOCS / "llms.txt").read_text()
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).as_posix()
        assert f" {path}\n" in nav, f"{path}: run `make docs`"
        assert f"({path})" in listed or path.startswith("decisions/"), path
