"""Records between the APIs and the simulated model: the request (`Ask`) and the model's turn.

They are independent of HTTP and of the API formats, which are in `asks` and `writing`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rollforge.json_shapes import ParamsJson, SchemaJson
from rollforge.simulate.draws import digest


class SimulatedMessage(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    role: str
    text: str


class SimulatedCall(msgspec.Struct, frozen=True):
    """A function call by the model, new or earlier in the conversation."""

    name: str
    arguments: str
    call_id: str


class ToolOutput(msgspec.Struct, frozen=True):
    """A tool's answer to a call."""

    call_id: str
    text: str


ConversationItem = SimulatedMessage | SimulatedCall | ToolOutput


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    parameters: SchemaJson
    text: str
    """The definition as text in the prompt."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, independent of its API."""

    model: str
    items: tuple[ConversationItem, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the tool to call."""
    parallel_calls: bool = True
    temperature: float = 1.0
    max_tokens: int | None = None
    choices: int = 1
    seed: int | str | None = None
    sample: int | str | None = None
    wants_reasoning: bool = False
    wants_logprobs: bool = False
    top_logprobs: int = 0
    wants_token_ids: bool = False
    body: ParamsJson = msgspec.field(default_factory=ParamsJson)
    """The original request, since responses repeat some of its fields."""

    @property
    def task_text(self) -> str:
        """Text of the last user message, which is the problem to solve."""
        texts = (
            item.text
            for item in reversed(self.items)
            if isinstance(item, SimulatedMessage) and item.role == "user"
        )
        return next(texts, "")

    def task_key(self) -> str:
        """Key of the conversation up to the last user message; equal for all turns of a rollout."""
        messages = [item for item in self.items if isinstance(item, SimulatedMessage)]
        while messages and messages[-1].role != "user":
            messages.pop()
        return f"{digest(*(part for message in messages for part in (message.role, message.text))):016x}"

    def since_user(self) -> tuple[ConversationItem, ...]:
        """Events since the last user message: the model's calls and their outputs."""
        last = max((position for position, item in enumerate(self.items) if _is_from_user(item)), default=-1)
        return self.items[last + 1 :]


def _is_from_user(item: ConversationItem) -> bool:
    return isinstance(item, SimulatedMessage) and item.role == "user"


Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class SimulatedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The model's output in one turn."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[SimulatedCall, ...] = ()
    refusal: str | None = None
    finish: Finish = "stop"
