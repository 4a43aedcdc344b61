"""Table of the server's APIs: one line per path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from rollforge.conversations.apis.events import chat_events, message_events, response_events
from rollforge.conversations.apis.messages_api import error_body, message_from_response, params_from_messages
from rollforge.conversations.apis.messages_json import ErrorBodyJson, MessageJson, MessagesBodyJson
from rollforge.json_shapes import ChatBodyJson, ChatCompletionJson
from rollforge.simulate.asks import Rejection, read_chat, read_responses
from rollforge.simulate.conversation import Ask
from rollforge.simulate.writing import Answered, write_chat, write_responses

Request = TypeVar("Request", bound=Mapping[str, object])
Answer = TypeVar("Answer", bound=Mapping[str, object])


class SimulatedApi(NamedTuple, Generic[Request, Answer]):
    """Converters of one API: requests, answers (complete or streamed) and errors."""

    name: str
    read: Callable[[Request], Ask]
    write: Callable[[Ask, str, Sequence[Answered]], Answer]
    stream: Callable[[Answer, Request], list[bytes]]
    """The answer as server-sent events; the second argument is the request."""

    def error(self, status: int, body: ErrorBodyJson) -> ErrorBodyJson:
        """Convert an error from OpenAI's format to this API's."""
        error = body.get("error")
        if self.name != "messages" or not isinstance(error, dict):
            return body
        return error_body(status, str(error.get("message")))


def read_messages(body: MessagesBodyJson) -> Ask:
    """Parse a Messages request; raises `Rejection`."""
    if body.get("max_tokens") is None:
        raise Rejection(400, "max_tokens: Field required", param="max_tokens")
    return read_responses(params_from_messages(body))


def write_messages(ask: Ask, model: str, answers: Sequence[Answered]) -> MessageJson:
    """A `message` object of Anthropic's API."""
    return message_from_response(write_responses(ask, model, answers), model)


def _stream_chat(answer: ChatCompletionJson, request: ChatBodyJson) -> list[bytes]:
    options = request.get("stream_options")
    return chat_events(answer, with_usage=isinstance(options, dict) and bool(options.get("include_usage")))


Api = SimulatedApi[Any, Any]
"""An API of any type; only its own functions know the types of its requests and answers."""

APIS: dict[str, Api] = {
    "/v1/responses": SimulatedApi(
        "responses", read_responses, write_responses, lambda answer, _: response_events(answer)
    ),
    "/v1/chat/completions": SimulatedApi("chat", read_chat, write_chat, _stream_chat),
    "/v1/messages": SimulatedApi(
        "messages", read_messages, write_messages, lambda answer, _: message_events(answer)
    ),
}
