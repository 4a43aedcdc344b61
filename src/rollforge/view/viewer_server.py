"""The viewer's server: routes, and one query thread with a deadline. Clients can only pass numbers and filters."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from importlib import resources
from multiprocessing import get_context
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from rollforge.assembly.reports import flips_of, run_inputs
from rollforge.charts import chart_style
from rollforge.errors import RollforgeError, UsageError
from rollforge.index import open_index
from rollforge.review.labels import Label, LabelFile, label_rates, labelled
from rollforge.runtime.typed_decoding import decode_json
from rollforge.runtime.web_guard import is_loopback, quiet_logger
from rollforge.steps.metrics import compare_runs, differing_tasks
from rollforge.steps.report import flip_verdict, is_dataset, run_figures
from rollforge.steps.status import read_status
from rollforge.steps.verify import flip_keys
from rollforge.store.reading import UNREADABLE
from rollforge.view.book import Book
from rollforge.view.dataset import DatasetBook, manifest_facts
from rollforge.view.guard import Guard
from rollforge.view.suspects import PointingFinding

DEADLINE_S = 20.0
"""Time limit of one query; then it is cancelled and the page shows that."""

PAGE_FILES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MOST_BODY = 64 << 10
MOST_LINE = 64 << 10
"""Longest request line in bytes: a filter may name hundreds of rollouts."""
MOST_FLIPS = 500
"""Most flips in a list to read."""

T = TypeVar("T")


class ViewOptions(Struct, frozen=True, kw_only=True):
    """Options for serving the viewer."""

    runs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    token: str | None = None
    verifier: str | None = None
    proxy_hosts: tuple[str, ...] = ()
    """Names under which a proxy serves this page to browsers."""

    def check(self) -> None:
        """Refuse an address reachable from other machines without a user-chosen token."""
        if not self.runs:
            raise UsageError("which run?", hint="for example: rollforge view runs/first")
        if not is_loopback(self.host) and not self.token:
            raise UsageError(
                f"{self.host} can be reached by other machines",
                hint="keep the default and use ssh -L, or give a secret of your own: --token-env NAME",
            )


class Server:
    """Request handlers of one viewer."""

    def __init__(self, books: Sequence[Book], datasets: Sequence[DatasetBook] = ()) -> None:
        self._books = list(books)
        self._datasets = list(datasets)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollforge-view")
        self._labels = [LabelFile(book.files) for book in books]
        self._figures: dict[int, tuple[str, bytes]] = {}
        self._drawing = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """All routes of the server."""
        return [
            web.get("/", self.page),
            web.get("/page/{name}", self.asset),
            web.get("/api/runs", self.runs),
            web.get("/api/rollouts", self.rollouts),
            web.get("/api/place", self.position),
            web.get("/api/rollout", self.rollout),
            web.get("/api/piece", self.piece),
            web.get("/api/raw", self.raw),
            web.get("/api/image", self.image),
            web.get("/api/suspicious", self.suspicious),
            web.get("/api/groups", self.groups),
            web.get("/api/group", self.group),
            web.get("/api/overview", self.overview),
            web.get("/api/compare", self.compare),
            web.get("/api/flips", self.flips),
            web.get("/api/dataset", self.dataset),
            web.get("/api/dataset-row", self.dataset_row),
            web.get("/api/status", self.status),
            web.get("/api/labels", self.labels),
            web.get("/api/queue", self.queue),
            web.get("/api/live", self.live),
            web.post("/api/label", self.label),
        ]

    async def close(self, _: web.Application) -> None:
        """Close all open runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for book in self._books:
            book.close()

    # The page

    async def page(self, _: web.Request) -> web.Response:
        """The HTML page."""
        return _asset("index.html")

    async def asset(self, request: web.Request) -> web.Response:
        """A script or style of the page, from the package's own folder."""
        return _asset(request.match_info["name"])

    # Data

    async def runs(self, _: web.Request) -> web.Response:
        """The open runs."""
        runs = [
            {"name": book.name, "rollouts": len(book.index), "columns": await self._ask(book, book.columns)}
            for book in self._books
        ]
        return _json({"runs": runs, "datasets": [manifest_facts(one) for one in self._datasets]})

    async def rollouts(self, request: web.Request) -> web.Response:
        """A part of a list."""
        book = self._book(request)
        columns = [name for name in request.query.get("columns", "").split(",") if name]
        where, sort = request.query.get("where", ""), request.query.get("sort", "")
        start, count = _number(request, "start"), _number(request, "count", 100)
        return _json(await self._ask(book, lambda: book.page(columns, where, sort, start, count)))

    async def position(self, request: web.Request) -> web.Response:
        """The position of a row in a list."""
        book, row = self._book(request), _number(request, "row")
        where, sort = request.query.get("where", ""), request.query.get("sort", "")
        return _json({"place": await self._ask(book, lambda: book.position(row, where, sort))})

    async def rollout(self, request: web.Request) -> web.Response:
        """One opened rollout."""
        book, row = self._book(request), _number(request, "row")
        return _json(await self._ask(book, lambda: book.open(row)))

    async def piece(self, request: web.Request) -> web.Response:
        """A further piece of a long turn."""
        book, row = self._book(request), _number(request, "row")
        turn, start = _number(request, "turn"), _number(request, "start")
        return _json({"text": await self._ask(book, lambda: book.piece(row, turn, start))})

    async def raw(self, request: web.Request) -> web.Response:
        """The unchanged line."""
        book, row, start = self._book(request), _number(request, "row"), _number(request, "start")
        text, following = await self._ask(book, lambda: book.raw(row, start))
        return _json({"text": text, "next": following})

    async def image(self, request: web.Request) -> web.Response:
        """One image of a rollout, in a format that cannot contain scripts."""
        book, row, number = self._book(request), _number(request, "row"), _number(request, "number")
        kind, data = await self._ask(book, lambda: book.image(row, number))
        return web.Response(body=data, content_type=kind)

    async def suspicious(self, request: web.Request) -> web.Response:
        """Suspicious rollouts, most suspicious first."""
        book, start, count = self._book(request), _number(request, "start"), _number(request, "count", 100)
        total, rows = await self._ask(book, lambda: book.suspicious(start, count))
        return _json({"total": total, "rows": rows, "has_findings": book.suspects.has_findings})

    async def groups(self, request: web.Request) -> web.Response:
        """Tasks with their samples."""
        book, sort = self._book(request), request.query.get("sort", "hardest")
        start, count = _number(request, "start"), _number(request, "count", 100)
        total, groups = await self._ask(book, lambda: book.groups(sort, start, count))
        return _json({"total": total, "groups": groups})

    async def group(self, request: web.Request) -> web.Response:
        """One task with its samples, and its position in the order."""
        book, sort = self._book(request), request.query.get("sort", "hardest")
        task = _number(request, "task")
        position, group = await self._ask(book, lambda: book.group(task, sort))
        return _json({"place": position, "group": group})

    async def overview(self, request: web.Request) -> web.Response:
        """Verdict, findings and charts of the report, computed once per state of the run.

        For a large run this takes seconds and hundreds of megabytes, so a child process computes them.
        """
        number, book = _number(request, "run"), self._book(request)
        state = book.state()
        async with self._drawing:
            if self._figures.get(number, ("", b""))[0] != state:
                drawn = await self._draw(book)
                findings = decode_json(drawn, _Drawn).findings
                await self._ask(book, lambda: book.suspects.take_findings(findings))
                self._figures[number] = state, drawn
        return web.Response(body=self._figures[number][1], content_type="application/json")

    async def compare(self, request: web.Request) -> web.Response:
        """Comparison of two runs, or of two verifiers."""
        book = self._book(request)
        if "with" in request.query:
            other = self._book(request, "with")

            def both() -> dict[str, Any]:
                comparison = msgspec.to_builtins(compare_runs(book.index, other.index))
                return {**comparison, "differing": differing_tasks(book.index, other.index)}

            return _json(await self._ask(book, both, deadline_s=10 * DEADLINE_S))
        tables = await self._ask(book, lambda: flips_of(book.files), deadline_s=10 * DEADLINE_S)
        return _json(
            {"flips": [{**msgspec.to_builtins(one), "verdict": flip_verdict(one)} for one in tables]}
        )

    async def flips(self, request: web.Request) -> web.Response:
        """The condition that selects the rollouts on which two verifiers differ, up to `MOST_FLIPS` of them."""
        book = self._book(request)
        a, b, kind = (request.query.get(name, "") for name in ("a", "b", "kind"))
        keys = await self._ask(book, lambda: flip_keys(book.files.rollouts, a, b, kind))
        listed = ", ".join(f"({task}, {rollout})" for task, rollout in keys[:MOST_FLIPS])
        return _json({"condition": f"(task, rollout) IN ({listed})" if listed else "false"})

    async def dataset(self, request: web.Request) -> web.Response:
        """Rows of a dataset."""
        opened, start, count = (
            self._dataset(request),
            _number(request, "start"),
            _number(request, "count", 100),
        )
        total, rows = await self._ask(None, lambda: opened.page(start, count))
        return _json({"total": total, "rows": rows})

    async def dataset_row(self, request: web.Request) -> web.Response:
        """One dataset row with the rollouts behind it and their siblings."""
        dataset, row = self._dataset(request), _number(request, "row")
        return _json(await self._ask(None, lambda: dataset.open(row, self._books)))

    def _dataset(self, request: web.Request) -> DatasetBook:
        number = _number(request, "dataset")
        if not 0 <= number < len(self._datasets):
            raise web.HTTPNotFound(reason=f"there is no dataset {number}")
        return self._datasets[number]

    async def status(self, request: web.Request) -> web.Response:
        """Progress of a run."""
        book = self._book(request)
        return _json(await asyncio.to_thread(read_status, book.files.rollouts))

    async def live(self, request: web.Request) -> web.Response:
        """A small value that changes with the run; appended rows are read first."""
        book = self._book(request)
        tag = f'"{book.state()}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        await self._ask(book, book.refresh, deadline_s=10 * DEADLINE_S)
        return _json({"state": tag, "rollouts": len(book.index)}, ETag=tag)

    # Labels

    async def labels(self, request: web.Request) -> web.Response:
        """The labels of a run, newest per rollout."""
        number, book = _number(request, "run"), self._book(request)
        labels = await asyncio.to_thread(self._labels[number].newest)
        return _json(
            {"labels": labels, "rates": await self._ask(book, lambda: label_rates(book.index, labels))}
        )

    async def queue(self, request: web.Request) -> web.Response:
        """The next rollouts to label: random ones measure the verifier, suspicious ones reveal bugs."""
        number, book = _number(request, "run"), self._book(request)
        kind, seed = request.query.get("kind", "random"), _number(request, "seed")
        labels = await asyncio.to_thread(self._labels[number].newest)
        rows = await self._ask(
            book,
            lambda: book.queue(kind, seed=seed, done=labelled(book.index, labels, kind), count=50),
        )
        return _json({"rows": rows})

    async def label(self, request: web.Request) -> web.Response:
        """Write one label durably."""
        number = _number(request, "run")
        self._book(request)
        try:
            label = decode_json(await request.read(), Label)
        except UNREADABLE as error:
            return web.Response(status=400, text=f"not a label: {error}\n")
        try:
            await asyncio.to_thread(self._labels[number].add, label)
        except OSError as error:
            raise web.HTTPServiceUnavailable(
                reason=f"the label is not written: {error.strerror or type(error).__name__}"
            ) from error
        return _json({"ok": True})

    # Plumbing

    async def _draw(self, book: Book) -> bytes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return await asyncio.get_running_loop().run_in_executor(
                pool, draw_overview, book.path, book.verifier
            )

    def _book(self, request: web.Request, name: str = "run") -> Book:
        number = _number(request, name)
        if not 0 <= number < len(self._books):
            raise web.HTTPNotFound(reason=f"there is no run {number}")
        return self._books[number]

    async def _ask(
        self, book: Book | None, question: Callable[[], T], *, deadline_s: float = DEADLINE_S
    ) -> T:
        """Answer on the query thread. A query that takes too long is cancelled, so that later ones can run."""
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._thread, question)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), deadline_s)
        except TimeoutError:
            if book is not None:
                book.interrupt()
            await asyncio.wait([answer])
            answer.exception()
            raise web.HTTPServiceUnavailable(
                reason=f"it took longer than {deadline_s:g} s and was stopped"
            ) from None
        except RollforgeError as error:
            raise web.HTTPBadRequest(reason=_one_line(str(error))) from error


