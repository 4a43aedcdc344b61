"""Instructions to repeat a text: whole, in part, several times, or slightly changed."""

from __future__ import annotations

import re

from rollforge.verifiers.instruction_following.arguments import Arguments, Checker, count_of, text_of


def repeat_prompt(text: str, arguments: Arguments) -> bool:
    """The text starts with the prompt to repeat, ignoring case."""
    return _plain(text).startswith(_plain(text_of(arguments, "prompt_to_repeat")))


def copy(text: str, arguments: Arguments) -> bool:
    """The text equals the prompt to repeat, ignoring case."""
    return _plain(text) == _plain(text_of(arguments, "prompt_to_repeat"))


def copying_multiple(text: str, arguments: Arguments) -> bool:
    """The text is exactly `N` copies of the prompt, separated by `******`."""
    wanted = _plain(text_of(arguments, "prompt_to_repeat"))
    copies = [_plain(part) for part in text.split("******")]
    return copies == [wanted] * count_of(arguments, "N")


def copy_span_idx(text: str, arguments: Arguments) -> bool:
    """The text is the part of the prompt from character `n_start` to `n_end`."""
    prompt = text_of(arguments, "prompt_to_repeat")
    span = prompt[count_of(arguments, "n_start") : count_of(arguments, "n_end")]
    return _plain(text) == _plain(span)


def repeat_phrase(text: str, arguments: Arguments) -> bool:
    """Check copies of a phrase: each keeps the first and last word and changes at most one; the last copy changes exactly one."""
    phrase, wanted = text_of(arguments, "phrase").split(), count_of(arguments, "small_n")
    copies = [copy.split() for copy in re.findall(f"{phrase[0]} .*? {phrase[-1]}", text)]
    if not copies or len(copies) != wanted or any(len(copy) != len(phrase) for copy in copies):
        return False
    changes: list[int] = [
        sum(word != right for word, right in zip(copy, phrase, strict=True)) for copy in copies
    ]
    return max(changes) <= 1 and changes[-1] == 1


def _plain(text: str) -> str:
    return text.strip().lower()


CHECKERS: dict[str, Checker] = {
    "combination:repeat_prompt": repeat_prompt,
    "copy:copy": copy,
    "copy:copying_simple": copy,
    "copy:copying_multiple": copying_multiple,
    "copy:repeat_phrase": repeat_phrase,
    "new:copy_span_idx": copy_span_idx,
}
"""Instruction id → checker."""
