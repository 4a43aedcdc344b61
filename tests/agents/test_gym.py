"""NeMo Gym's servers: sessions, tools, verdicts, and failures that are never a reward."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollforge.errors import DataError, Exit, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from rollforge.store import RunFiles
from tests.agents.fake_gym import FakeAgent, FakeEnvironment, FakeGymnasium, FakeHead, FakeResources
from tests.agents.fake_mcp import make_app
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import Row, ScriptedModel, call, message
from tests.agents.web import serving

TOOL = {
    "type": "function",
    "name": "increment",
    "description": "",
    "parameters": {"type": "object"},
    "strict": True,
}


def with_tool(**fields: Any) -> Row:
    row = make_task(**fields)
    row["responses_create_params"]["tools"] = [TOOL]
    return row


async def test_the_embedded_model_is_judged_by_a_resources_server(tmp_path: Path) -> None:
    gym = FakeResources()
    async with SimulatedServer(SimulateOptions(skill=1.0)) as server, serving(gym.app) as url:
        base = server.base_url.removesuffix("/v1")
        result = await collect(
            tmp_path, list(example_tasks(6, 0, "tools")), base, gym_resources=url, samples=2
        )
    rows = rollouts(tmp_path)
    assert result.exit_code == Exit.DONE and len(rows) == 12
    assert sum(row["reward"] for row in rows) >= 9
    assert all(row["set_overlap"] == 0.5 and row["accuracy"] == bool(row["reward"]) for row in rows)
    assert all(
        "expected_synonym_values" not in row and row["_rf"]["verifier"] == "gym_resources" for row in rows
    )
    assert all(row["agent_ref"] == {"name": "gym_resources"} for row in rows)


async def test_a_rollout_keeps_one_session_from_seed_to_verify(tmp_path: Path) -> None:
    gym = FakeResources()
    calls = [call("increment", {"by": 2}, "c1"), call("increment", {"by": 3}, "c2")]
    async with serving(ScriptedModel(calls, [message("ok")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [with_tool(initial_count=10)], model, gym_resources=url, samples=3)
    paths: dict[str, list[str]] = {}
    for path, session in gym.calls:
        paths.setdefault(session, []).append(path)
    assert list(paths.values()) == [["/seed_session", "/increment", "/increment", "/verify"]] * 3
    assert all(row["count"] == 15 for row in rollouts(tmp_path))
    texts = [
        i["output"]
        for i in rollouts(tmp_path)[0]["response"]["output"]
        if i["type"] == "function_call_output"
    ]
    assert texts == ['{"count": 12}', '{"count": 15}']


async def test_the_seed_gets_the_full_row_and_verify_the_row_with_the_response(tmp_path: Path) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [make_task(uuid="u1", expected_answer="7")], model, gym_resources=url)
    (seeded,) = gym.rows
    (verified,) = gym.verified
    assert seeded["uuid"] == verified["uuid"] == "u1" and verified["expected_answer"] == "7"
    assert verified["response"]["output"][0]["type"] == "message"


async def test_a_tools_answer_is_text_for_the_model_whatever_its_status(tmp_path: Path) -> None:
    gym = FakeResources()
    row = with_tool()
    row["responses_create_params"]["tools"] = [TOOL, {**TOOL, "name": "missing"}]
    calls = [call("missing", {}, "c1"), call("increment", {"wrong": 1}, "c2"), call("increment", "{", "c3")]
    async with serving(ScriptedModel(calls, [message("ok")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [row], model, gym_resources=url)
    items = [i for i in rollouts(tmp_path)[0]["response"]["output"] if i["type"] == "function_call_output"]
    assert items[0]["output"] == '{"detail": "Not Found"}' and items[0]["_rf"]["error"] == "HTTP 404"
    assert "KeyError" in items[1]["output"] and items[1]["_rf"]["error"] == "HTTP 500"
    assert items[2]["output"].startswith('{"error":"Invalid tool call arguments') and len(gym.calls) == 4


async def test_a_model_cannot_call_the_servers_own_paths(tmp_path: Path) -> None:
    gym = FakeResources()
    async with (
        serving(ScriptedModel([call("verify", {})], [message("ok")]).app) as model,
        serving(gym.app) as url,
    ):
        await collect(tmp_path, [with_tool()], model, gym_resources=url)
    assert [path for path, _ in gym.calls] == ["/seed_session", "/verify"]


async def test_a_rollout_at_the_turn_limit_is_still_judged(tmp_path: Path) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([call("increment", {"by": 1})]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [with_tool()], model, gym_resources=url, max_turns=2)
    (row,) = rollouts(tmp_path)
    assert row["response"]["incomplete_details"] == {"reason": "max_turns"} and row["count"] == 2
    assert row["reward"] == 0.0 and failures(tmp_path) == []


@pytest.mark.parametrize("trouble", ["verify 500", "judge failed", "terminal"])
async def test_a_failed_judge_is_no_reward(tmp_path: Path, trouble: str) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        result = await collect(tmp_path, [make_task(trouble=trouble)], model, gym_resources=url)
    (row,) = rollouts(tmp_path)
    (failure,) = failures(tmp_path)
    assert row["reward"] is None and result.unjudged == 1 and result.exit_code == Exit.INCOMPLETE
    assert (failure["class"], failure["boundary"]) == ("verifier", "verifier")
    assert failure["_ng_failure_terminal"] is (trouble == "terminal")
    if trouble == "judge failed":
        assert "judge is down" in failure["message"]
    assert row["_rf"]["verify_seconds"] > 0


async def test_a_skipped_verification_is_no_reward(tmp_path: Path) -> None:
    async with (
        serving(ScriptedModel([message("hi")]).app) as model,
        serving(FakeResources().app) as url,
    ):
        result = await collect(tmp_path, [make_task(trouble="skipped")], model, gym_resources=url)
    (row,) = rollouts(tmp_path)
    assert (row["reward"], result.unjudged, failures(tmp_path)) == (None, 1, [])


async def test_what_the_server_wants_kept_nowhere_stays_owed(tmp_path: Path) -> None:
    gym = FakeResources()
    tasks = [make_task(trouble="no persist"), make_task()]
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        result = await collect(tmp_path, tasks, model, gym_resources=url)
        assert (len(rollouts(tmp_path)), failures(tmp_path), result.owed) == (1, [], 1)
        assert result.exit_code == Exit.INCOMPLETE
        again = await collect(tmp_path, tasks, model, gym_resources=url)
    assert again.fresh == 0 and again.owed == 1 and len(gym.verified) == 3


async def test_a_row_the_server_refuses_fails_alone_and_for_good(tmp_path: Path) -> None:
    gym = FakeResources()
    tasks = [make_task(trouble="seed 422"), make_task()]
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, tasks, model, gym_resources=url, attempts=3)
    (failure,) = failures(tmp_path)
    assert len(rollouts(tmp_path)) == 1 and failure["class"] == "permanent" and failure["status"] == 422
    assert failure["_ng_failure_terminal"] is True


async def test_with_a_verifier_of_our_own_the_server_is_not_asked_for_a_verdict(tmp_path: Path) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([message("7")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [make_task(expected_answer="7")], model, gym_resources=url, verifier="exact")
    assert rollouts(tmp_path)[0]["reward"] == 1.0 and gym.verified == []


async def test_without_verification_nobody_judges(tmp_path: Path) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        result = await collect(tmp_path, [make_task()], model, gym_resources=url, no_verify=True)
    assert rollouts(tmp_path)[0]["reward"] is None and gym.verified == [] and result.exit_code == Exit.DONE


async def test_a_server_that_is_not_there_stops_the_run_and_uses_up_no_attempt(tmp_path: Path) -> None:
    async with serving(ScriptedModel([message("hi")]).app) as model:
        result = await collect(
            tmp_path, [make_task()], model, gym_resources="http://127.0.0.1:9", outage_patience_s=0.5
        )
    assert (result.ending, result.owed, failures(tmp_path)) == ("outage", 1, [])


async def test_a_server_of_another_kind_is_a_clear_error(tmp_path: Path) -> None:
    async with serving(ScriptedModel([message("hi")]).app) as model:
        with pytest.raises(UsageError, match="/seed_session: HTTP 404"):
            await collect(tmp_path, [make_task()], model, gym_resources=model)


# -- the agent server --------------------------------------------------------------------------------------------------


async def test_an_agent_servers_row_becomes_a_rollout(tmp_path: Path) -> None:
    agent = FakeAgent()
    async with serving(agent.app) as url:
        result = await collect(tmp_path, [make_task(uuid="u")], None, model="", gym_agent=url, samples=2)
    rows = rollouts(tmp_path)
    assert result.exit_code == Exit.DONE and len(rows) == 2
    assert sorted(row["_ng_rollout_index"] for row in agent.rows) == [0, 1] and agent.rows[0]["uuid"] == "u"
    assert all((row["reward"], row["accuracy"]) == (1.0, True) for row in rows)
    assert rows[0]["response"]["output"][0]["generation_token_ids"] == [3]
    assert "temperature" not in rows[0]["responses_create_params"]


@pytest.mark.parametrize(
    ("more", "kind", "is_terminal"),
    [
        ({"_ng_failure_class": "transient"}, "transient", False),
        ({"_ng_failure_class": "timeout_exceeded"}, "timeout", False),
        ({"_ng_failure_class": "legitimate", "_ng_failure_terminal": True}, "agent", True),
    ],
)
async def test_an_attempt_that_the_agent_server_calls_failed_is_a_failure(
    tmp_path: Path, more: Row, kind: str, is_terminal: bool
) -> None:
    agent = FakeAgent(lambda row: FakeAgent.finished(row, **more))
    async with serving(agent.app) as url:
        await collect(tmp_path, [make_task()], None, gym_agent=url, attempts=2)
    rows = failures(tmp_path)
    assert rollouts(tmp_path) == [] and len(rows) == len(agent.rows) == (1 if is_terminal else 2)
    assert {(row["class"], row["_ng_failure_terminal"]) for row in rows} == {(kind, is_terminal)}
    assert rows[0]["response"]["output"]


@pytest.mark.parametrize("more", [{"_ng_failure_class": "judge_failed"}, {"judge_failed": True}])
async def test_an_agent_servers_failed_judge_keeps_the_response_without_a_reward(
    tmp_path: Path, more: Row
) -> None:
    agent = FakeAgent(lambda row: FakeAgent.finished(row, reward_=0, **more))
    async with serving(agent.app) as url:
        await collect(tmp_path, [make_task()], None, gym_agent=url)
    assert rollouts(tmp_path)[0]["reward"] is None
    assert [row["class"] for row in failures(tmp_path)] == ["verifier"]


async def test_a_kill_shaped_row_is_written_nowhere(tmp_path: Path) -> None:
    agent = FakeAgent(
        lambda row: FakeAgent.finished(row, _ng_failure_class="kill_shaped", _ng_no_persist=True)
    )
    async with serving(agent.app) as url:
        result = await collect(tmp_path, [make_task()], None, gym_agent=url)
    assert (rollouts(tmp_path), failures(tmp_path), result.owed) == ([], [], 1)


async def test_an_agent_servers_500_fails_that_rollout_only(tmp_path: Path) -> None:
    def answer(row: Row) -> tuple[int, Any]:
        return (500, "ValueError('boom')") if row["_ng_task_index"] == 1 else FakeAgent.finished(row)

    agent = FakeAgent(answer)
    async with serving(agent.app) as url:
        await collect(tmp_path, [make_task() for _ in range(3)], None, gym_agent=url, attempts=2)
    assert [row["_ng_task_index"] for row in rollouts(tmp_path)] != [] and len(rollouts(tmp_path)) == 2
    assert [row["class"] for row in failures(tmp_path)] == ["agent", "agent"]
    assert "boom" in failures(tmp_path)[0]["message"]


# -- the head server ---------------------------------------------------------------------------------------------------


def head_config(resources_url: str, agent_url: str = "http://127.0.0.1:9") -> Row:
    def port(url: str) -> int:
        return int(url.rsplit(":", 1)[1])

    agent = {"entrypoint": "app.py", "host": "127.0.0.1", "port": port(agent_url),
             "resources_server": {"type": "resources_servers", "name": "needles"}}  # fmt: skip
    return {
        "policy_api_key": "sk-very-secret",
        "head_server": {"host": "127.0.0.1", "port": 11000},
        "needles": {
            "resources_servers": {"example_multi_step": {"host": "0.0.0.0", "port": port(resources_url)}}
        },
        "needles_agent": {"responses_api_agents": {"simple_agent": agent}},
        "other_agent": {"responses_api_agents": {"simple_agent": agent}},
        "policy_model": {"responses_api_models": {"vllm_model": {"host": "127.0.0.1", "port": 5}}},
    }


async def test_the_head_server_leads_every_row_to_its_resources_server(tmp_path: Path) -> None:
    gym = FakeResources()
    rows = [make_task(agent_ref={"name": name}) for name in ("needles_agent", "other_agent")]
    async with (
        serving(gym.app) as url,
        serving(FakeHead(head_config(url)).app) as head,
        serving(ScriptedModel([message("hi")]).app) as model,
    ):
        await collect(tmp_path, rows, model, gym_head=head)
    assert sorted(row["agent_ref"]["name"] for row in rollouts(tmp_path)) == ["needles_agent", "other_agent"]


async def test_an_agent_that_the_head_does_not_know_is_refused_before_the_run(tmp_path: Path) -> None:
    gym = FakeResources()
    rows = [make_task(agent_ref={"name": name}) for name in ("needles_agent", "nobody")]
    async with serving(gym.app) as url, serving(FakeHead(head_config(url)).app) as head:
        with pytest.raises(DataError, match="knows no agent 'nobody'"):
            await collect(tmp_path, rows, "http://127.0.0.1:9", gym_head=head)
        with pytest.raises(UsageError, match="--agent-name nobody: the head server knows no such agent"):
            await collect(tmp_path, rows, "http://127.0.0.1:9", gym_head=head, agent_name="nobody")
    assert gym.calls == []


async def test_the_agents_name_on_the_command_line_wins_over_the_rows(tmp_path: Path) -> None:
    gym = FakeResources()
    rows = [
        make_task(agent_ref={"name": "other_agent"}),
        make_task(),
        make_task(agent_ref={"name": "nobody"}),
    ]
    async with (
        serving(gym.app) as url,
        serving(FakeHead(head_config(url)).app) as head,
        serving(ScriptedModel([message("hi")]).app) as model,
    ):
        await collect(tmp_path, rows, model, gym_head=head, agent_name="needles_agent")
    assert [row["agent_ref"] for row in rollouts(tmp_path)] == [{"name": "needles_agent"}] * 3


async def test_the_agent_map_sends_rows_by_the_name_they_carry(tmp_path: Path) -> None:
    """As NeMo Gym 0.7: the agent's name, then the task source, then the default; the rest stays where it was."""
    gym = FakeResources()
    rows = [
        make_task(agent_ref={"name": "old_agent"}),
        make_task(task_source="somewhere"),
        make_task(agent_ref={"name": "needles_agent"}),
        make_task(),
    ]
    async with (
        serving(gym.app) as url,
        serving(FakeHead(head_config(url)).app) as head,
        serving(ScriptedModel([message("hi")]).app) as model,
    ):
        routes = ("old_agent=other_agent", "somewhere=other_agent", "_default=needles_agent")
        result = await collect(tmp_path, rows, model, gym_head=head, agent_map=(*routes, "older=other_agent"))
        assert [note for note in result.notes if "--agent-map" in note] == [
            "--agent-map or --fan-out older: no row has this name"
        ]
        (tmp_path / "new").mkdir()
        with pytest.raises(
            UsageError, match="--agent-map or --fan-out nobody: the head server knows no such agent"
        ):
            await collect(tmp_path / "new", rows, model, gym_head=head, agent_map=("old_agent=nobody",))
        with pytest.raises(UsageError, match="contradicts --agent-map _default=needles_agent"):
            await collect(
                tmp_path / "new", rows, model, gym_head=head, agent_name="other_agent", agent_map=routes
            )
    found = {row["_ng_task_index"]: row["agent_ref"]["name"] for row in rollouts(tmp_path)}
    assert found == {0: "other_agent", 1: "other_agent", 2: "needles_agent", 3: "needles_agent"}


