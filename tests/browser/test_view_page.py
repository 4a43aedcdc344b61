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
from rollforge.review.labels import LabelFile
from rollforge.store import RunFiles
from rollforge.testing import Shape, healthy_run, sick_run
from rollforge.text_safety.visible import visible
from tests.browser.conftest import Watch, serious
from tests.builders import make_rollout, write_rows
from tests.hostile_texts import MARK, NAMES, TEXTS

Serve = Callable[..., str]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/q842iQAAAABJRU5ErkJggg=="
"""One pixel."""


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
        process.communicate(timeout=20)


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

    press("x")  # mark, and compare with a sibling
    press("J")
    until(page, "old => document.querySelector('.reader h2').innerText !== old", arg=sample)
    press("x")
    until(page, "document.querySelector('.reader').innerText.includes('Two rollouts')")

    press("/")  # filter, with completion of a column's name
    page.keyboard.type("rewa")
    page.wait_for_selector("[role=listbox] [role=option]")
    press("Tab")
    assert page.locator("#filter").input_value() == "reward"
    page.keyboard.type(" = 1")
    press("Enter")
    until(page, "document.getElementById('say').innerText.includes('rollouts')")
    until(page, "location.hash.includes('where=reward')")
    page.wait_for_selector(".row .chip.high")
    assert page.locator(".row .chip.low").count() == 0
    press("/")  # again: another filter takes its place
    page.keyboard.type("reward = 1.0")
    press("Enter")
    until(page, "document.getElementById('filter').value === 'reward = 1.0'")
    page.wait_for_selector(".row .chip.high")

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
    opened = rf.open_run(run)
    metrics, profile, report = opened.metrics(), opened.profile().summary, opened.check()
    page.goto(serve(run))
    page.wait_for_selector("figure figcaption")
    tables = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('figure')].map(one => [one.querySelector('h3').innerText, "
        "[...one.querySelectorAll('tbody tr')].map(row => [...row.children].map(cell => cell.textContent))]))"
    )
    text = page.locator("main").inner_text()
    mean = metrics.fields["reward"].mean
    assert mean is not None and f"mean {mean:.3f}" in text
    assert (
        f"{metrics.counts.judged:,} judged of {metrics.counts.expected or metrics.counts.finished:,}" in text
    )
    assert [row[1] for row in tables["Reward"]] == [f"{one:,}" for one in metrics.histogram.counts] + [
        f"{metrics.counts.unjudged:,}"
    ]
    at_k = {row[0]: row[1] for row in tables["Samples per task"]}
    for name, one in metrics.at_k.items():
        if name in at_k and one.value is not None:
            assert float(at_k[name]) == pytest.approx(one.value, abs=6e-4), name
    assert {"pass@1", "pass@4", "majority@4"} <= set(at_k)
    bands = {row[0]: row[1] for row in tables["Difficulty"]}
    assert {name: f"{count:,}" for name, count in profile.bands.items()}.items() <= bands.items()
    for name, one in report.recipes.items():
        assert one.reason in text and name in text
    # A bar is a link to its rollouts: as many as it counts.
    for heading in ("Reward", "Difficulty"):
        page.keyboard.press("1")
        page.wait_for_selector("svg a rect")
        bar = page.locator("figure", has_text=heading).first.locator("svg a").first
        said = bar.get_attribute("aria-label")
        bar.click()
        counted = int(re.search(r": ([\d,]+) ", said)[1].replace(",", ""))
        rollouts = counted if heading == "Reward" else 4 * counted  # four samples a task
        until(
            page,
            "count => document.querySelector('.list')?.getAttribute('aria-rowcount') === count",
            str(rollouts),
        )
    page.keyboard.press("5")
    page.wait_for_selector(".finding")
    text = page.locator("main").inner_text()
    assert page.locator(".finding").count() == len(report.findings)
    for finding in report.findings:
        assert finding.text in text and finding.id in text
    page.goto(f"{page.url.split('#')[0]}#page=groups&sort=hardest")
    until(page, "document.querySelectorAll('.row .cell').length > 20")
    first = page.locator(".row").first.locator(".cell").all_inner_texts()
    hardest = profile.bands["never solved"]
    assert (first[1] == "0") == (hardest > 0)


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


def test_scrolling_makes_few_elements_and_few_questions(page: Any, serve: Serve, tmp_path: Path) -> None:
    """What a frame costs, counted: time depends on the machine, which `benchmarks look` measures."""
    rows = [make_rollout(task, 0, float(task % 2)) for task in range(20_000)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    address = serve(tmp_path / "run")
    page.goto(address)
    page.goto(f"{address.split('?')[0]}#page=rollouts")
    page.wait_for_selector(".row .chip")
    held: list[Any] = []  # questions that get no answer, so that their number does not depend on speed
    page.route("**/api/rollouts*", lambda route: held.append(route))
    counts = page.evaluate(
        """async () => {
          const list = document.querySelector('.list');
          const made = [];
          let fresh = 0;
          const known = new Set(list.querySelectorAll('.row'));
          new MutationObserver((changes) => changes.forEach((one) => one.addedNodes.forEach((node) => {
            if (!known.has(node)) { known.add(node); fresh += 1; }
          }))).observe(list.querySelector('.rows'), { childList: true });
          const scroll = (by, frames) => new Promise((done) => {
            const step = (left) => {
              made.push(fresh);
              fresh = 0;
              list.scrollTop += by;
              if (left) requestAnimationFrame(() => step(left - 1)); else done();
            };
            requestAnimationFrame(() => step(frames));
          });
          await scroll(78, 60);
          const slow = made.splice(0);
          await scroll(4000, 60);
          slow.sort((a, b) => a - b);
          const rows = list.querySelectorAll('.row').length;
          return { slow: slow[Math.floor(slow.length / 2)], most: slow.at(-1), fast: Math.max(...made), rows };
        }"""
    )
    assert counts["rows"] <= 60
    assert counts["slow"] <= 6, "three rows further, three new rows"
    assert counts["most"] <= counts["rows"], "a page that arrives fills the rows that were blank"
    assert counts["fast"] <= 2 * counts["rows"]
    assert 1 <= len(held) <= 2, "who scrolls past a page does not ask for it"
    for question in [*held]:
        question.continue_()
    page.unroute("**/api/rollouts*")
    until(page, "() => !document.querySelector('.row.waiting')")


def test_a_link_to_a_group_opens_its_two_samples(page: Any, serve: Serve, tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, float(sample % 2), text=f"answer {sample}")
        for task in range(6)
        for sample in range(3)
    ]
    rows += [make_rollout(6, 0, 1.0, text="twice"), make_rollout(6, 1, 0.0, text="twice")]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    address = serve(tmp_path / "run")
    page.goto(address)
    page.goto(f"{address.split('?')[0]}#page=groups")
    page.wait_for_selector(".row .cell")
    page.keyboard.press("j")
    until(page, "document.querySelector('.reader')?.innerText.includes('One answer, two rewards.')")
    link = page.evaluate("location.href")
    assert "task=6" in link
    page.keyboard.press("j")
    until(page, "!location.href.includes('task=6')")
    page.goto(address)
    page.goto(link)
    until(page, "document.querySelector('.reader h2')?.innerText === 'task 6'")
    assert page.locator(".pair section").count() == 2
    assert chosen(page).startswith("task 6")


@pytest.mark.parametrize("width", [390, 800, 1300])
def test_every_page_fits_its_width(page: Any, serve: Serve, run: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 850})
    page.goto(serve(run))
    page.wait_for_selector(".verdict")
    for name in ("overview", "rollouts", "suspicious", "groups", "findings", "compare", "label", "live"):
        page.goto(f"{page.url.split('#')[0]}#page={name}")
        until(page, "name => document.title.startsWith(name)", arg=name)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_no_table_is_squeezed_when_a_page_is_longer_than_the_window(
    page: Any, serve: Serve, run: Path
) -> None:
    page.set_viewport_size({"width": 1200, "height": 400})
    page.goto(serve(run, run))
    page.wait_for_selector(".verdict")
    for name in ("compare", "live", "overview"):
        page.goto(f"{page.url.split('#')[0]}#page={name}")
        until(page, "name => document.title.startsWith(name)", arg=name)
        page.wait_for_selector(".page > div table", state="attached")
        squeezed = "[...document.querySelectorAll('.page > .scroll')].filter((one) => one.clientHeight < one.scrollHeight).length"
        assert page.evaluate(squeezed) == 0, name


