"""A store that answers conditional writes with 409 now and then, as AWS does when such writes race: they are repeated."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rollforge.simulate import example_tasks
from rollforge.store.objects import ObjectFolder
from tests.object_stores import Store, moto_store

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'")
HOP_BY_HOP = {"content-length", "transfer-encoding", "connection", "date", "server"}
"""Headers that the connection to us has of its own."""
CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"


class Conflicts(ThreadingHTTPServer):
    """Passes requests on to a store; of the conditional writes, two of three are answered with 409 first."""

    daemon_threads = True

    def __init__(self, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.store = store.address.removeprefix("http://")
        self.conditional = self.answered = 0
        self.lock = threading.Lock()

    def conflicts(self) -> bool:
        with self.lock:
            self.conditional += 1
            self.answered += self.conditional % 3 != 0
            return self.conditional % 3 != 0


class Passing(BaseHTTPRequestHandler):
    server: Conflicts
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_conditional = self.command == "PUT" and (
            "If-None-Match" in self.headers or "If-Match" in self.headers
        )
        if is_conditional and self.server.conflicts():
            self._answer(409, [("Content-Type", "application/xml")], CONFLICT)
            return
        connection = http.client.HTTPConnection(self.server.store, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers.items()))
        answer = connection.getresponse()
        data = answer.read()
        self._answer(answer.status, answer.getheaders(), data)
        connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        is_head = self.command == "HEAD"
        kept = {"content-length"} if is_head else set()
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP - kept:
                self.send_header(name, value)
        if not is_head:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def conflicting() -> Iterator[tuple[Conflicts, Store]]:
    with moto_store() as store:
        server = Conflicts(store)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server, store
        finally:
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def conflicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conflicts]:
    with conflicting() as (server, store), pytest.MonkeyPatch.context() as patch:
        for name, value in store.env(tmp_path_factory.mktemp("cache")).items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield server


def test_conditional_writes_survive_conflicts(conflicts: Conflicts) -> None:
    objects = ObjectFolder("s3://data/conflicts")
    before = conflicts.answered
    tag = objects.create("x", b"mine")
    assert tag is not None and objects.read("x") == b"mine"
    assert objects.create("x", b"other") is None
    new = objects.put_if_unchanged("x", b"renewed", tag)
    assert new is not None and objects.read("x") == b"renewed", (
        "a conflict does not mean that somebody else has it"
    )
    assert objects.put_if_unchanged("x", b"late", tag) is None
    assert conflicts.answered >= before + 4


def test_of_racing_writers_that_meet_conflicts_exactly_one_wins(conflicts: Conflicts) -> None:
    folders = [ObjectFolder("s3://data/race") for _ in range(6)]
    for name in ("r0", "r1", "r2"):

        def creates(number: int, name: str = name) -> bool:
            return folders[number].create(name, b"%d" % number) is not None

        with ThreadPoolExecutor(6) as threads:
            won = list(threads.map(creates, range(6)))
        assert sum(won) == 1 and folders[0].read(name) == b"%d" % won.index(True)


@pytest.mark.slow
def test_a_run_in_a_bucket_that_answers_with_conflicts_is_whole(conflicts: Conflicts, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(12, 0, "math"))
    )
    before = conflicts.answered
    words = ["collect", "-i", "tasks.jsonl", "-o", "s3://data/run", "-m", "simulated", "--verifier", "exact"]
    words += ["-k", "3"]
    for command in ([*words, "--progress", "none", "--workers", "2"], ["merge", "s3://data/run"]):
        done = subprocess.run(
            [sys.executable, "-m", "rollforge", *command],
            cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "36 of 36 rollouts" in done.stdout + done.stderr
    assert conflicts.answered > before + 6