async def test_a_row_that_fans_out_is_one_task_for_each_agent(tmp_path: Path) -> None:
    """Each has all its samples, groups are one agent's, and a file that grows keeps the old tasks."""
    gym = FakeResources()
    rows = [make_task(agent_ref={"name": name}) for name in ("both", "other_agent")]
    async with (
        serving(gym.app) as url,
        serving(FakeHead(head_config(url)).app) as head,
        serving(ScriptedModel([message("hi")]).app) as model,
    ):
        options = {"gym_head": head, "fan_out": ("both=needles_agent,other_agent",), "samples": 2}
        await collect(tmp_path, rows, model, **options, limit=2)
        first = sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollouts(tmp_path))
        result = await collect(tmp_path, [*rows, rows[0]], model, **options, limit=3)
    assert first == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert result.fresh == 4 and result.finished == 10
    agents = {row["_ng_task_index"]: row["agent_ref"]["name"] for row in rollouts(tmp_path)}
    assert agents == {
        0: "needles_agent",
        1: "other_agent",
        2: "other_agent",
        4: "needles_agent",
        5: "other_agent",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fan_out": ("a",)}, "is not understood"),
        ({"fan_out": ("a=",)}, "is not understood"),
        ({"fan_out": ("a=b,b",)}, "names an agent twice"),
        ({"agent_map": ("a=b,c",)}, "is not understood"),
        ({"agent_map": ("a=b", "a=c")}, "two entries for 'a'"),
        ({"agent_map": ("a=b",), "gym_head": None}, "is read only with --gym-head"),
    ],
)
async def test_routes_that_cannot_be_meant_are_refused(tmp_path: Path, options: Row, message: str) -> None:
    async with serving(FakeHead(head_config("http://127.0.0.1:9")).app) as head:
        with pytest.raises(UsageError, match=message):
            await collect(tmp_path, [make_task()], "http://127.0.0.1:9", **{"gym_head": head, **options})