def test_without_script_the_page_says_what_it_needs(browser: Any, serve: Serve, run: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(serve(run))
    assert "needs JavaScript" in page.locator("noscript").inner_text()
    context.close()


def test_images_and_tokens_are_shown_on_request(page: Any, serve: Serve, tmp_path: Path) -> None:
    row = make_rollout(0, 0, 1.0)
    row["responses_create_params"]["input"] = [
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]}
    ]
    part = row["response"]["output"][-1]["content"][0]
    part["logprobs"] = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -4.0}]
    write_rows(tmp_path / "run" / "rollouts.jsonl", [row, make_rollout(0, 1, 0.0)])
    watch = Watch(page)
    page.goto(serve(tmp_path / "run"))
    page.wait_for_selector(".verdict")
    page.goto(f"{page.url.split('#')[0]}#page=rollouts&row=0")
    page.wait_for_selector(".reader h2")
    assert not [url for url in watch.requests if "api/image" in url], "nothing is fetched unasked"
    page.get_by_role("button", name="show image 1").click()
    until(page, "document.querySelector('.reader img')?.naturalWidth === 1")
    page.evaluate("document.querySelector('details.tokens').open = true")
    assert page.locator(".token.p0").inner_text() == "a"
    assert page.locator(".token.p7").inner_text() == "b"
    page.select_option("details.tokens select", "advantage")
    assert page.locator(".token.advantage-up").count() == 2


