"""Checks conversations in prepared datasets: chat messages (`role`, `content`) and turns (`from`, `value`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollforge.registry import did_you_mean
from rollforge.steps.validate.validation_records import RowFault, is_json, kind_of, shown

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ASKING = ("human", "user", "observation", "tool", "tool_response")
ANSWERING = ("gpt", "assistant", "model", "function_call", "tool_call")
"""Names of the answering role in turns, as in LLaMA-Factory and compatible readers."""


def check_chat(messages: object, path: str, *, must_answer: bool) -> Iterator[RowFault]:
    """Check a conversation; it must end with the assistant if it `must_answer`."""
    if not isinstance(messages, list) or not messages:
        got = kind_of(messages) if messages else "nothing"
        yield RowFault(path, f"expected a list of messages, got {got}", _MESSAGE)
        return
    has_calls = any(isinstance(message, dict) and message.get("tool_calls") for message in messages)
    for number, message in enumerate(messages):
        if isinstance(message, dict):
            yield from _check_message(message, f"{path}[{number}]", has_calls=has_calls)
        else:
            yield RowFault(f"{path}[{number}]", f"expected a message, got {kind_of(message)}", _MESSAGE)
    if any(isinstance(message, dict) and "from" in message for message in messages):
        yield from _check_turns(messages, path, must_answer=must_answer)
        return
    last = messages[-1]
    if must_answer and isinstance(last, dict) and last.get("role") not in ("assistant", None):
        is_result = last.get("role") == "tool"  # untidy, but most trainers use the messages before it
        yield RowFault(
            f"{path}[{len(messages) - 1}].role",
            f"the last message is the {last.get('role')}'s, not the assistant's",
            "end with the answer to be learned, or leave the row out",
            level="warning" if is_result else "error",
        )


def _check_message(message: Mapping[str, object], path: str, *, has_calls: bool) -> Iterator[RowFault]:
    """Check one message; `has_calls` says whether any message of its conversation has calls as a field."""
    role = message.get("role", message.get("from"))
    if role not in CHAT_ROLES and "from" not in message:
        yield RowFault(
            f"{path}.role", f"expected one of {', '.join(CHAT_ROLES[:5])}, got {shown(role)}", _MESSAGE
        )
    content = message.get("content", message.get("value"))
    if content is None and not any(message.get(key) for key in ("tool_calls", "function_call", "refusal")):
        yield RowFault(f"{path}.content", "missing: expected a text, or tool_calls", 'for none: ""')
    elif content is not None and not isinstance(content, str | list):
        yield RowFault(
            f"{path}.content", f"expected a text or a list of parts, got {kind_of(content)}", _MESSAGE
        )
    for number, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict):
            hint = 'write {"type": "text", "text": …}'
            yield RowFault(f"{path}.content[{number}]", f"expected a part, got {kind_of(part)}", hint)
    if role == "tool" and has_calls and not isinstance(message.get("tool_call_id"), str):
        yield RowFault(
            f"{path}.tool_call_id",
            "missing: which call does it answer?",
            "write the id of the call",
            "warning",
        )
    yield from _check_calls(message.get("tool_calls"), f"{path}.tool_calls")


def _check_calls(calls: object, path: str) -> Iterator[RowFault]:
    if calls is None:
        return
    if not isinstance(calls, list):
        yield RowFault(path, f"expected a list of calls, got {shown(calls)}", _CALL)
        return
    for number, call in enumerate(calls):
        call_path = f"{path}[{number}]"
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            where = f"{call_path}.function" if isinstance(call, dict) else call_path
            got = shown(call["function"] if isinstance(call, dict) else call)
            yield RowFault(where, f"expected an object, got {got}", _CALL)
            continue
        if not isinstance(function.get("name"), str):
            yield RowFault(
                f"{call_path}.function.name", f"expected a text, got {shown(function.get('name'))}", _CALL
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not is_json(arguments):
            hint = "some chat templates stop at it"
            yield RowFault(
                f"{call_path}.function.arguments", f"is not JSON: {shown(arguments)}", hint, "warning"
            )


_MESSAGE = 'a message is {"role": "user", "content": "…"}'
_CALL = 'a call is {"type": "function", "function": {"name": …, "arguments": …}}'


def _check_turns(messages: list[object], path: str, *, must_answer: bool) -> Iterator[RowFault]:
    """Check that turns alternate, starting with the asking side; a system message may come first."""
    speakers = [message.get("from") if isinstance(message, dict) else None for message in messages]
    first = 1 if speakers[0] == "system" else 0
    is_answering = path in _ANSWERS and speakers[first:] != [] and speakers[first] in ANSWERING
    for number, speaker in enumerate(speakers[first:], first):
        turn_path = f"{path}[{number}].from"
        if speaker not in ASKING + ANSWERING:
            near = did_you_mean(str(speaker), list(ASKING + ANSWERING))
            yield RowFault(turn_path, f"nobody is called {shown(speaker)}{near}", _TURNS)
            return
        if speaker not in (ANSWERING if is_answering else ASKING):
            side = "the assistant's" if is_answering else "the asking side's"
            yield RowFault(turn_path, f"{speaker!r} is out of turn: the turn is {side}", _TURNS)
            return
        is_answering = not is_answering
    turn_path = f"{path}[{len(messages) - 1}].from"
    if must_answer and speakers[-1] not in ANSWERING:
        yield RowFault(turn_path, f"the last turn is {speakers[-1]!r}, not the assistant's", _TURNS)
    elif not must_answer and path == "conversations" and speakers[-1] not in ASKING:
        yield RowFault(turn_path, f"the last turn is {speakers[-1]!r}, and `chosen` would follow it", _TURNS)


_TURNS = "LLaMA-Factory drops the row: human or observation asks, gpt or function_call answers, in turn"
_ANSWERS = ("completion", "chosen", "rejected")
"""Roles that may begin with the answer."""
