"""The requested form of a dataset: file type, message form, policies for untidy rollouts.

The exporter's defaults apply unless the user asked for another form; a form that the trainer does not support is refused. The
survey of the selected rows decides whether the form can be kept.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rollforge.conversations.chat_template import Prover, load_template, pick_shaping
from rollforge.conversations.shape import Arguments, Shaping
from rollforge.conversations.tidy import Policies, Policy
from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Container, Form, Layout
from rollforge.steps.prepare.settings import Settings

_SHAPING = ("arguments", "tools", "reasoning", "keys")


class AskedForm(NamedTuple):
    """The initial form of a dataset."""

    form: Form
    fallback: Arguments | None = "string"
    """Form of call arguments if the loader would damage objects; None if the template supports no other."""
    prover: Prover | None = None
    """Renders each row with the user's chat template, to prove that it works."""


def asked_form(exporter: type[Exporter], settings: Settings, kind: Kind, container: Container) -> AskedForm:
    """The exporter's form with the user's changes; with `--template`, the template determines the remaining choices."""
    shaping = shaping_of(exporter, settings, kind, container)
    layout = layout_of(exporter, settings, kind)
    if settings.template is None:
        return AskedForm(Form(shaping=shaping, container=container, layout=layout))
    if exporter.is_raw or exporter.name == "llama-factory":
        raise UsageError(
            f"--template does not apply to {exporter.name}: it renders no messages of ours",
            hint="leave --template out",
        )
    template = load_template(settings.template)
    fixed = {name: getattr(settings, name) for name in _SHAPING if getattr(settings, name) != "auto"}
    if container == "parquet" and shaping.arguments != "text":
        fixed |= {"keys": "uniform", "arguments": fixed.get("arguments", "string")}
    shaping, fallback, shows_tools = pick_shaping(template, shaping, fixed)
    form = Form(shaping=shaping, container=container, layout=layout)
    return AskedForm(form, fallback, Prover(template, shows_tools=shows_tools))


def container_of(exporter: type[Exporter], settings: Settings, kind: Kind) -> Container:
    """The file type: the trainer's default, unless the user chose another that it reads."""
    containers = exporter.containers_for(kind)
    if settings.format == "auto":
        return exporter.container
    if settings.format not in containers:
        raise UsageError(
            f"{exporter.name} reads {' or '.join(containers)}, not {settings.format}",
            hint=f"--format {containers[0]}",
        )
    return settings.format


def layout_of(exporter: type[Exporter], settings: Settings, kind: Kind) -> Layout:
    """The initial layout; `auto` starts with prompt and completion in separate columns, if the exporter supports it."""
    has_choice = kind == "demonstration" and exporter.completion_columns is not None
    if settings.layout == "completion" and not has_choice:
        raise UsageError(
            f"--layout completion: {exporter.name} has no such rows for this recipe",
            hint="it is for sft rows of trl; leave --layout out",
        )
    return "completion" if has_choice and settings.layout != "messages" else "messages"


def shaping_of(exporter: type[Exporter], settings: Settings, kind: Kind, container: Container) -> Shaping:
    """The exporter's message form with the user's changes."""
    chosen_forms = {name: getattr(settings, name) for name in _SHAPING if getattr(settings, name) != "auto"}
    _refuse_lost(exporter, chosen_forms, kind)
    shaping = msgspec.structs.replace(exporter.shaping_for(kind), **chosen_forms)
    if container == "parquet" and exporter.container != "parquet":
        if settings.arguments == "object" or settings.tools == "list":
            raise UsageError(
                "Parquet fills missing keys with null: objects and lists of tools cannot be kept in it",
                hint="leave --format out, or write --format jsonl",
            )
        arguments = "text" if shaping.arguments == "text" else "string"
        tools = "system" if shaping.tools == "system" else "string"
        shaping = msgspec.structs.replace(shaping, arguments=arguments, tools=tools, keys="uniform")
    return shaping


def _refuse_lost(exporter: type[Exporter], chosen_forms: dict[str, str], kind: Kind) -> None:
    """Raise for a form in which the rows would lose calls, schemas or reasoning."""
    for name, value in chosen_forms.items():
        accepted_values = () if exporter.is_raw else exporter.forms(kind).get(name, (value,))
        if value not in accepted_values:
            takes = (
                f"they take {' or '.join(accepted_values)}"
                if accepted_values
                else "they are copied as they are"
            )
            raise UsageError(
                f"--{name} {value}: rows of {exporter.name} cannot carry it; {takes}",
                hint=f"leave --{name} out, or write plain messages: --to chat",
            )


def policies_of(exporter: type[Exporter], settings: Settings) -> Policies:
    """Policies for untidy rollouts: the exporter's defaults, unless the user chose others."""
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
