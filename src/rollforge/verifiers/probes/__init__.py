"""Probes: questions with known verdicts, which find a broken verifier before its rewards are trained on.

questions     what every verifier must get right
answers       made-up answers: gold in every usual form, empty, refusals, gibberish, changed spacing
prober        asks about one task after another
observations  the verifier's answers
sprinkle      probes in the background of a running collection
report        rates with intervals, and whether the verifier is judged broken
"""

from rollforge.verifiers.probes.prober import PROBE_CALLS, Prober
from rollforge.verifiers.probes.report import Probe, ProbeExample, ProbeReport, wilson
from rollforge.verifiers.probes.sprinkle import SprinkledProbes

__all__ = ["PROBE_CALLS", "Probe", "ProbeExample", "ProbeReport", "Prober", "SprinkledProbes", "wilson"]
