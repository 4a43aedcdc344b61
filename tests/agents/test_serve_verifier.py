"""A verifier served as a NeMo Gym resources server: their shapes, their cookie, and no silent zero."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollforge.errors import UsageError
from rollforge.steps.serve import VerifierServer
from rollforge.verifiers.base import load_verifier
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import Row, ScriptedModel, message
from tests.agents.web import serving


def body(text: str = "7", **fields: Any) -> Row:
    response = {
        "id": "r", "created_at": 1, "model": "m", "object": "response", "output": [message(text)],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    return {**make_task(expected_answer="7", uuid="u1"), "response": response, **fields}


def verify(task: Any, response: Any) -> Any:
    match task.get("trouble"):
        case "raise":
            raise ValueError("cannot read the gold answer")
        case "none":
            return None
    return {
        "reward": float(response.text == task["expected_answer"]),
        "length": len(response.text),
        "said": response.text,
    }


async def post(url: str, path: str, value: Any, **more: Any) -> tuple[int, Any]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    more = {"headers": {"Content-Type": "application/json"}, **more}
    async with aiohttp.ClientSession() as http, http.post(url + path, data=data, **more) as answer:
        return answer.status, await answer.json()


def served(function: Any = verify) -> VerifierServer:
    return VerifierServer(load_verifier(function), workers=0)


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/0-0"])
async def test_a_verdict_comes_with_the_row_and_every_number(prefix: str) -> None:
    async with served() as server:
        status, row = await post(server.url, f"{prefix}/verify", body())
    assert status == 200
    assert (row["reward"], row["length"], row["said"], row["uuid"]) == (1.0, 1, "7", "u1")
    assert row["response"]["output"] == [message("7")] and "_ng_failure_class" not in row


@pytest.mark.parametrize(
    ("trouble", "words"), [("raise", "cannot read the gold answer"), ("none", "cannot judge")]
)
async def test_a_verifier_that_fails_is_never_a_silent_zero(trouble: str, words: str) -> None:
    async with served() as server:
        status, row = await post(server.url, "/verify", body(trouble=trouble))
    assert status == 200 and row["reward"] == 0.0
    assert row["_ng_failure_class"] == "judge_failed" and words in row["_ng_failure_judge_error"]
    assert row.get("_ng_failure_terminal", False) is (trouble == "none")


async def test_the_session_cookie_is_signed_and_echoed() -> None:
    async with served() as server, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.post(server.url + "/seed_session", json=body()) as answer:
            assert (answer.status, await answer.json()) == (200, {})
            (first,) = answer.cookies.values()
        assert (
            first.key.startswith("RollforgeVerifier___")
            and first["httponly"]
            and first["max-age"] == "1209600"
        )
        async with http.post(server.url + "/verify", json=body()) as answer:
            (second,) = answer.cookies.values()
        assert second.value == first.value
        forged = {"Cookie": f"{first.key}={first.value[:-4]}0000"}
        async with aiohttp.request("POST", server.url + "/seed_session", json={}, headers=forged) as answer:
            (third,) = answer.cookies.values()
        assert third.value != first.value


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        (b"{", ["body"]),
        (b"[]", ["body"]),
        ({"response": {}}, ["body", "responses_create_params"]),
        ({**body(), "response": None}, ["body", "response"]),
        (
            {**body(), "response": {"output": [{"role": "assistant"}]}},
            ["body", "response", "output", 0, "type"],
        ),
    ],
)
async def test_a_body_that_does_not_fit_is_422_with_its_place(broken: Any, place: list[Any]) -> None:
    async with served() as server:
        status, answer = await post(server.url, "/verify", broken)
    assert status == 422 and place in [problem["loc"] for problem in answer["detail"]]


async def test_a_field_the_verifier_needs_is_asked_for() -> None:
    row = body()
    del row["expected_answer"]
    async with VerifierServer(load_verifier("exact"), workers=0) as server:
        status, answer = await post(server.url, "/verify", row)
    assert status == 422 and answer["detail"][0]["loc"] == ["body", "expected_answer"]


async def test_unknown_paths_and_liveness() -> None:
    async with served() as server, aiohttp.ClientSession() as http:
        async with http.get(server.url + "/") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "ok")
        async with http.get(server.url + "/reverify_mode") as answer:
            assert await answer.json() == "stateless"
        async with http.post(server.url + "/some_tool", json={}) as answer:
            assert (answer.status, await answer.json()) == (404, {"detail": "Not Found"})


async def test_aggregate_metrics_has_their_names_and_leaves_failed_rows_out() -> None:
    def row(task: int, rollout: int, reward: float, **more: Any) -> Row:
        usage = {"input_tokens": 10, "output_tokens": 2 * rollout}
        return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, "accuracy": reward > 0,
                "agent_ref": {"name": "a"}, "response": {"usage": usage}, **more}  # fmt: skip

    rows = [row(1, 0, 1.0), row(0, 1, 0.0), row(0, 0, 1.0), row(0, 2, 0.0, _ng_failure_class="judge_failed")]
    async with served() as server:
        status, answer = await post(server.url, "/aggregate_metrics", {"verify_responses": rows})
        empty = await post(server.url, "/aggregate_metrics", {"verify_responses": []})
        assert (await post(server.url, "/aggregate_metrics", {}))[0] == 422
    assert status == 200 and empty == (
        200,
        {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}, "repeat_level_metrics": []},
    )
    assert answer["agent_metrics"]["mean/reward"] == pytest.approx(2 / 3)
    assert answer["agent_metrics"]["mean/accuracy"] == pytest.approx(2 / 3)
    assert answer["key_metrics"]["mean/input_tokens"] == 10
    assert not any("_ng_" in name for name in answer["agent_metrics"])
    first, second = answer["group_level_metrics"]
    assert (first["_ng_task_index"], first["mean/reward"], first["num_rollouts"]) == (0, 0.5, 2)
    assert first["std/reward"] == pytest.approx(0.5**0.5) and second["std/reward"] == 0.0
    assert [info["rollout_id"] for info in first["rollout_infos"]] == ["0:0", "0:1"]


async def test_only_the_verdicts_own_numbers_are_averaged_and_masked_rows_are_counted() -> None:
    task = {"difficulty": 3, "year": 2026, "agent_ref": {"name": "a"}}
    async with served() as server:
        rows = []
        for number, (text, trouble) in enumerate([("7", None), ("8", None), ("7", "raise"), ("7", None)]):
            keys = {"_ng_task_index": number // 2, "_ng_rollout_index": number % 2}
            _, row = await post(server.url, "/verify", body(text, **task, **keys, trouble=trouble))
            rows.append(row)
        _, answer = await post(server.url, "/aggregate_metrics", {"verify_responses": rows})
    assert rows[2]["mask_sample"] is True and rows[2]["failure_kind"] == "judge_failed"
    assert "cannot read the gold answer" in rows[2]["failure_reason"]
    metrics = answer["agent_metrics"]
    assert metrics["mean/reward"] == pytest.approx(2 / 3) and metrics["coverage/masked_rollouts"] == 1
    assert not {"mean/difficulty", "mean/year", "mean/mask_sample"} & metrics.keys()
    first, second = answer["repeat_level_metrics"]
    assert (first["_ng_rollout_index"], first["sample_count"], first["missing_count"]) == (0, 1, 1)
    assert second["mean/reward"] == 0.5 and second["sem/reward"] == pytest.approx(0.5)
    assert second["ci_low_95/reward"] < 0.5 < second["ci_high_95/reward"]


def test_the_folder_for_nemo_gym_starts_this_verifier_on_the_given_port(tmp_path: Path) -> None:
    folder = tmp_path / "my_server"
    command = [sys.executable, "-m", "rollforge", "serve-verifier", "exact", "-S", "field=gold"]
    subprocess.run([*command, "--write-server", str(folder)], check=True, capture_output=True)
    assert "my_server:" in (folder / "configs" / "my_server.yaml").read_text()
    again = subprocess.run(
        [*command, "--write-server", str(folder)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 2 and "exists already" in again.stderr
    fake = tmp_path / "path" / "nemo_gym"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("")
    (fake / "base_resources_server.py").write_text(
        "class SimpleResourcesServer:\n"
        "    @classmethod\n"
        "    def load_config_from_global_config(cls):\n"
        "        from types import SimpleNamespace\n"
        "        return SimpleNamespace(host='127.0.0.1', port=0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(fake.parent)}
    with subprocess.Popen(
        [sys.executable, str(folder / "app.py")], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        assert "verifier exact at http://127.0.0.1:" in process.stderr.readline()
        process.terminate()


def test_a_group_verifier_cannot_be_served() -> None:
    def verify_group(task: Any, responses: Any) -> Any:
        return [0.0 for _ in responses]

    with pytest.raises(UsageError, match="one by one"):
        served(verify_group)


async def test_collect_takes_a_served_verifier_for_a_resources_server(tmp_path: Path) -> None:
    tasks = [make_task(expected_answer="7"), make_task(expected_answer="8"), make_task(trouble="raise")]
    async with served() as server, serving(ScriptedModel([message("7")]).app) as model:
        await collect(tmp_path, tasks, model, gym_resources=server.url)
    rewards = {row["_ng_task_index"]: row["reward"] for row in rollouts(tmp_path)}
    assert rewards == {0: 1.0, 1: 0.0, 2: None}
    assert [row["class"] for row in failures(tmp_path)] == ["verifier"]


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-m", "rollforge", "serve-verifier", "exact", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        record = json.loads(process.stdout.readline())
        assert record["verifier"] == "exact" and record["needs"] == ["expected_answer"]
        os.kill(record["pid"], signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 0 and json.loads(rest)["verified"] == 0
