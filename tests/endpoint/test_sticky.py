"""With several servers, the requests of one rollout stay on one of them; other rollouts go to the least loaded."""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web

from rollforge.endpoint import Client, ClientOptions
from tests.agents.web import serving


def app(name: str, seen: Counter[str]) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        seen[f"{name}:{(await request.read()).decode()}"] += 1
        await asyncio.sleep(0.01)
        return web.json_response({})

    made = web.Application()
    made.router.add_post("/chat", answer)
    return made


async def rollout(client: Client, name: str, turns: int = 4) -> None:
    for _ in range(turns):
        await client.post("/chat", name.encode(), read=lambda data: data)


async def test_the_turns_of_a_rollout_stay_on_one_server() -> None:
    seen: Counter[str] = Counter()
    async with (
        serving(app("a", seen)) as one,
        serving(app("b", seen)) as two,
        Client(ClientOptions(base_urls=(one, two))) as client,
    ):
        await asyncio.gather(*(asyncio.create_task(rollout(client, str(n))) for n in range(8)))
    assert set(seen.values()) == {4} and len(seen) == 8
    assert len({key[0] for key in seen}) == 2


async def test_a_rollout_moves_when_its_server_asks_it_to_stay_away() -> None:
    seen: Counter[str] = Counter()
    async with (
        serving(app("a", seen)) as one,
        serving(app("b", seen)) as two,
        Client(ClientOptions(base_urls=(one, two))) as client,
    ):

        async def moving() -> None:
            await rollout(client, "x", turns=2)
            client.endpoints[0].not_before = float("inf")
            await rollout(client, "x", turns=2)

        await asyncio.create_task(moving())
    assert seen == {"a:x": 2, "b:x": 2}
