"""A real Firefox, driven over WebDriver BiDi: no driver program, one WebSocket."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

READY = "WebDriver BiDi listening on "


def find_firefox() -> str | None:
    """The program, if it is installed."""
    return shutil.which("firefox-esr") or shutil.which("firefox")


class FirefoxPage:
    """One tab."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._context = ""

    async def open(self) -> None:
        """Begin a session and take its first tab."""
        await self.call("session.new", capabilities={})
        tree = await self.call("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    async def call(self, method: str, **params: Any) -> Any:
        """One command and its result; events in between are passed over."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=60)
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    async def goto(self, url: str) -> None:
        """Load a page."""
        await self.call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page: a number, a text or a boolean."""
        found = await self.call(
            "script.evaluate",
            expression=expression,
            target={"context": self._context},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        for _ in range(300):
            if await self.evaluate(f"Boolean({expression})"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never true: {expression}")

    async def press(self, key: str) -> None:
        """Press and release a key."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        await self.call("input.performActions", context=self._context, actions=[keyboard])

    async def type(self, text: str) -> None:
        """Type a text, key by key."""
        for key in text:
            await self.press(key)


@asynccontextmanager
async def firefox(profile: Path) -> AsyncIterator[FirefoxPage]:
    """Start a headless Firefox with a profile of its own, and end it."""
    program = find_firefox()
    assert program is not None
    profile.mkdir()
    (profile / "user.js").write_text(
        "".join(
            f'user_pref("{name}", {value});\n'
            for name, value in {
                "app.update.enabled": "false",
                "browser.shell.checkDefaultBrowser": "false",
                "datareporting.policy.dataSubmissionEnabled": "false",
                "network.captive-portal-service.enabled": "false",
                "network.connectivity-service.enabled": "false",
                "browser.safebrowsing.update.enabled": "false",
                "extensions.update.enabled": "false",
                "services.settings.server": '"data:,"',
                "toolkit.telemetry.enabled": "false",
            }.items()
        )
    )
    words = [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    drain: asyncio.Task[bytes] | None = None
    try:
        address = ""
        while not address:
            line = (await asyncio.wait_for(process.stderr.readline(), 90)).decode("utf-8", "replace")
            assert line, "Firefox ended before it was ready"
            if READY in line:
                address = line.split(READY)[1].strip()
        drain = asyncio.create_task(process.stderr.read())
        async with (
            ClientSession() as session,
            session.ws_connect(f"{address}/session", max_msg_size=0) as socket,
        ):
            page = FirefoxPage(socket)
            await page.open()
            yield page
    finally:
        process.terminate()
        await process.wait()
        if drain is not None:
            await drain
