"""Servers that a web page must not be able to drive: real HTTP on loopback, with the headers that browsers send."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.errors import UsageError
from rollforge.proxy import RecordingProxy
from rollforge.runtime.web_guard import WebGuard
from rollforge.simulate import SimulatedServer
from rollforge.steps.serve import VerifierServer
from rollforge.steps.serve import verifier_server as server_module
from rollforge.verifiers.base import load_verifier

BODY = {
    "responses_create_params": {"input": "?"},
    "response": {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
        ]
    },
    "expected_answer": "7",
}


def served(**options: Any) -> VerifierServer:
    return VerifierServer(load_verifier("exact"), workers=0, **options)


async def ask(server: VerifierServer, path: str = "/verify", **more: Any) -> int:
    async with aiohttp.ClientSession() as http, http.post(server.url + path, **more) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_requests_that_a_page_may_have_sent_are_refused(headers: dict[str, str], status: int) -> None:
    async with served() as server:
        assert await ask(server, json=BODY, headers=headers) == status
        assert server.served["verified"] == (status == 200)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_only_json_is_read(kind: str) -> None:
    async with served() as server:
        assert await ask(server, data=b'{"a": 1}', headers={"Content-Type": kind}) == 415
        assert await ask(server, "/aggregate_metrics", data=b"{}", headers={"Content-Type": kind}) == 415


async def test_long_bodies_are_refused_before_they_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_LIMIT", 10_000)
    json_headers = {"Content-Type": "application/json"}

    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 1000

    async with served() as server:
        assert await ask(server, data=b" " * 10_001, headers=json_headers) == 413
        assert await ask(server, data=endless(), headers=json_headers) == 413
        bomb = gzip.compress(bytes(10_000_000))
        assert await ask(server, data=bomb, headers={**json_headers, "Content-Encoding": "gzip"}) == 413


async def test_beyond_loopback_a_token_is_required() -> None:
    with pytest.raises(UsageError, match="token"):
        served(host="0.0.0.0")
    basic = base64.b64encode(b":right").decode()
    async with served(host="0.0.0.0", token="right") as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert await ask(server, json=BODY) == 401
        assert await ask(server, json=BODY, headers={"Authorization": "Bearer wrong"}) == 401
        assert await ask(server, json=BODY, headers={"Authorization": "Bearer right"}) == 200
        assert await ask(server, json=BODY, headers={"Authorization": f"Basic {basic}"}) == 200
        assert (
            await ask(server, json=BODY, headers={"Authorization": "Bearer right", "Host": "evil.example"})
            == 421
        )


def test_the_command_prints_a_generated_token_to_stderr_only() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rollforge",
            "serve-verifier",
            "exact",
            "--host",
            "0.0.0.0",
            "--port",
            "0",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "token" in process.stderr.readline()
        assert "token" not in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(30)


async def test_the_metrics_page_of_prometheus_has_the_same_guard(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from rollforge.sinks.base import SinkOptions
    from rollforge.sinks.prometheus import PrometheusSink

    sink = PrometheusSink(SinkOptions(directory=tmp_path, target="127.0.0.1:0"))
    await asyncio.to_thread(sink.start)
    try:
        url = f"http://127.0.0.1:{sink.port}/metrics"
        async with aiohttp.ClientSession() as http:
            for headers, status in (
                ({}, 200),
                ({"Host": "evil.example"}, 421),
                ({"Origin": "https://evil.example"}, 403),
            ):
                async with http.get(url, headers=headers) as answer:
                    assert answer.status == status
    finally:
        await asyncio.to_thread(sink.close)


async def test_the_metrics_page_needs_a_token_beyond_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    from rollforge.sinks.base import SinkOptions
    from rollforge.sinks.prometheus import TOKEN_VARIABLE, PrometheusSink

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    sink = PrometheusSink(SinkOptions(directory=tmp_path, target="0.0.0.0:0"))
    with pytest.raises(UsageError, match="beyond loopback every request needs a token"):
        sink.start()
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    await asyncio.to_thread(sink.start)
    try:
        url = f"http://127.0.0.1:{sink.port}/metrics"
        async with aiohttp.ClientSession() as http:
            for credentials, status in (("", 401), ("Bearer wrong", 401), ("Bearer right", 200)):
                async with http.get(url, headers={"Authorization": credentials}) as answer:
                    assert answer.status == status
    finally:
        await asyncio.to_thread(sink.close)


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n-c\r\n", 400),  # back to the first chunk, for ever
        ("Transfer-Encoding: chunked", b"1_0\r\n", 400),
        ("Transfer-Encoding: chunked", b"+5\r\n", 400),
        ("Transfer-Encoding: chunked", b"f" * 400 + b"\r\n", 400),
        ("Transfer-Encoding: chunked", b"1" * 70_000, 400),
        ("Transfer-Encoding: chunked", b"fffffff\r\n", 413),
        ("Content-Length: " + "9" * 5000, b"", 400),
        ("Content-Length: -5", b"", 400),
        ("Host: localhost\r\nHost: evil.example", b"", 400),
    ],
)
async def test_the_simulated_server_refuses_bodies_without_an_honest_size(
    head: str, body: bytes, status: int
) -> None:
    async with SimulatedServer() as server:
        url = urlsplit(server.base_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(f"POST /v1/responses HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()


async def test_the_simulated_server_bounds_all_chunks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.simulate.wire._MAX_BODY", 100_000)
    async with SimulatedServer() as server:
        url = urlsplit(server.base_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write((b"400\r\n" + bytes(1024) + b"\r\n") * 100)
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()


def test_bytes_that_are_no_request_leave_no_traceback_on_stderr() -> None:
    """`serve-verifier` answers 400 and says nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rollforge", "serve-verifier", "exact", "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = urlsplit(json.loads(process.stdout.readline())["url"])
    try:
        for head in (
            "Content-Length: " + "9" * 400,
            "X: " + "a" * 200_000,
            "Host: a\r\nHost: b",
            "\0: \x1b[2J",
        ):
            with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
                connection.sendall(f"POST /verify HTTP/1.1\r\n{head}\r\n\r\n".encode())
                with contextlib.suppress(ConnectionResetError):
                    assert b" 400 " in connection.recv(100)
    finally:
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=30)[1]


