from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge import sandbox
from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.code import (
    Code,
    CodeOptions,
    UnitTests,
    differing_lines,
    equal_values,
    extract_code,
    has_format_violation,
    prelude,
    read_tests,
)

needs_bubblewrap = pytest.mark.skipif(
    sandbox.find_bubblewrap().prefix is None, reason="bubblewrap does not work here"
)


def answer(code: str) -> Response:
    return Response({"output": [{"type": "message", "content": f"Here:\n```python\n{code}\n```\nDone."}]})


def unit_tests(inputs: list[str], outputs: list[str], fn_name: str | None = None) -> Task:
    return Task(
        {"verifier_metadata": {"unit_tests": {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}}}
    )


def judge(code: str, task: Task, **options: Any) -> dict[str, Any]:
    return Code(CodeOptions(**options)).verify(task, answer(code))


DOUBLE = unit_tests(["3\n", "5"], ["6\n", "10"])

PROGRAMS_THAT_PASS = {
    "input": "print(int(input()) * 2)",
    "main guard": "def main():\n    print(int(input()) * 2)\nif __name__ == '__main__':\n    main()",
    "main guard not last": "def main():\n    print(2 * x)\nx = int(input())\nif __name__ == '__main__':\n    main()\ny = 1",
    "sys.stdin": "import sys\nfor line in sys.stdin: print(int(line) * 2)",
    "readline": "import sys\nprint(int(sys.stdin.readline()) * 2)",
    "buffer": "import sys\nprint(int(sys.stdin.buffer.readline()) * 2)",
    "open(0)": "print(int(open(0).read()) * 2)",
    "os.read": "import os\nprint(int(os.read(0, 100)) * 2)",
    "prelude names": "print(reduce(add, [int(stdin.readline())] * 2))",
    "prelude modules": "print(math.prod([int(sys.stdin.read()), 2]))",
    "exit": "print(int(input()) * 2)\nexit()",
    "sys.exit 1": "import sys\nprint(int(input()) * 2)\nsys.exit(1)",
    "os._exit": "import os\nprint(int(input()) * 2, flush=True)\nos._exit(0)",
    "global": "n = 0\ndef read():\n    global n\n    n = int(input())\nread()\nprint(n * 2)",
    "eof": "total = 0\ntry:\n    while True: total += int(input())\nexcept EOFError: print(total * 2)",
    "thread": "import threading\nthreading.Thread(target=lambda: print(int(input()) * 2)).start()",
    "atexit": "import atexit\nout = [int(input()) * 2]\natexit.register(lambda: print(*out))",
    "return": "n = int(input())\nprint(n * 2)\nif n: return\nprint('more')",
    "recursion": "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nf(20_000)\nprint(int(input()) * 2)",
    "numpy": "import numpy as np\nprint(np.int64(input()) * 2)",
    "decimal tokens": "print(int(input()) * 2.0)",
    "scratch file": "open('x', 'w').write(input())\nprint(int(open('x').read()) * 2)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    n: 'int'\nprint(P(int(input())).n * 2)",
    "future": "from __future__ import annotations\nx: Nope = int(input())\nprint(x * 2)",
    "fresh state": "import sys\nassert not hasattr(sys, 'seen')\nsys.seen = 1\nprint(int(input()) * 2)",
}


@pytest.mark.parametrize("code", PROGRAMS_THAT_PASS.values(), ids=PROGRAMS_THAT_PASS.keys())
def test_sound_programs_pass(code: str) -> None:
    verdict = judge(code, DOUBLE)
    assert (verdict["reward"], verdict["result"]) == (1.0, [True, True]), verdict["metadata"]


PROGRAMS_THAT_FAIL = {
    "wrong": ("print(int(input()) * 3)", [-2]),
    "wrong later": ("n = int(input())\nprint(6 if n == 3 else 0)", [True, -2]),
    "raises": ("print(1 / 0)", [-4]),
    "syntax": ("def f(:", [-4]),
    "silent": ("pass", [-2]),
    "endless": ("while True: pass", [-3]),
    "asleep": ("import time\ntime.sleep(100)", [-3]),
    "crash": ("import os\nos.abort()", [-4]),
    "hidden after exit": ("import os\nos._exit(0)", [-2]),
    "hidden after exit, last": ("import os\nn = input()\nprint(6) if n == '3' else os._exit(0)", [True, -2]),
    "raises last": ("n = int(input())\nprint(6 if n == 3 else 1 / 0)", [True, -4]),
    "killed last": ("import os\nn = input()\nprint(6) if n == '3' else os.kill(os.getpid(), 11)", [True, -4]),
    "endless last": ("n = input()\nprint(6, flush=True)\nwhile n != '3': pass", [True, -3]),
}