async def test_an_agents_name_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server is given"):
        await collect(tmp_path, [make_task()], "http://127.0.0.1:9", agent_name="simple_agent")


async def test_the_heads_config_is_never_stored(tmp_path: Path) -> None:
    gym = FakeResources()
    async with (
        serving(gym.app) as url,
        serving(FakeHead(head_config(url)).app) as head,
        serving(ScriptedModel([message("hi")]).app) as model,
    ):
        await collect(tmp_path, [make_task(agent_ref={"name": "needles_agent"})], model, gym_head=head)
    files = [path for path in RunFiles(tmp_path / "run").rollouts.parent.rglob("*") if path.is_file()]
    assert files and not any(b"sk-very-secret" in path.read_bytes() for path in files)


async def test_rows_must_name_their_agent_when_the_head_knows_several(tmp_path: Path) -> None:
    async with serving(FakeHead(head_config("http://127.0.0.1:9")).app) as head:
        with pytest.raises(UsageError, match="the agent needs the field 'agent_ref'"):
            await collect(tmp_path, [make_task()], "http://127.0.0.1:9", gym_head=head)


async def test_the_head_server_leads_to_agent_servers_too(tmp_path: Path) -> None:
    agent = FakeAgent()
    async with serving(agent.app) as url, serving(FakeHead(head_config(url, url)).app) as head:
        row = make_task(agent_ref={"name": "needles_agent"})
        await collect(tmp_path, [row], None, gym_head=head, agent="gym_agent", model="")
    assert len(rollouts(tmp_path)) == 1 and agent.rows[0]["agent_ref"] == {"name": "needles_agent"}


