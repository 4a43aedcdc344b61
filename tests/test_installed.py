"""Plugins and versions are found without asking every installed package about itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from rollforge.installed import version_of

ASK = "from rollforge.checks import CHECKS; print('shiny' in CHECKS.names(), 'importlib.metadata' in __import__('sys').modules)"


def asked(*more: Path) -> str:
    """What a fresh process says, with more places to find packages."""
    code = f"import sys; sys.path += {[str(path) for path in more]!r}; {ASK}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write_plugin(folder: Path) -> Path:
    told = folder / "shiny-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: shiny\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(
        "[console_scripts]\nx = y:z\n[rollforge.checks]\nshiny = shiny.checks:it\n"
    )
    return told


def test_a_plugin_is_found(tmp_path: Path) -> None:
    write_plugin(tmp_path)
    assert asked(tmp_path).startswith("True")


def test_a_plugin_in_an_archive_is_found(tmp_path: Path) -> None:
    told = write_plugin(tmp_path / "unpacked")
    with zipfile.ZipFile(tmp_path / "shiny.zip", "w") as archive:
        for path in told.iterdir():
            archive.write(path, f"{told.name}/{path.name}")
    assert asked(tmp_path / "shiny.zip").startswith("True")


@pytest.mark.skipif(asked().startswith("True"), reason="a plugin is installed here")
def test_without_plugins_nothing_is_asked() -> None:
    assert asked() == "False False"


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "msgspec", "duckdb"])
def test_versions_are_those_of_the_packages(package: str) -> None:
    assert version_of(package) == version(package)


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert version_of("no-such-package-anywhere") == "unknown"
