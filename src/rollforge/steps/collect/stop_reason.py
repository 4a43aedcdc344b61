"""The words for why a collection stops taking work, and for how it ended."""

from typing import Literal

StopReason = Literal[
    "interrupted",
    "deadline",
    "tokens",
    "cost",
    "pilot",
    "failures",
    "outage",
    "broken",
    "fatal",
    "disk",
    "taken over",
]

Reason = Literal[StopReason, ""]
"""Why no new work is taken; empty while it is."""

Ending = Literal[StopReason, "done", "incomplete"]
"""How a collection ended: at its end, or at what stopped it."""
