"""Options of `collect`: one record for the command line, config files and Python."""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from rollforge.endpoint import ConcurrencyRange
from rollforge.errors import UsageError
from rollforge.records import JsonFields, JsonObject
from rollforge.steps.collect.batch.batch_options import BatchOptions
from rollforge.steps.collect.cost_options import CostOptions
from rollforge.steps.collect.goal.goal_options import GoalOptions, parse_goal
from rollforge.steps.collect.program_options import ProgramOptions
from rollforge.store import RunFiles
from rollforge.text_safety.redaction import is_secret_name
from rollforge.unread_options import refuse_unread

if TYPE_CHECKING:
    from rollforge.agents.base import AgentOptions

Api = Literal["auto", "responses", "chat"]

MOST_SAMPLES = 1_000_000
MOST_REQUESTS = 100_000
"""Limit on requests in flight: each needs a socket."""

DEFAULT_KEY_ENV = "OPENAI_API_KEY"

_BOUNDS: dict[str, tuple[float, float]] = {
    "samples": (1, MOST_SAMPLES),
    "limit": (1, math.inf),
    "attempts": (1, 1_000),
    "retries": (0, 1_000),
    "verify_concurrency": (1, 100_000),
    "max_turns": (1, 10_000),
    "max_artifact_bytes": (0, math.inf),
    "max_memory_bytes": (0, math.inf),
    "max_processes": (0, math.inf),
    "max_response_bytes": (1024, math.inf),
    "max_total_tokens": (1, math.inf),
    "rpm": (0.001, math.inf),
    "tpm": (1, math.inf),
    "pilot": (1, math.inf),
    "max_samples": (1, MOST_SAMPLES),
}
"""Option → smallest and largest allowed value."""

_PARAMETER_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 10),
    "top_p": (0, 1),
    "max_output_tokens": (1, 100_000_000),
}

