"""`--write-batch` and `--read-batch`: exact by custom id, in any order, over several files; what is wrong is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Exit, UsageError
from rollforge.simulate import SimulatedServer
from rollforge.simulate.service import Service
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.simulate.wire import HttpRequest
from rollforge.steps.collect import CollectOptions, CollectResult
from rollforge.steps.collect.batch.batch_step import write_batch
from rollforge.store import RunFiles
from tests.steps.test_collect import collect, grid, keys, read_rows, write_tasks

Line = dict[str, Any]


async def write(folder: Path, **more: Any) -> list[Line]:
    settings: dict[str, Any] = {
        "input": str(folder / "tasks.jsonl"),
        "out": str(folder / "run"),
        "model": "simulated",
        "verifier": "exact",
        "write_batch": str(folder / "requests.jsonl"),
        **more,
    }
    written = await write_batch(CollectOptions(**settings), command=[])
    return [row for path in written.files for row in read_rows(Path(path))]


async def read(folder: Path, *files: Path, **more: Any) -> CollectResult:
    return await collect(folder, base_urls=(), read_batch=tuple(map(str, files)), **more)


def offline_engine(requests: list[Line], options: SimulateOptions | None = None) -> list[Line]:
    """What `vllm run-batch` makes of requests: one line each, errors with their status."""
    service = Service(options or SimulateOptions())
    lines = []
    for request in requests:
        body = json.dumps(request["body"]).encode()
        reply = service.outcome(HttpRequest(request["method"], request["url"], {}, body)).reply
        answer = {"status_code": reply.status, "request_id": "r", "body": json.loads(reply.body)}
        lines.append(
            {"id": f"vllm-{len(lines)}", "custom_id": request["custom_id"], "response": answer, "error": None}
        )
    return lines


def save(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def test_requests_have_the_form_of_a_batch_and_ids_of_their_own(tmp_path: Path) -> None:
    write_tasks(tmp_path, 5)
    requests = await write(tmp_path, samples=3, overrides={"max_output_tokens": 64, "temperature": 0.7})
    assert len(requests) == 15 == len({request["custom_id"] for request in requests})
    for request in requests:
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        assert request["body"]["messages"] and request["body"]["model"] == "simulated"
        assert (request["body"]["max_tokens"], request["body"]["temperature"]) == (64, 0.7)


async def test_results_in_any_order_over_several_files_make_the_same_run(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    lines = offline_engine(await write(tmp_path, samples=3))
    random.Random(1).shuffle(lines)
    files = [save(tmp_path / f"results-{part}.jsonl", lines[part::3]) for part in range(3)]
    result = await read(tmp_path, *reversed(files), samples=3)
    assert (result.exit_code, result.finished) == (Exit.DONE, 18)
    rows = read_rows(RunFiles(tmp_path / "run").rollouts)
    assert keys(rows) == grid(6, 3)
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"] for line in lines}
    for row in rows:
        [name] = [
            name
            for name in answers
            if name.endswith(f"-{row['_ng_task_index']}-{row['_ng_rollout_index']}-0")
        ]
        shown = row["response"]["output"][-1]["content"][0]["text"]
        assert shown == answers[name]["content"]
        assert row["reward"] is not None and row["_rf"]["verifier"] == "exact"


async def test_gaps_unknown_ids_doubles_and_broken_lines_are_named_and_exit_3(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    lines = offline_engine(await write(tmp_path, samples=2))
    gap, double = lines[3]["custom_id"], lines[5]["custom_id"]
    odd = [*lines[:3], *lines[4:], lines[5], {**lines[0], "custom_id": "somebody-else-7"}]
    path = save(tmp_path / "results.jsonl", odd)
    with path.open("a") as file:
        file.write('{"custom_id": "rf-torn\n')
    result = await read(tmp_path, path, samples=2)
    assert result.exit_code == Exit.INCOMPLETE and result.finished == 7
    report = result.batch
    assert report is not None
    assert (report.gaps, report.gap_ids) == (1, [gap])
    assert (report.unknown, report.unknown_ids) == (1, ["somebody-else-7"])
    assert (report.doubles, report.double_ids) == (1, [double])
    assert (report.unreadable, report.unreadable_lines) == (1, ["results.jsonl:10"])
    assert any(gap in note for note in result.notes)
    rest = await read(tmp_path, save(tmp_path / "rest.jsonl", [lines[3]]), samples=2)
    assert (rest.exit_code, rest.fresh) == (Exit.DONE, 1)


async def test_a_goal_says_that_results_are_missing_and_not_that_the_tasks_ran_out(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    words: dict[str, Any] = {"samples": 4, "goal": "grpo=4"}
    lines = offline_engine(await write(tmp_path, **words))
    some = await read(tmp_path, save(tmp_path / "some.jsonl", lines[1:]), **words)
    assert some.exit_code == Exit.INCOMPLETE and some.message.endswith("no result yet")
    assert some.batch is not None and some.batch.gap_ids[0] == lines[0]["custom_id"]
    await read(tmp_path, save(tmp_path / "rest.jsonl", lines[:1]), **words)
    for _ in range(10):
        if not (lines := await write(tmp_path, **words)):
            break
        rest = await read(tmp_path, save(tmp_path / "more.jsonl", offline_engine(lines)), **words)
    assert not lines and "no result" not in rest.message


async def test_a_goal_goes_by_rounds_of_files_and_decides_as_a_server_would(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    words: dict[str, Any] = {"samples": 8, "goal": "grpo=6"}
    async with SimulatedServer(SimulateOptions()) as server:
        alone = await collect(tmp_path, server, out=str(tmp_path / "alone"), **words)
    rounds: list[int] = []
    while True:
        requests = await write(tmp_path, **words)
        rounds.append(len(requests))
        assert len(rounds) < 40, "the rounds end"
        path = save(tmp_path / f"round-{len(rounds)}.jsonl", offline_engine(requests))
        result = await read(tmp_path, path, **words)
        if result.exit_code == Exit.DONE:
            break
        assert result.exit_code == Exit.INCOMPLETE
    assert len(rounds) > 1 and rounds[0] <= 4 * 8 * 2, "no more than the first stages of four batches"
    rows, others = (read_rows(RunFiles(tmp_path / name).rollouts) for name in ("run", "alone"))
    assert keys(rows) == keys(others)
    assert result.goal is not None and alone.goal is not None
    assert result.goal.usable == alone.goal.usable >= 6


async def test_a_top_up_writes_requests_for_the_chosen_tasks_alone(tmp_path: Path) -> None:
    write_tasks(tmp_path, 10)
    await read(
        tmp_path, save(tmp_path / "first.jsonl", offline_engine(await write(tmp_path, samples=4))), samples=4
    )
    rewards: dict[int, list[float]] = {}
    for row in read_rows(RunFiles(tmp_path / "run").rollouts):
        rewards.setdefault(row["_ng_task_index"], []).append(row["reward"])
    mixed = {task for task, own in rewards.items() if 0 < sum(own) < 4}
    requests = await write(tmp_path, samples=8, top_up="pass_rate between 0.1 and 0.9")
    assert mixed and len(requests) == 4 * len(mixed)
    assert {int(request["custom_id"].split("-")[2]) for request in requests} == mixed


@pytest.mark.parametrize("reverse", [False, True])
async def test_of_two_results_an_answer_beats_an_error_in_either_order(tmp_path: Path, reverse: bool) -> None:
    write_tasks(tmp_path, 1)
    [line] = offline_engine(await write(tmp_path))
    failed = {**line, "response": {"status_code": 500, "body": {"error": {"message": "boom"}}}}
    pair = [failed, line] if reverse else [line, failed]
    result = await read(tmp_path, save(tmp_path / "results.jsonl", pair))
    assert (result.exit_code, result.finished) == (Exit.DONE, 1)
    assert not read_rows(RunFiles(tmp_path / "run").failures)


ERRORS: list[tuple[Callable[[Line], Line], str]] = [
    (lambda line: {**line, "response": {"status_code": 500, "body": {"error": {"message": "x"}}}}, "transient"),
    (lambda line: {**line, "response": {"status_code": 429, "body": {"error": {"message": "x"}}}}, "rate-limited"),
    (
        lambda line: {**line, "response": {"status_code": 400, "body": {"error": {"message": "maximum context length is 8"}}}},
        "context-overflow",
    ),
    (lambda line: {**line, "response": {"status_code": 400, "body": {"message": "no"}}}, "permanent"),
    (lambda line: {**line, "response": None, "error": {"code": "batch_expired", "message": "late"}}, "timeout"),
    (lambda line: {**line, "response": None, "error": {"code": "content_filter", "message": "no"}}, "refused"),
    (lambda line: {**line, "response": None}, "transient"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "kind"), ERRORS)
async def test_an_error_line_is_a_failure_of_the_right_class(
    tmp_path: Path, spoil: Callable[[Line], Line], kind: str
) -> None:
    write_tasks(tmp_path, 2)
    lines = offline_engine(await write(tmp_path))
    result = await read(tmp_path, save(tmp_path / "results.jsonl", [lines[0], spoil(lines[1])]))
    [failure] = read_rows(RunFiles(tmp_path / "run").failures)
    assert (failure["class"], failure["_ng_task_index"], failure["attempt"]) == (kind, 1, 0)
    assert (result.exit_code, result.finished) == (Exit.INCOMPLETE, 1)


async def test_a_second_round_asks_only_for_what_failed_with_its_attempt_in_the_id(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    lines = offline_engine(await write(tmp_path, samples=2))
    lines[2]["response"] = {"status_code": 503, "body": {}}
    await read(tmp_path, save(tmp_path / "first.jsonl", lines), samples=2)
    again = await write(tmp_path, samples=2)
    assert [request["custom_id"][-6:] for request in again] == ["-1-0-1"]
    stale = save(tmp_path / "first.jsonl", lines)
    result = await read(tmp_path, stale, save(tmp_path / "second.jsonl", offline_engine(again)), samples=2)
    assert (result.exit_code, result.fresh) == (Exit.DONE, 1)
    assert len(read_rows(RunFiles(tmp_path / "run").failures)) == 1, "an old error is not counted twice"


async def test_many_requests_go_into_several_files(tmp_path: Path) -> None:
    write_tasks(tmp_path, 5)
    requests = await write(tmp_path, samples=2, batch_size=4)
    assert len(requests) == 10
    assert sorted(path.name for path in tmp_path.glob("requests*")) == [
        "requests-2.jsonl",
        "requests-3.jsonl",
        "requests.jsonl",
    ]


async def test_ways_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    with pytest.raises(UsageError, match="contradict"):
        await collect(tmp_path, batch=True, read_batch=("x",))
    with pytest.raises(UsageError, match="one model call"):
        await collect(tmp_path, batch=True, tools=("x.py",), verifier=None)
    with pytest.raises(UsageError, match="no such file"):
        await read(tmp_path, tmp_path / "missing.jsonl")
    assert not list(tmp_path.rglob("rollouts*")), "nothing is left behind"
