"""The in-process harness for environments of verifiers, version 1: a tool loop inside this process.

The library's own harnesses start a program per rollout. Its contract also allows a loop in this process, provided that every
model call goes to the given endpoint. The task's tools are its MCP servers. This harness adds no tools, so tasks that need a
shell require another harness.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any, TypedDict

import aiohttp

from rollforge.errors import UsageError
from rollforge.json_shapes import ChatCallJson, ChatFunctionCallJson, ChatMessageJson, PartJson, ToolJson
from rollforge.records import from_json, to_json
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.outgoing import cut

HARNESS = "rollforge_harness"
"""Id of the harness; the library imports a module of this name."""

_FOREVER = aiohttp.ClientTimeout(total=None, sock_connect=30)
"""Timeout for the library's client: the run's own deadlines apply instead."""


class ToolMessageJson(ChatMessageJson, total=False):
    """The answer to a call, with the name of the tool."""

    name: str


class GateDecisionJson(TypedDict, total=False):
    """The task's decision on a tool call: `allow`, `deny` with a message instead of its output, or `stop` with a reason."""

    action: str
    reason: str
    message: ToolMessageJson


class HarnessTalk:
    """An agent's conversation with the model, through the library's endpoint."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: str, model: str, trace: Any) -> None:
        self._http, self._url, self._model, self._trace = http, f"{endpoint}/chat/completions", model, trace

    async def ask(self, messages: list[ChatMessageJson], tools: list[ToolJson]) -> ChatMessageJson | None:
        """Request the model's message; None if the library refuses the turn because the episode is over."""
        body = {"model": self._model, "messages": messages, **({"tools": tools} if tools else {})}
        async with self._http.post(
            self._url, data=to_json(body), headers={"Content-Type": "application/json"}
        ) as reply:
            data = await reply.read()
            if reply.status == 200:
                message: ChatMessageJson = from_json(data)["choices"][0]["message"]
                return message
            if self._trace.stop_condition is not None:
                return None
            raise RuntimeError(f"HTTP {reply.status}: {cut(data.decode('utf-8', 'replace'), 2000)}")


class HarnessTools:
    """The task's tools, from MCP servers that the library started."""

    def __init__(
        self, http: aiohttp.ClientSession, urls: dict[str, str], timeout_s: float, gate: str | None
    ) -> None:
        self._http, self._gate = http, gate
        self._servers_asked = {name: {"url": url, "timeout": timeout_s} for name, url in urls.items()}
        self.schemas: list[ToolJson] = []
        self._dispatch: dict[str, tuple[str, str]] = {}
        self._servers: Any = {}

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect to the servers and list their tools."""
        if self._servers_asked:
            from verifiers.v1.harnesses.utils.mcp import connect_mcp

            config = {"mcpServers": self._servers_asked}
            self.schemas, self._dispatch, self._servers = await connect_mcp(config, stack)

    async def answer(self, call: ChatCallJson) -> ToolMessageJson:
        """The tool message for one call."""
        function: ChatFunctionCallJson = call.get("function") or {}
        name = str(function.get("name") or "")
        denied = await self._denied(call, function)
        if denied is not None:
            return denied
        content = await self._content(name, function)
        return {"role": "tool", "tool_call_id": call.get("id"), "name": name, "content": content}

    async def _content(self, name: str, function: ChatFunctionCallJson) -> str | list[PartJson]:
        try:
            arguments = from_json(function.get("arguments") or "{}")
        except UNREADABLE as error:
            return f"error: the arguments are not JSON: {error}"
        if not isinstance(arguments, dict):
            return f"error: the arguments must be an object, not {type(arguments).__name__}"
        if name not in self._dispatch:
            return f"error: there is no tool {name!r}"
        from verifiers.v1.harnesses.utils.mcp import call_mcp

        content: str | list[PartJson] = await call_mcp(self._servers, self._dispatch, name, arguments)
        return content

    async def _denied(self, call: ChatCallJson, function: ChatFunctionCallJson) -> ToolMessageJson | None:
        """The task's message if it denies the tool call; None if the tool may run."""
        if self._gate is None:
            return None
        try:
            arguments = from_json(function.get("arguments") or "{}")
        except UNREADABLE:
            arguments = function.get("arguments")
        question = {"tool_call_id": call.get("id"), "name": function.get("name"), "arguments": arguments}
        async with self._http.post(
            self._gate, data=to_json(question), headers={"Content-Type": "application/json"}
        ) as reply:
            reply.raise_for_status()
            decision: GateDecisionJson = from_json(await reply.read())
        if decision["action"] == "stop":
            raise RuntimeError(str(decision["reason"]))
        return decision["message"] if decision["action"] == "deny" else None


def provide_harness() -> None:
    """Make the harness importable under its id; the library loads harnesses by name."""
    if HARNESS in sys.modules:
        return
    try:
        from verifiers.v1.configs.harness import HarnessConfig
        from verifiers.v1.dialects.chat import message_to_wire
        from verifiers.v1.harness import Harness
        from verifiers.v1.runtimes import ProgramResult
    except ImportError as error:
        raise UsageError(
            f"verifiers cannot be imported: {error}",
            hint="install the version that docs/environments.md names",
        ) from error

    class InProcessHarness(Harness[HarnessConfig]):  # type: ignore[misc]
        """Tool loop: request a turn, answer its tool calls, repeat until the model makes no more calls."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_TOOL_INTERCEPTION = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages: list[ChatMessageJson] = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or []]
            headers = {"Authorization": f"Bearer {secret}"}
            async with (
                aiohttp.ClientSession(headers=headers, timeout=_FOREVER) as http,
                AsyncExitStack() as stack,
            ):
                toolbox = HarnessTools(http, mcp_urls, self.config.tool_timeout, tool_interception_url)
                await toolbox.open(stack)
                talk = HarnessTalk(http, endpoint, ctx.model, trace)
                while (message := await talk.ask(messages, toolbox.schemas)) is not None:
                    messages.append(message)
                    calls = message.get("tool_calls") or []
                    if not calls:
                        break
                    messages += [await toolbox.answer(call) for call in calls]
            return ProgramResult(exit_code=0, stdout="", stderr="")

    module = ModuleType(HARNESS, "rollforge's harness, by the name under which verifiers finds it.")
    module.__all__ = ["InProcessHarness"]  # type: ignore[attr-defined]
    module.InProcessHarness = InProcessHarness  # type: ignore[attr-defined]
    sys.modules[HARNESS] = module
