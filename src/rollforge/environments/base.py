"""The environment protocol, and its name on the command line: `KIND:NAME[?key=value&…]`.

An environment gives task rows, an agent that plays them, and the verdict: by the agent itself, or by a verifier that it names.
What it does not give comes from the usual flags: `-i` where it has no rows, `--verifier` where it has no verdict.
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
    """An environment as it is named."""

    text: str
    kind: str
    name: str
    options: dict[str, object] = {}
    """Values are read as JSON where they are JSON, else as text."""

    @classmethod
    def parse(cls, text: str) -> EnvironmentSpec:
        """Read `KIND:NAME[?key=value&…]`; a URL as the name keeps its slashes."""
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
        """The options, with these defaults; raises for one that is not among them."""
        unknown = [key for key in self.options if key not in defaults]
        if unknown:
            raise UsageError(
                f"--env {self.kind}:… has no option {unknown[0]!r}", hint=f"there are {', '.join(defaults)}"
            )
        return {**defaults, **self.options}

    def whole_number(self, key: str, default: int, *, least: int = 0) -> int:
        """One option that is a whole number."""
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
    """A verifier by its name, with its options."""

    name: str
    options: JsonFields = {}


class Environment(Protocol):
    """What `collect --env` runs."""

    verifier: NamedVerifier | None
    """Who judges, where the agent does not."""

    def rows(self, limit: int | None) -> Iterator[JsonFields] | None:
        """Task rows, always the same ones in the same order; None where the user's task file brings them."""

    def agent(self, options: AgentOptions) -> Agent | None:
        """The agent that plays the rows; None for the usual one."""


def open_environment(text: str) -> Environment:
    """The environment of this name.

    Raises:
        UsageError: there is no such kind, its package is missing, or it has no environment of this name.
    """
    spec = EnvironmentSpec.parse(text)
    member = ENVIRONMENTS.load(spec.kind)
    assert callable(member)
    made: Environment = member(spec)
    return made


def missing_package(kind: str, install: str) -> UsageError:
    """The error for an environment whose package is not installed."""
    return UsageError(f"--env {kind}:… needs a package that is not installed", hint=install)
