"""Tools of MCP servers: a session or a process per rollout, always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from tests.agents import fake_mcp
from tests.agents.fake_mcp import make_app
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import Row, ScriptedModel, call, message
from tests.agents.web import serving


def outputs(row: Row) -> list[str]:
    return [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]


def counting() -> ScriptedModel:
    calls = [call("increment", {"by": 2}, "c1"), call("increment", {"by": 3}, "c2")]
    return ScriptedModel(calls, [call("increment", {"by": 1}, "c3")], [message("done")])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("streams", [False, True])
async def test_every_rollout_has_its_own_session_over_http(tmp_path: Path, streams: bool) -> None:
    app, sessions, ended = make_app(streams=streams)
    async with serving(counting().app) as model, serving(app) as url:
        await collect(tmp_path, [make_task()], model, tools=(f"mcp:{url}/mcp",), samples=3)
    rows = rollouts(tmp_path)
    assert len(rows) == 3 and all(outputs(row)[-1] == "6" for row in rows)
    assert [tool["name"] for tool in rows[0]["responses_create_params"]["tools"]] == [
        "increment",
        "fail",
        "die",
    ]
    assert sessions == {} and len(ended) == 4  # one more for the listing


async def test_a_shared_session_serves_all_rollouts(tmp_path: Path) -> None:
    app, sessions, ended = make_app(streams=False)
    async with serving(counting().app) as model, serving(app) as url:
        await collect(tmp_path, [make_task()], model, tools=(f"mcp-shared:{url}/mcp",), samples=3)
    assert max(int(outputs(row)[-1]) for row in rollouts(tmp_path)) == 18 and (sessions, len(ended)) == (
        {},
        1,
    )


async def test_errors_of_a_tool_are_told_to_the_model(tmp_path: Path) -> None:
    app, _, _ = make_app(streams=False)
    calls = [call("fail", {}, "c1"), call("nothing", {}, "c2")]
    async with serving(ScriptedModel(calls, [message("oh")]).app) as model, serving(app) as url:
        await collect(tmp_path, [make_task()], model, tools=(f"mcp:{url}/mcp",))
    items = [
        item for item in rollouts(tmp_path)[0]["response"]["output"] if item["type"] == "function_call_output"
    ]
    assert (items[0]["output"], items[0]["_rf"]["error"]) == ("it failed", "tool-error")
    assert items[1]["_rf"]["error"] == "unknown-tool"


async def test_a_lost_session_fails_the_rollout_and_not_the_run(tmp_path: Path) -> None:
    app, sessions, _ = make_app(streams=False)

    def forget(body: Row) -> list[Row]:
        sessions.clear()
        return [call("increment", {"by": 1}, "c2")]

    model = ScriptedModel([call("increment", {"by": 1})], forget, [message("done")])
    async with serving(model.app) as model_url, serving(app) as url:
        await collect(tmp_path, [make_task()], model_url, tools=(f"mcp:{url}/mcp",))
    (failure,) = failures(tmp_path)
    assert (failure["class"], failure["boundary"]) == ("tool", "tool") and "HTTP 404" in failure["message"]
    assert len(failure["response"]["output"]) == 3


async def test_every_rollout_has_its_own_process_over_stdio(tmp_path: Path) -> None:
    spec = f"mcp-stdio:{sys.executable} {fake_mcp.__file__} {tmp_path}/pids"
    async with serving(counting().app) as model:
        await collect(tmp_path, [make_task()], model, tools=(spec,), samples=2)
    assert [outputs(row)[-1] for row in rollouts(tmp_path)] == ["6", "6"]
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3 and not any(map(is_alive, pids))


async def test_a_process_that_dies_fails_its_rollout_and_one_that_lingers_is_ended(tmp_path: Path) -> None:
    spec = f"mcp-stdio:{sys.executable} {fake_mcp.__file__} {tmp_path}/pids --stubborn"
    async with serving(ScriptedModel([call("die", {})], [message("done")]).app) as model:
        await collect(tmp_path, [make_task()], model, tools=(spec,))
    (failure,) = failures(tmp_path)
    assert failure["class"] == "tool" and "has ended: starting" in failure["message"]
    assert not any(is_alive(int(line)) for line in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mcp:", "names no server"),
        ("mcp:localhost:80", "is no URL"),
        ("mcp:http://127.0.0.1:9/mcp", "Cannot connect"),
        ("mcp-stdio:no-such-command-here", "cannot be started"),
        (f"mcp-stdio:{sys.executable} -c pass", "has ended"),
        (f"mcp-stdio:{sys.executable} -c print(1)", "speaks no JSON-RPC"),
    ],
)
async def test_a_server_that_is_none_is_refused_before_anything_is_sent(
    tmp_path: Path, spec: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await collect(tmp_path, [make_task()], "http://127.0.0.1:9", tools=(spec,))


async def test_a_message_beyond_the_limit_fails_the_rollout_and_holds_no_memory(tmp_path: Path) -> None:
    server = tmp_path / "large.py"
    server.write_text(LARGE_SERVER.format(path=fake_mcp.__file__))
    model = ScriptedModel([call("large", {})], [message("done")])
    async with serving(model.app) as url:
        await collect(
            tmp_path,
            [make_task()],
            url,
            tools=(f"mcp-stdio:{sys.executable} {server}",),
            max_response_bytes=1 << 20,
        )
    (failure,) = failures(tmp_path)
    assert (
        failure["class"] == "tool"
        and "more than 1,048,576 bytes (--max-response-bytes)" in failure["message"]
    )


async def test_a_server_killed_during_a_call_fails_that_call_at_once(tmp_path: Path) -> None:
    spec = f"mcp-stdio:{sys.executable} {fake_mcp.__file__} {tmp_path}/pids"

    def kill(body: Row) -> list[Row]:
        pids = (tmp_path / "pids").read_text().split()
        os.kill(int(pids[-1]), signal.SIGKILL)
        return [call("increment", {"by": 1}, "c2")]

    model = ScriptedModel([call("increment", {"by": 1})], kill, [message("done")])
    async with serving(model.app) as url:
        await collect(tmp_path, [make_task()], url, tools=(spec,))
    (failure,) = failures(tmp_path)
    assert failure["class"] == "tool" and "has ended" in failure["message"]


async def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    server = tmp_path / "parent.py"
    server.write_text(PARENT_SERVER.format(path=fake_mcp.__file__, log=tmp_path / "child"))
    async with serving(counting().app) as model:
        await collect(tmp_path, [make_task()], model, tools=(f"mcp-stdio:{sys.executable} {server}",))
    children = [int(pid) for pid in (tmp_path / "child").read_text().split()]
    assert len(children) == 2
    assert not any(Path(f"/proc/{pid}/stat").exists() and is_running(pid) for pid in children)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_without_the_package_the_message_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "from rollforge.agents.tools.loading import load_toolset\n"
        "load_toolset('mcp:http://127.0.0.1:9/mcp')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UsageError: MCP tools need a package that is not installed" in done.stderr
    assert "pip install 'rollforge[mcp]'" in done.stderr


LARGE_SERVER = """
import runpy, sys
sys.argv = ["x", "/dev/null"]
space = runpy.run_path({path!r}, run_name="fake")
space["TOOLS"].append({{"name": "large", "inputSchema": {{"type": "object"}}}})
plain = space["Counter"]._outcome
def outcome(self, method, params):
    if method == "tools/call" and params["name"] == "large":
        return {{"result": {{"content": [{{"type": "text", "text": "a" * (2 << 20)}}]}}}}
    return plain(self, method, params)
space["Counter"]._outcome = outcome
space["main"]("/dev/null")
"""

PARENT_SERVER = """
import runpy, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open("{log}", "a").write(f"{{child.pid}}\\n")
runpy.run_path({path!r}, run_name="fake")["main"]("/dev/null")
"""
