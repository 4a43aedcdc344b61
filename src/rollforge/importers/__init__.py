"""Importers: other tools' logs as rollouts. One file per member, one line here."""

from rollforge.registry import Registry

IMPORTERS = Registry(
    "importers",
    {
        "harbor": "rollforge.importers.harbor:read_harbor",
        "inspect": "rollforge.importers.inspect_log:read_inspect",
        "verifiers": "rollforge.importers.verifiers_traces:read_verifiers",
    },
)
