"""This module holds everything `collect` can be told. The command line, config files and Python all end here."""

from __future__ import annotations

import math
import os
import re
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from rollforge.agents.base import AgentOptions
from rollforge.agents.tools.loading import tools_name
from rollforge.endpoint.model import Api
from rollforge.errors import UsageError
from rollforge.records import JsonObject

MOST_SAMPLES = 1_000_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"(?=.*[a-z])(?=.*[0-9]).{20,}")
"""No variable is called like this, and many keys are."""


class CollectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts are collected."""

    input: str
    """Task file: JSONL (plain, gzip, zstd), Parquet, or `-` for stdin."""
    out: str
    """The run: a directory, or a rollouts file."""
    model: str = ""
    """Model name; `simulated` starts the embedded model. A remote agent asks its own and needs none here."""
    step: int | None = None
    """Training step of the model, where checkpoints share a name: rollouts of another step are no part of the run."""
    base_urls: tuple[str, ...] = ()
    api: Api = "auto"
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable that holds the key; the key itself is never stored."""
    verifier: Any = None
    """A ready verifier's name, `file.py:name`, `module:name`, or a function."""
    verifier_options: JsonObject = {}
    no_verify: bool = False
    """Nobody judges, not even a NeMo Gym server that could."""
    agent: str | None = None
    """An agent's name, `file.py:Class` or `module:Class`; None means what the other options ask for."""
    tools: tuple[Any, ...] = ()
    max_turns: int = 16
    tool_timeout_s: float = 60.0
    gym_head: str | None = None
    gym_resources: str | None = None
    gym_agent: str | None = None
    samples: int = 1
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    prompt_template: str | None = None
    overrides: JsonObject = {}
    """Put over every row's `responses_create_params`, key by key."""
    logprobs: bool = False
    skip_bad: bool = False
    concurrency: str = "auto"
    verify_concurrency: int = 256
    verify_workers: str = "auto"
    verify_timeout_s: float = 60.0
    verify_mode: Literal["fast", "precise"] | None = None
    verify_cache: str | None = None
    """Directory that keeps verdicts across runs."""
    probe: str | None = None
    """Share of the rollouts after which the verifier is asked what it must know: `1%`."""
    stop_on: Literal["broken", "never"] = "broken"
    """Whether two independent signs of broken verification stop the run."""
    attempts: int = 3
    """How often one rollout is tried, over resumes too."""
    retries: int = 4
    retry_budget: float = 0.5
    max_failures: str = "50%"
    """More failed rollouts than this end the run: a count (`20`) or a share of the settled ones (`5%`, `0.05`)."""
    request_timeout_s: float = 600.0
    rollout_deadline_s: float = 3600.0
    deadline_s: float | None = None
    max_total_tokens: int | None = None
    outage_patience_s: float = 600.0
    pilot: int | None = None
    fresh: bool = False

    def check(self) -> None:
        """Refuse what cannot work, before anything is touched."""
        self._check_numbers()
        self._check_agent()
        if "model" in self.overrides:
            raise UsageError("-S model=… names no model", hint="give -m/--model NAME")
        if not self.model and self.asks_model:
            raise UsageError("no model is named", hint="give -m NAME, or -m simulated for the embedded model")
        if not self.base_urls and self.model != "simulated" and self.asks_model:
            raise UsageError(
                "no server to ask", hint="give --base-url http://…/v1, or -m simulated for the embedded model"
            )
        Allowance.parse(self.max_failures)
        for url in self.base_urls:
            _check_url("--base-url", url, "http://host:port/v1")
        self._check_key()

    def _check_numbers(self) -> None:
        for name, lowest in (
            ("samples", 1),
            ("attempts", 1),
            ("retries", 0),
            ("verify_concurrency", 1),
            ("max_turns", 1),
        ):
            if getattr(self, name) < lowest:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be at least {lowest}, not {getattr(self, name)}"
                )
        if self.samples > MOST_SAMPLES:
            raise UsageError(f"-k/--samples must be at most {MOST_SAMPLES:,}, not {self.samples:,}")
        if self.limit is not None and self.limit < 1:
            raise UsageError(
                f"-n/--limit must be at least 1, not {self.limit}", hint="leave it out for all tasks"
            )
        if not 0 <= self.retry_budget < math.inf:
            raise UsageError(f"--retry-budget must be a share from 0 on, not {self.retry_budget}")
        for key, value in self.overrides.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{key} must be a number, not {value}")
        if self.pilot is not None and self.pilot < 1:
            raise UsageError(f"--pilot must be at least 1, not {self.pilot}")

    def _check_key(self) -> None:
        """Refuse a key where its variable's name belongs, without repeating it, and a key that no header can hold."""
        key = os.environ.get(self.api_key_env)
        if key is None and (not _NAME.fullmatch(self.api_key_env) or _KEY.fullmatch(self.api_key_env)):
            raise UsageError(
                "--api-key-env is no name of an environment variable",
                hint="put the key into a variable and give that variable's name, such as OPENAI_API_KEY",
            )
        if key is not None and not key.isprintable():
            raise UsageError(
                f"the key in ${self.api_key_env} holds a line break or another control character",
                hint="set the variable to the key alone",
            )

    def _check_agent(self) -> None:
        """Refuse agents' options that contradict each other."""
        servers = {
            "--gym-head": self.gym_head,
            "--gym-resources": self.gym_resources,
            "--gym-agent": self.gym_agent,
        }
        given = {flag: url for flag, url in servers.items() if url}
        for flag, url in given.items():
            _check_url(flag, url, "http://host:port")
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} contradict each other", hint="give one of them")
        if given and self.tools:
            raise UsageError(
                f"--tools and {next(iter(given))} contradict each other",
                hint="the tools of NeMo Gym rows are those of their resources server",
            )

    @property
    def asks_model(self) -> bool:
        """The agent asks the model named here."""
        return (self.agent or self.to_agent_options().agent) != "gym_agent"

    def to_agent_options(self) -> AgentOptions:
        """The part of this that concerns the agent."""
        return AgentOptions(
            tools=self.tools,
            max_turns=self.max_turns,
            tool_timeout_s=self.tool_timeout_s,
            gym_head=self.gym_head,
            gym_resources=self.gym_resources,
            gym_agent=self.gym_agent,
            gym_verify=self.verifier is None and not self.no_verify,
            verify_timeout_s=self.verify_timeout_s,
            rollout_deadline_s=self.rollout_deadline_s,
            outage_patience_s=self.outage_patience_s,
        )

    def to_config(self) -> JsonObject:
        """Every option, as saved in the manifest."""
        config: JsonObject = msgspec.to_builtins(
            msgspec.structs.replace(
                self,
                verifier=verifier_name(self.verifier),
                tools=tuple(tools_name(spec) for spec in self.tools),
            )
        )
        return config


