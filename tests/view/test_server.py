"""The viewer's server: who may ask, what it answers, and that its numbers are the index's own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import ClientSession, CookieJar, DummyCookieJar, TCPConnector, web
from aiohttp.test_utils import TestServer

import rollforge as rf
from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.review.suspicion import ROWS_WITH_TWINS, score_sql
from rollforge.steps.metrics import differing_tasks
from rollforge.testing import Shape, healthy_run, sick_run
from rollforge.text_safety.visible import visible
from rollforge.view import ViewOptions, make_app, serve
from rollforge.view.book import MOST_ROWS, Book
from rollforge.view.dataset import DatasetBook
from rollforge.view.guard import Guard
from rollforge.view.opened import MOST_FIRST, PIECE
from rollforge.view.suspects import PointedLocation, PointingFinding
from rollforge.view.viewer_server import MOST_FLIPS, draw_overview
from tests.builders import make_rollout, write_rows

TOKEN = "a-token-for-tests"
PAGE = Path(rf.__file__).parent / "view" / "page"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view") / "run"
    healthy_run(Shape(tasks=40, samples=4), seed=3).write(folder)
    return folder


@pytest.fixture
async def site(run: Path) -> AsyncIterator[tuple[ClientSession, str]]:
    server = TestServer(make_app([Book(str(run))], Guard(TOKEN, port=1)))
    await server.start_server()
    async with ClientSession(
        connector=TCPConnector(force_close=True), cookie_jar=CookieJar(unsafe=True)
    ) as session:
        base = f"http://127.0.0.1:{server.port}"
        async with session.get(f"{base}/?token={TOKEN}") as answer:
            assert answer.status == 200
        yield session, base
    await server.close()


async def get(site: tuple[ClientSession, str], path: str, **query: Any) -> Any:
    session, base = site
    async with session.get(
        f"{base}/api/{path}", params={key: str(value) for key, value in query.items()}
    ) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_nothing_answers_without_the_token(site: tuple[ClientSession, str]) -> None:
    _, base = site
    async with ClientSession() as stranger:
        for path in ("/", "/page/app.js", "/api/runs", "/?token=wrong"):
            async with stranger.get(base + path) as answer:
                assert answer.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 400),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_other_sites_are_refused(
    site: tuple[ClientSession, str], headers: dict[str, str], status: int
) -> None:
    session, base = site
    async with session.get(f"{base}/api/runs", headers=headers) as answer:
        assert answer.status == status


async def test_a_cookie_that_is_no_text_is_a_wrong_token(site: tuple[ClientSession, str]) -> None:
    session, base = site
    (name,) = (cookie.key for cookie in session.cookie_jar)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: %s=\xff\r\n\r\n" % name.encode())
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_a_forwarded_port_is_fine(site: tuple[ClientSession, str]) -> None:
    session, base = site
    async with session.get(f"{base}/api/runs", headers={"Host": "localhost:9999"}) as answer:
        assert answer.status == 200


async def test_a_proxy_of_a_known_name_reaches_the_page(run: Path, tmp_path: Path) -> None:
    """A JupyterHub cuts its prefix off the path and passes on the browser's headers."""
    shutil.copytree(run, tmp_path / "run")
    guard = Guard(TOKEN, port=1, proxy_hosts=["Hub.example"])
    server = TestServer(make_app([Book(str(tmp_path / "run"))], guard))
    prefix = "/user/me/proxy/8801"

    async def forward(request: web.Request) -> web.Response:
        path = request.raw_path.removeprefix(prefix)
        sent = {"headers": {**request.headers, "Host": "hub.example"}, "data": await request.read()}
        async with outside.request(
            request.method, f"http://127.0.0.1:{server.port}{path}", allow_redirects=False, **sent
        ) as answer:
            kept = {
                name: answer.headers[name] for name in ("Location", "Set-Cookie") if name in answer.headers
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    app = web.Application()
    app.router.add_route("*", f"{prefix}/{{rest:.*}}", forward)
    hub = TestServer(app)
    await server.start_server()
    await hub.start_server()
    outside = ClientSession(cookie_jar=DummyCookieJar(), connector=TCPConnector(force_close=True))
    async with outside, ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser:
        base = f"http://127.0.0.1:{hub.port}{prefix}/"
        async with browser.get(f"{base}?token={TOKEN}") as answer:
            assert answer.status == 200 and str(answer.url) == base
        async with browser.get(f"{base}api/rollouts?run=0&count=1") as answer:
            assert answer.status == 200
        label = {"task": 0, "rollout": 0, "label": "agree", "reward": 1.0, "queue": "random"}
        headers = {"X-Rollforge": "1", "Origin": "https://hub.example"}
        async with browser.post(f"{base}api/label?run=0", json=label, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        async with outside.get(
            f"http://127.0.0.1:{server.port}/", headers={"Host": "evil.example"}
        ) as answer:
            assert answer.status == 400
            assert "--proxy-host" in await answer.text()
    await hub.close()
    await server.close()


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "text/plain", "X-Rollforge": "1"}, {"Content-Type": "application/json"}]
)
async def test_a_write_needs_json_and_a_header_that_no_form_can_send(
    site: tuple[ClientSession, str], headers: dict[str, str]
) -> None:
    session, base = site
    async with session.post(f"{base}/api/label?run=0", data=b"{}", headers=headers) as answer:
        assert answer.status == 403