async def test_a_head_server_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not answer"):
        await collect(tmp_path, [make_task()], "http://127.0.0.1:9", gym_head="http://127.0.0.1:9")
    async with serving(ScriptedModel([message("hi")]).app) as model:
        with pytest.raises(UsageError, match="HTTP 404"):
            await collect(tmp_path, [make_task()], model, gym_head=model)


async def test_a_session_is_closed_however_the_rollout_ends(tmp_path: Path) -> None:
    gym = FakeResources()
    rows = [with_tool(), with_tool(trouble="verify 500"), with_tool(trouble="seed 422")]
    async with (
        serving(ScriptedModel([call("increment", {"by": 1})], 400).app) as model,
        serving(gym.app) as url,
    ):
        await collect(tmp_path, rows, model, gym_resources=url)
        failed = len(failures(tmp_path))
    seeded = [session for path, session in gym.calls if path == "/seed_session"]
    assert failed == 3 and sorted(gym.closed) == sorted(seeded)


@pytest.mark.parametrize("trouble", ["masked", "masked failure"])
async def test_a_masked_sample_is_no_measurement(tmp_path: Path, trouble: str) -> None:
    gym = FakeResources()
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [make_task(trouble=trouble)], model, gym_resources=url)
    (row,) = rollouts(tmp_path)
    assert row["reward"] is None
    assert [failure["message"] for failure in failures(tmp_path)] == (
        ["judge_failed: no judge"] if trouble == "masked failure" else []
    )


