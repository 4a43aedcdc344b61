"""Making a verifier ready: who runs where, what is judged once, what a verifier may be."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.errors import Failure, UsageError
from rollforge.records import JsonObject, Response, Task, Verdict
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.answer_keys import AnswerKeys, answer_bytes
from rollforge.verifiers.running.ready_verifier import make_judge
from rollforge.verifiers.running.verdict_cache import VerdictCache


def answer(text: str, **more: Any) -> Response:
    part = {"type": "output_text", "text": text}
    item = {"type": "message", "role": "assistant", "content": [part]}
    return Response({"output": [item], "status": "completed", **more})


def task(**fields: object) -> Task:
    return Task({"responses_create_params": {"input": "What is 1+1?"}, "expected_answer": "2", **fields})


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


COUNTING = """
calls = []
is_cheap = True
def verify(task, response):
    calls.append(response.text)
    return {"reward": response.text == task["expected_answer"], "calls": len(calls)}
"""


async def test_equal_answers_to_a_task_are_judged_once_and_counted(tmp_path: Path) -> None:
    judge = make_judge(load_verifier(f"{write(tmp_path / 'counting.py', COUNTING)}:verify"), sharing="always")
    await judge.start()
    one = task()
    rulings = [await judge.rule(one, answer(text, id=str(n))) for n, text in enumerate(["2", "2", "3", "2"])]
    other = await judge.rule(task(expected_answer="3"), answer("2"))
    await judge.close()
    assert [ruling.shared for ruling in rulings] == [1, 2, 1, 3]
    assert [ruling.verdict.reward for ruling in rulings] == [1.0, 1.0, 0.0, 1.0]
    assert (other.verdict.reward, other.shared) == (0.0, 1)
    assert judge.counters.judged == 3
    assert judge.counters.hit_rate == 2 / 5


async def test_answers_that_come_while_an_equal_one_is_judged_wait_for_it() -> None:
    calls = []

    async def verify(task: Task, response: Response) -> float:
        calls.append(response.text)
        await asyncio.sleep(0.01)
        return 1.0

    judge = make_judge(load_verifier(verify))
    await judge.start()
    rulings = await asyncio.gather(*(judge.rule(task(), answer("2")) for _ in range(5)))
    await judge.close()
    assert calls == ["2"]
    assert sorted(ruling.shared for ruling in rulings) == [1, 2, 3, 4, 5]


async def test_a_failure_is_not_shared_with_those_who_waited() -> None:
    calls = []

    async def verify(task: Task, response: Response) -> float:
        calls.append(1)
        await asyncio.sleep(0.01)
        if len(calls) == 1:
            raise RuntimeError("the judge was busy")
        return 1.0

    judge = make_judge(load_verifier(verify))
    await judge.start()
    outcomes = await asyncio.gather(
        *(judge.rule(task(), answer("2")) for _ in range(4)), return_exceptions=True
    )
    await judge.close()
    assert sum(isinstance(outcome, Failure) for outcome in outcomes) == 1
    assert len(calls) == 2


async def test_a_verifier_that_is_not_deterministic_is_asked_every_time(tmp_path: Path) -> None:
    path = write(tmp_path / "dice.py", COUNTING + "is_deterministic = False\n")
    cache = VerdictCache(tmp_path / "cache")
    judge = make_judge(load_verifier(f"{path}:verify"), cache=cache)
    await judge.start()
    counts = [(await judge.judge(task(), answer("2"))).numbers["calls"] for _ in range(3)]
    await judge.close()
    assert counts == [1, 2, 3]
    assert judge.counters.hit_rate is None


async def test_a_cache_on_disk_spans_runs_and_knows_the_fingerprint(tmp_path: Path) -> None:
    path = write(
        tmp_path / "cached.py",
        "is_cheap = True\ndef verify(task, response, bonus=0):\n    return 1 + bonus\n",
    )

    async def run(**options: float) -> tuple[float | None, int, int]:
        judge = make_judge(load_verifier(f"{path}:verify", options), cache=VerdictCache(tmp_path / "cache"))
        await judge.start()
        verdict = await judge.judge(task(_ng_task_index=len(options)), answer("2"))
        await judge.close()
        return verdict.reward, judge.counters.judged, judge.counters.cache_hits

    assert await run() == (1.0, 1, 0)
    assert await run() == (1.0, 0, 1)
    assert await run(bonus=1) == (2.0, 1, 0)


def _fill(directory: str, start: int) -> None:
    cache = VerdictCache(directory)
    for number in range(start, start + 500):
        cache.put(number.to_bytes(16, "little"), Verdict(reward=float(number)))
    cache.close()


def test_several_processes_share_one_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(str(tmp_path), start)) for start in (0, 250)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    cache = VerdictCache(tmp_path)
    rewards = [cache.get(number.to_bytes(16, "little")) for number in range(750)]
    cache.close()
    assert [verdict.reward for verdict in rewards if verdict] == [float(number) for number in range(750)]


def test_a_file_that_is_no_cache_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "verdicts.sqlite", "this is not a database, however long it may be" * 50)
    with pytest.raises(UsageError, match=r"verdicts\.sqlite"):
        VerdictCache(tmp_path)


texts = st.text(max_size=20)
items = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "type": st.just("message"),
                "content": st.lists(st.fixed_dictionaries({"text": texts}), max_size=2),
            }
        ),
        st.fixed_dictionaries({"type": st.just("function_call"), "name": texts, "arguments": texts}),
        st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.lists(texts, max_size=2)}),
    ),
    max_size=3,
)


@given(items, items)
def test_two_answers_have_one_key_exactly_when_every_item_is_equal(
    first: list[Any], second: list[Any]
) -> None:
    keys = AnswerKeys("fingerprint")
    one = task()
    same = keys.key(one, Response({"output": first})) == keys.key(one, Response({"output": second}))
    assert same == (first == second)


def test_ids_token_numbers_and_usage_do_not_tell_answers_apart() -> None:
    def call(number: str) -> Response:
        output = [
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": "f",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": f"call_{number}", "output": "1"},
            {
                "type": "message",
                "id": number,
                "generation_token_ids": [int(number)],
                "content": [{"text": "x"}],
            },
        ]
        return Response({"id": number, "output": output, "usage": {"output_tokens": int(number)}})

    assert answer_bytes(call("1")) == answer_bytes(call("2"))


def test_how_an_answer_ended_tells_answers_apart() -> None:
    cut = answer("2", incomplete_details={"reason": "max_output_tokens"})
    assert answer_bytes(cut) != answer_bytes(answer("2"))


async def verdict_of(verifier: Any, *answers: str, options: dict[str, Any] | None = None, **more: Any) -> Any:
    judge = make_judge(load_verifier(verifier, options, **more), workers=0)
    await judge.start()
    try:
        if judge.is_group:
            return [
                verdict.reward for verdict in await judge.judge_group(task(), [answer(a) for a in answers])
            ]
        return (await judge.judge(task(), answer(answers[0]))).reward
    finally:
        await judge.close()


async def test_a_function_written_for_nemo_gym_needs_no_change() -> None:
    def verify(self, task, response):  # type: ignore[no-untyped-def]
        if self.config.get("fast_mode", False):
            return {"reward": 0.5}
        return {
            "reward": float(response.output_text == task["expected_answer"]),
            "limit": self.config["limit"],
        }

    assert await verdict_of(verify, "2", options={"limit": 3}) == 1.0
    assert await verdict_of(verify, "2", options={"limit": 3}, mode="fast") == 0.5
    fingerprints = {
        load_verifier(verify, {"limit": 3}, mode=mode).fingerprint for mode in ("fast", "precise", None)
    }
    assert len(fingerprints) == 2


async def test_keyword_parameters_of_a_function_are_its_options() -> None:
    def verify(task: Task, response: Response, *, tolerance: float = 0.0, mode: str = "precise") -> float:
        return tolerance if mode == "precise" else -tolerance

    assert await verdict_of(verify, "x", options={"tolerance": 0.25}) == 0.25
    assert await verdict_of(verify, "x", options={"tolerance": 0.25}, mode="fast") == -0.25


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    def verify(task: Task, response: Response, *, tolerance: float = 0.0) -> float:
        return tolerance

    with pytest.raises(UsageError, match="did you mean 'tolerance'"):
        load_verifier(verify, {"tolerence": 1})
    with pytest.raises(UsageError, match="no fast mode"):
        load_verifier(verify, mode="fast")


async def test_a_group_verifier_scores_the_samples_of_a_task_together() -> None:
    def verify_group(task: Task, responses: list[Response]) -> list[float]:
        longest = max(len(response.text) for response in responses)
        return [len(response.text) / longest for response in responses]

    assert await verdict_of(verify_group, "aa", "aaaa") == [0.5, 1.0]


async def test_a_group_verifier_must_answer_for_every_sample() -> None:
    def verify_group(task: Task, responses: list[Response]) -> list[float]:
        return [1.0]

    with pytest.raises(Failure, match="must return a list of 2"):
        await verdict_of(verify_group, "a", "b")


async def test_an_async_verifier_that_hangs_is_ended_by_its_timeout() -> None:
    async def verify(task: Task, response: Response) -> float:
        await asyncio.sleep(100 if response.text == "hang" else 0)
        return 1.0

    judge = make_judge(load_verifier(verify), timeout=0.05)
    await judge.start()
    with pytest.raises(Failure, match=r"no verdict within 0\.05 s"):
        await judge.judge(task(), answer("hang"))
    assert (await judge.judge(task(), answer("go"))).reward == 1.0
    await judge.close()


async def test_a_verdict_that_comes_after_its_deadline_is_a_failure() -> None:
    async def verify(task: Task, response: Response) -> float:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return 0.0
        return 1.0

    judge = make_judge(load_verifier(verify), timeout=0.05)
    await judge.start()
    with pytest.raises(Failure, match=r"no verdict within 0\.05 s"):
        await judge.judge(task(), answer("x"))
    await judge.close()


def test_a_verifier_that_never_listens_to_cancellation_holds_up_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "deaf.py",
        """
