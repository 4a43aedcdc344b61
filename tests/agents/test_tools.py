"""Python functions as tools: the schema says what the signature and the docstring say, and arguments are held to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.agents.tools.base import ToolError
from rollforge.agents.tools.function_schema import FunctionTool, read_docstring
from rollforge.agents.tools.functions import as_text
from rollforge.agents.tools.loading import load_toolset
from rollforge.agents.transcript import sum_usage
from rollforge.errors import UsageError
from rollforge.records import Task


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


class Place(TypedDict):
    city: str
    country: str


@dataclass
class Point:
    x: float
    y: float = 0.0


def forecast(
    place: Place,
    days: Annotated[int, "how many days"],
    unit: Unit = Unit.CELSIUS,
    kind: Literal["short", "long"] = "short",
    around: list[Point] | None = None,
    tags: dict[str, str] = {},  # noqa: B006  (a default that must not be shared)
) -> str:
    """Forecast the weather.

    Over several lines.

    Parameters
    ----------
    place : Place
        Where, as
        exactly as possible.
    kind, unit
        How it is said.

    Returns
    -------
    str
        The forecast.
    """
    return f"{place['city']} {days} {unit} {kind} {around} {tags}"


def test_a_schema_says_types_defaults_and_meanings() -> None:
    schema = FunctionTool(forecast).schema
    parameters = schema["parameters"]
    assert (
        schema["name"] == "forecast"
        and schema["description"] == "Forecast the weather.\n\nOver several lines."
    )
    assert parameters["required"] == ["place", "days"] and parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["days"] == {"type": "integer", "description": "how many days"}
    assert properties["kind"]["enum"] == ["long", "short"] and properties["kind"]["default"] == "short"
    assert properties["place"]["description"] == "Where, as exactly as possible."
    assert properties["unit"]["description"] == properties["kind"]["description"] == "How it is said."
    assert set(parameters["$defs"]) == {"Place", "Point", "Unit"}
    json.dumps(schema)


def test_arguments_arrive_as_the_types_they_are_annotated_with() -> None:
    tool = FunctionTool(forecast)
    args, keywords = tool.bind(
        {"place": {"city": "Oslo", "country": "NO"}, "days": 2, "unit": "K", "around": [{"x": 1}]}
    )
    assert args == [] and keywords["unit"] is Unit.KELVIN and keywords["around"] == [Point(1.0)]
    assert "kind" not in keywords


@pytest.mark.parametrize(
    "bad", [{}, {"place": {"city": "Oslo"}, "days": 1}, {"place": {"city": "a", "country": "b"}, "days": 1.5}]
)
def test_arguments_that_do_not_fit_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as error:
        FunctionTool(forecast).bind(bad)
    assert error.value.kind == "bad-arguments" and "forecast" in error.value.text


def test_google_and_rest_docstrings_are_read_too() -> None:
    def google(a: int, b: str) -> None:
        """Do it.

        Args:
            a (int): The first,
                on two lines.
            b: The second.

        Returns:
            nothing: at all
        """

    def rest(a: int, b: str) -> None:
        """Do it.

        :param int a: The first,
            on two lines.
        :param b: The second.
        :returns: nothing
        """

    for function in (google, rest):
        found = read_docstring(function)
        assert found.description == "Do it."
        assert found.parameters == {"a": "The first, on two lines.", "b": "The second."}


@given(st.text())
def test_any_docstring_can_be_read(text: str) -> None:
    def function() -> None: ...

    function.__doc__ = text
    read_docstring(function)


def test_functions_without_annotations_or_docstring_take_anything() -> None:
    def loose(a, b=None):  # type: ignore[no-untyped-def]
        return a

    schema = FunctionTool(loose).schema
    assert schema["parameters"]["properties"]["a"] == {} and schema["parameters"]["required"] == ["a"]
    assert FunctionTool(loose).bind({"a": [1, {"b": 2}]}) == ([], {"a": [1, {"b": 2}]})


def test_what_no_schema_can_say_is_refused_with_a_hint() -> None:
    class Odd:
        pass

    def many(*args: int) -> None: ...
    def odd(x: Odd) -> None: ...

    for function in (many, odd):
        with pytest.raises(UsageError, match=f"the tool {function.__name__}"):
            FunctionTool(function)


def write(folder: Path, text: str) -> str:
    path = folder / f"tools_{abs(hash(text))}.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "suffix", "names"),
    [
        (
            "from json import dumps\ndef b(): ...\ndef a(): ...\ndef _c(): ...\ndef verify(task, response): ...",
            "",
            ["b", "a"],
        ),
        ("def a(): ...\ndef b(): ...\nTOOLS = [b]", "", ["b"]),
        (
            "def a(): ...\nclass Tools:\n    def go(self): ...\n    def close(self): ...\n    def _x(self): ...",
            "",
            ["go"],
        ),
        ("def a(): ...\ndef b(): ...", ":a", ["a"]),
        (
            "class Env:\n    @staticmethod\n    def s(x: int): ...\n    def m(self, y: int): ...",
            ":Env",
            ["m", "s"],
        ),
    ],
)
def test_a_file_offers_its_list_its_class_or_its_functions(
    tmp_path: Path, text: str, suffix: str, names: list[str]
) -> None:
    toolset = load_toolset(write(tmp_path, text) + suffix)
    assert [schema["name"] for schema in toolset.schemas] == names
    assert all("self" not in schema["parameters"]["properties"] for schema in toolset.schemas)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no tools"),
        ("TOOLS = [1]", "no function"),
        ("TOOLS = 3", "tools are functions"),
        ("1/0", "ZeroDivision"),
    ],
)
def test_a_file_without_tools_says_what_to_write(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_toolset(write(tmp_path, text))


def test_a_change_in_the_file_changes_the_fingerprint(tmp_path: Path) -> None:
    one = load_toolset(write(tmp_path, "def a(x: int):\n    return x"))
    two = load_toolset(write(tmp_path, "def a(x: int):\n    return x + 1"))
    assert one.schemas == two.schemas and one.fingerprint != two.fingerprint


async def test_state_is_set_up_and_calls_that_must_not_overlap_do_not(tmp_path: Path) -> None:
    text = """
