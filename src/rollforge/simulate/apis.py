"""The APIs the server speaks: one line per path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollforge.records import JsonFields
from rollforge.simulate.conversation import Ask
from rollforge.simulate.reading import read_chat, read_responses
from rollforge.simulate.writing import Answered, write_chat, write_responses


class Api(NamedTuple):
    """One API: how its requests are read and its answers written."""

    read: Callable[[JsonFields], Ask]
    write: Callable[[Ask, str, Sequence[Answered]], JsonFields]


APIS = {
    "/v1/responses": Api(read_responses, write_responses),
    "/v1/chat/completions": Api(read_chat, write_chat),
}
