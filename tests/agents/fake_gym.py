"""NeMo Gym's servers as their HTTP contract has them: strict bodies, signed session cookies, state by session, 422 and 500 shapes.

What a test wants to go wrong it writes into the row, under `trouble`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import yaml
from aiohttp import web

Row = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SESSION: ContextVar[str] = ContextVar("session")
"""Whose request this is."""
REQUIRED = ("id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools")


def signed_session(cookie: str) -> Any:
    """A middleware like Starlette's: a signed cookie that is re-sent with every answer."""

    def sign(data: bytes) -> str:
        return hmac.new(cookie.encode(), data, hashlib.sha1).hexdigest()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        session = str(uuid.uuid4())
        data, _, signature = request.cookies.get(cookie, "").rpartition(".")
        if data and hmac.compare_digest(sign(data.encode()), signature):
            session = json.loads(base64.b64decode(data))["session_id"]
        SESSION.set(session)
        try:
            answer = await handler(request)
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001  (as theirs: any exception is a 500 with its repr)
            answer = web.json_response(repr(error), status=500)
        fresh = base64.b64encode(json.dumps({"session_id": session}).encode()).decode()
        answer.headers["Set-Cookie"] = (
            f"{cookie}={fresh}.{sign(fresh.encode())}; path=/; Max-Age=1209600; httponly; samesite=lax"
        )
        return answer

    return middleware


def unprocessable(*problems: tuple[list[Any], str]) -> web.Response:
    detail = [{"type": "missing", "loc": loc, "msg": text, "input": None} for loc, text in problems]
    return web.json_response({"detail": detail}, status=422)


