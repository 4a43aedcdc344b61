"""Options of agents that are programs: their files, their network, and the artifacts to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rollforge.records import JsonFields

PRESETS = ("claude-code", "codex", "opencode", "qwen-code", "mini-swe-agent")


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options of agents that are external programs."""

    workdir: str | None = None
    """Directory that every program starts with a copy of; by default an empty one, with the task's `files`."""
    stdin: Literal["none", "prompt"] = "none"
    """What a program reads on standard input."""
    pass_env: tuple[str, ...] = ()
    """Environment variable that programs get; repeatable. Others are cleared, but for PATH, LANG and the like."""
    withhold: tuple[str, ...] = ()
    """Task field that programs must not read in ROLLFORGE_TASK; repeatable. Expected answers are withheld anyway."""
    mount: tuple[str, ...] = ()
    """File or folder that programs in the sandbox may read; repeatable."""
    network: Literal["none", "host"] | None = None
    """Network of programs: none (the default in the sandbox) leaves only the model, host is this machine's."""
    artifacts: tuple[str, ...] = ()
    """Glob of files to keep from a program's working directory, such as "*.patch"; repeatable."""
    max_artifact_bytes: int = 16 << 20
    """Most bytes of artifacts kept per rollout; larger files are listed, not kept."""
    max_memory_bytes: int = 4 << 30
    """Most resident memory of a program and all it starts, in bytes; 0 for no limit."""
    max_processes: int = 512
    """Most processes of a program at once, all it starts included; 0 for no limit."""
    sandbox: Literal["auto", "require", "off"] = "auto"
    """How programs are confined: auto and require need bubblewrap or refuse, off runs them as you."""


def runs_program(agent: str | None) -> bool:
    """Whether the agent is an external program."""
    return agent is not None and (agent in (*PRESETS, "program") or agent.startswith("program:"))


RUNS_CODE = ("code", "script")
"""Verifiers that run programs and therefore have the option `sandbox`."""


def sandbox_fields(
    sandbox: str, *, agent: str | None, verifier: Any, verifier_options: JsonFields
) -> dict[str, Any]:
    """The options that `sandbox` sets: the agent's, and the verifier's where that runs programs or no agent does."""
    is_asked = sandbox != "auto" and not runs_program(agent)
    if is_asked or verifier in RUNS_CODE:
        return {"sandbox": sandbox, "verifier_options": verifier_options | {"sandbox": sandbox}}
    return {"sandbox": sandbox}