async def test_tools_of_an_mcp_server_that_the_seed_announces_are_offered_and_called(tmp_path: Path) -> None:
    gym = FakeResources()
    mcp, sessions, ended = make_app(streams=False)
    gym.app.add_subapp("/tools/", mcp)
    gym.mcp = {
        "server_name": "weather",
        "url_path": "/tools/mcp",
        "transport": "http",
        "headers": {"X-Token": "t"},
    }
    model = ScriptedModel([call("increment", {"by": 4})], [message("done")])
    async with serving(model.app) as model_url, serving(gym.app) as url:
        await collect(tmp_path, [make_task()], model_url, gym_resources=url)
    (row,) = rollouts(tmp_path)
    outputs = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert [item["output"] for item in outputs] == ["4"] and row["reward"] == 0.0
    assert [tool["name"] for tool in model.asked[0]["tools"]] == ["increment", "fail", "die"]
    assert sessions == {} and len(ended) == 1


async def test_a_server_that_restarts_inside_a_session_ends_the_attempt_and_not_with_a_reward(
    tmp_path: Path,
) -> None:
    first, second = FakeResources(), FakeResources()
    runner = await start(first.app, 0)
    port = runner.addresses[0][1]

    restarted: list[web.AppRunner] = []

    async def restart() -> None:
        await runner.cleanup()
        await asyncio.sleep(1.0)  # a real process takes longer than this to start again
        restarted.append(await start(second.app, port))

    gate = RestartingModel(restart)
    async with serving(gate.app) as model:
        result = await collect(
            tmp_path,
            [with_tool(initial_count=5)],
            model,
            gym_resources=f"http://127.0.0.1:{port}",
            attempts=3,
        )
    await restarted[0].cleanup()
    (row,) = rollouts(tmp_path)
    assert result.exit_code == Exit.DONE
    assert row["count"] == 6, "the attempt that counts began with a new session"
    assert second.calls[0][0] == "/seed_session"
    assert {(failure["class"], failure["failure_kind"]) for failure in failures(tmp_path)} == {
        ("transient", "session_lost")
    }


