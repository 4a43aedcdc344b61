"""The agent protocol: an agent turns a task into a response, or raises a failure that can be recorded.

An agent lives as long as a run: `prepare` before the plan is made, `start` when the model is ready, `run` for every rollout,
`close` at the end. It does not write, judge or retry whole rollouts; the engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from rollforge.agents import AGENTS
from rollforge.agents.nemo_gym.routing import Routes
from rollforge.endpoint import MAX_RESPONSE_BYTES, Model
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import PlayedJson, ResponseJson, ToolJson
from rollforge.records import JsonFields, Task, Verdict
from rollforge.registry import load_target


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for agents. Each agent reads those that concern it and refuses those that it cannot honour."""

    tools: tuple[Any, ...] = ()
    """Where tools come from: `file.py`, `file.py:name`, `mcp:URL`, `mcp-stdio:COMMAND`, a ready name, or Python objects."""
    max_turns: int = 16
    """Most model calls in one rollout."""
    tool_timeout_s: float = 60.0
    """Time limit of one tool call."""
    gym_head: str | None = None
    gym_resources: str | None = None
    gym_agent: str | None = None
    agent_name: str | None = None
    """NeMo Gym agent for every row, whichever agent the row names."""
    agent_map: tuple[str, ...] = ()
    """NeMo Gym agent by the name that a row carries, as `NAME=AGENT`."""
    fan_out: tuple[str, ...] = ()
    """NeMo Gym agents that each play a row with this name, as `NAME=AGENT,AGENT`."""
    gym_verify: bool = True
    """Let the resources server judge; off when another verifier judges, or none."""
    verify_timeout_s: float = 60.0
    program: str | None = None
    """The command of `program:COMMAND`, run without a shell."""
    workdir: str | None = None
    """Directory copied into every program's working directory."""
    stdin: Literal["none", "prompt"] = "none"
    """Standard input of a program."""
    pass_env: tuple[str, ...] = ()
    """Environment variables passed to programs in addition to the default ones."""
    withhold: tuple[str, ...] = ()
    """Task fields hidden from programs in addition to the default ones."""
    mount: tuple[str, ...] = ()
    """Files and directories that programs may read in addition to the system's."""
    sandbox: Literal["auto", "require", "off"] = "auto"
    network: Literal["none", "host"] | None = None
    """Network access of programs. None means `none` inside the sandbox and `host` without it."""
    artifacts: tuple[str, ...] = ()
    """Globs of files to keep from the working directory."""
    max_artifact_bytes: int = 16 << 20
    """Most bytes kept per rollout."""
    max_memory_bytes: int = 4 << 30
    """Memory limit of a program and all its child processes; 0 for no limit."""
    max_processes: int = 512
    """Limit on processes of a program at the same time; 0 for no limit."""
    out: str = ""
    """Path of the run being collected; empty when nothing is written to disk."""
    rollout_deadline_s: float = 3600.0
    outage_patience_s: float = 600.0
    """How long to wait for a server that used to answer."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """Size limit of one server answer or one tool result, after decompression."""

    @property
    def agent(self) -> str:
        """The agent that these options ask for."""
        if self.gym_agent:
            return "gym_agent"
        if self.gym_head or self.gym_resources:
            return "gym_resources"
        return "tool_loop" if self.tools else "model_call"


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements and abilities of an agent, known before the first task is read."""

    tools: list[ToolJson] = []
    """Offered to the model in every task, beside the row's own."""
    needs: tuple[str, ...] = ()
    """Task fields that the agent cannot run without."""
    hides: tuple[str, ...] = ()
    """Task fields that the user hides from it. A name that no task has is a mistake: what it was to hide would be shown."""
    fingerprint: JsonFields = {}
    """Values that must not change when a run is resumed."""
    asks_model: bool = True
    """Whether the agent calls the model that `--model` names. A remote agent calls its own model."""
    judges: bool = False
    """Whether its rollouts come with a verdict."""
    agents: frozenset[str] | None = None
    """Names that a row's `agent_ref` may have; None allows every name."""
    routes: Routes = Routes()
    """The agents that a row is sent to, instead of the one that its `agent_ref` names."""
    may_lack_prompt: bool = False
    """Whether it accepts rows without a prompt, because the environment makes one."""


