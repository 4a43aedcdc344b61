"""requirements-ci.txt has every package that pyproject.toml asks for, at a version it allows, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_fits_the_project() -> None:
    text = (ROOT / "requirements-ci.txt").read_text()
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, flags=re.MULTILINE):
        locked.setdefault(canonical(name), []).append(version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["dev"], *extras["sinks-test"]]
    for line in asked:
        requirement = Requirement(line)
        if requirement.name == "rollforge":
            continue
        versions = locked.get(canonical(requirement.name), [])
        assert any(requirement.specifier.contains(version) for version in versions), (
            f"{line}: run `make lock`"
        )


def test_every_locked_package_has_hashes() -> None:
    text = (ROOT / "requirements-ci.txt").read_text()
    for entry in re.split(r"^(?=[a-zA-Z])", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