import time
class Tools:
    is_parallel = False
    def __init__(self): self.log = []
    async def setup(self): self.log.append("up")
    def slow(self, name: str):
        self.log.append("+" + name); time.sleep(0.02); self.log.append("-" + name)
        return self.log
"""
    toolset = load_toolset(write(tmp_path, text))
    from rollforge.agents.tools.toolbox import Toolbox

    box = Toolbox([toolset])
    await box.start()
    async with box.opened(Task({})) as session:
        answers = await asyncio.gather(
            session.call("slow", {"name": "a"}), session.call("slow", {"name": "b"})
        )
    assert json.loads(answers[1]) == ["up", "+a", "-a", "+b", "-b"]


def test_what_a_tool_returns_becomes_text() -> None:
    assert as_text("é\n") == "é\n"
    assert as_text({"a": [1, None, True]}) == '{"a":[1,null,true]}'
    assert as_text(None) == "null" and as_text(Point(1.0)) == '{"x":1.0,"y":0.0}'
    assert as_text(object).startswith('"<class')


counts = st.dictionaries(
    st.sampled_from(["input_tokens", "output_tokens"]),
    st.integers(0, 10**9),
    min_size=2,
)


@given(st.lists(counts, min_size=1, max_size=5))
def test_usage_sums_are_sums(usages: list[dict[str, Any]]) -> None:
    nested = [{**usage, "details": dict(usage)} for usage in usages]
    total = sum_usage(list(nested))
    assert total is not None
    for key in ("input_tokens", "output_tokens"):
        assert total[key] == total["details"][key] == sum(usage[key] for usage in usages)


@pytest.mark.slow
def test_the_command_line_takes_tools_from_a_file(tmp_path: Path) -> None:
    tools = write(tmp_path, "def get_synonym_value(synonym: str):\n    return {'synonym_value': sum(map(ord, synonym))}\n"
                            "def extract_synonym_values(synonym_values: list[int]):\n    return {'success': True}\n")  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollforge", *words], capture_output=True, text=True, cwd=tmp_path
        )

    run("simulate", "--write-tasks", "t.jsonl", "--kind", "tools", "-n", "4")
    command = f"collect -i t.jsonl -o run -m simulated --tools {tools} --json --max-turns".split()
    rehearsal = run(*command, "20", "--dry-run")
    assert rehearsal.returncode == 0 and json.loads(rehearsal.stdout)["config"]["tools"] == [tools]
    done = run(*command, "20")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(len(row["response"]["output"]) >= 5 for row in rows)
    refused = run(*command, "5")
    assert refused.returncode == 7 and "max_turns: was 20, is 5" in refused.stderr
    assert "tool_loop" in run("list", "agents").stdout
