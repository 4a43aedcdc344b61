"""The two sides of a preference pair: whole answers, or the first message in which they differ."""

from __future__ import annotations

from rollforge.conversations.messages import ChatMessage, Conversation, Inexpressible
from rollforge.conversations.texts import is_spelled_once


def make_sides(
    chosen: Conversation, rejected: Conversation, form: str, *, has_reasoning: bool = True
) -> tuple[list[ChatMessage], list[ChatMessage], list[ChatMessage]]:
    """(prompt, chosen, rejected), with `form` `whole` or `step`.

    If rows have no reasoning (`has_reasoning` is false), messages that differ only in reasoning count as equal.

    Raises:
        Inexpressible: the prompts differ, the answers are equal, or no message of the model differs.
    """
    if chosen.asks_nothing:
        raise Inexpressible("empty prompt")
    if chosen.prompt != rejected.prompt or chosen.tools != rejected.tools:
        raise Inexpressible("the two prompts differ")
    if say_the_same(chosen.answer, rejected.answer):
        raise Inexpressible("same answer after normalisation")
    if form == "whole" or (len(chosen.answer) == 1 and len(rejected.answer) == 1):
        return chosen.prompt, chosen.answer, rejected.answer
    shared = 0
    for a, b in zip(chosen.answer, rejected.answer, strict=False):
        if not _same_message(a, b, has_reasoning=has_reasoning):
            break
        shared += 1
    if shared == min(len(chosen.answer), len(rejected.answer)):
        raise Inexpressible("one answer is the beginning of the other")
    a, b = chosen.answer[shared], rejected.answer[shared]
    if a.role != "assistant" or b.role != "assistant":
        raise Inexpressible("the answers first differ in what a tool or user said")
    if say_the_same([a], [b]):
        raise Inexpressible("the answers first differ in reasoning alone")
    # Keep the list object of the prompt if the answers differ at once: the writer encodes it once for all pairs of the task.
    return chosen.prompt + chosen.answer[:shared] if shared else chosen.prompt, [a], [b]


def _same_message(a: ChatMessage, b: ChatMessage, *, has_reasoning: bool) -> bool:
    """Whether two messages are equal apart from call ids, which are random."""
    raws = (a.raw, a.raw_thought, b.raw, b.raw_thought)
    if all(raw is None or is_spelled_once(raw) for raw in raws):
        if None not in (a.raw, b.raw) and a.raw != b.raw:
            return False  # the common case, without decoding the texts
        if has_reasoning and None not in (a.raw_thought, b.raw_thought) and a.raw_thought != b.raw_thought:
            return False
    one, other = ((m.role, m.content, m.reasoning if has_reasoning else None, m.name) for m in (a, b))
    return one == other and _same_calls(a, b)


def _same_calls(a: ChatMessage, b: ChatMessage) -> bool:
    return [(c.name, c.arguments) for c in a.calls] == [(c.name, c.arguments) for c in b.calls]


def say_the_same(a: list[ChatMessage], b: list[ChatMessage]) -> bool:
    """Whether the model's messages differ only in white space, reasoning and call ids."""
    assistant_messages = [
        [message for message in messages if message.role == "assistant"] for messages in (a, b)
    ]
    return len(assistant_messages[0]) == len(assistant_messages[1]) and all(
        map(_says_the_same, *assistant_messages)
    )


def _says_the_same(a: ChatMessage, b: ChatMessage) -> bool:
    if not _same_calls(a, b):
        return False
    first, second = a.content, b.content
    if first[:200].split()[:5] != second[:200].split()[:5]:
        return False  # most texts differ early, and splitting whole texts is slow
    return first == second or first.split() == second.split()
