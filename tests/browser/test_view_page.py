"""The viewer in a real browser: keyboard only, hostile text, accessibility, a long list, and the numbers of other commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.labels import LabelFile
from rollforge.store import RunFiles
from rollforge.testing import Shape, healthy_run
from rollforge.visible import visible
from tests.browser.conftest import Watch, serious
from tests.builders import make_rollout, write_rows
from tests.hostile_texts import MARK, NAMES, TEXTS

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start `rollforge view` as a user would; gives the address it prints."""
    started: list[subprocess.Popen[str]] = []

    def start(*paths: Path) -> str:
        words = [sys.executable, "-m", "rollforge", "view", *map(str, paths), "--json", "--no-browser"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the viewer ended before it was ready"
            text += line
        return str(json.loads(text)["address"])

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    healthy_run(Shape(tasks=60, samples=4), seed=3).write(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1300, "height": 850})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    assert page.errors == []
    context.close()


def until(page: Any, expression: str, arg: object = None) -> None:
    """Wait for a condition; playwright's own way would evaluate a text in the page, which the page's policy forbids."""
    for _ in range(400):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def chosen(page: Any) -> str:
    return str(page.locator(".row.chosen").inner_text())


def test_every_page_can_be_used_with_the_keyboard_alone(
    page: Any, serve: Serve, run: Path, tmp_path: Path
) -> None:
    rf.open_run(run).prepare("dpo", to="trl", out=tmp_path / "dpo", force=True)
    page.goto(serve(run, tmp_path / "dpo"))
    page.wait_for_selector(".verdict")
    assert "token=" not in page.url, "the token leaves the address"
    press = page.keyboard.press

    press("2")  # the list of rollouts
    page.wait_for_selector(".row .cell")
    press("j")
    page.wait_for_selector(".row.chosen")
    page.wait_for_selector(".reader h2")
    first = chosen(page)
    press("j")
    until(page, "first => document.querySelector('.row.chosen').innerText !== first", arg=first)
    press("k")
    until(page, "first => document.querySelector('.row.chosen').innerText === first", arg=first)
    assert "row=" in page.url, "a rollout has an address"

    sample = page.locator(".reader h2").inner_text()
    press("J")  # the next sibling
    until(page, "old => document.querySelector('.reader h2').innerText !== old", arg=sample)
    press("K")
    until(page, "old => document.querySelector('.reader h2').innerText === old", arg=sample)

    press(".")  # the raw line
    until(page, "document.querySelector('.reader .text').innerText.startsWith('{')")
    press(".")
    page.wait_for_selector("details.turn.assistant")
    press("f")
    page.wait_for_selector("details.turn.assistant:not([open])")
    press("f")
    page.wait_for_selector("details.turn.assistant[open]")

    press("/")  # filter
    page.keyboard.type("reward = 1")
    press("Enter")
    until(page, "document.getElementById('say').innerText.includes('rollouts')")
    until(page, "location.hash.includes('where=reward')")
    page.wait_for_selector(".row .chip.high")
    assert page.locator(".row .chip.low").count() == 0

    press("j")
    page.wait_for_selector(".reader h2")
    press("g")  # the group
    until(page, "decodeURIComponent(location.hash).includes('where=task')")

    press("3")  # suspicious
    until(page, "document.title.startsWith('suspicious')")
    press("4")  # groups
    page.wait_for_selector(".strip i")
    press("j")
    page.wait_for_selector("article[aria-label=group] h2")
    press("5")  # findings
    until(page, "document.title.startsWith('findings')")
    press("6")  # compare
    until(page, "document.querySelector('main').innerText.includes('Verifiers')")
    press("7")  # dataset
    page.wait_for_selector("[aria-label='rows of the dataset'] .row")
    press("j")
    until(page, "document.querySelector('article[aria-label=row]').innerText.includes('chosen')")
    press("9")  # live
    until(page, "document.querySelector('main').innerText.includes('Newest rollouts')")

    press("8")  # label
    page.wait_for_selector(".actions")
    page.wait_for_selector(".reader h2")
    for opinion, key in (("agree", "a"), ("disagree", "d"), ("unsure", "u")):
        title = page.locator(".reader h2").inner_text()
        press(key)
        until(page, "old => document.querySelector('.reader h2').innerText !== old", arg=title)
        assert [one.label for one in LabelFile(RunFiles(run)).read()][-1] == opinion
    press("?")
    page.wait_for_selector("dialog[open]")
    press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.go_back()


