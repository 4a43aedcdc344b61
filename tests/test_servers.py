"""Servers that tests start: a second try with another port, and a failure that shows what the program said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.servers import answers, free_port, running

SERVE = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()
"""


def test_a_port_is_given_once() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50


def test_a_program_that_ends_at_once_gets_a_second_port(tmp_path: Path) -> None:
    ports: list[int] = []

    def words(port: int) -> list[str]:
        ports.append(port)
        return [sys.executable, "-c", SERVE if len(ports) > 1 else "raise SystemExit(1)", str(port)]

    with running(words, tmp_path / "log") as port:
        assert answers(port)
        assert ports[-1] == port != ports[0]
    assert not answers(port)


def test_a_program_that_never_starts_shows_its_log(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('the disk is full')"]
    with (
        pytest.raises(AssertionError, match=r"ended with 1, 2 times:(.|\n)*the disk is full"),
        running(lambda port: words, tmp_path / "log"),
    ):
        pass
