"""Rewards a program that passes every unit test of its task.

Needs `verifier_metadata.unit_tests` = `{"inputs": [text], "outputs": [text], "fn_name": null or name}`, or the same in packed
form. Without a name the program runs once per input, which it reads from standard input, and its output is compared; with a name
that function (or method of `Solution`) is called with one JSON value per input line, and its result is compared. The code is the
text between the last two lines with a code fence. Testing stops at the first test that fails.

The program is untrusted: it runs in `rollforge.sandbox`, one sandboxed process per verdict, or not at all. It gets inputs, one
after the other, and never an expected output; comparing happens outside, on plain text and JSON values, so neither exiting early
nor redefining equality helps it. A program that has memorised the expected outputs, or guesses them from the inputs, is not
detected.
"""

from __future__ import annotations

import base64
import json
import marshal
import math
import re
import time
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.json_shapes import parts_in
from rollforge.records import JsonObject, Response, Task
from rollforge.runtime.typed_decoding import convert
from rollforge.sandbox import Confined, Limits, Mode, Sandbox, SandboxReply
from rollforge.verifiers.building_blocks import code_runner
from rollforge.verifiers.building_blocks.gym_version import NEWEST, GymVersion
from rollforge.verifiers.building_blocks.verdict_fields import CodeRunJson, CodeVerdictJson

needs = ("verifier_metadata.unit_tests",)

TestOutcome = bool | int
"""True, or the reason of a failed test: -1 total time exceeded or crash, -2 wrong output, -3 too slow, -4 an error."""

TOLERANCE = Decimal("1e-6")
"""Tolerance for printed numbers: absolute, and relative above 1."""
MOST_TEST_BYTES = 512 << 20
"""Size limit of unpacked unit tests."""
STARTUP_SECONDS = 20.0
"""Time allowed for starting the interpreter on a busy machine, in addition to a test's time."""

_STAR_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
_MODULES = _STAR_MODULES[:-2]


class CodeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for running programs."""

    gym: GymVersion = NEWEST
    """The release of NeMo Gym to agree with in comparing outputs: 0.7 tolerates 1e-6 on printed numbers and any case of yes and no."""
    timeout: float = 10.0
    """Seconds one test may take."""
    sandbox: Mode = "auto"
    """`auto` (or `require`) confines programs with bubblewrap or refuses to run them; `off` runs them with limits only."""
    memory_mb: int = 2048
    """Memory of each of the program's processes."""
    total_memory_mb: int = 4096
    """Memory of all the program's processes together; 0 sets no limit."""
    processes: int = 32
    """Processes and threads the program may have at once."""
    output_mb: int = 16
    """What the program may print for one test."""
    packages: bool = True
    """Let programs import the installed packages, as numpy."""
    reasoning_format_penalty: float = 0.0
    """The reward when the answer text contains think tags, or the reasoning more than one of a kind."""


class UnitTests(msgspec.Struct, frozen=True):
    """Tests of one task, in LiveCodeBench's format."""

    inputs: list[str]
    outputs: list[str]
    fn_name: str | None = None

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.outputs):
            raise ValueError(f"{len(self.inputs)} inputs and {len(self.outputs)} outputs are no set of tests")


