"""What a release is made of: the wheel's extra files, the workflows, the container."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_every_file_of_the_example() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = {
        f"examples/improve/{path.name}" for path in (ROOT / "examples/improve").iterdir() if path.is_file()
    }
    assert {name for name in included if name.startswith("examples/improve/")} == files


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_ask_for_no_more_than_they_need_and_call_targets_that_exist(name: str) -> None:
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"} and "secrets." not in text
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make (\w+)", text)) <= targets


@pytest.mark.parametrize("name", ["ci", "release"])
def test_actions_are_pinned_to_a_commit_with_its_version_beside_it(name: str) -> None:
    used = re.findall(r"uses: (.*)", (ROOT / f".github/workflows/{name}.yml").read_text())
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used), used


def test_a_release_is_published_from_a_tag_without_a_stored_token() -> None:
    publish = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert set(publish["needs"]) == {"sdist", "wheels"} and "refs/tags/v" in publish["if"]


def test_the_container_has_the_sandbox_and_runs_as_nobody_special() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "bubblewrap" in text and re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