async def test_every_answer_carries_the_strict_headers(site: tuple[ClientSession, str]) -> None:
    session, base = site
    for path in ("/", "/page/app.js", "/api/runs", "/api/nothing"):
        async with session.get(base + path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "trusted-types 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"


async def test_lists_are_those_of_the_index(site: tuple[ClientSession, str], run: Path) -> None:
    page = await get(
        site,
        "rollouts",
        run=0,
        where="reward = 1",
        sort="output_tokens desc",
        columns="reward,output_tokens",
        count=10,
    )
    with open_index(run) as index:
        expected = index.select(
            "SELECT row, output_tokens FROM rollouts WHERE reward = 1 ORDER BY output_tokens DESC, row"
        )
    assert page["total"] == expected.num_rows
    assert [row[0] for row in page["rows"]] == expected.column("row").to_pylist()[:10]
    assert page["columns"] == ["reward", "output_tokens"]


@pytest.mark.parametrize(
    ("where", "sort"),
    [("", ""), ("finish_reason = 'stop' and \"reward\" = 0", "output_tokens desc"), ("reward = 7", "task")],
)
async def test_the_command_beside_a_list_prints_the_same_rollouts(
    site: tuple[ClientSession, str], where: str, sort: str
) -> None:
    page = await get(site, "rollouts", run=0, where=where, sort=sort, columns="task,rollout", count=MOST_ROWS)
    line = page["command"].replace("rollforge", f"{sys.executable} -m rollforge", 1) + " --json"
    shell = await asyncio.create_subprocess_shell(line, stdout=asyncio.subprocess.PIPE)
    printed, _ = await shell.communicate()
    shown = [(one["task"], one["rollout"]) for one in json.loads(printed)["rollouts"]]
    assert shown == [(task, rollout) for _, task, rollout in page["rows"]]
    assert len(shown) == page["total"]


@pytest.mark.parametrize(
    "query",
    [
        {"where": "reward = (select 1 from read_csv('/etc/passwd'))"},
        {"where": "1=1); drop table rollouts; --"},
        {"where": "nosuchcolumn > 1"},
        {"sort": "reward; select 1"},
        {"start": "-1"},
        {"run": "7"},
        {"run": "../../etc"},
    ],
)
async def test_what_cannot_be_answered_is_refused_in_words(
    site: tuple[ClientSession, str], query: dict[str, str]
) -> None:
    session, base = site
    async with session.get(f"{base}/api/rollouts", params={"run": "0"} | query) as answer:
        assert answer.status in (400, 404)
        assert (await answer.text()).strip()


@pytest.mark.parametrize("name", ["..%2f..%2fserver.py", "server.py", "%2e%2e/book.py", "nothing.js"])
async def test_only_the_pages_own_files_are_served(site: tuple[ClientSession, str], name: str) -> None:
    session, base = site
    async with session.get(f"{base}/page/{name}") as answer:
        assert answer.status == 404


async def test_a_rollout_opens_with_its_turns_siblings_and_numbers(site: tuple[ClientSession, str]) -> None:
    one = await get(site, "rollout", run=0, row=0)
    assert {turn["kind"] for turn in one["turns"]} >= {"user", "assistant"}
    assert len(one["siblings"]) == 4
    assert one["facts"]["row"] == 0
    raw = await get(site, "raw", run=0, row=0)
    assert raw["text"].startswith("{")


async def test_a_long_text_comes_in_pieces(tmp_path: Path) -> None:
    text = "".join(f"{number:09d}\n" for number in range(40_000))
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, text=text)])
    book = Book(str(tmp_path / "run"))
    turn = next(turn for turn in book.open(0).turns if turn.kind == "assistant")
    assert turn.chars == len(text)
    whole = turn.text
    while len(whole) < len(text):
        whole += book.piece(0, 1, len(whole))
    assert whole == text
    book.close()


