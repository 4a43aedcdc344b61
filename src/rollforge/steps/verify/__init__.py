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

from rollforge.steps.verify.flips import FlipTable, compare, flip_keys
from rollforge.steps.verify.judge_cost import JudgeSpending
from rollforge.steps.verify.spread import SpreadVerification
from rollforge.steps.verify.tally import VerifySummary
from rollforge.steps.verify.verdicts import known_verifiers, use_verifier
from rollforge.steps.verify.verify_loop import Verification, VerifySnapshot
from rollforge.steps.verify.verify_options import VerifyOptions

__all__ = [
    "FlipTable",
    "JudgeSpending",
    "SpreadVerification",
    "Verification",
    "VerifyOptions",
    "VerifySnapshot",
    "VerifySummary",
    "compare",
    "flip_keys",
    "known_verifiers",
    "use_verifier",
]