class _Drawn(Struct, kw_only=True):
    """The fields of an overview that the server itself reads."""

    findings: list[PointingFinding] = []


def draw_overview(path: str, verifier: str | None) -> bytes:
    """The charts and findings of a run as JSON."""
    with open_index(path, verifier=verifier) as index:
        return msgspec.json.encode(run_figures(index, run_inputs(index, verifier=verifier)))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]


def _number(request: web.Request, name: str, default: int = 0) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal() or len(text) > 12:
        raise web.HTTPBadRequest(reason=f"{name} must be a whole number")
    return int(text)


def _json(value: Any, **headers: str) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)


def _asset(name: str) -> web.Response:
    suffix = name[name.rfind(".") :]
    if suffix not in PAGE_FILES:
        raise web.HTTPNotFound(reason="there is no such file")
    if name == "charts.css":
        return web.Response(text=chart_style(), content_type="text/css")
    folder = resources.files("rollforge.view").joinpath("page")
    if name not in {file.name for file in folder.iterdir()}:
        raise web.HTTPNotFound(reason="there is no such file")
    return web.Response(
        body=folder.joinpath(name).read_bytes(), content_type=PAGE_FILES[suffix], charset="utf-8"
    )


def make_app(books: Sequence[Book], guard: Guard, datasets: Sequence[DatasetBook] = ()) -> web.Application:
    """The aiohttp application; the caller has opened the books."""
    server = Server(books, datasets)
    app = web.Application(middlewares=[guard.check], client_max_size=MOST_BODY)
    app.add_routes(server.routes())
    app.on_cleanup.append(server.close)
    return app


async def serve(options: ViewOptions, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; `ready` receives the address with its token once the port is open."""
    options.check()
    books: list[Book] = []
    with ExitStack() as opened:  # closes the runs when one of them is refused; afterwards the server does
        for path in (path for path in options.runs if not is_dataset(path)):
            books.append(Book(path, verifier=options.verifier))
            opened.callback(books[-1].close)
            books[-1].index.refuse_tasks()
        datasets = [DatasetBook(path) for path in options.runs if is_dataset(path)]
        opened.pop_all()
    token = options.token or secrets.token_urlsafe(24)
    guard = Guard(
        token, port=options.port, is_loopback=is_loopback(options.host), proxy_hosts=options.proxy_hosts
    )
    runner = web.AppRunner(
        make_app(books, guard, datasets), access_log=None, logger=quiet_logger(), max_line_size=MOST_LINE
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {options.host}:{options.port}: {error.strerror or error}",
                hint="choose another --port; 0 takes any free one",
            ) from error
        host, port = runner.addresses[0][:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
