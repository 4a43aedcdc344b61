"""Rollout → export → back to messages equals the rollout, for every exporter, whatever the rollout looks like."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import Exporter, FormChanged, KeysGrew, load_exporter
from rollforge.exporters.examples import Demonstration, Labelled, Pair
from rollforge.exporters.messages import Conversation, Inexpressible, Message
from rollforge.exporters.reading import Reader
from rollforge.exporters.tidy import lead, tidy
from tests.builders import Row
from tests.exporters.hostile import rollouts

CONVERTING = [name for name in EXPORTERS.names() if name != "gym"]


def conversation(row: Row, exporter: Exporter) -> Conversation:
    reader = Reader(lead=lambda prompt: lead(prompt, exporter.policies))
    return tidy(reader.read(json.dumps(row).encode()), exporter.policies)


def written(exporter: Exporter, example: Any) -> Row:
    """The row as it stands in the file, after starting over where the writer would."""
    while True:
        exporter.start_over()
        try:
            line = exporter.line(example)
        except KeysGrew as grown:
            exporter.keys = grown.keys
        except FormChanged as changed:
            exporter.shape_as = msgspec.structs.replace(exporter.shape_as, **changed.form)
        else:
            assert b"\n" not in line
            return json.loads(line)


def said(messages: list[Message], exporter: Exporter) -> list[Any]:
    """What the messages say, in the terms that the exporter's form keeps."""
    form = exporter.shape_as
    is_text = form.arguments == "text"
    found: list[Any] = []
    for message in messages:
        thought = (message.reasoning or None) if form.reasoning != "drop" else None
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
        line = written(exporter, Demonstration(talk.prompt, talk.answer, talk.tools, 1.0))
    except Inexpressible as error:
        assert str(error)
        return
    back = exporter.back(line)["messages"]
    assert said(back, exporter) == said(talk.messages, exporter)
    assert list(problems(exporter, "sft", "demonstration", line)) == []


@pytest.mark.parametrize("name", [name for name in CONVERTING if "kto" in load_exporter(name).recipes])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rollouts())
def test_a_labelled_answer_comes_back_as_it_was(name: str, row: Row) -> None:
    exporter = load_exporter(name)()
    try:
        talk = conversation(row, exporter)
        line = written(exporter, Labelled(talk.prompt, talk.answer, talk.tools, True, 1.0))
    except Inexpressible:
        return
    back = exporter.back(line)
    messages = back["messages"] if "messages" in back else back.get("prompt", []) + back["completion"]
    assert said(messages, exporter) == said(talk.messages, exporter)
    assert line["label"] is True


@pytest.mark.parametrize("name", [n for n in CONVERTING if "dpo" in load_exporter(n).recipes])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rollouts())
def test_a_step_pair_comes_back_as_it_was(name: str, row: Row) -> None:
    exporter = load_exporter(name)()
    try:
        talk = conversation(row, exporter)
        chosen = [
            Message("assistant", "the better one", "why" if exporter.shape_as.reasoning == "field" else None)
        ]
        rejected = [Message("assistant", "the worse one")]
        line = written(exporter, Pair(talk.prompt, chosen, rejected, talk.tools, 0.9, 0.2))
    except Inexpressible:
        return
    if name == "axolotl":
        exporter.shape_as = msgspec.structs.replace(exporter.shape_as, arguments="text")
    back = exporter.back(line)
    assert said(back.get("prompt", []), exporter) == said(talk.prompt, exporter)
    assert back["chosen"][0].content == "the better one"
    assert back["rejected"][0].content == "the worse one"


def problems(exporter: Exporter, recipe: str, kind: Any, line: Row) -> list[str]:
    row = msgspec.json.decode(msgspec.json.encode(line), type=exporter.row_type(recipe, kind))
    return list(exporter.problems(recipe, kind, row))