KNOWN_PARAMETERS = frozenset(
    """background chat_template chat_template_kwargs conversation dimensions echo extra_body frequency_penalty
    guided_choice guided_decoding_backend guided_grammar guided_json guided_regex ignore_eos include
    include_stop_str_in_output input instructions length_penalty logit_bias logprobs max_completion_tokens
    max_output_tokens max_tokens max_tool_calls metadata min_p min_tokens modalities model n parallel_tool_calls prediction
    presence_penalty previous_response_id priority prompt prompt_cache_key prompt_logprobs reasoning reasoning_effort
    repetition_penalty response_format return_token_ids return_tokens_as_token_ids safety_identifier seed service_tier
    skip_special_tokens spaces_between_special_tokens stop stop_token_ids store stream stream_options structured_outputs
    temperature text thinking tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation typical_p
    use_beam_search user verbosity""".split()  # noqa: SIM905  (a list of words reads better as one)
)
"""Request parameters of the Responses and Chat Completions APIs, and of common servers."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"(?=.*[a-z])(?=.*[0-9]).{20,}")
"""Pattern of texts that cannot be variable names and are probably API keys."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Selection of tasks and samples."""

    limit: int | None = None
    """Take only this many tasks."""
    samples: int = 1
    """Rollouts per task."""
    shuffle: bool = False
    """Take the tasks in a random order, drawn with --seed."""
    seed: int = 0
    """Seed for --shuffle and for the embedded model."""
    prompt_template: str | None = None
    """YAML file with `user` and optionally `system`; {field} is replaced by that field of the row."""
    skip_bad: bool = False
    """Skip bad lines instead of refusing the file."""


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Which rows of a dataset are tasks, and which of their fields."""

    split: str | None = None
    """Split of a dataset on the Hub (-i hf://datasets/ORG/NAME)."""
    hub_config: str | None = None
    """Config (subset) of a dataset on the Hub; with an hf:// input, --config NAME means the same."""
    map: tuple[str, ...] = ()
    """Fields of the task from the dataset's own, as FIELD=PATH[|STEP]: prompt=question,expected_answer="answer|after:####"; repeatable."""  # noqa: E501  (help keeps the line breaks of a field's docstring)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the server, and parameters of every request."""

    base_urls: tuple[str, ...] = ()
    """Server, such as http://localhost:8000/v1; repeat the flag for replicas."""
    api: Api = "auto"
    """API that the server speaks; auto asks it once."""
    api_key_env: str = DEFAULT_KEY_ENV
    """Name of the environment variable that holds the API key, never the key itself; repeat the flag for several keys: one server takes them in turn, several servers have one each."""  # noqa: E501
    overrides: JsonFields = field(default_factory=dict)
    """Request parameter as key.path=value, replacing each row's own; repeatable."""
    logprobs: bool = False
    """Keep logprobs, and token ids where the server returns them."""


@dataclass(frozen=True, kw_only=True)
class VerifierOptions:
    """Options of the verifier."""

    verifier: Any = None
    """Name of a built-in verifier, file.py:function or module:function."""
    verifier_options: JsonFields = field(default_factory=dict)
    """Option of the verifier as key=value; repeatable."""
    no_verify: bool = False
    """Collect only; judge later with `rollforge verify`."""
    verify_workers: str = "auto"
    """Worker processes for a synchronous verifier; auto uses idle cores, 0 runs it in this process without protection."""
    verify_concurrency: int = 256
    """Most verdicts in progress at once."""
    verify_timeout_s: float = 60.0
    """Longest time for one verdict."""
    verify_mode: Literal["fast", "precise"] | None = None
    """Mode, for a verifier that has two."""
    verifier_output: str | None = None
    """File that gets what the verifier prints; by default it is dropped, or shown on stderr with --verify-workers 0."""
    verify_cache: str | None = None
    """Directory that keeps verdicts across runs."""
    stop_on: Literal["broken", "never"] = "broken"
    """broken: stop with exit code 5 on two independent signs of broken verification; never: only mark the rollouts."""
    probe: str | None = None
    """Test the verifier while collecting, on answers whose verdict is known (gold, empty, swapped), for this share of tasks (1%) but at least 60 of them: a verifier that is wrong on 30% of a question is then caught with probability 0.98. Exit 5 if it fails."""  # noqa: E501  (help keeps the line breaks of a field's docstring)


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """Options of the agent."""

    agent: str | None = None
    """model_call, tool_loop, gym_resources, gym_agent, file.py:Class, "program:COMMAND …" or a preset (claude-code, codex, opencode, qwen-code, mini-swe-agent); by default the one that the flags below imply."""  # noqa: E501
    env: str | None = None
    """Environment that brings tasks, agent and verdict: KIND:NAME[?key=value]; see `rollforge list environments`."""
    tools: tuple[Any, ...] = ()
    """Tools that the model may call: file.py, file.py:name, mcp:URL, mcp-stdio:COMMAND; repeatable."""
    max_turns: int = 16
    """Most model calls in one rollout."""
    tool_timeout_s: float = 60.0
    """Longest time for one tool call."""
    gym_head: str | None = None
    """NeMo Gym head server: each row's agent_ref names its resources server; the loop runs here."""
    gym_resources: str | None = None
    """NeMo Gym resources server for all rows: it provides tools and verdicts; the loop runs here."""
    gym_agent: str | None = None
    """NeMo Gym agent server: its /run makes the rollouts; --model is not needed."""
    agent_name: str | None = None
    """NeMo Gym agent for every row, whatever its agent_ref says; with --gym-head."""
    agent_map: tuple[str, ...] = ()
    """NAME=AGENT: rows whose agent_ref or task_source is NAME go to this NeMo Gym agent; repeatable."""
    fan_out: tuple[str, ...] = ()
    """NAME=AGENT,AGENT: rows of this NAME become one task for each NeMo Gym agent; repeatable."""


@dataclass(frozen=True, kw_only=True)
class PaceOptions:
    """Concurrency, retries and limits."""

    concurrency: str = "auto"
    """Requests in flight: auto, a number, or MIN-MAX."""
    rpm: float | None = None
    """Most requests a minute, for each server and key; limits in the headers of answers hold as well."""
    tpm: float | None = None
    """Most tokens a minute, prompts and answers, for each server and key."""
    attempts: int = 3
    """Most attempts per rollout, over resumes too."""
    retries: int = 4
    """Most retries of one request within an attempt."""
    retry_budget: float = 0.5
    """Limit on all retries, as a share of fresh requests (the first 200 are free); 0 allows none."""
    max_failures: str = "50%"
    """End the run when more rollouts fail than this: a count, or a share such as 5%."""
    request_timeout_s: float = 600.0
    """Longest time for one request."""
    max_response_bytes: int = 64 << 20
    """Largest answer in bytes, as sent and after decompression; a larger one is a failure. A row may be twice as large."""
    rollout_deadline_s: float = 3600.0
    """Longest time for one rollout, retries included."""
    outage_patience_s: float = 600.0
    """How long to wait for a server that stopped answering."""
    deadline_s: float | None = None
    """Stop between groups after this time (90s, 15m, 8h); exit code 6."""
    max_total_tokens: int | None = None
    """Stop between groups once this many tokens were used; exit code 6."""
    pilot: int | None = None
    """Collect about this many rollouts, then forecast the whole run; they count towards it."""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(
    DatasetOptions,
    TaskOptions,
    ServerOptions,
    VerifierOptions,
    RolloutOptions,
    ProgramOptions,
    PaceOptions,
    CostOptions,
    BatchOptions,
    GoalOptions,
):
    """Options of `collect`. `rollforge collect` derives its flags, defaults and help texts from the groups."""

    input: str
    """Task file (JSONL, a JSON array, CSV, Arrow, Parquet), hf://datasets/ORG/NAME, `-` for stdin; empty with --env."""
    out: str
    """The run: a folder, or a rollouts file."""
    model: str = ""
    """Model name; `simulated` starts the embedded model. A remote agent uses its own model and needs none here."""
    step: int | None = None
    """Training step of the model, where checkpoints share a name; rollouts of another step do not belong to the run."""
    fresh: bool = False
    """Move an existing run aside and start again."""
    tasksets: dict[str, JsonObject] = field(default_factory=dict)
    """Of a joined task file: task set → its source and map. Set by `eval` and `bench`; part of the fingerprint."""

    def check(self) -> None:
        """Refuse impossible combinations before anything is written."""
        self._check_numbers()
        refuse_unread("collect", self._changed(), self._by_flag())
        self.check_costs()
        self.check_batch(self.agent or self.to_agent_options().agent)
        self._check_agent()
        self._check_environment()
        _refuse_secret_settings(self.overrides)
        if self.overrides.get("n") not in (None, 1):
            raise UsageError(
                "-S n=… would draw several answers per request, and only the first is kept",
                hint=f"give -k {self.overrides['n']}: it draws as many samples of every task",
            )
        if "model" in self.overrides:
            raise UsageError("-S model=… names no model", hint="give -m/--model NAME")
        if not self.model and self.asks_model:
            raise UsageError("no model is named", hint="give -m NAME, or -m simulated for the embedded model")
        if not self.base_urls and self.model != "simulated" and self.asks_model and not self.is_offline:
            raise UsageError(
                "no server to ask", hint="give --base-url http://…/v1, or -m simulated for the embedded model"
            )
        Allowance.parse(self.max_failures)
        ConcurrencyRange.parse(self.concurrency)
        if self.probe is not None:
            parse_share(self.probe, "--probe")
        self._check_goal()
        self._check_paths()
        for url in self.base_urls:
            _check_url("--base-url", url, "http://host:port/v1")
        self._check_key()

    def _by_flag(self) -> dict[str, object]:
        return {_flag(name): value for name, value in vars(self).items()}

    def _changed(self) -> list[str]:
        """Flags of non-default options for goals, batches, programs or a head server."""
        usual = CollectOptions(input=self.input, out=self.out)._by_flag()
        groups = (GoalOptions(), BatchOptions(), ProgramOptions())
        flags = {_flag(name) for group in groups for name in vars(group)} | {"--agent-map", "--fan-out"}
        return [flag for flag, value in self._by_flag().items() if flag in flags and value != usual[flag]]

    def _check_paths(self) -> None:
        """Refuse to collect into the file of tasks: `--fresh` would move it away."""
        rollouts = RunFiles(self.out).rollouts
        if rollouts.is_file() and Path(self.input).is_file() and rollouts.samefile(self.input):
            raise UsageError(
                f"-i and -o name the same file: {self.input}",
                hint="give the run a folder of its own: -o runs/NAME",
            )

    def _check_goal(self) -> None:
        """Refuse a goal without countable units."""
        parse_share(self.audit, "--audit")
        if self.goal is None:
            return
        parse_goal(self.goal)
        judging_servers = self.gym_head or self.gym_resources or self.gym_agent
        is_judged = self.verifier is not None or bool(judging_servers or self.env)
        if self.no_verify or not (is_judged or self.agent):
            raise UsageError(
                f"--goal {self.goal} counts rewards, but nothing judges",
                hint="give --verifier NAME; a goal cannot wait for verdicts that come later (--no-verify)",
            )
        if not (self.min_gap >= 0 and self.min_spread >= 0):
            raise UsageError("--min-gap and --min-spread are 0 or more", hint="for example --min-gap 0.2")
        if self.band is not None and not self.band[0] <= self.band[1]:
            raise UsageError(
                f"--band {self.band[0]:g}-{self.band[1]:g}: the first number is above the second",
                hint="--band 0.1-0.9",
            )

    def _check_numbers(self) -> None:
        for name, (lowest, highest) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None:
                check_bounds(f"--{name.replace('_', '-')}", value, lowest, highest)
        if not 0 <= self.retry_budget < math.inf:
            raise UsageError(
                f"--retry-budget must be a share from 0 on, not {self.retry_budget}",
                hint="--retry-budget 0.2 allows one retry for five requests",
            )
        for key, value in self.overrides.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(
                    f"{key} must be a number, not {value}", hint="leave it out, or give a finite number"
                )
            self._question_parameter(key, value)
        for key, (lowest, highest) in _PARAMETER_BOUNDS.items():
            value = self.overrides.get(key)
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise UsageError(
                    f"-S {key}={value} is no number",
                    hint=f"for example: -S {key}={highest if highest <= 1 else 1}",
                )
            if value is not None:
                check_bounds(f"--{key.replace('_', '-')}", value, lowest, highest)
        self._check_workers()
        for part in self.concurrency.split("-"):
            if part.isdecimal():
                check_bounds("-c/--concurrency", int(part), 0, MOST_REQUESTS)
        from rollforge.endpoint import ConcurrencyRange  # the help needs no HTTP client

        ConcurrencyRange.parse(self.concurrency)

    def _check_workers(self) -> None:
        from rollforge.verifiers.running.ready_verifier import parse_workers

        parse_workers(self.verify_workers)

    def _question_parameter(self, name: str, value: object) -> None:
        """Refuse our own options and probable misspellings as request parameters; other names pass, since servers have additional
        fields.
        """
        if name in KNOWN_PARAMETERS:
            return
        option = next(iter(value), "") if name == "collect" and isinstance(value, dict) else name
        flag = _own_flag(option, list(vars(self)), cutoff=0.6 if option != name else 1.0)
        if flag is not None or option != name:
            raise UsageError(
                f"-S {name if option == name else f'{name}.{option}'}=… would go to the model server: "
                "-S sets parameters of the request, not options of collect",
                hint=f"give {flag} instead" if flag else "see the options: rollforge collect --help-all",
            )
        near = difflib.get_close_matches(name.lower(), KNOWN_PARAMETERS, n=1, cutoff=0.85)
        if near:
            raise UsageError(
                f"-S {name}=… is no request parameter that we know; did you mean {near[0]!r}?",
                hint=f"write -S {near[0]}=…; a field of your server's own may have any name less alike",
            )

    def _check_key(self) -> None:
        """Refuse an API key instead of its variable's name (without repeating it), and a key that is invalid in a header."""
        if len(self.key_envs) > 1 and len(self.base_urls) not in (1, len(self.key_envs)):
            raise UsageError(
                f"{len(self.key_envs)} keys for {len(self.base_urls)} servers",
                hint="give one --base-url for all keys, or as many --api-key-env as --base-url, in the same order",
            )
        for name in self.key_envs:
            self._check_one_key(name)

    @staticmethod
    def _check_one_key(name: str) -> None:
        key = os.environ.get(name)
        if key is None and (not _NAME.fullmatch(name) or _KEY.fullmatch(name)):
            raise UsageError(
                "--api-key-env is no name of an environment variable",
                hint="put the key into a variable and give that variable's name, such as OPENAI_API_KEY",
            )
        if key is None and name != DEFAULT_KEY_ENV:
            raise UsageError(
                f"the environment variable {name} is not set (--api-key-env)",
                hint=f"export {name}=…, or leave --api-key-env out for a server without keys",
            )
        if key is not None and not key.isprintable():
            raise UsageError(
                f"the key in ${name} holds a line break or another control character",
                hint="set the variable to the key alone",
            )

    def _check_agent(self) -> None:
        """Refuse contradictory agent options."""
        servers = {
            "--gym-head": self.gym_head,
            "--gym-resources": self.gym_resources,
            "--gym-agent": self.gym_agent,
        }
        url_by_flag = {flag: url for flag, url in servers.items() if url}
        for flag, url in url_by_flag.items():
            _check_url(flag, url, "http://host:port")
        if len(url_by_flag) > 1:
            raise UsageError(f"{' and '.join(url_by_flag)} contradict each other", hint="give one of them")
        if self.agent_name is not None and not url_by_flag and self.verifier is None and not self.no_verify:
            raise UsageError(
                f"--agent-name {self.agent_name} names a NeMo Gym agent, but no server is given, so nothing would judge",
                hint="add --gym-head http://localhost:11000 (or --gym-agent URL, --gym-resources URL), or a --verifier",
            )
        if url_by_flag and self.tools:
            raise UsageError(
                f"--tools and {next(iter(url_by_flag))} contradict each other",
                hint="the tools of NeMo Gym rows are those of their resources server",
            )

    def _check_environment(self) -> None:
        if self.env is None:
            if not self.input:
                raise UsageError(
                    "no task file", hint="give -i FILE, or --env KIND:NAME for an environment's own tasks"
                )
            return
        clash: dict[str, object] = {
            "--agent": self.agent,
            "--gym-head": self.gym_head,
            "--gym-resources": self.gym_resources,
        }
        clash |= {"--gym-agent": self.gym_agent, "--tools": self.tools}
        for flag, value in clash.items():
            if value:
                raise UsageError(
                    f"--env and {flag} contradict each other", hint="an environment brings its own agent"
                )

    @property
    def key_envs(self) -> tuple[str, ...]:
        """Names of the variables that hold keys; several are separated by commas."""
        return tuple(name.strip() for name in self.api_key_env.split(",") if name.strip())

    @property
    def asks_model(self) -> bool:
        """Whether the agent calls the model named here."""
        if self.env is not None:
            return not (self.env.startswith("gym:") and "via=agent" in self.env)
        return (self.agent or self.to_agent_options().agent) != "gym_agent"

    def to_agent_options(self) -> AgentOptions:
        """The options that concern the agent."""
        from rollforge.agents.base import AgentOptions

        shared = {name: getattr(self, name) for name in AgentOptions.__struct_fields__ if hasattr(self, name)}
        return AgentOptions(gym_verify=self.verifier is None and not self.no_verify, **shared)

    def to_config(self) -> JsonFields:
        """All options, as saved in the manifest."""
        from rollforge.agents.tools.loading import tools_name

        named = replace(
            self, verifier=verifier_name(self.verifier), tools=tuple(tools_name(spec) for spec in self.tools)
        )
        config: JsonFields = msgspec.to_builtins(named)
        del config["tasksets"]  # they are in the manifest's input
        return {name: config.pop(name) for name in _MANIFEST_ORDER} | config


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _own_flag(word: str, names: list[str], *, cutoff: float) -> str | None:
    """The flag of an option with this name, or a similar one."""
    flag_by_name = {name.removesuffix("_s"): _flag(name) for name in names}
    flag_by_name |= {
        "base_url": "--base-url",
        "base_urls": "--base-url",
        "verifier_options": "--verifier-set",
        "verifier_set": "--verifier-set",
        "verify_cache": "--cache",
    }
    near = difflib.get_close_matches(
        word.replace("-", "_").removesuffix("_s"), flag_by_name, n=1, cutoff=cutoff
    )
    return flag_by_name[near[0]] if near else None


def _refuse_secret_settings(overrides: JsonFields, path: str = "") -> None:
    """Refuse an API key that would be written into every task and row; the message does not repeat it."""
    for name, value in overrides.items():
        if isinstance(value, dict):
            _refuse_secret_settings(value, f"{path}{name}.")
        elif isinstance(value, str) and is_secret_name(name):
            raise UsageError(
                f"-S {path}{name}=… looks like a secret, and would be written into every row",
                hint="put the key into a variable and name it with --api-key-env",
            )


def check_bounds(flag: str, value: float, lowest: float, highest: float) -> None:
    """Raise unless the number is within its bounds."""
    if lowest <= value <= highest:
        return
    bound = f"at least {lowest:,}" if highest == math.inf or value < lowest else f"at most {highest:,}"
    hint = f"give {flag} {lowest if value < lowest else highest}, or leave it out"
    raise UsageError(f"{flag} must be {bound}, not {value:,}", hint=hint)


def _check_url(flag: str, url: str, form: str) -> None:
    """Refuse an invalid server address; parts that may be secret are not repeated."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.query:
        raise UsageError(
            f"{flag} contains a user, a password or a query, which would be written to the run's files",
            hint=f"write it as {form}; a key goes into a variable that --api-key-env names",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{flag} {url!r} is no URL", hint=f"write it as {form}")


_MANIFEST_ORDER = (
    *("input", "out", "model", "step", "base_urls", "api", "api_key_env"),
    *("verifier", "verifier_options", "no_verify"),
    *("agent", "tools", "max_turns", "tool_timeout_s", "gym_head", "gym_resources", "gym_agent"),
    *("samples", "limit", "shuffle", "seed", "prompt_template", "overrides", "logprobs", "skip_bad"),
    *(
        "concurrency",
        "verify_concurrency",
        "verify_workers",
        "verify_timeout_s",
        "verify_mode",
        "verify_cache",
    ),
    *("probe", "stop_on", "attempts", "retries", "retry_budget", "max_failures", "request_timeout_s"),
    *("rollout_deadline_s", "deadline_s", "max_total_tokens", "outage_patience_s", "pilot", "fresh"),
)
"""Order of options in the manifest, kept from the first version; newer options follow."""


class Allowance(msgspec.Struct, frozen=True):
    """Limit on failures: a count, or a share."""

    count: int | None = None
    share: float | None = None

    HOPELESS_FROM: ClassVar[int] = 50
    """Fewest settled rollouts for a share to be meaningful."""

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """Parse `20` as a count; `0.05`, `1.0` and `5%` as shares."""
        words = text.strip()
        try:
            if words.isdigit():
                return cls(count=int(words))
            share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UsageError(
                f"--max-failures {text!r} is neither a count nor a share", hint="write 20, 0.05 or 5%"
            )
        return cls(share=share)

    def is_exceeded(self, failed: int, settled: int) -> bool:
        """Whether this number of failures exceeds the limit."""
        if self.count is not None:
            return failed > self.count
        return settled >= self.HOPELESS_FROM and failed > (self.share or 0.0) * settled


def parse_share(text: str, flag: str) -> float:
    """Parse `1%` or `0.01`."""
    words = text.strip()
    try:
        share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{flag} {text!r} is no share", hint=f"write {flag} 1% or {flag} 0.01")
    return share


def verifier_name(verifier: Any) -> str | None:
    """Name of a verifier in files and messages."""
    if verifier is None or isinstance(verifier, str):
        return verifier
    return str(getattr(verifier, "__qualname__", type(verifier).__name__))
