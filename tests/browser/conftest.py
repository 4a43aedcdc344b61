"""A real browser for what people look at: Debian's Chromium driven by playwright; skipped with a reason where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).resolve().parents[2] / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
"""Where `make browser` puts axe-core."""

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. No longer than a module: playwright keeps an event loop running, which other tests could not bear."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make browser")
    return AXE.read_text("utf-8")


class Watch:
    """What a page did that it should not have done."""

    def __init__(self, page: Any) -> None:
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        page.on("requestfinished", lambda request: self._saw(request.url))
        page.on("dialog", self._dialog)

    def _saw(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "about:")):
            self.requests.append(url)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


def serious(page: Any, axe: str) -> list[str]:
    """Serious and critical violations that axe finds on the page."""
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:200]})"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
