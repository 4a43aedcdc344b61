"""Real agents, at the versions that `make agents` installs, against the simulated model; each is skipped where it is not installed.

Every one calls a tool once, as the prompt spells it out, and answers. So each test sees two turns in one main sequence, whatever API
the agent speaks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rollforge.sandbox.programs import find_program_bubblewrap
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.collect import Collection
from rollforge.steps.collect.collect_options import CollectOptions

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".agents" / "node_modules" / ".bin"
PYTHON = ROOT / ".venv-agents" / "bin" / "python"
MINI = ROOT / ".venv-agents" / "mini" / "bin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_program_bubblewrap()[0] is None, reason="bubblewrap does not work here"),
]

COMMAND_LINES = {
    "codex": (NODE / "codex", "responses", 'call exec_command {"cmd": "echo hi > out.txt"}'),
    "opencode": (
        NODE / "opencode",
        "chat",
        'call bash {"command": "echo hi > out.txt", "description": "write"}',
    ),
    "qwen-code": (
        NODE / "qwen",
        "chat",
        'call run_shell_command {"command": "echo hi > out.txt", "is_background": false}',
    ),
    "claude-code": (
        NODE / "claude",
        "messages",
        'call Bash {"command": "echo hi > out.txt", "description": "write"}',
    ),
    "mini-swe-agent": (
        MINI / "mini",
        "chat",
        'call bash {"command": "echo hi > out.txt"}\ncall bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}',
    ),
}
"""Preset → its executable, the API it speaks, and the calls that the prompt spells out."""

LIBRARIES = {
    "openai-agents": (
        "agents",
        "responses",
        """
import asyncio
from agents import Agent, Runner, function_tool, set_tracing_disabled

@function_tool
def write(text: str) -> str:
    "Writes."
    open("out.txt", "w").write(text)
    return "written"

set_tracing_disabled(True)
agent = Agent(name="a", instructions="Be brief.", tools=[write], model="gpt-any")
print(asyncio.run(Runner.run(agent, PROMPT)).final_output)
""",
    ),
    "pydantic-ai": (
        "pydantic_ai",
        "responses",
        """
from pydantic_ai import Agent

agent = Agent("openai:gpt-any", instructions="Be brief.")

@agent.tool_plain
def write(text: str) -> str:
    "Writes."
    open("out.txt", "w").write(text)
    return "written"

print(agent.run_sync(PROMPT).output)
""",
    ),
    "pydantic-ai over Messages": (
        "pydantic_ai",
        "messages",
        """
from pydantic_ai import Agent

agent = Agent("anthropic:claude-any", instructions="Be brief.")

@agent.tool_plain
def write(text: str) -> str:
    "Writes."
    open("out.txt", "w").write(text)
    return "written"

print(agent.run_sync(PROMPT).output)
""",
    ),
    "langgraph": (
        "langgraph",
        "chat",
        """
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

def write(text: str) -> str:
    "Writes."
    open("out.txt", "w").write(text)
    return "written"

model = ChatOpenAI(model="gpt-any").bind_tools([write])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([write]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
print(graph.compile().invoke({"messages": [("user", PROMPT)]})["messages"][-1].content)
""",
    ),
}
"""Library → its package, the API it speaks, and a program that uses it."""


async def collect(folder: Path, agent: str, prompt: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One rollout without a network."""
    (folder / "tasks.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        options = CollectOptions(
            input=str(folder / "tasks.jsonl"),
            out=str(folder / "run"),
            model="simulated",
            base_urls=(server.base_url,),
            agent=agent,
            no_verify=True,
            logprobs=True,
            attempts=1,
            artifacts=("out.txt",),
            sandbox="require",
            rollout_deadline_s=240.0,
        )
        await Collection(options).run()
    failures = (folder / "run" / "rollouts_failures.jsonl").read_text()
    assert not failures, failures[:3000]
    row = json.loads((folder / "run" / "rollouts.jsonl").read_text())
    calls = [json.loads(line) for line in (folder / "run" / "rollouts_calls.jsonl").read_text().splitlines()]
    return row, calls


def check(row: dict[str, Any], calls: list[dict[str, Any]], api: str) -> None:
    main = row["_rf"]["sequences"][0]
    assert main["role"] == "main" and main["turns"] == 2, row["_rf"]["sequences"]
    assert main["fidelity"] in ("exact", "drift") and {call["api"] for call in calls} == {api}
    assert [entry["path"] for entry in row["response"]["artifacts"]] == ["out.txt"]
    kinds = [item["type"] for item in row["response"]["output"]]
    assert kinds[0] == "function_call" and "function_call_output" in kinds
    assert len(row["_rf"]["played"]["input"]) >= 1 and row["_rf"]["played"]["tools"]


def texts_in(items: list[dict[str, Any]]) -> list[str]:
    """Every text that was asked, whatever the API wrapped it in."""
    contents = [item.get("content") for item in items]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [content for content in contents if isinstance(content, str)] + [
        part.get("text") or "" for part in parts
    ]


@pytest.mark.parametrize("preset", COMMAND_LINES)
async def test_a_command_line_agent_is_recorded(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable, api, calls = COMMAND_LINES[preset]
    if not executable.exists():
        pytest.skip(f"{preset} is not installed: make agents")
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")
    prompt = (
        f'--help me: do as "told", {{key}}.\n{calls}'  # what a command line could take for a flag, or change
    )
    row, recorded = await collect(tmp_path, preset, prompt)
    check(row, recorded, api)
    assert any(prompt in text for text in texts_in(row["_rf"]["played"]["input"]))
    if preset == "opencode":
        assert [one["role"] for one in row["_rf"]["sequences"]] == ["main", "auxiliary"]


@pytest.mark.parametrize("library", LIBRARIES)
async def test_an_agent_library_is_recorded(library: str, tmp_path: Path) -> None:
    package, api, source = LIBRARIES[library]
    if not list((ROOT / ".venv-agents").glob(f"lib/python*/site-packages/{package}")):
        pytest.skip(f"{library} is not installed: make agents")
    program = tmp_path / "agent.py"
    program.write_text("import sys\n\nPROMPT = sys.argv[1]\n" + source)
    prompt = 'Do as told.\ncall write {"text": "hi"}'
    row, recorded = await collect(tmp_path, f"program:{PYTHON} {program} {{prompt}}", prompt)
    check(row, recorded, api)