@pytest.mark.parametrize(("code", "result"), PROGRAMS_THAT_FAIL.values(), ids=PROGRAMS_THAT_FAIL.keys())
def test_failing_programs_stop_at_the_first_failure_and_say_why(code: str, result: list[Any]) -> None:
    verdict = judge(code, DOUBLE, timeout=2.0)
    assert (verdict["reward"], verdict["result"]) == (0.0, result)
    assert verdict["metadata"]["error_code"] == result[-1]


def test_functions_are_called_with_json_arguments() -> None:
    task = unit_tests(["[1, 2]\n3", "[]\n1"], ["6", "1"], "total")
    method = "class Solution:\n    def total(self, a: List[int], b: int) -> int:\n        return sum(a) + b"
    assert judge(method, task)["reward"] == 1.0
    assert judge("def total(a, b): return sum(a) + b", task)["reward"] == 1.0
    assert judge("def total(a, b): return float(sum(a) + b)", task)["reward"] == 1.0
    assert judge("def total(a, b): return sum(a)", task)["result"] == [-2]
    assert judge("def other(a, b): return sum(a)", task)["result"] == [-4]
    assert judge("def total(a, b): raise KeyError(a)", task)["result"] == [-4]
    assert judge("def total(a, b): exit()", task)["result"] == [-4]
    assert judge("def total(a, b): return {1, 2}", task)["result"] == [-2]
    assert judge("def total(a, b):\n    a.append(a)\n    return a", task)["result"] == [-2]
    odd = "class Odd(dict):\n    def items(self): raise SystemExit\ndef total(a, b): return Odd(x=1)"
    assert judge(odd, task)["result"] == [-4]


def test_what_a_function_prints_is_no_result() -> None:
    task = unit_tests(["1"], ["2"], "f")
    assert judge("def f(n):\n    print(2)\n    return 1", task)["result"] == [-2]
    assert judge("def f(n):\n    print('x' * 100_000)\n    return 2", task)["reward"] == 1.0


HOSTILE_FUNCTIONS = {
    "equal to everything": "class Any:\n    def __eq__(self, other): return True\ndef f(n): return Any()",
    "int equal to everything": "class Any(int):\n    def __eq__(self, o): return True\ndef f(n): return Any(1)",
    "patched json": "import json\njson.dumps = lambda *a, **k: '42'\njson.loads = lambda *a: 42\ndef f(n): return 1",
    "patched builtins": "import builtins\nbuiltins.all = lambda x: True\ndef f(n): return 1",
    "early exit": "import os\nos._exit(0)",
    "forged frames": (
        "import os\nfor fd in range(3, 64):\n    for m in (b'R', b'O', b'B', b'\\x00' * 999):\n"
        "        try: os.write(fd, len(m).to_bytes(8, 'big') + m)\n        except OSError: pass\ndef f(n): return 1"
    ),
    "frames of the runner": (
        "import sys\nframe = sys._getframe()\nseen = []\nwhile frame:\n"
        "    seen.append(repr(frame.f_globals) + repr(frame.f_locals))\n    frame = frame.f_back\n"
        "import re\nfound = re.findall('918273645', ' '.join(seen))\ndef f(n): return int(found[0]) if found else 1"
    ),
}


@pytest.mark.parametrize("code", HOSTILE_FUNCTIONS.values(), ids=HOSTILE_FUNCTIONS.keys())
def test_no_trick_of_a_function_earns_the_reward(code: str) -> None:
    expected = "918273645" if "918273645" in code else "43"
    verdict = judge(code, unit_tests(["1", "1"], [expected, "44"], "f"), timeout=2.0)
    assert verdict["reward"] == 0.0