class Code:
    """Judges by running unit tests."""

    options_type = CodeOptions

    def __init__(self, options: CodeOptions | None = None) -> None:
        self._options = options or CodeOptions()
        if self._options.timeout <= 0:
            raise UsageError("timeout must be more than 0 seconds", hint="--verifier-set timeout=10")
        self._sandbox = Sandbox(self._options.sandbox, packages=self._options.packages)

    @staticmethod
    def check_machine(options: JsonObject) -> None:
        """Refuse to run programs without working bubblewrap, unless `sandbox=off`."""
        if options.get("sandbox") != "off":
            Sandbox("require", packages=False)

    @staticmethod
    def warning_for(options: JsonObject) -> str | None:
        """Warning about what a program can do without a sandbox."""
        weakness = Sandbox("off", packages=False).weakness if options.get("sandbox") == "off" else None
        return f"programs run with limits only, without a sandbox: {weakness}" if weakness else None

    def verify(self, task: Task, response: Response) -> CodeVerdictJson:
        metadata = task.get("verifier_metadata") or {}
        difficulty = metadata.get("difficulty")
        tests = read_tests(metadata.get("unit_tests"))
        text = response.text
        code = extract_code(text)
        if not text.strip() or not code:
            return {"reward": 0.0, "extracted_model_code": None, "result": None, "difficulty": difficulty}
        started = time.perf_counter()
        results, details = self._run(code, tests)
        has_violation = has_format_violation(response)
        passed = float(all(result is True for result in results))
        return {
            "reward": self._options.reasoning_format_penalty if has_violation else passed,
            "extracted_model_code": code,
            "result": results,
            "metadata": details,
            "tests_passed": sum(result is True for result in results),
            "tests_total": len(tests.inputs),
            "unit_tests_time_taken": round(time.perf_counter() - started, 6),
            "reasoning_format_violation_rate": float(has_violation),
            "difficulty": difficulty,
            "sandbox": self._sandbox.kind,
        }

    def _run(self, code: str, tests: UnitTests) -> tuple[list[TestOutcome], CodeRunJson]:
        expected = [json.loads(text) for text in tests.outputs] if tests.fn_name else tests.outputs
        if tests.fn_name:
            for text in tests.inputs:
                for line in text.split("\n"):
                    json.loads(
                        line
                    )  # a broken test is the task's fault: it raises here, before the program runs
        setup = marshal.dumps((code, tests.fn_name, prelude(code), self._sandbox.kind == "bubblewrap"), 4)
        whole = (self._options.timeout + 1) * len(tests.inputs) + 5 + STARTUP_SECONDS
        deadline = time.monotonic() + whole
        with self._sandbox.start(_runner(), self._limits(whole)) as confined:
            booted = confined.ask(setup, STARTUP_SECONDS)
            if booted.message != b"B":
                confined.wait(0.0)
                raise RuntimeError(f"the sandbox did not start ({booted.ended}): {confined.errors.strip()}")
            failure = _failure(confined.wait(self._options.timeout), confined)
            if failure is not None:
                return [failure["error_code"]], failure
            return self._judge_each(confined, tests, expected, deadline)

    def _judge_each(
        self, confined: Confined, tests: UnitTests, expected: list[Any], deadline: float
    ) -> tuple[list[TestOutcome], CodeRunJson]:
        results: list[TestOutcome] = []
        spent = 0.0
        for number, (test_input, wanted) in enumerate(zip(tests.inputs, expected, strict=True), start=1):
            mark = b"L" if number == len(expected) else b"T"  # the last one may use up the process
            reply = confined.ask(mark + test_input.encode("utf-8", "surrogatepass"), self._options.timeout)
            spent += reply.seconds
            if mark == b"L" and reply.ended == "died" and confined.exit_code() == 0:
                reply = SandboxReply(b"O", reply.output)  # it left by os._exit(0), which is a way to end
            failure = _failure(reply, confined)
            if failure is None:
                failure = _difference(
                    reply, wanted, is_call=tests.fn_name is not None, is_old=self._options.gym == "0.5"
                )
            if failure is not None:
                results.append(failure["error_code"])
                return results, {**failure, "inputs": _shortened(test_input), "expected": _shortened(wanted)}
            results.append(True)
            if time.monotonic() > deadline:
                return [-1] * len(tests.inputs), {
                    "error_code": -1,
                    "error_message": "Global time limit exceeded",
                }
        return results, {"execution time": round(spent, 6)}

    def _limits(self, seconds: float) -> Limits:
        return Limits(
            cpu_seconds=math.ceil(seconds),
            memory_bytes=self._options.memory_mb << 20,
            total_memory_bytes=self._options.total_memory_mb << 20,
            processes=self._options.processes,
            output_bytes=self._options.output_mb << 20,
        )