def test_a_link_opens_the_same_rollout(page: Any, serve: Serve, run: Path) -> None:
    address = serve(run)
    page.goto(address)
    page.wait_for_selector(".verdict")
    page.goto(f"{address.split('?')[0]}#page=rollouts&where=reward+%3D+1&sort=output_tokens+desc&row=7")
    page.reload()
    page.wait_for_selector(".reader h2")
    assert page.locator("#filter").input_value() == "reward = 1"


def test_numbers_on_the_page_are_those_of_the_commands(page: Any, serve: Serve, run: Path) -> None:
    page.goto(serve(run))
    page.wait_for_selector("figure figcaption")
    metrics = rf.open_run(run).metrics()
    text = page.locator("main").inner_text()
    mean = metrics.fields["reward"].mean
    assert mean is not None
    assert f"mean {mean:.3f}" in text
    for finding in rf.open_run(run).check().findings:
        page.keyboard.press("5")
        page.wait_for_selector(".finding")
        assert finding.text in page.locator("main").inner_text()
    page.keyboard.press("1")
    page.wait_for_selector("svg a rect")
    page.locator("svg a").first.click()  # a bar is a link to its rollouts
    until(page, "location.hash.includes('page=rollouts')")
    until(page, "/^[\\d,]+ rollouts$/.test(document.getElementById('say').innerText)")
    shown = int(re.sub(r"\D", "", page.locator("#say").inner_text()))
    assert shown in metrics.histogram.counts


def test_hostile_text_runs_nothing_and_is_shown_as_it_is(page: Any, serve: Serve, tmp_path: Path) -> None:
    rows = []
    for task, text in enumerate(TEXTS):
        name = NAMES[task % len(NAMES)]
        row = make_rollout(task, 0, 1.0, text=text, prompt=text, agent=name) | {name: 0.5}
        row["response"]["model"] = name
        rows.append(json.dumps(row).encode())
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    watch = Watch(page)
    address = serve(tmp_path / "run")
    page.goto(address)
    page.wait_for_selector(".verdict")
    host = address.split("?")[0]
    for number, text in enumerate(TEXTS):
        page.goto(f"{host}#page=rollouts&row={number}")
        until(
            page,
            "task => document.querySelector('.reader h2')?.innerText.startsWith(`task ${task},`)",
            arg=number,
        )
        said = page.evaluate(
            "[...document.querySelectorAll('details.assistant .text bdi')].map(one => one.textContent).join('')"
        )
        whole = visible(text)
        assert said == whole or (len(whole) > 65_000 and whole.startswith(said)), text[:60]
    assert page.evaluate(f"window.{MARK} === undefined")
    assert watch.dialogs == []
    assert [url for url in watch.requests if not url.startswith(host)] == []


@pytest.mark.parametrize(
    "name", ["overview", "rollouts", "suspicious", "groups", "findings", "compare", "label"]
)
def test_no_page_has_a_serious_violation(page: Any, serve: Serve, axe: str, run: Path, name: str) -> None:
    page.goto(serve(run))
    page.wait_for_selector(".verdict")
    page.goto(f"{page.url.split('#')[0]}#page={name}")
    until(page, "name => document.title.startsWith(name)", arg=name)
    page.wait_for_timeout(400)
    assert serious(page, axe) == []


def test_the_end_of_a_long_list_can_be_reached(page: Any, serve: Serve, tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, float(task % 2)) for task in range(30_000)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    page.goto(serve(tmp_path / "run"))
    page.wait_for_selector(".verdict", timeout=60_000)
    page.keyboard.press("2")
    page.wait_for_selector(".row .cell")
    page.evaluate(
        "() => { const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight; }"
    )
    until(page, "document.querySelector('.rows').innerText.includes('29,999')")
    assert page.locator(".row").count() < 80, "only the rows on the screen exist"
    page.evaluate("() => { document.querySelector('.list').scrollTop = 0; }")
    until(page, "[...document.querySelectorAll('.rows .row')][0].getAttribute('aria-rowindex') === '1'")


def test_without_script_the_page_says_what_it_needs(browser: Any, serve: Serve, run: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(serve(run))
    assert "needs JavaScript" in page.locator("noscript").inner_text()
    context.close()