def test_a_rollout_of_32_mb_opens_with_its_first_text(page: Any, serve: Serve, tmp_path: Path) -> None:
    """The time is printed by the benchmark; here only that no large piece is fetched or laid out."""
    text = "a line of some length that a tool wrote, again and again\n" * (32 << 20 >> 6)
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0, text=text)])
    address = serve(tmp_path / "run")
    page.goto(address)
    page.wait_for_selector("#bar a")
    sizes: list[int] = []
    page.on(
        "response", lambda answer: sizes.append(len(answer.body())) if "api/rollout" in answer.url else None
    )
    page.goto(f"{address.split('?')[0]}#page=rollouts&row=0")
    page.wait_for_selector("details.assistant .block", timeout=30_000)
    assert max(sizes) < 400_000
    assert "characters left" in page.locator("details.assistant").inner_text()


def test_an_empty_list_says_why(page: Any, serve: Serve, run: Path) -> None:
    address = serve(run)
    page.goto(address)
    page.wait_for_selector(".verdict", timeout=60_000)
    page.goto(f"{address.split('?')[0]}#page=rollouts&where=no_such_column > 1")
    until(page, "document.querySelector('.rows p')?.innerText.includes('no_such_column')")
    page.set_viewport_size({"width": 900, "height": 700})
    page.wait_for_timeout(300)
    assert "no_such_column" in page.locator(".rows").inner_text()