class ToolTimes(msgspec.Struct, frozen=True):
    """How long a rollout waited for its tools; overlapping calls count once."""

    calling_s: float = 0.0
    starting_s: float = 0.0
    """Seconds spent starting tool servers and their sessions."""
    starts: int = 0


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of running an agent on a task."""

    response: ResponseJson
    """Responses-shaped: `output` holds the items of every turn, `usage` the sum over them."""
    endpoint: str = ""
    api: str = ""
    """The API of the last model call: `chat` or `responses`."""
    requests: int = 1
    wasted: tuple[object, ...] = ()
    """Token usage of answers that were paid for but unusable, so that the request was repeated."""
    is_remote: bool = False
    """Whether a remote server made the whole rollout; the concurrency limiter then learns from its duration."""
    verdict: Verdict | None = None
    """The agent's own verdict, or that of the server behind it."""
    verdict_failure: Failure | None = None
    """Why there is no verdict although one was asked for."""
    verifier: str | None = None
    """Name of the verifier that gave the verdict."""
    verify_seconds: float | None = None
    """Seconds the verdict took, if measured separately."""
    own: PlayedJson = {}
    """Further keys of the row's `_rf`: `sequences`, and `played`, the prompt actually used when the agent or environment made it."""
    judged: ResponseJson = {}
    """Response fields for the verifier only; they are not written to the run."""
    release: Callable[[], None] | None = None
    """Called after the verdict to free what the verifier could inspect, such as a working directory."""
    tool_times: ToolTimes = ToolTimes()


class NotKept(Exception):
    """The server asked not to keep this rollout: nothing is written, and the rollout stays owed."""


class Agent(Protocol):
    """What `collect` runs for every rollout."""

    @property
    def name(self) -> str:
        """Used as `agent_ref.name` of rows whose task names no agent."""

    async def prepare(self) -> Preparation:
        """Find tools and servers; raises `UsageError` when the agent cannot run here."""

    async def start(self, model: Model) -> None:
        """Take the model; called before the first `run`."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        """Run one rollout; raises `Failure`. Any other exception is recorded as a failure of class `agent`."""

    async def close(self) -> None:
        """Release everything; also called when only `prepare` was called, or nothing."""


def make_agent(spec: str | None, options: AgentOptions) -> Agent:
    """The agent called `spec`: a registered name, `program:COMMAND`, `file.py:Class` or `module:Class`.

    None means what the options ask for.
    """
    name = spec or options.agent
    if name.startswith(PROGRAM):
        options = msgspec.structs.replace(options, program=name.removeprefix(PROGRAM))
        name = "program"
    member = load_target(name) if ":" in name else AGENTS.load(name)
    if not callable(member):
        raise UsageError(
            f"the agent {name} is a {type(member).__name__}, not a class",
            hint="name a class: --agent my_file.py:MyAgent",
        )
    lacking = [method for method in ("prepare", "start", "run", "close") if not hasattr(member, method)]
    if lacking:
        raise UsageError(
            f"the agent {name} has no {', '.join(lacking)}", hint="see docs/agents.md: an agent of your own"
        )
    agent: Agent = member(options)
    return agent


def cut_short(failure: Failure, error: BaseException | None) -> Failure:
    """Return the failure, completed with the partial response and request count that `leave_behind` attached to the error."""
    if failure.partial is None:
        failure.partial = getattr(error, PARTIAL, None)
        failure.requests = failure.requests or getattr(error, REQUESTS, 0)
    return failure


def leave_behind(error: BaseException, partial: ResponseJson, requests: int) -> None:
    """Attach the partial response and the request count to the error that cancels an agent."""
    setattr(error, PARTIAL, partial)
    setattr(error, REQUESTS, requests)


PROGRAM = "program:"
"""Prefix of agent names that are commands."""

PARTIAL = "rollforge_partial"
"""Exception attribute in which a cancelled agent leaves its partial response."""

REQUESTS = "rollforge_requests"
"""Exception attribute in which a cancelled agent leaves its number of model requests."""
