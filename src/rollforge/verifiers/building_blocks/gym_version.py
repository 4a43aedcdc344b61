"""Which release of NeMo Gym a verifier agrees with: the newest by default, an older one by the option `gym`."""

from __future__ import annotations

from typing import Literal

GymVersion = Literal["0.5", "0.7"]
NEWEST: GymVersion = "0.7"