HOSTILE_PROGRAMS = {
    "kill the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nprint(6)",
    "kill everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)\nprint(6)",
    "kill the group": "import os, signal\nos.killpg(0, signal.SIGKILL)\nprint(6)",
    "stop": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "deaf": "import signal\nfor n in (1, 2, 3, 13, 14, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 26))",
    "huge output": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "fill the disk": "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "close everything": "import os\nos.closerange(0, 256)\nprint(6)",
    "speak later": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(0.3)\n    os.write(1, b'10')\n",
}


@needs_bubblewrap
@pytest.mark.parametrize("code", HOSTILE_PROGRAMS.values(), ids=HOSTILE_PROGRAMS.keys())
def test_hostile_programs_get_nothing_and_harm_nobody(code: str) -> None:
    verifier = Code(CodeOptions(timeout=1.0, sandbox="require", memory_mb=512))
    verdict = verifier.verify(DOUBLE, answer(code))
    assert verdict["reward"] == 0.0
    assert judge("print(int(input()) * 2)", DOUBLE, sandbox="require")["reward"] == 1.0


@needs_bubblewrap
def test_secrets_of_the_environment_disk_and_network_stay_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    secret = tmp_path / "gold.txt"
    secret.write_text("sk-secret")
    attempts = [
        "import os\nprint(os.environ['OPENAI_API_KEY'])",
        f"print(open({str(secret)!r}).read())",
        "print(open('/proc/self/environ').read())",
        f"print(open('/proc/{os.getpid()}/environ').read())",
        f"import os\nprint(os.listdir({str(Path.home())!r}))",
        "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)\nprint('sk-secret')",
        "import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)",
    ]
    for code in attempts:
        assert (
            judge(code, unit_tests([""], ["sk-secret"]), sandbox="require", timeout=2.0)["reward"] == 0.0
        ), code


@needs_bubblewrap
def test_expected_outputs_are_nowhere_inside() -> None:
    marker = "4242424242"
    code = f"""
import os, sys, gc
wanted = str({marker[:5]}) + str({marker[5:]})
seen = [repr(o) for o in gc.get_objects() if type(o) in (str, bytes, dict, tuple, list) and o is not globals()]
for root, _, files in os.walk('/tmp'):
    seen += [open(os.path.join(root, name), errors='replace').read() for name in files]
print(wanted if any(wanted in text for text in seen + sys.argv + list(os.environ.values())) else 'not found')
"""
    verdict = judge(code, unit_tests([""], [marker]), sandbox="require")
    assert "not found" in verdict["metadata"]["output"]


def test_the_verdict_says_what_confined_the_program() -> None:
    assert judge("print(6)", unit_tests([""], ["6"]), sandbox="off")["sandbox"] == "limits"


