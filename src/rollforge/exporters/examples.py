"""Examples: selected rollouts as messages and numbers, independent of any trainer's row format."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollforge.conversations.messages import ChatMessage, TokenRecord

Kind = Literal["demonstration", "pair", "labelled", "prompt", "scored", "raw"]
"""Kinds of example."""


class Demonstration(msgspec.Struct, gc=False):
    """An answer to imitate."""

    prompt: list[ChatMessage]
    answer: list[ChatMessage]
    tools: bytes | None
    reward: float | None = None
    task: str = ""
    rollout: int = 0
    agent: str | None = None


class Pair(msgspec.Struct, gc=False):
    """Two answers to one prompt, the better one first."""

    prompt: list[ChatMessage]
    chosen: list[ChatMessage]
    rejected: list[ChatMessage]
    tools: bytes | None
    chosen_reward: float
    rejected_reward: float

    @property
    def gap(self) -> float:
        """The reward gap, rounded to nine decimals, because some loaders pass numbers through ten-digit text."""
        return round(self.chosen_reward - self.rejected_reward, 9)


class Labelled(msgspec.Struct, gc=False):
    """An answer and whether it is desirable."""

    prompt: list[ChatMessage]
    answer: list[ChatMessage]
    tools: bytes | None
    label: bool
    reward: float


class Prompt(msgspec.Struct, gc=False):
    """A task to sample from, for reinforcement learning."""

    prompt: list[ChatMessage]
    tools: bytes | None
    ground_truth: str
    """The reference answer as text; other values as JSON text; empty if the task has none."""
    numbers: dict[str, float | int | None]
    """Reward statistics of the task: n_rollouts, mean_reward, pass_rate, difficulty …"""
    task: str
    index: int
    source: str
    split: str
    fields: bytes
    """The task row as JSON text, without the fields that rollouts add."""


class Scored(msgspec.Struct, gc=False):
    """One rollout of a group with its reward and advantages."""

    prompt: list[ChatMessage]
    answer: list[ChatMessage]
    tools: bytes | None
    numbers: dict[str, float | int | None]
    task: str
    rollout: int
    tokens: list[TokenRecord]
    fidelity: str
    """`token-exact`, `token-drift`, `text-only` or `lossy`."""


Example = Demonstration | Pair | Labelled | Prompt | Scored
