"""Verify: a run and a verifier in, verdicts on disk. `Verification` is the step; the modules beside it are its parts.

source    rollouts on disk, or as they arrive
choice    which of them are judged
verdicts  earlier verdicts, and the rows that this verification adds
engine    the loop: read, judge, append
spread    the same by several workers; worker is their side of it
tally     the summary
judge_cost  what the judge model is paid
flips     two verifiers compared
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollforge.steps.verify.verify_options import VerifyOptions

if TYPE_CHECKING:
    from rollforge.steps.verify.flips import FlipTable, compare, flip_keys
    from rollforge.steps.verify.judge_cost import JudgeSpending
    from rollforge.steps.verify.spread import SpreadVerification
    from rollforge.steps.verify.tally import VerifySummary
    from rollforge.steps.verify.verdicts import default_verifier, known_verifiers, use_verifier
    from rollforge.steps.verify.verify_loop import Verification, VerifySnapshot

__all__ = [
    "FlipTable",
    "JudgeSpending",
    "SpreadVerification",
    "Verification",
    "VerifyOptions",
    "VerifySnapshot",
    "VerifySummary",
    "compare",
    "default_verifier",
    "flip_keys",
    "known_verifiers",
    "use_verifier",
]

_MODULE_OF = {
    "FlipTable": "flips", "JudgeSpending": "judge_cost", "SpreadVerification": "spread", "Verification": "verify_loop",
    "VerifySnapshot": "verify_loop", "VerifySummary": "tally", "compare": "flips", "flip_keys": "flips",
    "default_verifier": "verdicts", "known_verifiers": "verdicts", "use_verifier": "verdicts",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a part on use: workers need neither the comparison of verifiers nor its index."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rollforge.steps.verify.{_MODULE_OF[name]}"), name)