def _check_url(flag: str, url: str, form: str) -> None:
    """Refuse what is no address of a server; what may be a secret is not repeated."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.query:
        raise UsageError(
            f"{flag} holds a user, a password or a query: these would stand in the run's files",
            hint=f"write it as {form}; a key goes into a variable that --api-key-env names",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{flag} {url!r} is no URL", hint=f"write it as {form}")


class Allowance(msgspec.Struct, frozen=True):
    """How many failures are bearable: a count, or a share."""

    count: int | None = None
    share: float | None = None

    HOPELESS_FROM: ClassVar[int] = 50
    """A share means nothing before this many rollouts are settled."""

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """`20` is a count; `0.05`, `1.0` and `5%` are shares."""
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
        """Whether so many failures are too many."""
        if self.count is not None:
            return failed > self.count
        return settled >= self.HOPELESS_FROM and failed > (self.share or 0.0) * settled


def parse_share(text: str) -> float:
    """`1%` or `0.01`."""
    words = text.strip()
    try:
        share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{text!r} is no share", hint="write 1% or 0.01")
    return share


def verifier_name(verifier: Any) -> str | None:
    """How a verifier is called in files and messages."""
    if verifier is None or isinstance(verifier, str):
        return verifier
    return str(getattr(verifier, "__qualname__", type(verifier).__name__))
