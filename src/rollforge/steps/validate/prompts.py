"""The prompt of a row in any format, and the split of a file: no prompt may be in two splits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rollforge.index import prompt_hash, split_messages
from rollforge.records import PARAMS_KEY

_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.|$)")
_ROLE_BY_SPEAKER = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


def is_one_split(path: Path, other: Path) -> bool:
    """Whether two files are shards of one split, that is, their names differ only in the shard number."""
    both = path.absolute(), other.absolute()
    common = {absolute.with_name(_SHARD.sub("", absolute.name)) for absolute in both}
    return both[0] != both[1] and len(common) == 1


def prompt_of(row: Mapping[str, object]) -> int | None:
    """Canonical hash of the prompt, equal across formats; None without a prompt."""
    params = row.get(PARAMS_KEY)
    if isinstance(params, dict):
        instructions = params.get("instructions")
        return prompt_hash(params.get("input"), instructions if isinstance(instructions, str) else None)
    for key in ("rollout", "chosen"):
        inner = row.get(key)
        if isinstance(inner, dict) and PARAMS_KEY in inner:
            return prompt_of(inner)
    return prompt_hash(_asked(row))


def _asked(row: Mapping[str, object]) -> object:
    """The part of a dataset row that precedes the answer."""
    if isinstance(row.get("messages"), list):
        return split_messages(row["messages"])[0]
    if isinstance(row.get("conversations"), list):
        return split_messages(_chat_of(row))[0]
    for key in ("context", "prompt"):
        if row.get(key) is not None:
            return row[key]
    for key in ("input", "chosen"):  # a text to answer, or a conversation up to its answer
        if isinstance(row.get(key), list):
            return split_messages(row[key])[0]
    return row.get("input")


def _chat_of(row: Mapping[str, object]) -> list[object]:
    """Turns (`from`, `value`) as messages, after the system text."""
    system, turns = row.get("system"), row["conversations"]
    first: list[object] = (
        [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    )
    return first + [_message(turn) for turn in (turns if isinstance(turns, list) else [])]


def _message(turn: object) -> object:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn
    speaker = turn["from"]
    role = _ROLE_BY_SPEAKER.get(speaker, speaker) if isinstance(speaker, str) else None
    return {"role": role, "content": turn.get("value")}
