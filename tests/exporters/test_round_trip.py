"""Rollout → export → back to messages equals the rollout, for every exporter, whatever the rollout looks like."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from rollforge.conversations.messages import ChatMessage, Conversation, Inexpressible
from rollforge.conversations.reader import ConversationReader
from rollforge.conversations.tidy import lead, tidy
from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import Exporter, load_exporter
from rollforge.exporters.examples import Demonstration, Example, Kind, Labelled, Pair
from rollforge.exporters.form import Form
from rollforge.exporters.writer import RowWriter
from rollforge.steps.prepare.asked_form import AskedForm
from rollforge.steps.prepare.survey import watch_rows
from tests.builders import Row
from tests.exporters.back import back
from tests.exporters.hostile import rollouts

CONVERTING = [name for name in EXPORTERS.names() if name not in ("gym", "atif")]


def conversation(row: Row, exporter: Exporter) -> Conversation:
    reader = ConversationReader(lead=lambda prompt: lead(prompt, exporter.policies))
    return tidy(reader.read(json.dumps(row).encode()), exporter.policies)


def written(exporter: Exporter, kind: Kind, example: Example) -> tuple[Row, Form]:
    """The row in the form that a survey of it decides."""
    asked = AskedForm(Form(shaping=exporter.shaping_for(kind)))
    seen = watch_rows([[(0, example)]], exporter, kind, asked, 1)
    if seen.lost:
        raise Inexpressible(seen.lost[0])
    line = exporter.line(example, kind, RowWriter(seen.form))
    assert b"\n" not in line
    return json.loads(line), seen.form


def said(messages: list[ChatMessage], exporter: Exporter, form: Form) -> list[Any]:
    """What the messages say, in the terms that the exporter's form keeps."""
    is_text = form.shaping.arguments == "text"
    found: list[Any] = []
    for message in messages:
        thought = (message.reasoning or None) if form.shaping.reasoning != "drop" else None
        calls = [(None if is_text else c.id, c.name, digits(c.arguments)) for c in message.calls]
        ids = (None, None) if is_text else (message.call_id, message.name)
        if exporter.name == "llama-factory" and message.role == "tool" and found and found[-1][0] == "tool":
            found[-1] = ("tool", f"{found[-1][1]}\n{message.content}", *found[-1][2:])
            continue
        found.append((message.role, message.content, thought, calls, ids))
    if is_text or exporter.name == "llama-factory":
        found = [item for item in found if item[:2] != ("system", "")]  # an empty system text says nothing
    return found


def digits(arguments: str) -> Any:
    """Arguments with every number as the digits it was written in."""
    try:
        return json.loads(arguments, parse_float=float, parse_int=str)
    except ValueError:
        return arguments


@pytest.mark.parametrize("name", CONVERTING)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rollouts())
def test_a_demonstration_comes_back_as_it_was(name: str, row: Row) -> None:
    exporter = load_exporter(name)()
    try:
        talk = conversation(row, exporter)
        example = Demonstration(talk.prompt, talk.answer, talk.tools, 1.0)
        line, form = written(exporter, "demonstration", example)
    except Inexpressible as error:
        assert str(error)
        return
    messages = back(name, line, form.shaping)["messages"]
    assert said(messages, exporter, form) == said(talk.messages, exporter, form)
    assert list(problems(exporter, "demonstration", line, form)) == []


@pytest.mark.parametrize("name", [name for name in CONVERTING if "kto" in load_exporter(name).recipes])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rollouts())
def test_a_labelled_answer_comes_back_as_it_was(name: str, row: Row) -> None:
    exporter = load_exporter(name)()
    try:
        talk = conversation(row, exporter)
        example = Labelled(talk.prompt, talk.answer, talk.tools, True, 1.0)
        line, form = written(exporter, "labelled", example)
    except Inexpressible:
        return
    columns = back(name, line, form.shaping)
    messages = (
        columns["messages"] if "messages" in columns else columns.get("prompt", []) + columns["completion"]
    )
    assert said(messages, exporter, form) == said(talk.messages, exporter, form)
    assert line["label"] is True


@pytest.mark.parametrize("name", [n for n in CONVERTING if "dpo" in load_exporter(n).recipes])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rollouts())
def test_a_step_pair_comes_back_as_it_was(name: str, row: Row) -> None:
    exporter = load_exporter(name)()
    try:
        talk = conversation(row, exporter)
        thought = "why" if exporter.shaping_for("pair").reasoning == "field" else None
        chosen = [ChatMessage("assistant", "the better one", thought)]
        rejected = [ChatMessage("assistant", "the worse one")]
        line, form = written(exporter, "pair", Pair(talk.prompt, chosen, rejected, talk.tools, 0.9, 0.2))
    except Inexpressible:
        return
    columns = back(name, line, form.shaping)
    assert said(columns.get("prompt", []), exporter, form) == said(talk.prompt, exporter, form)
    assert columns["chosen"][0].content == "the better one"
    assert columns["rejected"][0].content == "the worse one"


def problems(exporter: Exporter, kind: Kind, line: Row, form: Form) -> list[str]:
    row = msgspec.json.decode(msgspec.json.encode(line), type=exporter.row_type(kind, form))
    return list(exporter.problems(kind, row, form.shaping))
