"""This module holds what JSON-RPC says on the way to an MCP server, whichever way it goes."""

from __future__ import annotations

from rollforge.errors import Failure
from rollforge.records import JsonObject, from_json, to_json
from rollforge.store.reading import UNREADABLE


class RpcError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


def to_request(number: int, method: str, params: JsonObject) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def to_notification(method: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "method": method})


def parse(data: bytes | str) -> JsonObject:
    """One message; raises `Failure` when it is none."""
    try:
        value = from_json(data)
    except UNREADABLE as error:
        raise gone(f"it speaks no JSON-RPC: {error}") from error
    if not isinstance(value, dict):
        raise gone("it speaks no JSON-RPC: a message is no object")
    return value


def result_of(message: JsonObject) -> JsonObject:
    """The result in an answer; raises `RpcError` when it holds an error."""
    error = message.get("error")
    if isinstance(error, dict):
        raise RpcError(error.get("code"), str(error.get("message") or "unknown error"))
    result = message.get("result")
    return result if isinstance(result, dict) else {}


def reply_to(message: JsonObject) -> bytes | None:
    """What to answer when the server asks us: we are alive, and offer nothing. None for what needs no answer."""
    if "method" not in message or "id" not in message:
        return None
    answer: JsonObject = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return to_json({**answer, "result": {}})
    return to_json({**answer, "error": {"code": -32601, "message": "rollforge offers no such method"}})


def gone(reason: str) -> Failure:
    """The failure of a rollout whose MCP server cannot be used any more."""
    return Failure("tool", "tool", f"the MCP server: {reason}"[:2000])
