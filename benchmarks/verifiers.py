"""Ready verifiers against their floors: verdicts per CPU-second in process, and `code` against the bare subprocess it needs.

CPU seconds of this process and of all it starts; this process adopts what bubblewrap leaves behind, so that its share counts too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rollforge.records import Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.calling import LiveVerifier

FLOOR_PER_CPU_SECOND = 20_000
"""What `mcqa` and `exact` promise."""
CODE_RATIO = 1.3
"""What a `code` verdict may cost, times the bare subprocess."""

THINKING = "Let me think about it step by step. " * 55
PROGRAM = "import sys\nfrom collections import defaultdict\nn = int(input())\nprint(n * 2)"
FUNCTION = "from typing import List\nclass Solution:\n    def total(self, a: List[int], b: int) -> int:\n        return sum(a) + b"
CALLED = (
    f"import json\n{FUNCTION}\nprint(json.dumps(Solution().total(json.loads(input()), json.loads(input()))))"
)


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends first, so that their CPU time is counted here."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Of this process and of every process it started, once all of them have ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def answer(text: str) -> Response:
    """A fresh response, as read from a file: nothing in it is computed yet."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return Response({"output": [{"type": "message", "role": "assistant", "content": [part]}]})


def rate(name: str, row: dict[str, Any], text: str, count: int) -> float:
    """Verdicts per CPU-second."""
    live = LiveVerifier(load_verifier(name))
    task = Task({"responses_create_params": {"input": "?"}, **row})
    responses = [answer(text) for _ in range(count)]
    live.judge_now(task, [answer(text)])
    started = cpu_seconds()
    for response in responses:
        live.judge_now(task, [response])
    return count / (cpu_seconds() - started)


def rates() -> dict[str, float]:
    options = [{"A": "one"}, {"B": "two"}, {"C": "three"}, {"D": "four"}]
    instructions = ["punctuation:no_comma", "length_constraints:number_sentences", "keywords:existence"]
    kwargs = [{}, {"num_sentences": 3, "relation": "at least"}, {"keywords": ["step"]}]
    colon = {"options": options, "expected_answer": "B", "grading_mode": "lenient_answer_colon"}
    return {
        "mcqa": rate("mcqa", {"options": options, "expected_answer": "B"}, f"{THINKING}\\boxed{{B}}", 20_000),
        "mcqa lenient_answer_colon": rate("mcqa", colon, f"{THINKING}\nAnswer: B", 20_000),
        "exact": rate("exact", {"expected_answer": "42"}, f"{THINKING}\\boxed{{42}}", 20_000),
        "regex": rate(
            "regex", {"pattern": r"#### (\d+)", "expected_answer": "42"}, f"{THINKING}#### 42", 20_000
        ),
        "json_schema": rate("json_schema", {"schema": {"type": "object"}}, '{"a": [1, 2, 3]}', 5_000),
        "instruction_following": rate(
            "instruction_following", {"instruction_id_list": instructions, "kwargs": kwargs}, THINKING, 500
        ),
        "math": rate("math", {"expected_answer": "42"}, f"{THINKING}\\boxed{{42}}", 100),
    }


def code_verdict(code: str, inputs: list[str], outputs: list[str], fn_name: str | None) -> Callable[[], None]:
    """One verdict in the sandbox, which must be a pass."""
    live = LiveVerifier(load_verifier("code"))
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
    task = Task({"verifier_metadata": {"unit_tests": tests}})

    def judge() -> None:
        (verdict,) = live.judge_now(task, [answer(f"```python\n{code}\n```")])
        assert verdict.reward == 1.0

    return judge


def bare(code: str, given: str) -> Callable[[], None]:
    """The plain subprocess that runs the same program on one input."""
    return lambda: (
        subprocess.run([sys.executable, "-c", code], input=given.encode(), check=True, capture_output=True)
        and None
    )


def code_ratios(rounds: int) -> dict[str, float]:
    """CPU time of a verdict over that of the bare subprocess (for ten tests: of one such subprocess per test)."""
    parts = {
        "bare stdin": bare(PROGRAM, "3\n"),
        "bare call": bare(CALLED, "[1, 2]\n3\n"),
        "stdin": code_verdict(PROGRAM, ["3\n"], ["6"], None),
        "stdin, 10 tests": code_verdict(PROGRAM, ["3\n"] * 10, ["6"] * 10, None),
        "call": code_verdict(FUNCTION, ["[1, 2]\n3"], ["6"], "total"),
    }
    spent = dict.fromkeys(parts, 0.0)
    for part in parts.values():
        part()
    for _ in range(rounds):
        for name, part in parts.items():
            started = cpu_seconds()
            part()
            spent[name] += cpu_seconds() - started
    return {
        "stdin": spent["stdin"] / spent["bare stdin"],
        "stdin, 10 tests": spent["stdin, 10 tests"] / (10 * spent["bare stdin"]),
        "call": spent["call"] / spent["bare call"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="subprocesses per measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    adopt_orphans()
    found = {"verdicts_per_cpu_second": rates(), "code_over_bare_subprocess": code_ratios(arguments.rounds)}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found["verdicts_per_cpu_second"].items():
        promise = f"   (promised {FLOOR_PER_CPU_SECOND:,})" if name in ("mcqa", "exact") else ""
        print(f"{name:<28}{value:>12,.0f} verdicts per CPU-second{promise}")
    for name, value in found["code_over_bare_subprocess"].items():
        print(f"code, {name:<22}{value:>12.2f} x the bare subprocess   (promised {CODE_RATIO})")


if __name__ == "__main__":
    main()
