"""Repairs rollouts with untidy ends, by stated policies.

A policy is `keep` (leave it), `cut` (go back to the last whole turn) or `refuse` (count the rollout with its reason). Every use
leaves a mark for the manifest. Texts never change, except that leading system texts are joined.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import msgspec

from rollforge.conversations.messages import ChatMessage, Conversation, Inexpressible

Policy = Literal["keep", "cut", "refuse"]


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to each kind of untidy rollout."""

    ends_in_tool_result: Policy = "keep"
    """For a rollout that ends in a tool result; `cut` leaves the call as the last message."""
    ends_in_user_message: Policy = "cut"
    unanswered_call: Policy = "keep"
    """For a rollout that ends with an unanswered call; `cut` goes back to the last turn without one."""
    inner_unanswered_call: Policy = "keep"
    """For a call inside the rollout without a result."""
    bare_reasoning: Policy = "cut"
    """For a rollout that ends with reasoning and no answer."""
    assistant_first: Policy = "keep"
    """For a conversation that starts with the assistant; `cut` does not apply."""
    orphan_result: Policy = "keep"
    """For a tool result without a matching call."""
    developer: Literal["keep", "convert"] = "convert"
    """For developer messages; `convert` makes them system messages."""
    join_system: bool = True
    """Whether leading system texts become one message, joined by blank lines."""


def tidy(conversation: Conversation, policies: Policies, *, needs_answer: bool = True) -> Conversation:
    """Apply the policies to a conversation; its prompt must have passed through `lead`.

    Raises:
        Inexpressible: a policy refuses it, or no complete turn is left.
    """
    if needs_answer and _is_tidy(conversation, policies):
        return conversation
    marks = set(conversation.marks)
    prompt = conversation.prompt
    answer = conversation.answer
    if policies.developer == "convert" and "developer role" in marks:
        answer = [_as_system(message) for message in answer]
    first = next((message for message in chain(prompt, answer) if message.role != "system"), None)
    if first is None or first.role == "assistant":
        _decide("starts with the assistant", policies.assistant_first, marks)
    if needs_answer:
        if not answer:
            raise Inexpressible("empty output")
        _inner_calls(prompt, answer, policies, marks)
        answer = _whole_end(answer, policies, marks)
    if "tool result without its call" in marks and policies.orphan_result == "refuse":
        raise Inexpressible("tool result without its call")
    return Conversation(prompt, answer, conversation.tools, frozenset(marks), conversation.tokens)


def _is_tidy(conversation: Conversation, policies: Policies) -> bool:
    """Whether no repair is needed, the common case: one question, calls answered in turn, an answer at the end."""
    if conversation.marks or not conversation.answer or not conversation.prompt:
        return False
    last = conversation.answer[-1]
    if last.role != "assistant" or last.calls or last.is_blank or conversation.prompt[-1].role != "user":
        return False
    waiting = 0
    for message in conversation.answer:
        if message.role == "assistant":
            if waiting:
                return False
            waiting = len(message.calls)
        elif message.role == "tool":
            waiting -= 1
        else:
            return False
    if waiting:
        return False
    for message in conversation.prompt:  # noqa: SIM110  (a generator costs more than the comparison)
        if message.role not in _ASKING:
            return False
    return True


_ASKING = frozenset({"system", "user"})


def lead(prompt: list[ChatMessage], policies: Policies) -> list[ChatMessage]:
    """Convert developer messages and join leading system messages, according to the policies."""
    if policies.developer == "convert":
        prompt = [_as_system(message) for message in prompt]
    count = next((i for i, message in enumerate(prompt) if message.role != "system"), len(prompt))
    if policies.join_system and count > 1:
        joined = ChatMessage("system", "\n\n".join(message.content for message in prompt[:count]))
        prompt = [joined, *prompt[count:]]
    return prompt


def _as_system(message: ChatMessage) -> ChatMessage:
    return ChatMessage("system", message.content) if message.role == "developer" else message


def _decide(situation: str, policy: Policy, marks: set[str]) -> bool:
    """Whether to cut; raises if the policy refuses."""
    if policy == "refuse":
        raise Inexpressible(situation)
    marks.add(f"{situation} ({'kept' if policy == 'keep' else 'cut'})")
    return policy == "cut"


def _whole_end(answer: list[ChatMessage], policies: Policies, marks: set[str]) -> list[ChatMessage]:
    """Cut the answer back to its last whole turn, where the policies say so."""
    left = len(answer)
    reason = "empty output"
    while left:
        last = answer[left - 1]
        if last.role == "tool":
            reason = "ends in a tool result"
            if not _decide(reason, policies.ends_in_tool_result, marks):
                return answer[:left]
            while left and answer[left - 1].role == "tool":
                left -= 1
            if left and answer[left - 1].role == "assistant":
                return answer[:left]
            continue
        if last.role != "assistant":
            reason, policy = "ends in a user message", policies.ends_in_user_message
        elif last.calls:
            reason, policy = "ends in an unanswered call", policies.unanswered_call
        elif last.is_blank:
            reason = "ends in bare reasoning" if last.has_reasoning else "empty output"
            policy = policies.bare_reasoning if last.has_reasoning else "cut"
        else:
            break
        if not _decide(reason, policy, marks):
            break
        left -= 1
    if not left:
        raise Inexpressible(f"{reason}: nothing whole is left")
    return answer[:left]


def _inner_calls(
    prompt: list[ChatMessage], answer: list[ChatMessage], policies: Policies, marks: set[str]
) -> None:
    called = {call.id for message in chain(prompt, answer[:-1]) for call in message.calls}
    if called and called - {message.call_id for message in chain(prompt, answer) if message.role == "tool"}:
        situation = "unanswered call inside"
        if policies.inner_unanswered_call == "refuse":
            raise Inexpressible(situation)
        marks.add(f"{situation} (kept)")