async def start(app: web.Application, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


class RestartingModel(ScriptedModel):
    """Calls a tool, and restarts the resources server before its first answer is out."""

    def __init__(self, restart: Any) -> None:
        super().__init__([call("increment", {"by": 1})], [message("done")])
        self._restart = restart
        self._is_restarted = False

    async def _respond(self, request: web.Request) -> web.Response:
        if not self._is_restarted:
            self._is_restarted = True
            await self._restart()
        return await super()._respond(request)


async def test_a_typed_environment_server_gets_episodes(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    typed = {
        "task_id": {"taskset": "math", "task_id": "7"},
        "task_input": {"responses_create_params": {"input": []}},
    }
    async with serving(environment.app) as url:
        result = await collect(tmp_path, [typed, make_task(uuid="u")], None, gym_agent=url, model="")
    assert "the model" not in result.bottleneck
    assert [row["reward"] for row in rollouts(tmp_path)] == [1.0, 1.0]
    by_set = {episode["task"]["task_id"]["taskset"]: episode["task"] for episode in environment.episodes}
    assert by_set["math"]["task_input"] == typed["task_input"]
    assert by_set["rollforge"]["task_input"]["uuid"] == "u"


async def test_a_typed_failure_is_a_failure_with_its_kind(tmp_path: Path) -> None:
    said = {"failure_reason": "the sandbox died", "terminal": True, "failure_kind": "sandbox_unavailable"}
    async with serving(FakeEnvironment(said).app) as url:
        await collect(tmp_path, [make_task()], None, gym_agent=url, model="", attempts=3)
    (failure,) = failures(tmp_path)
    assert "sandbox_unavailable: the sandbox died" in failure["message"] and failure["class"] == "agent"
    assert (
        failure["failure_kind"] == "sandbox_unavailable" and "the sandbox died" in failure["failure_reason"]
    )


async def test_a_gymnasium_server_is_played_step_by_step(tmp_path: Path) -> None:
    gym = FakeGymnasium()
    guesses = iter("137")

    def guess(body: Row) -> list[Row]:
        return [message(next(guesses))]

    row = {"responses_create_params": {"input": []}, "target": 7}
    async with serving(ScriptedModel(guess).app) as model, serving(gym.app) as url:
        await collect(tmp_path, [row], model, gym_resources=url)
    (made,) = rollouts(tmp_path)
    assert made["reward"] == 0.5 and made["terminated"] is True
    texts = [
        item["content"] if isinstance(item["content"], str) else item["content"][0]["text"]
        for item in made["response"]["output"]
    ]
    assert texts == ["1", "No.", "3", "No.", "7"]
