"""Verify: a run and a verifier in, verdicts on disk. `Verification` is the step; the modules beside it are its parts.

source    rollouts as they are, or as they come
choice    which of them are judged
verdicts  what earlier verification left, and the rows that this one adds
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
