"""This module settles, before anything is written, the form of the rows: file type, key names, what becomes of untidy rollouts.

The exporter's defaults stand where the user asked for nothing else; what a trainer cannot carry is refused here, by name.
"""

from __future__ import annotations

import msgspec

from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Kind
from rollforge.exporters.shape import Shaping
from rollforge.exporters.tidy import Policies, Policy
from rollforge.steps.prepare.settings import Settings


def container_of(exporter: type[Exporter], settings: Settings, kind: Kind) -> str:
    """The file type: the trainer's own, where the user did not ask for another that it reads too."""
    known = exporter.containers_for(kind)
    if settings.format == "auto":
        return exporter.container
    if settings.format not in known:
        raise UsageError(f"{exporter.name} reads {' or '.join(known)}, not {settings.format}")
    return settings.format


def shaping_of(exporter: type[Exporter], settings: Settings, kind: Kind, container: str) -> Shaping:
    """The exporter's own shaping, where the user did not ask for another."""
    asked = {
        name: getattr(settings, name)
        for name in ("arguments", "tools", "reasoning", "keys")
        if getattr(settings, name) != "auto"
    }
    _refuse_lost(exporter, asked, kind)
    shaping = msgspec.structs.replace(exporter.shaping_for(kind), **asked)
    if container == "parquet" and exporter.container != "parquet":
        if settings.arguments == "object" or settings.tools == "list":
            raise UsageError(
                "Parquet fills missing keys with null: objects and lists of tools cannot be kept in it"
            )
        arguments = "text" if shaping.arguments == "text" else "string"
        tools = "system" if shaping.tools == "system" else "string"
        shaping = msgspec.structs.replace(shaping, arguments=arguments, tools=tools, keys="uniform")
    return shaping


def _refuse_lost(exporter: type[Exporter], asked: dict[str, str], kind: Kind) -> None:
    """Raise for a form that the rows have no place for: calls, schemas or reasoning would be gone."""
    for name, value in asked.items():
        known = () if exporter.is_raw else exporter.forms(kind).get(name, (value,))
        if value not in known:
            takes = f"they take {' or '.join(known)}" if known else "they are copied as they are"
            raise UsageError(
                f"--{name} {value}: rows of {exporter.name} cannot carry it; {takes}",
                hint=f"leave --{name} out, or write plain messages: --to chat",
            )


def policies_of(exporter: type[Exporter], settings: Settings) -> Policies:
    """What becomes of untidy rollouts: the exporter's own policies, where the user did not ask for another."""
    if settings.untidy == "auto":
        return exporter.policies
    policy: Policy = settings.untidy
    inner: Policy = "refuse" if policy == "refuse" else "keep"
    return msgspec.structs.replace(
        exporter.policies,
        ends_in_tool_result=policy,
        ends_in_user_message=policy,
        unanswered_call=policy,
        bare_reasoning=policy,
        inner_unanswered_call=inner,
        orphan_result=inner,
        assistant_first="refuse" if policy == "refuse" else exporter.policies.assistant_first,
    )
