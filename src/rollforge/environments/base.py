"""The environment protocol, and its name on the command line: `KIND:NAME[?key=value&…]`.

An environment provides task rows, an agent that plays them, and verdicts, from the agent or from a named verifier. Missing parts
come from the usual flags: `-i` for rows, `--verifier` for verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec

from rollforge.agents.base import Agent, AgentOptions
from rollforge.environments import ENVIRONMENTS
from rollforge.errors import UsageError
from rollforge.records import JsonFields, from_json
from rollforge.text_safety.redaction import is_secret_name

ROW_KEY = "env"
"""The field of a task row that holds the environment's own row."""

FORM = "KIND:NAME[?key=value], such as reasoning-gym:gcd?size=100"


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed name of an environment."""

    text: str
    kind: str
    name: str
    options: dict[str, object] = {}
    """Options; values are parsed as JSON if possible, else kept as text."""

    @classmethod
    def parse(cls, text: str) -> EnvironmentSpec:
        """Parse `KIND:NAME[?key=value&…]`; a URL as the name keeps its slashes."""
        kind, colon, rest = text.partition(":")
        name, _, query = rest.partition("?")
        if not kind or not colon or not name:
            raise UsageError(f"--env {text!r} names no environment", hint=f"write {FORM}")
        if "@" in urlsplit(name).netloc:
            raise UsageError(
                "--env holds a user or a password, which would reach the run's files",
                hint="give the address alone",
            )
        options = {key: _value(value) for key, value in parse_qsl(query, keep_blank_values=True)}
        for key in options:
            if is_secret_name(key):
                raise UsageError(
                    f"--env …?{key}=… looks like a secret, and would reach the run's files",
                    hint="put it into an environment variable that the environment reads",
                )
        return cls(text=text, kind=kind, name=name, options=options)

    def take(self, **defaults: object) -> dict[str, object]:
        """The options merged with defaults; raises for an option without a default."""
        unknown = [key for key in self.options if key not in defaults]
        if unknown:
            raise UsageError(
                f"--env {self.kind}:… has no option {unknown[0]!r}", hint=f"there are {', '.join(defaults)}"
            )
        return {**defaults, **self.options}

    def whole_number(self, key: str, default: int, *, least: int = 0) -> int:
        """An option as an integer."""
        value = self.options.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(
                f"--env {self.kind}:…?{key}={value} must be a whole number from {least} on",
                hint=f"write {key}={max(default, least)}, or leave it out",
            )
        return value


def _value(text: str) -> object:
    try:
        return from_json(text.encode())
    except msgspec.DecodeError:
        return text


class NamedVerifier(msgspec.Struct, frozen=True):
    """A verifier's name and its options."""

    name: str
    options: JsonFields = {}


class Environment(Protocol):
    """Protocol of what `collect --env` runs."""

    verifier: NamedVerifier | None
    """The verifier, unless the agent judges."""

    def rows(self, limit: int | None) -> Iterator[JsonFields] | None:
        """Task rows, always in the same order; None if the user's task file provides them."""

    def agent(self, options: AgentOptions) -> Agent | None:
        """The agent that plays the rows; None for the default agent."""


def open_environment(text: str) -> Environment:
    """The environment of this name.

    Raises:
        UsageError: the kind is unknown, its package is missing, or it has no environment of this name.
    """
    spec = EnvironmentSpec.parse(text)
    member = ENVIRONMENTS.load(spec.kind)
    assert callable(member)
    made: Environment = member(spec)
    return made


def missing_package(kind: str, install: str) -> UsageError:
    """The error for an environment whose package is not installed."""
    return UsageError(f"--env {kind}:… needs a package that is not installed", hint=install)
