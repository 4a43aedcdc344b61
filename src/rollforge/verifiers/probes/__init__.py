"""Probes: questions whose right verdict is known without labels. They tell a broken verifier before its rewards are trained on.

questions     what a verifier must know
answers       made-up answers: the gold one in every usual form, empty ones, refusals, odd ones, changed spacing
prober        asks about one task after another
observations  what the verifier said
sprinkle      the same in the background of a running collection
report        rates with intervals, what they mean, and whether the verifier is judged broken
"""

from rollforge.verifiers.probes.prober import Prober
from rollforge.verifiers.probes.report import Probe, ProbeExample, ProbeReport, wilson
from rollforge.verifiers.probes.sprinkle import SprinkledProbes

__all__ = ["Probe", "ProbeExample", "ProbeReport", "Prober", "SprinkledProbes", "wilson"]
