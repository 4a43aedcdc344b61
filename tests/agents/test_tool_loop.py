"""The tool loop: every turn in the trajectory, every mistake reported to the model, every state released."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Failure, ResumeRefused, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import Row, ScriptedModel, call, message
from tests.agents.web import serving


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def outputs(row: Row) -> list[str]:
    return [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]


def errors(row: Row) -> list[Any]:
    return [
        item["_rf"]["error"] for item in row["response"]["output"] if item["type"] == "function_call_output"
    ]


async def one_rollout(folder: Path, model: ScriptedModel, **more: Any) -> Row:
    """The only rollout of a run with `add` as its tool."""
    async with serving(model.app) as url:
        await collect(folder, [make_task()], url, **{"tools": (add,), **more})
    (row,) = rollouts(folder)
    return row


async def test_the_embedded_model_solves_tool_tasks_with_the_ready_tools(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions(skill=1.0)) as server:
        url = server.base_url.removesuffix("/v1")
        await collect(
            tmp_path, list(example_tasks(8, 0, "tools")), url, tools=("multineedle",), verifier="exact"
        )
    rows = rollouts(tmp_path)
    assert len(rows) == 8 and sum(row["reward"] for row in rows) >= 6
    assert all(row["agent_ref"] == {"name": "tool_loop"} for row in rows)
    assert all(row["response"]["output"][-1]["type"] == "message" for row in rows)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_both_apis_carry_the_whole_loop(tmp_path: Path, api: str) -> None:
    async with SimulatedServer(SimulateOptions(skill=1.0)) as server:
        url = server.base_url.removesuffix("/v1")
        await collect(tmp_path, list(example_tasks(4, 0, "tools")), url, tools=("multineedle",), api=api)
    for row in rollouts(tmp_path):
        kinds = [item["type"] for item in row["response"]["output"]]
        assert kinds.count("function_call") == kinds.count("function_call_output") >= 2
        assert kinds[-1] == "message" and row["response"]["status"] == "completed"


async def test_every_turn_is_sent_again_and_kept(tmp_path: Path) -> None:
    model = ScriptedModel(
        [call("add", {"a": 1, "b": 2})], [call("add", {"a": 3, "b": 4}, "c2")], [message("done")]
    )
    row = await one_rollout(tmp_path, model)
    assert [item["type"] for item in row["response"]["output"]] == [
        *("function_call", "function_call_output", "function_call", "function_call_output", "message")
    ]
    assert outputs(row) == ["3", "7"]
    assert [len(body["input"]) for body in model.asked] == [1, 3, 5]
    assert all("_rf" not in item for body in model.asked for item in body["input"])
    assert model.asked[0]["tools"][0]["name"] == "add"
    assert row["responses_create_params"]["tools"][0]["name"] == "add"
    assert row["_rf"]["requests"] == 3


async def test_usage_is_the_sum_over_the_turns_nested_details_too(tmp_path: Path) -> None:
    row = await one_rollout(tmp_path, ScriptedModel([call("add", {"a": 1, "b": 2})], [message("3")]))
    assert row["response"]["usage"] == {
        "input_tokens": 20, "output_tokens": 10, "total_tokens": 30,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip


async def test_usage_is_unknown_when_one_turn_was_not_counted(tmp_path: Path) -> None:
    model = ScriptedModel({"output": [call("add", {"a": 1, "b": 2})], "usage": None}, [message("3")])
    row = await one_rollout(tmp_path, model)
    assert row["response"]["usage"] is None


async def test_token_ids_stay_on_their_items_and_are_not_sent_back(tmp_path: Path) -> None:
    ids = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
    model = ScriptedModel([call("add", {"a": 1, "b": 2}) | ids], [message("3") | ids])
    row = await one_rollout(tmp_path, model)
    assert [item["generation_token_ids"] for item in row["response"]["output"] if "call_id" not in item] == [
        [2]
    ]
    assert row["response"]["output"][0]["prompt_token_ids"] == [1]
    assert not any("prompt_token_ids" in item for body in model.asked for item in body["input"])


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (call("add", '{"a": 1'), "bad-arguments", "Invalid tool call arguments"),
        (call("add", "[1, 2]"), "bad-arguments", "expected an object"),
        (call("add", {"a": "one", "b": 2}), "bad-arguments", "Expected `int`"),
        (call("add", {"a": 1}), "bad-arguments", "missing required field `b`"),
        (call("add", {"a": 1, "b": 2, "c": 3}), "bad-arguments", "unknown field `c`"),
        (call("ad", {"a": 1}), "unknown-tool", "did you mean 'add'"),
    ],
)
async def test_a_bad_call_is_told_to_the_model_which_goes_on(
    tmp_path: Path, bad: Row, kind: str, words: str
) -> None:
    row = await one_rollout(tmp_path, ScriptedModel([bad], [message("sorry")]))
    assert errors(row) == [kind]
    assert outputs(row)[0].startswith('{"error":') and words in outputs(row)[0]
    assert row["response"]["output"][-1]["type"] == "message"


async def test_what_a_tool_raises_is_told_to_the_model_with_its_class_recorded(tmp_path: Path) -> None:
    def broken(x: int) -> int:
        raise LookupError(f"nothing under {x}")

    row = await one_rollout(
        tmp_path, ScriptedModel([call("broken", {"x": 7})], [message("oh")]), tools=(broken,)
    )
    assert outputs(row) == ['{"error":"LookupError: nothing under 7"}'] and errors(row) == ["LookupError"]


async def test_parallel_calls_overlap_and_their_outputs_keep_the_order_of_the_calls(tmp_path: Path) -> None:
    barrier = threading.Barrier(3, timeout=20)

    def meet(name: str, wait: float) -> str:
        barrier.wait()  # passes only when all three calls run at once
        time.sleep(wait)
        return name

    calls = [call("meet", {"name": f"n{i}", "wait": 0.05 * (3 - i)}, f"c{i}") for i in range(3)]
    row = await one_rollout(tmp_path, ScriptedModel(calls, [message("met")]), tools=(meet,))
    assert outputs(row) == ["n0", "n1", "n2"]
    assert [item["call_id"] for item in row["response"]["output"][3:6]] == ["c0", "c1", "c2"]


async def test_a_hanging_tool_is_given_up_and_the_event_loop_never_waits(tmp_path: Path) -> None:
    release = threading.Event()

    def hang() -> str:
        release.wait(30)
        return "late"

    async def hang_too() -> str:
        await asyncio.sleep(30)
        return "late"

    model = ScriptedModel([call("hang", {}), call("hang_too", {}, "c2")], [message("tired")])
    row = await one_rollout(tmp_path, model, tools=(hang, hang_too), tool_timeout_s=0.3)
    release.set()
    assert errors(row) == ["timeout", "timeout"]


async def test_reaching_the_turn_limit_is_an_incomplete_rollout_not_a_failure(tmp_path: Path) -> None:
    model = ScriptedModel([call("add", {"a": 1, "b": 2})])
    row = await one_rollout(tmp_path, model, max_turns=3)
    assert row["response"]["status"] == "incomplete"
    assert row["response"]["incomplete_details"] == {"reason": "max_turns"}
    assert len(model.asked) == 3 and len(outputs(row)) == 3
    assert failures(tmp_path) == []


async def test_a_turn_that_was_cut_off_ends_the_rollout_with_its_reason(tmp_path: Path) -> None:
    cut = {
        "output": [call("add", '{"a": 1')],
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    row = await one_rollout(tmp_path, ScriptedModel(cut))
    assert row["response"]["incomplete_details"] == {"reason": "max_output_tokens"} and outputs(row) == []


async def test_a_model_failure_half_way_keeps_the_turns_so_far(tmp_path: Path) -> None:
    model = ScriptedModel([call("add", {"a": 1, "b": 2})], 400)
    async with serving(model.app) as url:
        await collect(tmp_path, [make_task()], url, tools=(add,))
    (failure,) = failures(tmp_path)
    assert rollouts(tmp_path) == [] and failure["class"] == "permanent"
    assert [item["type"] for item in failure["response"]["output"]] == [
        "function_call",
        "function_call_output",
    ]
    assert failure["response"]["status"] == "failed" and failure["requests"] == 2
    assert failure["response"]["usage"]["total_tokens"] == 15


async def test_a_rollout_past_its_deadline_keeps_the_turns_so_far(tmp_path: Path) -> None:
    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    async with serving(ScriptedModel([call("add", {"a": 1, "b": 2})], [call("slow", {}, "c2")]).app) as url:
        await collect(tmp_path, [make_task()], url, tools=(add, slow), rollout_deadline_s=0.7)
    (failure,) = failures(tmp_path)
    assert failure["class"] == "timeout"
    assert [item["type"] for item in failure["response"]["output"]][:2] == [
        "function_call",
        "function_call_output",
    ]


class Counter:
    """State of one rollout; what is open is on the list."""

    opened: list[Counter] = []  # noqa: RUF012
    closed: list[Counter] = []  # noqa: RUF012

    def __init__(self, task: Row) -> None:
        self.count = int(task["start"])
        Counter.opened.append(self)

    def increment(self, by: int = 1) -> int:
        """Count up.

        Args:
            by: How far.
        """
        self.count += by
        return self.count

    async def fail(self) -> None:
        """Break."""
        raise Failure("tool", "tool", "the counter's server is gone")

    async def wait(self) -> None:
        """Never answer."""
        await asyncio.sleep(60)

    def close(self) -> None:
        Counter.closed.append(self)


@pytest.fixture
def counters() -> type[Counter]:
    Counter.opened, Counter.closed = [], []
    return Counter


async def test_every_rollout_has_its_own_state_which_is_released(
    tmp_path: Path, counters: type[Counter]
) -> None:
    model = ScriptedModel([call("increment", {})], [call("increment", {"by": 10}, "c2")], [message("ok")])
    async with serving(model.app) as url:
        tasks = [make_task(start=100), make_task(start=200)]
        await collect(tmp_path, tasks, url, tools=(counters,), samples=2)
    found = sorted(tuple(outputs(row)) for row in rollouts(tmp_path))
    assert found == [("101", "111"), ("101", "111"), ("201", "211"), ("201", "211")]
    assert len(counters.opened) == 4 and set(map(id, counters.closed)) == set(map(id, counters.opened))


@pytest.mark.parametrize(("tool", "kind"), [("fail", "tool"), ("wait", "timeout")])
async def test_state_is_released_when_the_rollout_fails_or_times_out(
    tmp_path: Path, counters: type[Counter], tool: str, kind: str
) -> None:
    async with serving(ScriptedModel([call(tool, {})]).app) as url:
        await collect(tmp_path, [make_task(start=0)], url, tools=(counters,), rollout_deadline_s=0.7)
    assert [row["class"] for row in failures(tmp_path)] == [kind]
    assert len(counters.opened) == len(counters.closed) == 1


async def test_state_is_released_when_the_run_is_aborted(tmp_path: Path, counters: type[Counter]) -> None:
    from rollforge.steps.collect import Collection, CollectOptions

    async with serving(ScriptedModel([call("wait", {})]).app) as url:
        (tmp_path / "t.jsonl").write_text('{"prompt": "x", "start": 0}\n')
        options = CollectOptions(
            input=str(tmp_path / "t.jsonl"), out=str(tmp_path / "run"), model="m", base_urls=(f"{url}/v1",),
            tools=(counters,),
        )  # fmt: skip
        collection = Collection(options)
        running = asyncio.create_task(collection.run())
        while not counters.opened:
            await asyncio.sleep(0.01)
        collection.abort()
        result = await running
    assert result.ending == "interrupted" and len(counters.closed) == 1


async def test_state_that_is_ready_too_late_is_released_too(tmp_path: Path) -> None:
    go, closed = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            go.wait(20)

        def use(self) -> None:
            """Use it."""

        def close(self) -> None:
            closed.set()

    async def let_go(delay: float) -> None:
        await asyncio.sleep(delay)
        go.set()

    async with serving(ScriptedModel([call("use", {})]).app) as url:
        letting = asyncio.create_task(let_go(1.0))
        await collect(tmp_path, [make_task()], url, tools=(Slow,), rollout_deadline_s=0.3)
        await letting
    assert [row["class"] for row in failures(tmp_path)] == ["timeout"] and closed.is_set()


async def test_an_agent_of_ones_own_is_a_class_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
from rollforge.agents.base import Preparation, Trajectory

class Echo:
    name = "echo"
    def __init__(self, options): self.turns = options.max_turns
    async def prepare(self): return Preparation(fingerprint={"max_turns": self.turns})
    async def start(self, model): self.model = model
    async def run(self, task, sample):
        answer = await self.model.respond(task.params, sample)
        return Trajectory(response=answer.response)
    async def close(self): pass
"""
    )
    async with serving(ScriptedModel([message("hi")]).app) as url:
        await collect(tmp_path, [make_task()], url, agent=f"{tmp_path}/mine.py:Echo")
    assert [row["agent_ref"] for row in rollouts(tmp_path)] == [{"name": "echo"}]


