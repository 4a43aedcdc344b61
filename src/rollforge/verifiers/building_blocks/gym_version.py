"""The NeMo Gym release whose behaviour a verifier follows: the newest by default, an older one with the option `gym`."""

from __future__ import annotations

from typing import Literal

GymVersion = Literal["0.5", "0.7"]
NEWEST: GymVersion = "0.7"