class FakeResources:
    """A resources server with the tools of the multi-step example and a counter per session."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Path and session of every request, in order."""
        self.seeded: dict[str, Row] = {}
        self.rows: list[Row] = []
        self.counters: dict[str, int] = defaultdict(int)
        self.verified: list[Row] = []
        self.app = web.Application(
            middlewares=[signed_session("FakeResourcesServer___fake")], client_max_size=2**26
        )
        self.app.router.add_get("/", self._alive)
        self.app.router.add_post("/seed_session", self._seed)
        self.app.router.add_post("/verify", self._verify)
        self.app.router.add_post("/close_session", self._close)
        self.app.router.add_post("/{tool}", self._tool)
        self.closed: list[str] = []
        """Sessions that were closed, in order."""
        self.mcp: Row | None = None
        """What the seed announces as MCP server."""

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _seed(self, request: web.Request) -> web.Response:
        row = await request.json()
        self.calls.append(("/seed_session", SESSION.get()))
        if row.get("trouble") == "seed 422":
            return unprocessable((["body", "initial_count"], "Field required"))
        self.seeded[SESSION.get()] = row
        self.counters[SESSION.get()] = row.get("initial_count", 0)
        self.rows.append(row)
        return web.json_response({"mcp": self.mcp} if self.mcp else {})

    async def _close(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert set(body) == {"resources_session_id", "episode_id"}
        self.closed.append(SESSION.get())
        self.seeded.pop(SESSION.get(), None)
        return web.json_response({"resources_session_id": body["resources_session_id"]})

    async def _tool(self, request: web.Request) -> web.Response:
        name, session = request.match_info["tool"], SESSION.get()
        self.calls.append((f"/{name}", session))
        if session not in self.seeded:
            raise RuntimeError("unknown session")
        arguments = await request.json()
        if name == "get_synonym_value":
            return web.json_response({"synonym_value": sum(map(ord, arguments["synonym"]))})
        if name == "extract_synonym_values":
            return web.json_response({"success": True})
        if name == "increment":
            self.counters[session] += arguments["by"]
            return web.json_response({"count": self.counters[session]})
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _verify(self, request: web.Request) -> web.Response:
        row = await request.json()
        self.calls.append(("/verify", SESSION.get()))
        problems = body_problems(row)
        if problems:
            return unprocessable(*problems)
        self.verified.append(row)
        match row.get("trouble"):
            case "verify 500":
                raise ValueError("the verifier broke")
            case "judge failed":
                failed = {"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "judge is down"}
                return web.json_response({**row, "reward": 0.0, **failed})
            case "terminal":
                return web.json_response(
                    {**row, "reward": 0.0, "_ng_failure_class": "judge_failed", "_ng_failure_terminal": True}
                )
            case "skipped":
                return web.json_response({**row, "reward": 0.0, "verification_skipped": True})
            case "masked":
                return web.json_response({**row, "reward": 0.0, "mask_sample": True})
            case "masked failure":
                said = {"mask_sample": True, "failure_kind": "judge_failed", "failure_reason": "no judge"}
                return web.json_response({**row, "reward": 0.0, **said})
            case "no persist":
                return web.json_response({**row, "reward": 0.0, "_ng_no_persist": True})
        calls = [item for item in row["response"]["output"] if item["type"] == "function_call"]
        submitted = [
            json.loads(item["arguments"])["synonym_values"]
            for item in calls
            if item["name"] == "extract_synonym_values"
        ]
        is_right = bool(submitted) and submitted[-1] == row.get("expected_synonym_values")
        verdict = {"reward": float(is_right), "accuracy": is_right, "set_overlap": 0.5, "parsed": submitted}
        return web.json_response({**row, **verdict, "count": self.counters[SESSION.get()]})


def body_problems(row: Row) -> list[tuple[list[Any], str]]:
    """What their pydantic models would say about a verify request."""
    response = row.get("response")
    if not isinstance(row.get("responses_create_params"), dict) or not isinstance(response, dict):
        return [(["body", "response"], "Field required")]
    problems = [
        (["body", "response", key], "Field required") for key in REQUIRED if response.get(key) is None
    ]
    for place, item in enumerate(response.get("output") or []):
        where = ["body", "response", "output", place]
        if "type" not in item or "_rf" in item:
            problems.append(([*where, "type"], "Field required, or extra inputs are not permitted"))
        if item.get("type") == "message":
            problems += [
                ([*where, key], "Field required") for key in ("id", "role", "status") if key not in item
            ]
            problems += [
                ([*where, "content", n, "annotations"], "Field required")
                for n, part in enumerate(item["content"])
                if part["type"] == "output_text" and "annotations" not in part
            ]
    details = response.get("incomplete_details")
    if details is not None and details.get("reason") not in ("max_output_tokens", "content_filter"):
        problems.append(
            (["body", "response", "incomplete_details", "reason"], "Input should be 'max_output_tokens'")
        )
    usage = response.get("usage")
    if usage is not None:
        for key in (
            "input_tokens",
            "input_tokens_details",
            "output_tokens",
            "output_tokens_details",
            "total_tokens",
        ):
            if usage.get(key) is None:
                problems.append((["body", "response", "usage", key], "Field required"))
    return problems


class FakeAgent:
    """An agent server: answers `/run` with a finished row."""

    def __init__(self, answer: Callable[[Row], tuple[int, Any]] | None = None) -> None:
        self.rows: list[Row] = []
        self._answer = answer or self.finished
        self.app = web.Application(middlewares=[signed_session("SimpleAgent___fake")], client_max_size=2**26)
        self.app.router.add_post("/run", self._run)

    async def _run(self, request: web.Request) -> web.Response:
        row = await request.json()
        self.rows.append(row)
        status, body = self._answer(row)
        return web.json_response(body, status=status)

    @staticmethod
    def finished(row: Row, **more: Any) -> tuple[int, Row]:
        params = {"temperature": None, "tools": [], **row["responses_create_params"]}
        part = {"type": "output_text", "text": "42", "annotations": [], "logprobs": None}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part],
                "prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}  # fmt: skip
        response = {
            "id": "resp_1", "created_at": 1.0, "object": "response", "model": "theirs", "status": "completed",
            "incomplete_details": None, "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3,
                      "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip
        return 200, {
            "responses_create_params": params,
            "response": response,
            "reward": 1.0,
            "accuracy": True,
            **more,
        }


class FakeHead:
    """A head server: the merged config as a JSON string of YAML, secrets and all."""

    def __init__(self, config: Row) -> None:
        self._config = config
        self.app = web.Application()
        self.app.router.add_get("/global_config_dict_yaml", self._yaml)

    async def _yaml(self, request: web.Request) -> web.Response:
        return web.json_response(yaml.safe_dump(self._config))


class FakeEnvironment:
    """A typed environment server: strict episode requests, a result or a failure."""

    def __init__(self, failure: Row | None = None) -> None:
        self.episodes: list[Row] = []
        self._failure = failure
        self.app = web.Application(client_max_size=2**26)
        self.app.router.add_post("/run", self._run)

    async def _run(self, request: web.Request) -> web.Response:
        body = await request.json()
        if set(body) != {"episode_id", "task"}:
            return unprocessable((["body", "episode_id"], "Field required"))
        assert set(body["task"]) == {"task_id", "task_input"} and set(body["task"]["task_id"]) == {
            "taskset",
            "task_id",
        }
        self.episodes.append(body)
        names = {"episode_id": body["episode_id"], "task_id": body["task"]["task_id"]}
        if self._failure is not None:
            return web.json_response({**names, "result": None, "failure": self._failure})
        _, result = FakeAgent.finished({"responses_create_params": {"input": []}})
        return web.json_response({**names, "result": result, "failure": None})


class FakeGymnasium:
    """A gymnasium server: guess a number within its hints."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.app = web.Application(middlewares=[signed_session("Gymnasium___fake")], client_max_size=2**26)
        self.app.router.add_post("/reset", self._reset)
        self.app.router.add_post("/step", self._step)

    async def _reset(self, request: web.Request) -> web.Response:
        self.state[SESSION.get()] = (await request.json())["target"]
        return web.json_response({"observation": "Guess a number from 1 to 9.", "info": {}})

    async def _step(self, request: web.Request) -> web.Response:
        row = await request.json()
        assert not body_problems(row)
        guess = int(row["response"]["output"][-1]["content"][0]["text"])
        is_right = guess == self.state[SESSION.get()]
        step = {
            "reward": 1.0 if is_right else -0.25,
            "terminated": is_right,
            "observation": None if is_right else "No.",
        }
        return web.json_response({**step, "truncated": False, "info": {}})