async def test_resuming_with_other_tools_or_turns_is_refused(tmp_path: Path) -> None:
    def other(a: int) -> int:
        return a

    model = ScriptedModel([message("hello")])
    async with serving(model.app) as url:
        await collect(tmp_path, [make_task()], url, tools=(add,))
        for change, key in (
            ({"tools": (other,)}, "tools"),
            ({"tools": (add,), "max_turns": 3}, "max_turns"),
            ({}, "agent"),
        ):
            with pytest.raises(ResumeRefused) as refusal:
                await collect(tmp_path, [make_task()], url, **change)
            assert key in refusal.value.keys


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agent": "tool_loop"}, "has no tools"),
        ({"agent": "model_call", "tools": (add,)}, "answers no tool calls"),
        ({"tools": ("nothing.py",)}, "no such file"),
        ({"tools": ("multineedles",)}, "did you mean 'multineedle'"),
        ({"agent": "json:JSONDecoder"}, "has no prepare, start, run, close"),
        ({"tools": (add, add)}, "two tools are called 'add'"),
        ({"tools": (add,), "max_turns": 0}, "--max-turns must be at least 1"),
        ({"agent": "tool_lop"}, "did you mean 'tool_loop'"),
        ({"tools": (add,), "gym_agent": "http://x"}, "contradict"),
        ({"gym_head": "localhost:11000"}, "is no URL"),
    ],
)
async def test_what_cannot_work_is_refused_before_anything_is_sent(
    tmp_path: Path, settings: Row, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await collect(tmp_path, [make_task()], "http://127.0.0.1:9", **settings)
    assert not (tmp_path / "run" / "rollouts.jsonl").exists()