async def test_the_pieces_of_a_text_with_invisible_characters_are_the_whole_text(tmp_path: Path) -> None:
    text = "ä\u200b\U0001f600x" * 50_000
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0, text=text)])
    book = Book(str(tmp_path / "run"))
    opened = book.open(0)
    turn = next(place for place, one in enumerate(opened.turns) if one.kind == "assistant")
    head = opened.turns[turn]
    pieces = [head.text]
    for start in range(head.shown, head.chars, PIECE):
        pieces.append(book.piece(0, turn, start))
    assert "".join(pieces) == visible(text)
    line = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
    raw, start = [], 0
    while start < opened.raw_bytes:
        piece, start = book.raw(0, start)
        raw.append(piece)
    assert "".join(raw).rstrip("\n") == visible(line.decode()).rstrip("\n")
    book.close()


async def test_a_rollout_of_many_long_turns_opens_with_a_bounded_answer(tmp_path: Path) -> None:
    row = make_rollout(0, 0, 1.0, text="x")
    message = row["response"]["output"][0]
    row["response"]["output"] = [{**message, "content": [{"type": "output_text", "text": "y" * 50_000}]}] * 40
    write_rows(tmp_path / "run" / "rollouts.jsonl", [row])
    book = Book(str(tmp_path / "run"))
    turns = book.open(0).turns
    assert sum(len(turn.text) for turn in turns) <= MOST_FIRST
    assert turns[-1].chars == 50_000 and turns[-1].shown == 0
    assert book.piece(0, len(turns) - 1, 0) == "y" * 50_000
    book.close()


async def test_whole_numbers_that_a_browser_cannot_hold_are_texts(site: tuple[ClientSession, str]) -> None:
    facts = (await get(site, "rollout", run=0, row=0))["facts"]
    assert isinstance(facts["prompt_hash"], str) and isinstance(facts["task"], int)


async def test_means_of_groups_are_over_judged_samples_alone(tmp_path: Path) -> None:
    rows = [make_rollout(0, sample, reward, text="same") for sample, reward in enumerate((1.0, None, 0.0))]
    rows += [make_rollout(1, 0, None), make_rollout(1, 1, None)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    book = Book(str(tmp_path / "run"))
    _, groups = book.groups("hardest", 0, 10)
    assert [(one.task, one.mean, one.contradictions) for one in groups] == [(0, 0.5, 1), (1, None, 0)]
    book.close()


async def test_suspicious_rollouts_come_with_their_reason_and_are_kept(tmp_path: Path) -> None:
    rows = [make_rollout(task, sample, 1.0, text="same") for task in range(5) for sample in range(2)]
    rows[3]["reward"] = 0.0
    rows.append(make_rollout(9, 0, 1.0, text=""))
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    book = Book(str(tmp_path / "run"))
    total, found = book.suspicious(0, 10)
    assert found[0].why[0] == "the same answer earned another reward in this task"
    assert {(one.task, one.rollout) for one in found} >= {(1, 0), (1, 1), (9, 0)}
    kept = list((tmp_path / "run" / "rollouts_index").glob("suspicion-*.npy"))
    assert len(kept) == 1
    again = Book(str(tmp_path / "run"))
    assert again.suspicious(0, 10) == (total, found)
    book.close()
    again.close()


async def test_groups_show_one_answer_with_two_rewards_first(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, float(sample), text=f"answer {sample}")
        for task in range(4)
        for sample in range(2)
    ]
    rows += [make_rollout(7, 0, 1.0, text="twice"), make_rollout(7, 1, 0.0, text="twice")]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    book = Book(str(tmp_path / "run"))
    total, groups = book.groups("contradictions", 0, 10)
    assert total == 5
    assert groups[0].task == 7 and groups[0].twins == [8, 9]
    assert book.group(2, "contradictions") == (3, groups[3])
    book.close()