def extract_code(text: str) -> str:
    """The text between the last two lines with a code fence; empty with fewer than two."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) >= 2 else ""


def has_format_violation(response: Response) -> bool:
    """Whether the answer contains think tags, or the reasoning contains one more than once."""
    tags = ("<think>", "</think>")
    if any(tag in response.text for tag in tags):
        return True
    summaries = "".join(
        text
        for item in response.output
        if item.get("type") == "reasoning"
        for part in parts_in(item.get("summary"))
        if isinstance(text := part.get("text"), str)
    )
    return any(summaries.count(tag) > 1 for tag in tags)


def prelude(code: str) -> list[tuple[str, str | None]]:
    """Names in the program that it may use without importing them, with their modules.

    NeMo Gym star-imports eighteen modules before every program; importing only the used names has the same effect and saves
    start-up time.
    """
    words = set(re.findall(r"[^\W\d]\w*", code))
    module_by_name = _star_names()
    stars = sorted((name, module_by_name[name]) for name in words & module_by_name.keys())
    modules: list[tuple[str, str | None]] = [(name, None) for name in _MODULES if name in words]
    return [(module, name) for name, module in stars if module != "builtins"] + modules


@lru_cache(maxsize=1)
def _star_names() -> dict[str, str]:
    """Name → the last module whose star-import binds it."""
    return {
        name: module
        for module in _STAR_MODULES
        for name in getattr(
            import_module(module), "__all__", [n for n in vars(import_module(module)) if n[0] != "_"]
        )
    }


@lru_cache(maxsize=1)
def _runner() -> CodeType:
    source = Path(code_runner.__file__).read_text(encoding="utf-8")
    code: CodeType = compile(source, "<runner>", "exec", dont_inherit=True, optimize=2)
    return code


def _failure(reply: SandboxReply, confined: Confined) -> CodeRunJson | None:
    """Why the reply is not a result; None if it is one."""
    if reply.ended == "late":
        return {"error_code": -3, "error_message": "Time Limit Exceeded"}
    if reply.ended == "too much":
        return {"error_code": -4, "error_message": "Runtime Error", "error": "printed more than it may"}
    if reply.ended == "memory":
        return {"error_code": -4, "error_message": "Runtime Error", "error": "used more memory than it may"}
    if reply.message is None or reply.message[:1] not in (b"R", b"O", b"V", b"W"):
        error_text = (reply.message or b"")[1:].decode("utf-8", "replace")
        if not error_text:
            confined.wait(0.0)  # takes in what the program wrote to standard error before it ended
            error_text = confined.errors.strip() or "the program's process is gone"
        return {"error_code": -4, "error_message": "Runtime Error", "error": _shortened(error_text)}
    return None


def _difference(reply: SandboxReply, wanted: Any, *, is_call: bool, is_old: bool) -> CodeRunJson | None:
    """How the output differs from the expected one; None if it is right."""
    wrong: CodeRunJson = {"error_code": -2, "error_message": "Wrong Answer"}
    assert reply.message is not None
    kind, output = reply.message[:1], reply.message[1:].decode("utf-8", "replace")
    if not is_call:
        printed = reply.output.decode("utf-8", "replace")
        reason = differing_lines(printed, wanted, is_old=is_old) if kind == b"O" else "no program ended"
        return None if reason is None else {**wrong, "error_message": reason, "output": _shortened(printed)}
    if kind != b"V":
        return {**wrong, "output": _shortened(output)}
    try:
        is_right = equal_values(json.loads(output), wanted, is_old=is_old)
    except (ValueError, RecursionError):
        is_right = False
    return None if is_right else {**wrong, "output": _shortened(output)}


def read_tests(value: Any) -> UnitTests:
    """Read a row's tests, plain or packed (`{"packed": base64 of zlib of JSON}`); raises for invalid ones."""
    if isinstance(value, dict) and "packed" in value:
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(value["packed"]), MOST_TEST_BYTES)
        if unpack.unconsumed_tail:
            raise ValueError(f"the packed unit tests are longer than {MOST_TEST_BYTES >> 20} MB")
        value = {**json.loads(data), "fn_name": value.get("fn_name")}
    return convert(value, UnitTests)


