"""Executors: places where the workers of a step run. One file per member, one line here."""

from rollforge.registry import Registry

EXECUTORS = Registry(
    "executors",
    {
        "local": "rollforge.executors.local:Local",
        "processes": "rollforge.executors.processes:Processes",
        "ray": "rollforge.executors.ray:Ray",
    },
)