async def test_the_overview_has_the_numbers_of_metrics(site: tuple[ClientSession, str], run: Path) -> None:
    found = await get(site, "overview", run=0)
    metrics = rf.open_run(run).metrics()
    assert f"{metrics.counts.judged:,} judged of" in found["subtitle"]
    assert {finding["id"] for finding in found["findings"]} == {
        one.id for one in rf.open_run(run).check().findings
    }


async def test_a_run_that_grows_is_taken_in(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(task) for task in range(3)])
    book = Book(str(tmp_path / "run"))
    before = book.state()
    with path.open("ab") as file:
        file.write(
            path.read_bytes().splitlines()[0].replace(b'"_ng_task_index": 0', b'"_ng_task_index": 9') + b"\n"
        )
    assert book.state() != before
    book.refresh()
    assert len(book.index) == 4
    book.close()


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(UsageError, match="reached by other machines"):
        ViewOptions(runs=("x",), host="0.0.0.0").check()
    ViewOptions(runs=("x",), host="0.0.0.0", token="secret").check()


def test_the_pages_scripts_parse_no_markup_and_fetch_nothing_absolute() -> None:
    for path in PAGE.glob("*.js"):
        code = path.read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", code
        ), path.name
        assert not re.search(r"""fetch\(\s*["'`](/|http)""", code), path.name


def test_the_page_is_small() -> None:
    import gzip

    scripts = b"".join(path.read_bytes() for path in sorted(PAGE.glob("*.js")))
    assert len(gzip.compress(scripts)) < 60_000


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/q842iQAAAABJRU5ErkJggg=="
"""One pixel."""