def differing_lines(printed: str, wanted: str, *, is_old: bool = False) -> str | None:
    """Describe how two outputs differ; stripped lines are compared as texts or, word by word, as numbers."""
    given_lines, wanted_lines = list(_lines(printed)), list(_lines(wanted))
    if len(given_lines) != len(wanted_lines):
        return "Wrong answer: mismatched output length"
    for number, (line, right) in enumerate(zip(given_lines, wanted_lines, strict=True)):
        is_equal = _equal_decimals(line, right) if is_old else _close_lines(line, right)
        if line != right and not is_equal:
            return f"Wrong answer at output_line_idx={number}: {_shortened(line)} != {_shortened(right)}"
    return None


def _equal_decimals(line: str, right: str) -> bool:
    """NeMo Gym before 0.7: compare word by word as decimal numbers."""
    numbers = _decimals(line)
    return numbers is not None and numbers == _decimals(right)


def _close_lines(line: str, right: str) -> bool:
    """NeMo Gym 0.7: ignore case of yes and no, and accept numbers within 1e-6 if at least one is written as a float."""
    if line.lower() in ("yes", "no"):
        return line.lower() == right.lower()
    left, wanted = _decimals(line), _decimals(right)
    if left is None or wanted is None or len(left) != len(wanted):
        return False
    words = zip(line.split(), right.split(), strict=True)
    return all(
        one == other or (_is_float(*pair) and _is_close(one, other))
        for one, other, pair in zip(left, wanted, words, strict=True)
    )


def _is_float(*words: str) -> bool:
    return any("." in word or "e" in word.lower() for word in words)


def _is_close(number: Decimal, right: Decimal) -> bool:
    if not (number.is_finite() and right.is_finite()):
        return False
    return abs(number - right) <= TOLERANCE * max(abs(right), Decimal(1))


def equal_values(value: Any, right: Any, *, is_old: bool = False) -> bool:
    """Whether two JSON values are equal as values, as JSON texts, or as close numbers (since 0.7 also inside lists)."""
    if value == right or json.dumps(value) == json.dumps(right):
        return True
    if is_old:
        return _close_floats(value, right)
    if _close_values(value, right):
        return True
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_close_values, value, right))
    return False


def _close_values(value: Any, right: Any) -> bool:
    """Whether values are equal, or close if at least one is a float; `"3"` is not 3, and `true` is not 1."""
    if value == right:
        return True
    if (
        isinstance(value, bool)
        or isinstance(right, bool)
        or not (isinstance(value, float) or isinstance(right, float))
    ):
        return False
    numbers = (int, float, str)
    return isinstance(value, numbers) and isinstance(right, numbers) and _close_floats(value, right)


def _close_floats(value: Any, right: Any) -> bool:
    try:
        left, wanted = float(value), float(right)
    except (TypeError, ValueError, OverflowError):
        return False
    return left == wanted or abs(left - wanted) <= 1e-8 + 1e-5 * abs(wanted) < math.inf


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.strip().split("\n"))


def _decimals(line: str) -> list[Decimal] | None:
    try:
        numbers = [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
    return None if any(number.is_nan() for number in numbers) else numbers  # comparing `sNaN` raises


def _shortened(value: Any, length: int = 300) -> str:
    text = value if isinstance(value, str) else str(value)
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}...(truncated) ...{text[-half:]}"
