"""Rollouts in chat form: `messages`, or `prompt` and `completion`, as scripts and chat APIs write them.

The answer in `messages` begins after the last message that is neither from the model nor from a tool, as in the index. Numbers in
object arguments keep their digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollforge.conversations.items import ContentPart, ImagePolicy, chat_tools, text_of
from rollforge.conversations.messages import ChatMessage, Conversation, FunctionCall, Inexpressible, is_text
from rollforge.json_shapes import RowJson, without
from rollforge.store.reading import UNREADABLE

_NULL = msgspec.Raw(b"null")
_ASKING = ("user", "system", "developer")


class _Function(msgspec.Struct, gc=False, frozen=True):
    name: str = ""
    arguments: msgspec.Raw = _NULL


class _ChatCall(msgspec.Struct, gc=False):
    id: str | None = None
    function: _Function = _Function()


class _Message(msgspec.Struct, gc=False):
    """The fields of a chat message that conversion reads."""

    role: str
    content: str | list[ContentPart | str] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ChatCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatRow(msgspec.Struct, gc=False):
    """The fields of a rollout in chat form that conversion reads."""

    messages: list[_Message] | None = None
    prompt: str | list[_Message] | None = None
    completion: str | list[_Message] | None = None
    tools: msgspec.Raw = _NULL

    @property
    def is_one(self) -> bool:
        """Whether the row has a conversation."""
        return self.messages is not None or self.prompt is not None


def read_chat_row(row: ChatRow, images: ImagePolicy = "refuse") -> Conversation:
    """The conversation in the row.

    Raises:
        Inexpressible: with the reason to count.
    """
    prompt_messages, answer_messages = _sides(row)
    marks: set[str] = set()
    call_names: dict[str, str] = {}
    prompt = [_to_message(message, call_names, marks, images) for message in prompt_messages]
    answer = [_to_message(message, call_names, marks, images) for message in answer_messages]
    if not answer:
        marks.add("empty output")
    try:
        tools = chat_tools(
            msgspec.json.decode(row.tools, type=str).encode() if is_text(row.tools) else row.tools
        )
    except UNREADABLE as error:
        raise Inexpressible("tools that are no list of schemas") from error
    return Conversation(prompt, answer, tools, frozenset(marks))


def without_answer(row: RowJson) -> RowJson:
    """The row without its answer, which a prompt set need not be able to read."""
    prompt_row = without(row, ("completion",))
    if isinstance(messages := row.get("messages"), list):
        prompt_row["messages"] = messages[: _end_of_prompt([_role(message) for message in messages])]
    return prompt_row


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _end_of_prompt(roles: Sequence[object]) -> int:
    return max((position for position, role in enumerate(roles, 1) if role in _ASKING), default=0)


def _sides(row: ChatRow) -> tuple[Sequence[_Message], Sequence[_Message]]:
    """Split the row into prompt and answer."""
    if row.messages is None:
        return _as_messages(row.prompt, "user"), _as_messages(row.completion, "assistant")
    last = _end_of_prompt([message.role for message in row.messages])
    return row.messages[:last], row.messages[last:]


def _as_messages(content: str | list[_Message] | None, role: str) -> Sequence[_Message]:
    if isinstance(content, str):
        return [_Message(role, content)]
    return content or []


def _to_message(
    message: _Message, call_names: dict[str, str], marks: set[str], images: ImagePolicy
) -> ChatMessage:
    if message.role not in (*_ASKING, "assistant", "tool"):
        raise Inexpressible(f"message role {message.role}")
    if message.role == "developer":
        marks.add("developer role")
    text, urls = text_of(message.content, marks, images if message.role == "user" else "refuse")
    if message.refusal:
        marks.add("refusal kept as text")
        text += message.refusal
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        if call_id not in call_names:
            marks.add("tool result without its call")
        return ChatMessage("tool", text, call_id=call_id, name=message.name or call_names.get(call_id))
    calls = [
        _call(call, len(call_names) + number, marks) for number, call in enumerate(message.tool_calls or [])
    ]
    call_names |= {call.id: call.name for call in calls}
    return ChatMessage(
        message.role, text, message.reasoning_content or message.reasoning or None, calls, images=urls
    )


def _call(call: _ChatCall, number: int, marks: set[str]) -> FunctionCall:
    if not call.function.name:
        raise Inexpressible("function call without a name")
    raw = call.function.arguments
    arguments = msgspec.json.decode(raw, type=str) if is_text(raw) else bytes(raw).decode()
    if arguments in ("", "null"):
        marks.add("empty arguments written as {}")
        arguments = "{}"
    return FunctionCall(call.id or f"call_{number}", call.function.name, arguments)
