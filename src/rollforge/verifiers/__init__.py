"""Verifiers: what turns (task, response) into a verdict. One file per member, one line here."""

from rollforge.registry import Registry

VERIFIERS = Registry(
    "verifiers",
    {
        "exact": "rollforge.verifiers.exact:verify",
    },
)