@pytest.mark.parametrize("options", [{}, {"sandbox": "auto"}, {"sandbox": "require"}])
def test_loading_is_refused_without_bubblewrap(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.find_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(UsageError, match="untrusted programs are not run without a sandbox"):
            load_verifier("code", options)
        assert "limits only" in (load_verifier("code", {"sandbox": "off"}).warning or "")
    finally:
        sandbox.find_bubblewrap.cache_clear()


def test_code_is_what_stands_between_the_last_two_fence_lines() -> None:
    assert extract_code("```python\nfirst\n```\ntext\n```py\nsecond\nline\n```\nend") == "second\nline"
    assert extract_code("```\nonly\n```") == "only"
    assert extract_code("a ``` b\nin between\nc ``` d") == "in between"
    assert extract_code("```python\nunclosed") == ""
    assert extract_code("no fence") == ""


def test_an_answer_without_code_scores_zero_and_a_task_without_tests_fails() -> None:
    verifier = Code(CodeOptions(sandbox="off"))
    assert verifier.verify(DOUBLE, Response({"output": []}))["reward"] == 0.0
    with pytest.raises(Exception, match=r"UnitTests|object"):
        verifier.verify(Task({"verifier_metadata": {}}), answer("print(1)"))
    with pytest.raises(Exception, match="no set of tests"):
        verifier.verify(unit_tests(["1"], []), answer("print(1)"))
    with pytest.raises(json.JSONDecodeError):
        verifier.verify(unit_tests(["not json"], ["1"], "f"), answer("def f(x): return 1"))


def test_think_tags_in_the_answer_or_twice_in_the_reasoning_cost_the_reward() -> None:
    def reasoned(*summaries: str) -> Response:
        summary = [{"type": "summary_text", "text": text} for text in summaries]
        return Response({"output": [{"type": "reasoning", "summary": summary}, *answer("print(6)").output]})

    assert not has_format_violation(reasoned("<think>a</think>"))
    assert has_format_violation(reasoned("<think>a", "<think>b"))
    assert has_format_violation(Response({"output": [{"type": "message", "content": "</think> x"}]}))
    verifier = Code(CodeOptions(reasoning_format_penalty=-0.5, sandbox="off"))
    tests = unit_tests([""], ["6"])
    assert verifier.verify(tests, reasoned("<think>"))["reward"] == 1.0
    verdict = verifier.verify(tests, reasoned("<think><think>"))
    assert (verdict["reward"], verdict["reasoning_format_violation_rate"]) == (-0.5, 1.0)


@pytest.mark.parametrize(
    ("printed", "wanted", "is_right"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        (" 1 \n 2 \n", "1\n2", True),
        ("1.0 2.50", "1 2.5", True),
        ("1e3", "1000", True),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("1\n\n2", "1\n2", False),
        ("Yes", "YES", True),
        ("Yes sir", "YES sir", False),
        ("yes", "no", False),
        ("1 2", "1 2 3", False),
        ("0.3333333", "0.3333334", True),
        ("0.33333", "0.33334", False),
        ("1000000.5", "1000000", True),
        ("1000001", "1000000", False),
        ("50000000000000001", "50000000000000000", False),
        ("inf", "1e999999999", False),
        ("", "", True),
        ("nan", "nan", True),
        ("NaN", "nan", False),
        ("sNaN", "1", False),
        ("1", "sNaN", False),
    ],
)
def test_outputs_are_compared_line_by_line(printed: str, wanted: str, is_right: bool) -> None:
    assert (differing_lines(printed, wanted) is None) == is_right


@pytest.mark.parametrize(
    ("printed", "wanted"), [("Yes", "YES"), ("0.3333333", "0.3333334"), ("1000000.5", "1000000")]
)
def test_before_0_7_nothing_was_tolerated(printed: str, wanted: str) -> None:
    assert differing_lines(printed, wanted, is_old=True) is not None


def test_packed_tests_are_unpacked_within_bounds() -> None:
    plain = {"inputs": ["3\n"], "outputs": ["6"]}
    packed = base64.b64encode(zlib.compress(json.dumps(plain).encode())).decode()
    assert read_tests({"packed": packed, "fn_name": "f"}) == UnitTests(["3\n"], ["6"], "f")
    bomb = base64.b64encode(zlib.compress(bytes(600 << 20), 9)).decode()
    with pytest.raises(ValueError, match="longer than"):
        read_tests({"packed": bomb})


@pytest.mark.parametrize(
    ("given_value", "right", "is_right"),
    [
        ([1, 2], [1, 2], True),
        (1.0, 1, True),
        (True, 1, True),
        ({"1": 2}, {"1": 2}, True),
        (0.1 + 0.2, 0.3, True),
        ("3", 3, False),
        ("3.0", 3.0, True),
        (1.00002, 1.0, False),
        ([0.1 + 0.2], [0.3], True),
        ([[0.1 + 0.2]], [[0.3]], False),
        (True, 1.0, True),
        (True, 1.0000001, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (float("inf"), 1.0, False),
        (None, False, False),
        ("a", "A", False),
        (10**400, 1.0, False),
    ],
)
def test_values_are_compared_as_json_or_as_close_numbers(
    given_value: Any, right: Any, is_right: bool
) -> None:
    assert equal_values(given_value, right) == is_right


def test_before_0_7_a_text_was_a_number_and_lists_had_no_tolerance() -> None:
    assert equal_values("3", 3, is_old=True)
    assert not equal_values([0.1 + 0.2], [0.3], is_old=True)


def test_only_what_a_program_mentions_is_imported_before_it() -> None:
    assert prelude("print(1)") == []
    assert prelude("sqrt(List)") == [("typing", "List"), ("math", "sqrt")]
    assert prelude("datetime.date; pow(2, 3)") == [
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", None),
    ]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["1", "1.0", "x", "", " 2 ", "\t", "1 2"]), max_size=5))
def test_an_output_equals_itself_with_other_white_space_at_the_ends_of_lines(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert differing_lines("\n".join(f" {line}\t" for line in lines) + "\n", text) is None
