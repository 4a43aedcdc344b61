"""What every ready verifier promises, whoever wrote it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict, has_field
from rollforge.verifiers import VERIFIERS
from rollforge.verifiers.base import load_verifier, options_type
from rollforge.verifiers.running.calling import LiveVerifier

ROWS: dict[str, dict[str, Any]] = {
    "code": {"verifier_metadata": {"unit_tests": {"inputs": ["1"], "outputs": ["2"], "fn_name": None}}},
    "equivalence_judge": {"expected_answer": "Paris"},
    "exact": {"expected_answer": "Paris"},
    "instruction_following": {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    "json_schema": {"schema": {"type": "object"}},
    "judge": {"rubric": "Good."},
    "math": {"expected_answer": "42"},
    "mcqa": {"options": [{"A": "x"}, {"B": "y"}], "expected_answer": "A"},
    "multineedle": {"expected_synonym_values": [407]},
    "reasoning_gym": {
        "verifier_metadata": {
            "reasoning_gym": {
                "name": "gcd",
                "entry": {"question": "gcd of 4 and 6?", "answer": "2", "metadata": {}},
            }
        }
    },
    "regex": {"pattern": "Paris"},
    "script": {
        "test_script": 'if grep -q . "$ROLLFORGE_ANSWER"; then echo 1; else echo 0; fi > "$ROLLFORGE_REWARD"'
    },
}
ASKS_A_MODEL = {"equivalence_judge", "judge"}
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"model": "m", "base_url": "http://127.0.0.1:9/v1", "retries": 0, "attempts": 1}
    for name in ASKS_A_MODEL
}
EXTRA = {
    "math": "math_verify",
    "json_schema": "jsonschema",
    "instruction_following": "langdetect",
    "reasoning_gym": "reasoning_gym",
}

NAMES = VERIFIERS.names()


def row_of(name: str) -> Task:
    return Task({"responses_create_params": {"input": [{"role": "user", "content": "?"}]}, **ROWS[name]})


async def judged(name: str, response: Response) -> Verdict:
    live = LiveVerifier(load_verifier(name, OPTIONS.get(name)))
    await live.start()
    try:
        (verdict,) = await live.judge(row_of(name), [response])
    finally:
        await live.close()
    return verdict


def test_every_verifier_has_a_row_here() -> None:
    assert set(ROWS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_summary_and_says_what_it_needs(name: str) -> None:
    member = VERIFIERS.load(name)
    module = sys.modules[member.__module__]
    summary = (inspect.getdoc(module) or "").splitlines()[0]
    assert summary.startswith("Rewards ")
    assert summary.endswith(".")
    assert len(summary) < 100
    assert isinstance(module.needs, tuple)
    for need in load_verifier(name, OPTIONS.get(name)).needs:
        assert has_field(ROWS[name], need)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_documented_and_unknown_ones_are_refused(name: str) -> None:
    struct = options_type(VERIFIERS.load(name))
    if struct is not None:
        for kind in (base for base in struct.__mro__ if base.__module__.startswith("rollforge")):
            source = inspect.getsource(kind)
            for field in msgspec.structs.fields(kind):
                if field.name in kind.__annotations__:
                    after = source.split(f"    {field.name}:", 1)[1].split("\n", 1)[1]
                    assert after.lstrip().startswith('"""'), f"{kind.__name__}.{field.name}"
    with pytest.raises(UsageError, match="no_such_option"):
        load_verifier(name, {"no_such_option": 1})


@pytest.mark.parametrize("name", sorted(set(NAMES) - ASKS_A_MODEL))
@pytest.mark.parametrize("output", [[], [{"type": "message", "role": "assistant", "content": []}]])
async def test_an_empty_answer_earns_no_full_reward(name: str, output: list[Any]) -> None:
    verdict = await judged(name, Response({"output": output}))
    assert verdict.reward is None or 0.0 <= verdict.reward < 1.0


@pytest.mark.parametrize("name", sorted(ASKS_A_MODEL))
async def test_a_judge_nobody_answers_for_is_a_failure(name: str) -> None:
    verifier = load_verifier(name, {**OPTIONS[name], "timeout": 1})
    assert verifier.is_async
    assert not verifier.is_deterministic
    live = LiveVerifier(verifier)
    await live.start()
    with pytest.raises(Failure):
        await live.judge(row_of(name), [Response.from_text("an answer")])
    await live.close()


@pytest.mark.parametrize("name", NAMES)
def test_its_module_loads_without_its_extra_and_names_it_when_needed(name: str) -> None:
    package = EXTRA.get(name)
    if package is None:
        return
    code = f"""
import sys
sys.modules[{package!r}] = None
from rollforge.errors import UsageError
from rollforge.verifiers import VERIFIERS
kind = VERIFIERS.load({name!r})
try:
    kind()
except UsageError as error:
    print(error.hint)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'rollforge[" in result.stdout


def test_loading_the_registry_imports_no_heavy_package() -> None:
    code = """
import sys
from rollforge.verifiers import VERIFIERS
for name in VERIFIERS.names():
    VERIFIERS.load(name)
print(sorted({"math_verify", "sympy", "jsonschema", "langdetect", "reasoning_gym", "numpy"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