def with_image(url: str) -> dict[str, Any]:
    row = make_rollout(0, 0, 1.0)
    row["responses_create_params"]["input"] = [
        {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    ]
    return row


async def test_an_image_is_served_by_what_it_is_and_svg_never(tmp_path: Path) -> None:
    svg = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
    disguised = "data:image/png;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
    remote = "https://example.com/picture.png"
    urls = [f"data:image/png;base64,{PNG}", svg, disguised, remote, "data:image/png;base64,???"]
    write_rows(
        tmp_path / "run" / "rollouts.jsonl",
        [with_image(url) | {"_ng_task_index": n} for n, url in enumerate(urls)],
    )
    book = Book(str(tmp_path / "run"))
    assert [list(book.open(row).images) for row in range(5)] == [["image/png"], [], [], [], []]
    assert book.image(0, 0)[0] == "image/png"
    with pytest.raises(UsageError, match="no image 1"):
        book.image(0, 1)
    book.close()


async def test_the_verdict_in_the_row_is_shown_beside_later_ones(tmp_path: Path) -> None:
    row = make_rollout(0, 0, 1.0) | {"words": 7, "_rf": {"verifier": "exact"}}
    write_rows(tmp_path / "run" / "rollouts.jsonl", [row, make_rollout(0, 1, None)])
    book = Book(str(tmp_path / "run"))
    (verdict,) = book.open(0).verdicts
    assert (verdict["verifier"], verdict["reward"], verdict["words"]) == ("exact", 1.0, 7)
    book.close()


async def test_a_later_verdict_has_the_names_of_its_fields_and_a_date(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_rows(run / "rollouts.jsonl", [make_rollout(0, 0, 1.0), make_rollout(0, 1, 1.0)])
    later = {"verifier": "math", "at": 1_700_000_000.5, "reward": 0.0, "Steps": 3, "extracted_answer": "7"}
    keys = [{"_ng_task_index": 0, "_ng_rollout_index": sample} for sample in (0, 1)]
    write_rows(run / "rollouts_verdicts.jsonl", [keys[0] | later, keys[1] | later | {"at": 1e300}])
    book = Book(str(run))
    first, other = (book.open(row).verdicts[-1] for row in (0, 1))
    assert list(first)[:2] == ["verifier", "reward"]
    assert first == {
        "verifier": "math", "reward": 0.0, "at": "2023-11-14 22:13:20 UTC", "Steps": 3, "extracted_answer": "7",
    }  # fmt: skip
    assert other["at"] == 1e300
    book.close()


async def test_tokens_between_calls_are_marked_as_not_trained_on(tmp_path: Path) -> None:
    row = make_rollout(0, 0, 1.0)
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}
    row["response"]["output"] = [
        call | {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x"}],
            "prompt_token_ids": [1, 2, 3, 8, 9],
            "generation_token_ids": [4],
            "generation_log_probs": [-0.25],
        },
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", [row, make_rollout(0, 1, 0.0)])
    book = Book(str(tmp_path / "run"))
    one = book.open(0)
    assert [(token.text, token.logprob, token.is_trained) for token in one.tokens] == [
        ("⟨3⟩", -0.5, True), ("⟨8⟩", None, False), ("⟨9⟩", None, False), ("⟨4⟩", -0.25, True),
    ]  # fmt: skip
    assert one.advantage == pytest.approx(0.5 / 0.5**0.5)
    assert book.open(1).advantage == pytest.approx(-0.5 / 0.5**0.5)
    book.close()


async def test_what_findings_point_at_is_suspicious_and_kept(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, 1.0, text=f"{task} {sample} is fine")
        for task in range(5)
        for sample in range(2)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    book = Book(str(tmp_path / "run"))
    assert book.suspicious(0, 10) == (0, [])
    book.suspects.take_findings(
        [
            PointingFinding(
                level="error", id="one", text="is odd", where=[PointedLocation(task=3, rollout=1)]
            ),
            PointingFinding(
                level="note",
                id="two",
                text="is odder",
                where=[PointedLocation(task=3), PointedLocation(task=2, first_line=1)],
            ),
        ]
    )
    expected = [(3, 1, ["one: is odd", "two: is odder"]), (3, 0, ["two: is odder"])]
    assert [(one.task, one.rollout, one.why) for one in book.suspicious(0, 10)[1]] == expected
    book.close()
    again = Book(str(tmp_path / "run"))
    assert [(one.task, one.rollout, one.why) for one in again.suspicious(0, 10)[1]] == expected
    again.close()


async def test_two_runs_are_compared_task_by_task(run: Path, tmp_path: Path) -> None:
    for name, rewards in (("a", (1.0, 0.0, 1.0)), ("b", (1.0, 1.0, 0.5))):
        rows = [make_rollout(task, 0, reward, prompt=f"task {task}") for task, reward in enumerate(rewards)]
        write_rows(tmp_path / name / "rollouts.jsonl", rows)
    with open_index(tmp_path / "a") as one, open_index(tmp_path / "b") as two:
        found = differing_tasks(one, two)
    assert [(task.task, task.value, task.against) for task in found] == [(1, 0.0, 1.0), (2, 1.0, 0.5)]


async def test_what_is_suspicious_is_what_show_finds(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, sample, reward, text=text)
        for task in range(3)
        for sample, (reward, text) in enumerate(
            [(1.0, "twice"), (0.0, "twice"), (None, "twice"), (1.0, ""), (1.0, "ok")]
        )
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    book = Book(str(tmp_path / "run"))
    _, listed = book.suspicious(0, 100)
    by_sql = book.index.select(
        f"SELECT row, {score_sql()} AS score FROM ({ROWS_WITH_TWINS}) WHERE score > 0 ORDER BY score DESC, row"
    ).to_pylist()
    assert [(one.row, one.score) for one in listed] == [(one["row"], one["score"]) for one in by_sql]
    assert listed[0].why[0] == "the same answer earned another reward in this task"
    book.close()


async def test_findings_select_the_rollouts_they_point_at(tmp_path: Path) -> None:
    sick_run("breaks-halfway", seed=2).write(tmp_path / "run")
    book = Book(str(tmp_path / "run"))
    drawn = json.loads(draw_overview(str(tmp_path / "run"), None))
    stretch = next(one for one in drawn["findings"] if one["where"] and one["where"][0]["first_line"])
    first, last = stretch["where"][0]["first_line"], stretch["where"][0]["last_line"]
    assert book.page([], stretch["condition"], "", 0, 1).total == last - first + 1
    for finding in drawn["findings"]:
        assert bool(finding["condition"]) == bool(finding["where"])
        if finding["condition"]:
            assert len(book.order(finding["condition"])) > 0
    book.close()


async def test_flips_of_two_verifiers_are_counted_judged_and_listed(tmp_path: Path) -> None:
    """Also hundreds of them: the list is a filter in an address."""
    run = tmp_path / "run"
    keys = [(1_000_000 + task, sample) for task in range(300) for sample in range(2)]
    write_rows(run / "rollouts.jsonl", [make_rollout(task, sample, 0.0) for task, sample in keys])
    rewards = {"strict": 0.0, "kind": 1.0, "odd": 0.25}
    write_rows(
        run / "rollouts_verdicts.jsonl",
        [
            {"_ng_task_index": task, "_ng_rollout_index": sample, "reward": reward, "verifier": name}
            for name, reward in rewards.items()
            for task, sample in keys
        ],
    )
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(ViewOptions(runs=(str(run),)), address.set_result))
    try:
        base, _, token = (await asyncio.wait_for(address, 60)).partition("?")
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
            await session.get(f"{base}?{token}")

            async def answer(path: str, **query: str) -> Any:
                async with session.get(f"{base}api/{path}", params={"run": "0"} | query) as one:
                    assert one.status == 200, await one.text()
                    return await one.json()

            tables = {one["b"]: one for one in (await answer("compare"))["flips"]}
            assert tables["kind"]["up"] == tables["odd"]["changed"] == 600
            assert tables["kind"]["verdict"].startswith("kind rewards more: kind − strict +1.000")
            assert "95 % interval" in tables["odd"]["verdict"]
            for name, kind in (("kind", "0→1"), ("odd", "changed")):
                found = await answer("flips", a="strict", b=name, kind=kind)
                page = await answer("rollouts", where=found["condition"])
                assert page["total"] == MOST_FLIPS
            nothing = await answer("flips", a="strict", b="kind", kind="1→0")
            assert (await answer("rollouts", where=nothing["condition"]))["total"] == 0
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _run_of(folder: Path, seed: int) -> Path:
    healthy_run(Shape(tasks=30, samples=4), seed=seed).write(folder)
    return folder


def test_siblings_of_a_row_are_those_of_its_own_run(tmp_path: Path) -> None:
    """Two runs have tasks of the same numbers, in folders of the same name."""
    runs = [_run_of(tmp_path / "one" / "math", 3), _run_of(tmp_path / "two" / "math", 4)]
    rf.open_run(runs).prepare("kto", to="trl", out=tmp_path / "kto", force=True)
    books = [Book(str(run)) for run in runs]
    dataset = DatasetBook(str(tmp_path / "kto"))
    lineage = pq.read_table(tmp_path / "kto" / "lineage.parquet").to_pylist()
    for number in (0, len(lineage) - 1):
        opened = dataset.open(number, books)
        origin = opened.row.origins[0]
        own = [one for one in lineage if one["run"] == origin.run and one["task"] == origin.task]
        assert {sibling.run for sibling in opened.siblings} == {[str(run) for run in runs].index(origin.run)}
        used = [name for sibling in opened.siblings for _, name in sibling.used_in]
        assert sorted(used) == sorted(f"{one['file']}:{one['line']}" for one in own)
    for book in books:
        book.close()


def test_all_samples_behind_a_prompt_are_in_its_row(tmp_path: Path) -> None:
    run = _run_of(tmp_path / "run", 3)
    rf.open_run(run).prepare("grpo", to="trl", out=tmp_path / "grpo", force=True)
    book, dataset = Book(str(run)), DatasetBook(str(tmp_path / "grpo"))
    opened = dataset.open(0, [book])
    kept = [one for one in opened.siblings if one.fate is None]
    assert len(kept) > 1
    assert all(one.used_in == [(0, "train.jsonl:1")] for one in kept)
    book.close()


async def test_an_address_that_cannot_be_listened_on_has_a_message(run: Path) -> None:
    with pytest.raises(UsageError, match="cannot listen on localhost:"):
        async with (
            asyncio.timeout(60),
            TestServer(make_app([], Guard(TOKEN, port=1)), host="localhost") as taken,
        ):
            await serve(ViewOptions(runs=(str(run),), host="localhost", port=taken.port or 0), print)


async def test_a_damaged_manifest_is_an_answer_and_no_traceback(
    site: tuple[ClientSession, str], run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session, base = site
    manifest = run / "rollouts_run.json"
    before = manifest.read_bytes()
    manifest.write_bytes(b"[" * 5000)
    try:
        async with session.get(f"{base}/api/status", params={"run": "0"}) as answer:
            assert answer.status == 400 and "rollouts_run.json" in await answer.text()
    finally:
        manifest.write_bytes(before)
    assert not caplog.records
