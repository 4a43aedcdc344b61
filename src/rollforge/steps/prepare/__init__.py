"""Prepare: from scored rollouts to files that a trainer's own loader accepts.

The recipe selects on columns, the survey decides the form of the rows, the exporter writes them, the files are read back and
checked, and only then get their names. The result is a pure function of (rollouts, options, seed); the manifest beside it says
how it was made.
"""

from rollforge.steps.prepare.dataset_manifest import CheckRecord, DatasetManifest, read_manifest
from rollforge.steps.prepare.lineage import Lineage, Origin, trace
from rollforge.steps.prepare.pipeline import carry_out, prepare, understand
from rollforge.steps.prepare.push import PushTarget, push_dataset
from rollforge.steps.prepare.rebuild import prepare_again
from rollforge.steps.prepare.settings import DECIDED_BY, KEPT_BY, Settings

__all__ = [
    "DECIDED_BY",
    "KEPT_BY",
    "CheckRecord",
    "DatasetManifest",
    "Lineage",
    "Origin",
    "PushTarget",
    "Settings",
    "carry_out",
    "prepare",
    "prepare_again",
    "push_dataset",
    "read_manifest",
    "trace",
    "understand",
]
