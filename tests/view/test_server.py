"""The viewer's server: who may ask, what it answers, and that its numbers are the index's own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, CookieJar, TCPConnector
from aiohttp.test_utils import TestServer

import rollforge as rf
from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.testing import Shape, healthy_run
from rollforge.view import ViewOptions, make_app
from rollforge.view.book import Book
from rollforge.view.guard import Guard
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
    ],
)
async def test_other_sites_are_refused(
    site: tuple[ClientSession, str], headers: dict[str, str], status: int
) -> None:
    session, base = site
    async with session.get(f"{base}/api/runs", headers=headers) as answer:
        assert answer.status == status


async def test_a_forwarded_port_is_fine(site: tuple[ClientSession, str]) -> None:
    session, base = site
    async with session.get(f"{base}/api/runs", headers={"Host": "localhost:9999"}) as answer:
        assert answer.status == 200


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
    assert groups[0]["task"] == 7
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
