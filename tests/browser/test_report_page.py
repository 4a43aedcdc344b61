"""The report in a real browser: hostile text stays text, everything is there without script, and it can be read by all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.assembly.reports import write_report
from rollforge.testing import Shape, healthy_run, sick_run
from rollforge.text_safety.visible import visible
from tests.browser.conftest import Watch, serious
from tests.builders import make_rollout, write_rows
from tests.hostile_texts import MARK, NAMES, TEXTS

WIDTHS = (380, 900, 1500)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose prompts, answers, agents, models and columns are all hostile, with findings that point at them."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for task in range(2 * len(TEXTS)):
        for sample in range(4):
            text = TEXTS[(task + sample) % len(TEXTS)]
            name = NAMES[task % len(NAMES)]
            row = make_rollout(
                task,
                sample,
                1.0,
                text="" if sample < 2 else text,
                prompt=TEXTS[task % len(TEXTS)],
                agent=name,
            )
            row["response"]["model"] = name
            row[name] = 0.5
            rows.append(json.dumps(row).encode())
    write_rows(folder / "run" / "rollouts.jsonl", rows)
    return Path(write_report([folder / "run"], folder / "report.html").path)


@pytest.mark.parametrize("has_script", [True, False])
def test_hostile_text_runs_nothing_and_fetches_nothing(browser: Any, hostile: Path, has_script: bool) -> None:
    context = browser.new_context(java_script_enabled=has_script)
    page = context.new_page()
    watch = Watch(page)
    page.goto(hostile.as_uri())
    page.wait_for_timeout(300)
    assert page.title().startswith("rollforge report")
    assert watch.requests == []
    assert watch.dialogs == []
    if has_script:
        assert page.evaluate(f"window.{MARK} === undefined")
        for details in page.query_selector_all("details"):
            details.evaluate("one => one.open = true")
        assert page.evaluate(f"window.{MARK} === undefined")
    context.close()


def test_text_shown_is_the_text_stored_with_invisible_characters_made_visible(
    browser: Any, hostile: Path
) -> None:
    page = browser.new_page()
    page.goto(hostile.as_uri())
    shown = set(page.evaluate("[...document.querySelectorAll('.text bdi')].map(one => one.textContent)"))
    assert len(shown) > 5
    whole = {visible(text) for text in TEXTS}
    for text in shown:
        assert text in whole or any(one.startswith(text) for one in whole), text[:100]
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_width_and_has_no_serious_violation(
    browser: Any, axe: str, tmp_path: Path, width: int, scheme: str
) -> None:
    sick_run("breaks-halfway", seed=2).write(tmp_path / "run")
    path = write_report([tmp_path / "run"], tmp_path / "r.html").path
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(Path(path).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert serious(page, axe) == []
    context.close()


def test_charts_and_their_words_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    sick_run("breaks-halfway", seed=2).write(tmp_path / "run")
    path = write_report([tmp_path / "run"], tmp_path / "r.html").path
    page = browser.new_page(viewport={"width": 375, "height": 800})
    page.goto(Path(path).as_uri())
    outside = """all => all.flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {
      const [inner, outer] = [text.getBoundingClientRect(), svg.parentNode.getBoundingClientRect()];
      return inner.left < outer.left - 1 || inner.right > outer.right + 1;
    }).map(text => text.textContent))"""
    assert page.eval_on_selector_all(".chart svg", outside) == []
    page.close()


def test_print_opens_what_is_folded(browser: Any, tmp_path: Path) -> None:
    healthy_run(Shape(tasks=20, samples=4), seed=1).write(tmp_path / "run")
    path = write_report([tmp_path / "run"], tmp_path / "r.html").path
    page = browser.new_page()
    page.goto(Path(path).as_uri())
    table = page.locator("figure table").first
    assert not table.is_visible()
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    assert table.is_visible()
    page.close()
