"""OpenEnv servers: `openenv:http://HOST:PORT[?episodes=100&seed=0]`, used through their WebSocket.

The action schema of the server becomes one tool, `step`. The first observation is the prompt, the observation after each step the
tool's result. If the server refuses an action, the model gets the reason. If the server is full, the agent waits. The reward is
the sum over steps; a rollout without any step reward is unjudged. Rows of `-i` may contain `env.reset`, the data for the reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
import msgspec

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.endpoint import Model, open_session, proxy_for, read_body
from rollforge.environments.base import ROW_KEY, EnvironmentSpec, NamedVerifier
from rollforge.environments.episode import Episode
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import ItemJson, SchemaJson, ToolJson, without
from rollforge.records import PARAMS_KEY, JsonFields, Task, Verdict, from_json, to_json
from rollforge.runtime.typed_decoding import convert
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.outgoing import cut

EPISODES = 100
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0


class OpenEnv:
    """One server."""

    verifier: NamedVerifier | None = None

    def __init__(self, spec: EnvironmentSpec) -> None:
        spec.take(episodes=EPISODES, seed=0)
        if not spec.name.startswith(("http://", "https://")):
            raise UsageError(
                f"--env openenv:{spec.name} is no URL", hint="write openenv:http://localhost:8000"
            )
        self._url = spec.name.rstrip("/")
        self._episodes = spec.whole_number("episodes", 0)
        self._seed = spec.whole_number("seed", 0)

    def rows(self, limit: int | None) -> Iterator[JsonFields]:
        for number in range(self._episodes or limit or EPISODES):
            yield {PARAMS_KEY: {"input": []}, ROW_KEY: {"reset": {"seed": self._seed + number}}}

    def agent(self, options: AgentOptions) -> OpenEnvAgent:
        return OpenEnvAgent(options, self._url)


class _Observed(msgspec.Struct):
    """The answer to `reset` and `step`."""

    observation: object = None
    reward: bool | float | None = None
    done: bool = False


class _ServerError(msgspec.Struct):
    """The data of a message of type `error`."""

    code: object = None
    message: object = None
    errors: object = None


class Refused(Exception):
    """The server refused an action; the model may try another."""


class Full(Exception):
    """The server has no free session."""


class OpenEnvAgent:
    """Plays one session per rollout."""

    name = "openenv"

    def __init__(self, options: AgentOptions, url: str) -> None:
        self._options, self._url = options, url
        self._proxy = proxy_for(url)
        self._session: aiohttp.ClientSession | None = None
        self._model: Model | None = None
        self._tool: ToolJson = {}

    async def prepare(self) -> Preparation:
        self._session = open_session(keepalive_s=15, watches_redirects=True)
        limit = aiohttp.ClientTimeout(30)
        try:
            async with self._session.get(f"{self._url}/schema", timeout=limit, proxy=self._proxy) as answer:
                schemas = from_json(await read_body(answer)) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, Failure, *UNREADABLE) as error:
            raise UsageError(
                f"{self._url} does not answer: {error}", hint="start the environment's server first"
            ) from error
        action = schemas.get("action") if isinstance(schemas, dict) else None
        if not isinstance(action, dict):
            raise UsageError(f"{self._url}/schema names no action", hint="is this an OpenEnv server?")
        self._tool = {
            "type": "function",
            "name": "step",
            "description": str(action.get("description") or "Take an action in the environment."),
            "parameters": _without_base_fields(cast("SchemaJson", action)),
        }
        return Preparation(
            judges=True,
            may_lack_prompt=True,
            fingerprint={"environment": "openenv", "action": action, "max_turns": self._options.max_turns},
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(self, task: Task, sample: int) -> Trajectory:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                async with self._connected() as socket:
                    return await self._play(socket, task, sample)
            except Full:
                # The rollout's own deadline ends a wait for a server that never gets free.
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        assert self._session is not None
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            async with self._session.ws_connect(
                address, max_msg_size=self._options.max_response_bytes, heartbeat=30, proxy=self._proxy
            ) as socket:
                yield socket
        except aiohttp.ClientError as error:
            raise Failure("agent", "agent", f"{self._url}: {type(error).__name__}: {error}") from error

    async def _play(self, socket: aiohttp.ClientWebSocketResponse, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        row = task.get(ROW_KEY)
        data = row.get("reset") if isinstance(row, dict) else None
        seen = await self._tell(socket, "reset", data if isinstance(data, dict) else {})
        episode = Episode(self._model, task.params, _text(seen.observation), sample, tools=[self._tool])
        rewards = [] if seen.reward is None else [float(seen.reward)]
        incomplete = None
        try:
            while not seen.done:
                if episode.turns >= self._options.max_turns:
                    incomplete = "max_turns"
                    break
                _, calls = await episode.ask()
                if not calls or episode.is_cut:
                    break
                for call in calls:
                    seen = await self._act(socket, episode, call, rewards, seen)
                    if seen.done:
                        break
        except (Failure, asyncio.CancelledError) as error:
            episode.leave_on(error)
            raise
        numbers: dict[str, bool | int | float] = {"done": seen.done, "steps": len(rewards)}
        verdict = Verdict(reward=sum(rewards), numbers=numbers) if rewards else None
        return episode.finish(
            verdict, "openenv", why_unjudged="no step of the environment gave a reward", incomplete=incomplete
        )

    async def _act(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        episode: Episode,
        call: ItemJson,
        rewards: list[float],
        before: _Observed,
    ) -> _Observed:
        """Perform one action; a refused action returns the reason and changes nothing."""
        try:
            action = from_json(str(call.get("arguments") or "{}"))
        except UNREADABLE as error:
            episode.answer(call, f"the arguments are not JSON: {error}")
            return before
        if call.get("name") != "step" or not isinstance(action, dict):
            episode.answer(call, "call the function step with an object of arguments")
            return before
        try:
            seen = await self._tell(socket, "step", action)
        except Refused as error:
            episode.answer(call, str(error))
            return before
        if seen.reward is not None:
            rewards.append(float(seen.reward))
        episode.answer(call, _text(seen.observation))
        return seen

    async def _tell(self, socket: aiohttp.ClientWebSocketResponse, kind: str, data: JsonFields) -> _Observed:
        await socket.send_str(to_json({"type": kind, "data": data}).decode())
        try:
            message = await socket.receive(timeout=self._options.tool_timeout_s)
        except TimeoutError:
            limit = f"{self._options.tool_timeout_s:g} s (--tool-timeout)"
            raise Failure("agent", "timeout", f"{self._url} did not answer {kind} within {limit}") from None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Failure("agent", "agent", f"{self._url}: the session ended during {kind}")
        try:
            answer = from_json(message.data)
            body = answer["data"]
            if answer["type"] == "error":
                raise _error(convert(body, _ServerError), kind)
            return convert(body, _Observed, strict=False)
        except (TypeError, KeyError, msgspec.ValidationError, *UNREADABLE) as error:
            raise Failure(
                "agent", "agent", f"{self._url}: {kind} was answered with no observation: {error}"
            ) from error


def _error(body: _ServerError, kind: str) -> Exception:
    code, text = str(body.code), str(body.message)
    if code == "CAPACITY_REACHED":
        return Full(text)
    if kind == "step" and code in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
        return Refused(f"{text}: {cut(to_json(body.errors).decode(), 2000)}" if body.errors else text)
    return Failure("agent", "agent", f"{kind}: {code}: {text}")


def _text(observation: object) -> str:
    """An observation as text: its only text field, or JSON."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, dict):
        filled_fields = {key: value for key, value in observation.items() if value not in (None, {}, [])}
        if len(filled_fields) == 1 and isinstance(only := next(iter(filled_fields.values())), str):
            return only
        return to_json(filled_fields).decode()
    return to_json(observation).decode()


def _without_base_fields(schema: SchemaJson) -> SchemaJson:
    """The action's schema without the base field of all actions, which the model should not fill in."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    return {**schema, "properties": without(properties, ("metadata",))}
