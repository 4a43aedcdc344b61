"""Agents: what turns a task into a rollout. One file per member, one line here."""

from rollforge.registry import Registry

AGENTS = Registry(
    "agents",
    {
        "model_call": "rollforge.agents.model_call:ModelCall",
        "tool_loop": "rollforge.agents.tool_loop:ToolLoop",
        "gym_resources": "rollforge.agents.gym_resources:GymResources",
        "gym_agent": "rollforge.agents.gym_agent:GymAgent",
        "program": "rollforge.agents.program:Program",
        "claude-code": "rollforge.agents.presets:ClaudeCode",
        "codex": "rollforge.agents.presets:Codex",
        "opencode": "rollforge.agents.presets:OpenCode",
        "qwen-code": "rollforge.agents.presets:QwenCode",
        "mini-swe-agent": "rollforge.agents.presets:MiniSweAgent",
    },
)
