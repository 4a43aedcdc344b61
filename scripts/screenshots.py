"""Takes the pictures of the report and the viewer that README and docs show, from a seeded run in a real browser.

Needs Chromium and playwright. Writes PNG files into docs/pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from rollforge.testing.defects import sick_run

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE = {"width": 1240, "height": 800}
ROLLFORGE = [sys.executable, "-m", "rollforge"]

VERIFIER = '''def verify(task, response):
    """Counts an answer as right when it names the number, wherever it stands."""
    return float(str(task["expected_answer"]) in response.text)
'''


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_run(home)
        with sync_playwright() as driver:
            flags = [
                "--disable-gpu",
                "--disable-background-networking",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
            ]
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(300_000)  # a busy machine takes its time
            page.goto((home / "report.html").as_uri())
            page.screenshot(path=PICTURES / "report.png")
            section = page.locator(
                "section", has=page.get_by_role("heading", name="Rewards", exact=True)
            ).last
            page.screenshot(path=PICTURES / "report-charts.png", full_page=True, clip=section.bounding_box())
            viewer(page, home, "run", {"2": "rollouts", "4": "groups"})
            viewer(page, home, "sick", {"3": "suspicious"})
            browser.close()


def make_run(home: Path) -> None:
    """A run of 300 tasks × 8, judged twice, and its report; and one whose verifier pays for length."""
    sick_run("pays-for-length", seed=5).write(home / "sick")
    (home / "loose.py").write_text(VERIFIER)
    for line in (
        "simulate --write-tasks tasks.jsonl -n 300 --seed 1",
        "collect -i tasks.jsonl -o run -m simulated --verifier loose.py:verify -k 8 --progress none",
        "verify run --verifier exact --progress none",
        "report run -o report.html",
    ):
        words = [*ROLLFORGE, *line.split()]
        subprocess.run(words, cwd=home, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def viewer(page: Page, home: Path, run: str, names: dict[str, str]) -> None:
    """Pages of the viewer that the docs show: the key that opens each, and its name."""
    words = [*ROLLFORGE, "view", run, "--json", "--no-browser"]
    process = subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        page.goto(json.loads(text)["address"])
        page.wait_for_selector(".verdict")
        for key, name in names.items():
            page.keyboard.press(key)
            page.wait_for_selector(".row .cell, .rows p")
            page.keyboard.press("j")
            page.wait_for_timeout(1500)
            page.screenshot(path=PICTURES / f"view-{name}.png")
    finally:
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    main()
