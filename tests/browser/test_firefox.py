"""The main path of the viewer and the report in Firefox ESR."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

import rollforge as rf
from rollforge.testing import Shape, healthy_run
from tests.browser.firefox import find_firefox, firefox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_firefox() is None, reason="there is no Firefox: apt-get install firefox-esr"),
]


async def test_rollouts_are_listed_filtered_and_read_in_firefox(tmp_path: Path) -> None:
    run = tmp_path / "run"
    healthy_run(Shape(tasks=30, samples=4), seed=3).write(run)
    words = [sys.executable, "-m", "rollforge", "view", str(run), "--json", "--no-browser"]
    server = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            text += (await asyncio.wait_for(server.stdout.readline(), 60)).decode()
        async with firefox(tmp_path / "profile") as page:
            await page.goto(json.loads(text)["address"])
            await page.until("document.querySelector('.verdict')")
            assert "token=" not in await page.evaluate("location.href")
            await page.press("2")
            await page.until("document.querySelector('.row .cell')")
            await page.press("j")
            await page.until("document.querySelector('.reader details.assistant .block')")
            await page.press("/")
            await page.type("reward = 1")
            await page.press("\ue007")  # Enter
            await page.until("document.querySelector('.row .chip.high')")
            assert await page.evaluate("document.querySelectorAll('.row .chip.low').length") == 0
            await page.press("3")
            await page.until("document.title.startsWith('suspicious')")
            await page.press("4")
            await page.until("document.querySelector('.strip i')")
    finally:
        server.terminate()
        await server.wait()


async def test_the_report_opens_from_disk_in_firefox(tmp_path: Path) -> None:
    run = tmp_path / "run"
    healthy_run(Shape(tasks=30, samples=4), seed=3).write(run)
    report = rf.open_run(run).report(tmp_path / "report.html")
    async with firefox(tmp_path / "profile") as page:
        await page.goto(report.as_uri())
        await page.until("document.querySelectorAll('figure svg').length > 3")
        assert await page.evaluate("document.scripts.length") == 0
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