import asyncio
async def verify(task, response):
    while True:
        try:
            await asyncio.sleep(100)
        except:
            pass
""",
    )
    script = f"""
import asyncio
from rollforge.errors import Failure
from rollforge.records import Response, Task
from rollforge.verifiers.running import in_loop
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.ready_verifier import make_judge
in_loop.GRACE = 0.1
async def main():
    judge = make_judge(load_verifier({str(path)!r}), timeout=0.05)
    await judge.start()
    try:
        await judge.judge(Task({{}}), Response.from_text("x"))
    except Failure as failure:
        print(failure.message)
    await judge.close()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("no verdict within 0.05 s", "")


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, BaseException])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_verifier_raises_is_its_own_failure(
    error: type[BaseException], is_async: bool
) -> None:
    def verify(task: Task, response: Response) -> float:
        raise error

    async def verify_later(task: Task, response: Response) -> float:
        raise error

    with pytest.raises(Failure, match=error.__name__):
        await verdict_of(verify_later if is_async else verify, "x")


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_verifier_in_our_process_changes_neither_task_nor_response(is_async: bool) -> None:
    def verify(task: Task, response: Response) -> float:
        task["seen"].append(1)
        response.raw["output"][0]["content"][0]["text"] = "JUNK"
        return len(task["seen"])

    async def verify_later(task: Task, response: Response) -> float:
        return verify(task, response)

    row, response = task(seen=[]), answer("x")
    judge = make_judge(load_verifier(verify_later if is_async else verify), workers=0, sharing="never")
    await judge.start()
    assert [(await judge.judge(row, response)).reward for _ in range(2)] == [1.0, 1.0]
    await judge.close()
    assert (row, response.raw) == (task(seen=[]), answer("x").raw)


