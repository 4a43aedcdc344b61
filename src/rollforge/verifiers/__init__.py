"""Verifiers: what turns (task, response) into a verdict. One file per member, one line here."""

from rollforge.registry import Registry

VERIFIERS = Registry(
    "verifiers",
    {
        "code": "rollforge.verifiers.code:Code",
        "exact": "rollforge.verifiers.exact:Exact",
        "json_schema": "rollforge.verifiers.json_schema:JsonSchema",
        "math": "rollforge.verifiers.math:Math",
        "mcqa": "rollforge.verifiers.mcqa:Mcqa",
        "regex": "rollforge.verifiers.regex:Regex",
    },
)
