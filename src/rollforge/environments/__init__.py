"""Environments: bundles of tasks, agent and verdict. One file per member, one line here."""

from rollforge.registry import Registry

ENVIRONMENTS = Registry(
    "environments",
    {
        "gym": "rollforge.environments.gym:Gym",
        "openenv": "rollforge.environments.openenv:OpenEnv",
        "reasoning-gym": "rollforge.environments.reasoning_gym:ReasoningGymTasks",
        "textarena": "rollforge.environments.textarena:TextArena",
        "verifiers": "rollforge.environments.verifiers:open_verifiers",
    },
)
