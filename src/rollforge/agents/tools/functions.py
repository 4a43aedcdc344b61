"""Python functions as tools, and classes with one instance per rollout.

Sync functions run in threads, async ones in the event loop. A class is set up with `start` or `setup` and released with `close` or
`teardown`, where it has them; when its constructor takes `task`, it gets the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollforge.agents.tools.base import ToolSession
from rollforge.agents.tools.function_schema import FunctionTool
from rollforge.agents.tools.threads import call_in_thread
from rollforge.errors import UsageError
from rollforge.json_shapes import ToolJson
from rollforge.records import Task, to_json
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.runtime.prints import prints_on_stderr

CLOSE_S = 10.0
"""How long a run waits at its end for tool state that is still being released."""
MAX_THREADS = 128
"""Limit on concurrent blocking calls; further calls wait."""
_HOOKS = frozenset({"start", "setup", "close", "teardown"})


class FunctionTools:
    """Functions without state between calls."""

    def __init__(self, name: str, functions: Sequence[Callable[..., Any]]) -> None:
        self.name = name
        self._tools = {tool.name: tool for tool in map(FunctionTool, functions)}
        if not self._tools:
            raise UsageError(
                f"{name} has no functions that could be tools",
                hint="public functions of the file become tools; or name one: --tools file.py:function",
            )
        self.fingerprint = _fingerprint(functions, self.schemas)
        self._threads = asyncio.Semaphore(MAX_THREADS)

    @property
    def schemas(self) -> list[ToolJson]:
        return [tool.schema for tool in self._tools.values()]

    async def start(self) -> None:
        """Do nothing: functions need no preparation."""

    async def open(self, task: Task) -> ToolSession:
        return _FunctionSession(self._tools, self._threads)

    async def close(self) -> None:
        """Do nothing: functions hold no resources."""


class ClassTools:
    """A class whose public methods are the tools; one instance per rollout."""

    def __init__(self, name: str, factory: type[Any]) -> None:
        self.name = name
        self._factory = factory
        self._tools = {
            key: FunctionTool(method, name=key) for key, method in _public_methods(factory).items()
        }
        if not self._tools:
            raise UsageError(
                f"the class {name} has no public methods that could be tools",
                hint="methods without a leading underscore become tools",
            )
        self.fingerprint = _fingerprint([factory], self.schemas)
        self._late: set[asyncio.Future[None]] = set()
        self._threads = asyncio.Semaphore(MAX_THREADS)

    @property
    def schemas(self) -> list[ToolJson]:
        return [tool.schema for tool in self._tools.values()]

    async def start(self) -> None:
        """Do nothing: instances are created per rollout."""

    async def open(self, task: Task) -> ToolSession:
        takes_task = "task" in inspect.signature(self._factory).parameters
        make = self._factory if not takes_task else lambda: self._factory(task=task)
        instance = await self._made(make)
        session = _InstanceSession(instance, self._tools, self._threads)
        async with OnErrorAwait(lambda _: session.close()):
            await _run_hook(instance, ("start", "setup"))
        return session

    async def close(self) -> None:
        """Wait for instances that are still being released."""
        if self._late:
            await asyncio.wait(self._late, timeout=CLOSE_S)

    async def _made(self, make: Callable[[], Any]) -> Any:
        """Create an instance. If the caller is cancelled meanwhile, the instance is released as soon as it exists."""
        making = asyncio.ensure_future(call_in_thread(make))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            late = asyncio.ensure_future(_release_late(making))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            raise


class _FunctionSession:
    def __init__(self, tools: dict[str, FunctionTool], threads: asyncio.Semaphore) -> None:
        self._tools = tools
        self._threads = threads

    is_parallel = True

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        tool = self._tools[name]
        args, keywords = tool.bind(arguments)
        function = self._function(tool)
        with prints_on_stderr():
            if tool.is_async:
                value = await function(*args, **keywords)
            else:
                async with self._threads:
                    value = await call_in_thread(function, *args, **keywords)
            return as_text(await value if inspect.isawaitable(value) else value)

    def _function(self, tool: FunctionTool) -> Callable[..., Any]:
        return tool.function

    async def close(self) -> None:
        """Nothing to release."""


class _InstanceSession(_FunctionSession):
    def __init__(self, instance: Any, tools: dict[str, FunctionTool], threads: asyncio.Semaphore) -> None:
        super().__init__(tools, threads)
        self._instance = instance
        self.is_parallel = bool(getattr(instance, "is_parallel", True))

    def _function(self, tool: FunctionTool) -> Callable[..., Any]:
        bound: Callable[..., Any] = getattr(self._instance, tool.name)
        return bound

    async def close(self) -> None:
        await _run_hook(self._instance, ("close", "teardown"))


async def _release_late(making: asyncio.Future[Any]) -> None:
    with contextlib.suppress(Exception):  # no caller is left to report to
        await _run_hook(await making, ("close", "teardown"))


async def _run_hook(instance: Any, names: tuple[str, ...]) -> None:
    """Run the first of these methods that the instance defines."""
    for name in names:
        hook = getattr(instance, name, None)
        if callable(hook):
            value = hook() if inspect.iscoroutinefunction(hook) else await call_in_thread(hook)
            if inspect.isawaitable(value):
                await value
            return


def _public_methods(factory: type[Any]) -> dict[str, Callable[..., Any]]:
    """Public methods by name, bound to a stand-in instance; enough to read signatures and docstrings."""
    methods: dict[str, Callable[..., Any]] = {}
    for name, member in inspect.getmembers(factory, inspect.isroutine):
        if not name.startswith("_") and name not in _HOOKS:
            is_static = isinstance(inspect.getattr_static(factory, name), staticmethod)
            methods[name] = (
                member if is_static or not inspect.isfunction(member) else member.__get__(object())
            )
    return methods


def as_text(value: Any) -> str:
    """A tool's return value as text for the model: strings unchanged, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _plain(value: Any) -> Any:
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _fingerprint(sources: Sequence[Any], schemas: list[ToolJson]) -> str:
    """Digest of the tools' source files and schemas."""
    digest = hashlib.sha256(to_json(schemas))
    files = set()
    for source in sources:
        try:
            files.add(inspect.getsourcefile(inspect.unwrap(source)) or "")
        except TypeError:
            continue  # a built-in: its schema must do
    for name in sorted(files):
        if Path(name).is_file():
            digest.update(Path(name).read_bytes())
    return digest.hexdigest()[:16]
