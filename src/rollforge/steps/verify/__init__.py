"""Verify: a run and a verifier in, verdicts on disk. `Verification` is the step; the modules beside it are its parts.

source    rollouts on disk, or as they arrive
choice    which of them are judged
verdicts  earlier verdicts, and the rows that this verification adds
engine    the loop: read, judge, append
tally     the summary
flips     two verifiers compared
"""

from rollforge.steps.verify.engine import Verification, VerifySnapshot
from rollforge.steps.verify.flips import FlipTable, compare, flip_keys
from rollforge.steps.verify.options import VerifyOptions
from rollforge.steps.verify.tally import VerifySummary
from rollforge.steps.verify.verdicts import known_verifiers, use_verifier

__all__ = [
    "FlipTable",
    "Verification",
    "VerifyOptions",
    "VerifySnapshot",
    "VerifySummary",
    "compare",
    "flip_keys",
    "known_verifiers",
    "use_verifier",
]
