"""A chat template picks the form of rows and every row is rendered with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.conversations.chat_template import Template, load_template, pick_shaping
from rollforge.conversations.messages import Inexpressible
from rollforge.errors import UsageError
from rollforge.exporters.trl import TrlExporter
from rollforge.steps.prepare import prepare
from tests.prepare_runs import mixed_run, read_lines

HEAD = "{%- for message in messages %}<{{ message.role }}>{{ message.content }}"
TAIL = "{%- endfor %}"
OBJECTS = "{%- for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }}{%- endfor %}"
STRINGS = "{%- for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments + '' }}{%- endfor %}"
STRICT = (
    "{%- if 'tool_calls' in message %}{%- if message.tool_calls|length != 1 %}{{ raise_exception('one call') }}{%- endif %}"
    "{{ message.tool_calls[0].function.arguments | tojson }}{%- endif %}"
)
FIELD = "{%- if message.reasoning_content %}[{{ message.reasoning_content }}]{%- endif %}"
TEXT_ONLY = "{%- if message.role not in ('user', 'assistant') %}{{ raise_exception('roles must alternate') }}{%- endif %}"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (OBJECTS + FIELD, ("object", "uniform", "field", "string")),
        (OBJECTS, ("object", "uniform", "think", "string")),
        (STRINGS + FIELD, ("string", "uniform", "field", "string")),
        (STRICT, ("object", "present", "think", "string")),
        ("", ("text", "uniform", "think", "system")),
        (TEXT_ONLY, ("object", "uniform", "think", "string")),
    ],
)
def test_the_first_form_that_the_template_shows_whole_is_picked(body: str, wanted: tuple[str, ...]) -> None:
    shaping, *_ = pick_shaping(Template(HEAD + body + TAIL, "t"), TrlExporter.shaping, {})
    assert (shaping.arguments, shaping.keys, shaping.reasoning, shaping.tools) == wanted


def test_what_the_user_asked_for_is_proved_and_not_changed() -> None:
    with pytest.raises(UsageError, match="in any form"):
        pick_shaping(Template("{{ raise_exception('no') }}", "t"), TrlExporter.shaping, {})
    shaping, *_ = pick_shaping(
        Template(HEAD + OBJECTS + TAIL, "t"), TrlExporter.shaping, {"reasoning": "drop"}
    )
    assert shaping.reasoning == "drop"


def test_rows_that_the_template_refuses_are_counted(tmp_path: Path) -> None:
    run = mixed_run(tmp_path / "run")
    (tmp_path / "t.jinja").write_text(HEAD + TEXT_ONLY + TAIL)
    made = prepare(
        "sft", run, to="trl", out=tmp_path / "data", min_reward=0.4, template=str(tmp_path / "t.jinja")
    )
    assert made.counts["rollouts"]["cannot be expressed: the template refuses it: roles must alternate"] > 0
    assert all(
        m["role"] != "tool" for row in read_lines(tmp_path / "data" / "train.jsonl") for m in row["messages"]
    )


def test_a_template_is_found_in_a_tokenizer_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "x{{ messages[0].content }}"}]}'
    )
    assert load_template(str(tmp_path)).render([{"role": "user", "content": "y"}]) == "xy"
    with pytest.raises(UsageError, match="no chat template"):
        load_template(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "body",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].nothing.inside }}",
        "{{ 'a' + 1 }}",
        "{{ [1].append(2) }}",
        "{{ messages[0].content.encode('no-such-codec') }}",
        "{{ messages[0].content.index('absent') }}",
        "{%- macro again() %}{{ again() }}{%- endmacro %}{{ again() }}",
        "{{ {}.popitem() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 'x' * (10 ** 19) }}",
        "{% include 'other' %}",
    ],
)
def test_whatever_a_template_raises_is_a_refusal(body: str) -> None:
    with pytest.raises(Inexpressible, match=r"the template refuses it: ."):
        Template(body, "t").render([{"role": "user", "content": "y"}])