def test_a_blind_label_hides_all_that_tells_the_verdict(page: Any, serve: Serve, tmp_path: Path) -> None:
    """The verifier's other numbers and the raw line say as much as the reward."""
    rows = [make_rollout(task, 0, 0.731, accuracy=0.417) for task in range(3)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    address = serve(tmp_path / "run")
    page.goto(address)
    page.goto(address.split("?")[0] + "#page=label&blind=yes")
    page.wait_for_selector(".reader .turn")
    page.keyboard.press(".")
    page.wait_for_selector("#say:has-text('hidden')")
    assert "the answer is 42" in page.inner_text(".reader")
    for number in ("731", "417"):
        assert number not in page.evaluate("document.body.textContent")
    page.goto(address.split("?")[0] + "#page=label")
    page.wait_for_selector(".reader:has-text('0.417')")


def test_a_sibling_labelled_in_a_queue_is_not_counted_as_drawn(page: Any, serve: Serve, run: Path) -> None:
    address = serve(run)
    page.goto(address)
    page.goto(address.split("?")[0] + "#page=label")
    page.wait_for_selector(".reader h2")
    drawn = page.locator(".reader h2").inner_text()
    page.keyboard.press("J")
    until(page, "old => document.querySelector('.reader h2').innerText !== old", arg=drawn)
    page.keyboard.press("a")
    until(page, "drawn => document.querySelector('.reader h2').innerText === drawn", arg=drawn)
    page.keyboard.press("d")
    until(page, "drawn => document.querySelector('.reader h2').innerText !== drawn", arg=drawn)
    assert [(one.label, one.queue) for one in LabelFile(RunFiles(run)).read()] == [
        ("agree", "free"),
        ("disagree", "random"),
    ]


@pytest.mark.parametrize("width", [375, 1300])
def test_strips_names_and_reasons_have_room(page: Any, serve: Serve, tmp_path: Path, width: int) -> None:
    rows = [
        make_rollout(task, sample, float(sample % 2), text="") for task in range(120) for sample in range(8)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    address = serve(tmp_path / "run")
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address)
    page.goto(address.split("?")[0] + "#page=groups")
    page.wait_for_selector(".row .strip i")
    cut = "(one) => one.scrollWidth > one.clientWidth"
    assert not page.eval_on_selector(".row .strip", cut)
    page.goto(address.split("?")[0] + "#page=suspicious")
    page.wait_for_selector(".row .cell:has-text('task')")
    assert not any(page.eval_on_selector_all(".row .cell:first-child", f"(all) => all.map({cut})"))


def test_flips_are_read_beside_a_run_that_cannot_be_compared(page: Any, serve: Serve, tmp_path: Path) -> None:
    for name, first in (("one", 0), ("two", 1000)):
        rows = [make_rollout(first + task, 0, 0.0, prompt=f"{name} {task}") for task in range(30)]
        write_rows(tmp_path / name / "rollouts.jsonl", rows)
    write_rows(
        tmp_path / "one" / "rollouts_verdicts.jsonl",
        [
            {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": reward, "verifier": verifier}
            for verifier, reward in (("strict", 0.0), ("kind", 1.0))
            for task in range(30)
        ],
    )
    page.goto(serve(tmp_path / "one", tmp_path / "two"))
    page.wait_for_selector(".verdict")
    page.get_by_role("link", name="read the rollouts on which they differ").click()
    until(page, "document.querySelector('main').innerText.includes('share no task')")
    assert "kind rewards more" in page.locator("main").inner_text()
    page.locator("button", has_text="30 – read them").click()
    until(page, "document.getElementById('say').innerText === '30 rollouts'")


def test_rows_that_arrive_while_the_page_loads_are_shown(page: Any, serve: Serve, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(5)])
    address = serve(tmp_path / "run")

    def grow(route: Any) -> None:
        if len(path.read_bytes().splitlines()) == 5:
            with path.open("a") as file:
                file.write(json.dumps(make_rollout(5, 0, 0.0)) + "\n")
        route.continue_()

    page.route("**/api/live*", grow)  # the first question whether the run has grown
    page.goto(address)
    page.goto(address.split("?")[0] + "#page=rollouts")
    until(page, "document.querySelector('.list')?.getAttribute('aria-rowcount') === '6'")


def test_findings_lead_to_what_they_point_at(page: Any, serve: Serve, tmp_path: Path) -> None:
    sick_run("breaks-halfway", seed=2).write(tmp_path / "run")
    finding = next(one for one in rf.open_run(tmp_path / "run").check().findings if one.id == "stuck-rewards")
    first, last = finding.where[0]["first_line"], finding.where[0]["last_line"]
    assert isinstance(first, int) and isinstance(last, int)
    page.goto(serve(tmp_path / "run"))
    page.wait_for_selector(".verdict")
    page.keyboard.press("5")
    page.wait_for_selector(".finding")
    block = page.locator(".finding", has_text="stuck-rewards")
    assert block.locator("code").inner_text().startswith("rollforge ")
    block.locator("a").click()
    until(
        page,
        "count => document.getElementById('say').innerText === count",
        arg=f"{last - first + 1:,} rollouts",
    )
