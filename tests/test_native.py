"""A compiled module that is older than its source is not used, with a warning that says how to mend it."""

from __future__ import annotations

import logging
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rollforge.runtime import native
from rollforge.runtime.native import load_native, source_digest

NAMES = ["rollforge._groups", "rollforge.index._rows"]
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_the_source_beside_it_is_used(name: str) -> None:
    module = load_native(name)
    if module is None:
        pytest.skip("rollforge was installed without a compiler")
    source = native.PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".c")
    assert source_digest(source) == module.SOURCE_DIGEST


@pytest.mark.parametrize("name", NAMES)
def test_a_module_older_than_its_source_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if load_native(name) is None:
        pytest.skip("rollforge was installed without a compiler")
    monkeypatch.setattr(native, "source_digest", lambda source: "of a newer source")
    with caplog.at_level(logging.WARNING):
        assert load_native.__wrapped__(name) is None
    assert "pip install" in caplog.text


def test_a_changed_header_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "_a.c").write_text('#include "_b.h"\n')
    (tmp_path / "_b.h").write_text('#include "_c.h"\n')
    (tmp_path / "_c.h").write_text("int one;\n")
    before = source_digest(tmp_path / "_a.c")
    (tmp_path / "_c.h").write_text("int two;\n")
    assert source_digest(tmp_path / "_a.c") != before


def test_a_module_that_is_not_there_is_none() -> None:
    assert load_native("rollforge._no_such_module") is None


def test_the_build_hook_hardens_and_digests_alike(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'scripts'); import build_hook\n"
        "source = Path('src/rollforge/index/_rows.c').resolve()\n"
        "print(build_hook.source_digest(source)); print(*build_hook.command(source, Path('x.so')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    digest, command = done.stdout.splitlines()
    assert digest == source_digest(ROOT / "src/rollforge/index/_rows.c")
    for flag in ("-Wall", "-Wextra", "-Werror", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"):
        assert flag in command
    assert sysconfig.get_path("include") in command
    assert "-DPy_LIMITED_API=0x030b0000" in command, "one wheel per platform serves every later Python"
