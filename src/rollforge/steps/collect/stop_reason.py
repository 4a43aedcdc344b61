"""Names of the reasons why a collection stops taking work, and of its endings."""

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
"""Why no new work is taken; empty while work is taken."""

Ending = Literal[StopReason, "done", "incomplete", "requests"]
"""How a collection ended: complete, by a stop reason, or with requests written instead of sent."""