def test_bodies_that_cannot_be_read_to_their_end_leave_no_traceback_on_stderr() -> None:
    """A body that is not in its encoding gets 400; a client may also leave in the middle of one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rollforge", "serve-verifier", "exact", "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = urlsplit(json.loads(process.stdout.readline())["url"])
    head = "POST /verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    try:
        for coding in ("gzip", "deflate", "zstd", "br"):
            with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
                connection.sendall(
                    f"{head}Content-Encoding: {coding}\r\nContent-Length: 5\r\n\r\nabcde".encode()
                )
                assert b" 400 " in connection.recv(100), coding
        for _ in range(20):
            with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
                connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
            connection.sendall(
                f"{head}Content-Length: {len(json.dumps(BODY))}\r\n\r\n{json.dumps(BODY)}".encode()
            )
            assert b" 200 " in connection.recv(100)
    finally:
        process.terminate()
        assert process.communicate(timeout=30)[1] == ""


async def status_of(address: str, head: bytes, body: bytes = b"{}") -> bytes:
    """Status of a request with headers that are no text in any encoding."""
    url = urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    kind = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
    writer.write(b"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n%s\r\n\r\n" % (kind, head) + body)
    status = (await reader.readline()).split()[1]
    writer.close()
    return status


@pytest.mark.parametrize(
    "credentials", [b"Bearer \xff", b"Basic \xff", b"Basic eDr//g==", "Bearer é".encode()]
)
async def test_credentials_that_are_no_text_are_wrong_credentials(credentials: bytes) -> None:
    async with served(token="right") as server:
        assert await status_of(server.url, b"Authorization: " + credentials) == b"401"


@pytest.mark.parametrize("cookie", [b"\xff.\xff", b"abc.\xff", b"\xff.abc"])
async def test_a_cookie_that_is_no_text_is_no_session(cookie: bytes) -> None:
    async with served() as server:
        body = json.dumps(BODY).encode()
        assert await status_of(server.url, b"Cookie: RollforgeVerifier___exact=" + cookie, body) == b"200"


async def test_a_key_that_is_no_text_belongs_to_no_rollout() -> None:
    async with Client(ClientOptions(base_urls=("http://127.0.0.1:9/v1",))) as client:
        proxy = RecordingProxy(Model(client, ModelOptions(name="m")))
        await proxy.start()
        try:
            assert await status_of(proxy.url, b"Authorization: Bearer \xff") == b"401"
            assert await status_of(proxy.url, b"x-api-key: \xff") == b"401"
        finally:
            await proxy.close()


def test_a_wildcard_address_serves_addresses_and_its_own_name_only() -> None:
    guard = WebGuard(host="0.0.0.0", needs_json=False)
    assert guard.refusal("GET", {"host": "192.0.2.7:8090"}) is None
    assert guard.refusal("GET", {"host": socket.gethostname()}) is None
    refused = guard.refusal("GET", {"host": "rebound.example"})
    assert refused is not None
    assert refused.status == 421
