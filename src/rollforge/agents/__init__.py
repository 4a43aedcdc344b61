"""Agents: what turns a task into a rollout. One file per member, one line here."""

from rollforge.registry import Registry

AGENTS = Registry(
    "agents",
    {
        "model_call": "rollforge.agents.model_call:ModelCall",
        "tool_loop": "rollforge.agents.tool_loop:ToolLoop",
        "gym_resources": "rollforge.agents.gym_resources:GymResources",
        "gym_agent": "rollforge.agents.gym_agent:GymAgent",
    },
)