async def test_a_cancelled_judgement_cancels_its_verifier_and_is_no_failure() -> None:
    heard = []

    async def verify(task: Task, response: Response) -> float:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            heard.append("cancelled")
        return 1.0

    judge = make_judge(load_verifier(verify))
    await judge.start()
    work = asyncio.ensure_future(judge.judge(task(), answer("x")))
    while not judge.counters.busy:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await judge.close()
    assert heard == ["cancelled"]


@pytest.mark.parametrize(
    "source",
    [
        "import fp_neighbour\ndef verify(task, response, k=1):\n    return 1\n",
        "from fp_neighbour import LIMIT\ndef verify(task, response, k=1):\n    return LIMIT\n",
        "def verify(task, response, k=1):\n    from fp_neighbour import LIMIT\n    return LIMIT\n",
        "from fp_between import verify\n",
        "from fp_package.inner import LIMIT\ndef verify(task, response, k=1):\n    return LIMIT\n",
    ],
)
def test_the_fingerprint_follows_the_file_its_neighbours_and_the_options(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a file adds its folder
    write(tmp_path / "fp_neighbour.py", "LIMIT = 1\n")
    write(
        tmp_path / "fp_between.py",
        "from fp_neighbour import LIMIT\ndef verify(task, response, k=1):\n    return LIMIT\n",
    )
    (tmp_path / "fp_package").mkdir()
    write(tmp_path / "fp_package" / "inner.py", "from fp_neighbour import LIMIT\n")
    write(tmp_path / "fp_verifier.py", source)

    def fingerprint(**options: int) -> str:
        for name in [name for name in sys.modules if "fp_" in name]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return load_verifier(f"{tmp_path / 'fp_verifier.py'}:verify", options).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(k=2) != first
    write(tmp_path / "fp_neighbour.py", "LIMIT = 2\n")
    assert fingerprint() != first


def test_the_fingerprint_follows_the_package_of_a_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fp_home" / "rewards").mkdir(parents=True)
    write(tmp_path / "fp_home" / "__init__.py", "")
    write(tmp_path / "fp_home" / "limits.py", "LIMIT = 1\n")
    write(tmp_path / "fp_home" / "rewards" / "__init__.py", "")
    write(
        tmp_path / "fp_home" / "rewards" / "long.py",
        "from ..limits import LIMIT\ndef verify(task, response):\n    return LIMIT\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    first = load_verifier("fp_home.rewards.long:verify").fingerprint
    write(tmp_path / "fp_home" / "limits.py", "LIMIT = 2\n")
    assert load_verifier("fp_home.rewards.long:verify").fingerprint != first


def test_closures_over_other_values_have_other_fingerprints() -> None:
    def make(limit: int) -> Any:
        return lambda task, response: limit

    assert load_verifier(make(1)).fingerprint != load_verifier(make(2)).fingerprint
    assert load_verifier(make(1)).fingerprint == load_verifier(make(1)).fingerprint


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "sk-1234"},
        {"judge": {"base_url": "http://me:sk-1234@host/v1"}},
        {"place": "postgresql://sk-1234@host/db"},
    ],
)
def test_options_that_would_write_a_secret_into_files_are_refused_and_not_repeated(
    options: JsonObject,
) -> None:
    def verify(self: Any, task: Any, response: Any) -> float:
        return 1.0

    with pytest.raises(UsageError, match="stand in the run's files") as refused:
        load_verifier(verify, options)
    assert "1234" not in str(refused.value)
    assert load_verifier(verify, {"base_url": "http://host/v1?a=b@c", "max_tokens": 5, "api_key_env": "KEY"})
