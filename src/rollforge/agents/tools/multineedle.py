"""The two tools of NeMo Gym's multi-step example: look a word's value up, submit all values."""

from __future__ import annotations

from typing import TypedDict


class SynonymValue(TypedDict):
    """What the look-up answers."""

    synonym_value: int


class Receipt(TypedDict):
    """What the submission answers."""

    success: bool


async def get_synonym_value(synonym: str) -> SynonymValue:
    """Look up the value of one synonym.

    Args:
        synonym: The synonym to look up.
    """
    return {"synonym_value": sum(map(ord, synonym))}


async def extract_synonym_values(synonym_values: list[int]) -> Receipt:
    """Submit the values of all synonyms, in the order asked for.

    Args:
        synonym_values: The values to submit.
    """
    return {"success": True}


TOOLS = [get_synonym_value, extract_synonym_values]
