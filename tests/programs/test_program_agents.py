"""Programs as agents: what they find, what is recorded, and what each way of ending becomes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.sandbox import programs
from rollforge.sandbox.programs import find_program_bubblewrap
from tests.programs.running import collected

MODES = [
    "off",
    pytest.param(
        "require",
        marks=pytest.mark.skipif(
            find_program_bubblewrap()[0] is None, reason="bubblewrap does not work here"
        ),
    ),
]


@pytest.mark.parametrize("sandbox", MODES)
async def test_a_program_finds_its_task_its_directories_and_nothing_else(
    tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hidden")
    monkeypatch.setenv("MY_WISH", "seen")
    copied = tmp_path / "start"
    copied.mkdir()
    (copied / "given.txt").write_text("from the directory")
    seen = await collected(
        tmp_path,
        """
ask(user("hi"))
task = json.load(open(os.environ["ROLLFORGE_TASK"]))
print(json.dumps({
    "words": sys.argv[1:], "stdin": sys.stdin.read(), "files": sorted(os.listdir(".")), "env": dict(os.environ),
    "task": task, "prompt": open(os.environ["ROLLFORGE_PROMPT"]).read(), "home": os.listdir(os.environ["HOME"]),
    "given": open("given.txt").read(), "own": open("src/own.txt").read(), "cwd": os.getcwd(),
}))
open("left.txt", "w").write("x")
open(os.environ["ROLLFORGE_RESULT"], "w").write("the result")
""",
        words="{prompt} {task} {workdir}",
        tasks=[
            {
                "expected_answer": "4",
                "topic": "sums",
                "extra_info": {"split": "train", "answer": "4"},
                "files": {"src/own.txt": "from the task"},
            }
        ],
        sandbox=sandbox,
        workdir=str(copied),
        pass_env=("MY_WISH",),
        stdin="prompt",
        artifacts=("*.txt",),
        samples=2,
    )
    assert seen.result.ending == "done", seen.failures
    row = seen.rows[0]
    found: dict[str, Any] = json.loads(row["_rf"]["program"]["stdout"])
    assert found["words"] == ["What is 2 + 2?", found["env"]["ROLLFORGE_TASK"], found["cwd"]]
    assert found["stdin"] == found["prompt"] == "What is 2 + 2?"
    assert found["files"] == ["given.txt", "src"] and found["home"] == []
    assert (found["given"], found["own"]) == ("from the directory", "from the task")
    assert found["task"]["topic"] == "sums" and "expected_answer" not in str(found["task"])
    assert found["task"]["extra_info"] == {"split": "train"}
    assert found["env"]["MY_WISH"] == "seen" and "MY_SECRET" not in found["env"]
    assert found["env"]["HOME"] != os.environ["HOME"]
    assert {"OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "LLM_BASE_URL"} <= set(found["env"])
    assert sorted(entry["path"] for entry in row["response"]["artifacts"]) == ["given.txt", "left.txt"]
    assert row["response"]["result"] == "the result" and "workdir" not in row["response"]
    if sandbox == "require":
        assert found["cwd"] == "/work"


async def test_calls_become_sequences_and_the_prompt_as_played_is_kept(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
tools = [{"type": "function", "function": {"name": "sh", "parameters": {"type": "object", "properties": {}}}}]
talk = [{"role": "system", "content": "Be brief."}, *user('Do it.\\ncall sh {"a": 1, "b": 2}')]
first = ask(talk, tools=tools)
call = first["tool_calls"][0]
call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
ask(user("Give this a title."))
ask([*talk, first, {"role": "tool", "tool_call_id": call["id"], "content": "done"}], tools=tools)
""",
        sandbox="off",
        logprobs=True,
    )
    (row,) = ran.rows
    main, title = row["_rf"]["sequences"]
    assert (main["role"], main["calls"], main["turns"]) == ("main", [0, 2], 2)
    assert (title["role"], title["calls"], title["fidelity"]) == ("auxiliary", [1], "exact")
    assert main["fidelity"] == "drift" and main["drift"]["turn"] == 2 and main["drift"]["tokens"] > 0
    assert [item["type"] for item in row["response"]["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert row["_rf"]["played"]["input"][0]["content"] == "Be brief."
    assert row["responses_create_params"]["input"][0]["content"] == "What is 2 + 2?"
    assert len(ran.calls) == 3 and {call["session"] for call in ran.calls} == {
        row["_rf"]["program"]["session"]
    }
    usage = row["response"]["usage"]
    assert (usage["model_calls"], usage["sequences"], usage["drift_turns"]) == (3, 2, 1)


async def test_how_a_program_ends_decides_what_the_rollout_is(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
kind = json.load(open(os.environ["ROLLFORGE_TASK"]))["kind"]
if kind == "silent":
    sys.exit(0)
ask(user("hi " + kind))
if kind == "exit":
    sys.stderr.write("it broke\\n")
    sys.exit(7)
if kind == "late":
    import time
    time.sleep(600)
""",
        tasks=[{"kind": kind} for kind in ("exit", "silent", "late", "fine")],
        sandbox="off",
        rollout_deadline_s=4.0,
        max_failures="100%",
    )
    by_task = {row["_ng_task_index"]: row for row in ran.failures}
    assert [row["_ng_task_index"] for row in ran.rows] == [3]
    assert "exit code 7: it broke" in by_task[0]["message"] and by_task[0]["class"] == "agent"
    assert by_task[0]["response"]["output"] and "it broke" in by_task[0]["response"]["program"]["stderr"]
    assert "did it read OPENAI_BASE_URL?" in by_task[1]["message"] and by_task[1]["_ng_failure_terminal"]
    assert by_task[2]["class"] == "timeout" and by_task[2]["response"]["output"]
    assert all(row["reward"] is None for row in ran.rows)
    assert len(ran.calls) == 3


@pytest.mark.parametrize("sandbox", MODES)
async def test_what_a_program_wrote_before_its_deadline_is_kept(tmp_path: Path, sandbox: str) -> None:
    ran = await collected(
        tmp_path,
        """
import time
calls = json.load(open(os.environ["ROLLFORGE_TASK"]))["calls"]
for number in range(calls):
    ask(user(f"hi {number}"))
print(f"after {calls} calls", flush=True)
sys.stderr.write("waiting for a login\\n")
sys.stderr.flush()
time.sleep(600)
""",
        tasks=[{"calls": 0}, {"calls": 2}],
        sandbox=sandbox,
        rollout_deadline_s=4.0,
        max_failures="100%",
        price="1/2",
    )
    silent, asked = sorted(ran.failures, key=lambda row: row["_ng_task_index"])
    for row, calls in ((silent, 0), (asked, 2)):
        assert row["class"] == "timeout" and row["requests"] == calls
        program = row["response"]["program"]
        assert program["stdout"] == f"after {calls} calls\n" and program["calls"] == calls
        assert program["stderr"] == "waiting for a login\n" and program["exit_code"] is None
        assert row["response"]["status"] == "incomplete"
    assert silent["_rf"]["cost"] == 0.0 and asked["_rf"]["cost"] > 0


async def test_a_program_without_an_answered_call_cost_nothing(tmp_path: Path) -> None:
    for name, source, model in (
        ("silent", "sys.exit(3)", {}),
        ("refused", 'ask(user("hi"))', {"faults": ("overflow=1",)}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        ran = await collected(folder, source, sandbox="off", model=model, price="1/2")
        assert [row["_rf"]["cost"] for row in ran.failures] == [0.0], name


async def test_a_program_that_dies_of_the_model_is_the_models_failure(tmp_path: Path) -> None:
    ran = await collected(tmp_path, 'ask(user("hi"))', sandbox="off", model={"faults": ("overflow=1",)})
    (failure,) = ran.failures
    assert failure["class"] == "context-overflow" and failure["boundary"] == "model"
    assert "exit code 1" in failure["message"]


async def test_calls_after_the_end_and_strangers_are_named_in_the_notes(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
ask(user("hi"))
os.environ["OPENAI_BASE_URL"] = os.environ["OPENAI_BASE_URL"].replace("/r/", "/r/0")
try:
    ask(user("stranger"))
except urllib.error.HTTPError as error:
    print(error.code)
""",
        sandbox="off",
    )
    assert ran.rows[0]["_rf"]["program"]["stdout"] == "401\n"
    assert any("had no known secret" in note for note in ran.result.notes)


async def test_what_a_program_prints_is_bounded_and_its_secret_masked(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
ask(user("hi"))
print("first", os.environ["OPENAI_API_KEY"])
print("x" * 1_000_000)
print("last")
""",
        sandbox="off",
    )
    printed = ran.rows[0]["_rf"]["program"]["stdout"]
    assert printed.startswith("first rf-…") and printed.endswith("last\n")
    assert len(printed) < 70_000 and "bytes are left out" in printed


async def test_a_verifier_sees_workdir_artifacts_and_result(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        """
from pathlib import Path

def verify(task, response):
    in_place = (Path(response.workdir) / "out.txt").read_text()
    kept = response.artifacts[0].text()
    return {"reward": 1.0 if in_place == kept == response.result == "42" else 0.0}
"""
    )
    ran = await collected(
        tmp_path,
        """
ask(user("hi"))
open("out.txt", "w").write("42")
open(os.environ["ROLLFORGE_RESULT"], "w").write("42")
""",
        sandbox="off",
        artifacts=("*.txt",),
        verifier=f"{tmp_path}/judge.py:verify",
    )
    assert [row["reward"] for row in ran.rows] == [1.0], ran.failures
    kept = ran.rows[0]["response"]["artifacts"][0]
    assert (ran.out / kept["file"]).read_text() == "42"


async def test_a_glob_of_artifacts_that_matches_nothing_is_said(tmp_path: Path) -> None:
    source = """
ask(user("hi"))
open("out.txt", "w").write("42")
"""
    ran = await collected(tmp_path, source, sandbox="off", artifacts=("*.txt", "*.patch"), no_verify=True)
    notes = [note for note in ran.result.agent_notes if "--artifacts" in note]
    assert notes == ["--artifacts *.patch: no file matched in any rollout"]


async def test_equal_answers_with_other_files_get_verdicts_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "from pathlib import Path\n\ndef verify(task, response):\n"
        "    return float((Path(response.workdir) / 'out.txt').read_text())\n"
    )
    ran = await collected(
        tmp_path,
        'ask(user("hi"), temperature=0)\nimport random\nopen("out.txt", "w").write(str(random.random()))',
        sandbox="off",
        samples=4,
        verifier=f"{tmp_path}/judge.py:verify",
    )
    assert len({row["reward"] for row in ran.rows}) == 4


async def test_large_artifacts_and_links_are_not_kept(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
ask(user("hi"))
open("big.txt", "w").write("x" * 5000)
open("small.txt", "w").write("x")
os.symlink("/etc/passwd", "link.txt")
os.symlink("/etc", "folder")
os.mkfifo("pipe.txt")
""",
        sandbox="off",
        artifacts=("**/*.txt", "**/passwd"),
        max_artifact_bytes=1000,
    )
    kept = {entry["path"]: entry["file"] for entry in ran.rows[0]["response"]["artifacts"]}
    assert set(kept) == {"big.txt", "small.txt"} and kept["big.txt"] is None and kept["small.txt"]


@pytest.mark.parametrize("sandbox", MODES)
async def test_the_verifier_script_judges_by_a_reward_file_and_never_by_its_absence(
    tmp_path: Path, sandbox: str
) -> None:
    scripts = [
        'test "$(cat out.txt)" = 42 && echo 1 > "$ROLLFORGE_REWARD"',
        'echo \'{"reward": 0.5, "passed": 3}\' > "$ROLLFORGE_REWARD"',
        ': > "$ROLLFORGE_REWARD"',
        'echo nan > "$ROLLFORGE_REWARD"',
        'echo well done > "$ROLLFORGE_REWARD"',
        "exit 3",
        'cp "$ROLLFORGE_TESTS/reward" "$ROLLFORGE_REWARD"',
    ]
    ran = await collected(
        tmp_path,
        'ask(user("hi"))\nopen("out.txt", "w").write("42")\nopen("reward.txt", "w").write("1")',
        tasks=[{"test_script": script, "test_files": {"reward": "0.25"}} for script in scripts],
        sandbox=sandbox,
        verifier="script",
        verifier_options={"sandbox": sandbox},
    )
    rewards = {row["_ng_task_index"]: row["reward"] for row in ran.rows}
    assert rewards == {0: 1.0, 1: 0.5, 2: None, 3: None, 4: None, 5: None, 6: 0.25}
    assert next(row for row in ran.rows if row["_ng_task_index"] == 1)["passed"] == 3
    assert {row["boundary"] for row in ran.failures} == {"verifier"} and len(ran.failures) == 4


async def test_a_rollout_is_judged_again_from_its_artifacts(tmp_path: Path) -> None:
    from rollforge.rollouts import RolloutReader
    from rollforge.verifiers.script import Script, ScriptOptions

    ran = await collected(
        tmp_path,
        'ask(user("hi"))\nopen("out.txt", "w").write("42")',
        sandbox="off",
        artifacts=("*.txt",),
    )
    (rollout,) = RolloutReader(ran.out / "rollouts.jsonl")
    task = Task({"test_script": 'cp out.txt "$ROLLFORGE_REWARD"'})
    verifier = Script(ScriptOptions(sandbox="off"))
    assert await verifier.verify(task, rollout.response) == {"reward": 42, "sandbox": "limits"}
    gone = Response({**rollout.response.raw, "artifacts": []})
    with pytest.raises(ValueError, match="no artifacts were kept"):
        await verifier.verify(task, gone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent": "program:no-such-program"}, "is not here"),
        ({"agent": "program:"}, "names no command"),
        ({"agent": "program:cat 'x"}, "No closing quotation"),
        ({"agent": "program:cat", "workdir": "/no/such"}, "no such directory"),
        ({"agent": "program:cat", "pass_env": ("NO_SUCH_NAME",)}, "NO_SUCH_NAME is not set"),
        ({"agent": "program:cat", "sandbox": "off", "network": "none"}, "needs the sandbox"),
        ({"agent": "codex", "tools": ("x.py",)}, "brings its own"),
        ({"artifacts": ("*",)}, "--artifacts is read only with --agent program"),
        (
            {"agent": "program:cat", "sandbox": "off", "withhold": ("rubrik",)},
            "--withhold rubrik: no task has this field",
        ),
    ],
)
async def test_mistakes_are_refused_before_anything_is_sent(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    from rollforge.steps.collect import Collection
    from rollforge.steps.collect.collect_options import CollectOptions

    (tmp_path / "tasks.jsonl").write_text('{"prompt": "hi", "extra": [{"rubric": 1}]}\n')
    with pytest.raises(UsageError, match=words):
        await Collection(
            CollectOptions(
                input=str(tmp_path / "tasks.jsonl"),
                out=str(tmp_path / "run"),
                model="simulated",
                no_verify=True,
                **options,
            )
        ).run()


async def test_a_file_of_a_task_cannot_lie_outside_the_working_directory(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        'ask(user("hi"))',
        tasks=[
            {"files": {"../x": "1"}},
            {"files": {"/tmp/x": "1"}},
            {"files": ["a"]},
            {"files": {"ok": "1"}},
        ],
        sandbox="off",
        max_failures="100%",
    )
    assert len(ran.rows) == 1 and {row["class"] for row in ran.failures} == {"permanent"}


HOSTILE_PROMPTS = [
    "braces {key} {base_url} {task} {prompt} {model} {other} {}",
    "--help",
    "a\nb 'c' \"d\" $HOME `id`; rm -r * && $(true) %s \\ \u202e",
]


@pytest.mark.parametrize("sandbox", MODES)
async def test_a_prompt_reaches_the_program_as_it_is(tmp_path: Path, sandbox: str) -> None:
    ran = await collected(
        tmp_path,
        'ask(user("hi"))\nprint(json.dumps([sys.argv[1], open(os.environ["ROLLFORGE_PROMPT"]).read()]))',
        words="{prompt}",
        tasks=[{"prompt": prompt} for prompt in HOSTILE_PROMPTS],
        sandbox=sandbox,
    )
    printed = [json.loads(row["_rf"]["program"]["stdout"]) for row in ran.rows]
    assert sorted(printed) == sorted([prompt, prompt] for prompt in HOSTILE_PROMPTS), ran.failures


async def test_a_prompt_that_no_command_can_hold_fails_once_and_names_the_other_ways(tmp_path: Path) -> None:
    prompts = ["x" * 200_000, "a\0b"]
    ran = await collected(
        tmp_path,
        'ask(user("hi"))',
        words="{prompt}",
        tasks=[{"prompt": prompt} for prompt in prompts],
        sandbox="off",
        attempts=3,
        max_failures="100%",
    )
    assert [row["class"] for row in ran.failures] == ["permanent", "permanent"] and not ran.rows
    assert all("ROLLFORGE_PROMPT" in row["message"] for row in ran.failures)
    (tmp_path / "stdin").mkdir()
    source = 'ask(user("hi"))\nprint(len(sys.stdin.read()), len(open(os.environ["ROLLFORGE_PROMPT"]).read()))'
    ran = await collected(
        tmp_path / "stdin",
        source,
        tasks=[{"prompt": prompt} for prompt in prompts],
        sandbox="off",
        stdin="prompt",
    )
    assert {row["_rf"]["program"]["stdout"] for row in ran.rows} == {"200000 200000\n", "3 3\n"}


@pytest.mark.skipif(find_program_bubblewrap()[0] is None, reason="bubblewrap does not work here")
@pytest.mark.parametrize("name", ["WORK", "HOME", "CONTROL"])
async def test_a_program_that_lies_where_the_sandbox_has_a_directory_is_still_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A checkout in /work: the working directory must not lie over it, nor must the checkout lie in it."""
    monkeypatch.setattr(programs, name, str(tmp_path))
    ran = await collected(
        tmp_path,
        'ask(user("hi"))\nprint(os.listdir("."), os.path.exists(__file__), open(os.environ["ROLLFORGE_PROMPT"]).read())',
        sandbox="require",
    )
    assert ran.rows and ran.rows[0]["_rf"]["program"]["stdout"] == "[] True What is 2 + 2?\n", ran.failures


async def test_a_changed_program_is_not_resumed(tmp_path: Path) -> None:
    from rollforge.errors import ResumeRefused

    await collected(tmp_path, 'ask(user("hi"))', sandbox="off")
    with pytest.raises(ResumeRefused, match="program_files"):
        await collected(tmp_path, 'ask(user("another"))', sandbox="off")


async def test_a_run_whose_programs_would_read_something_else_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollforge.errors import ResumeRefused

    monkeypatch.setenv("MY_WISH", "seen")
    start = tmp_path / "start"
    (start / "src").mkdir(parents=True)
    (start / "src" / "own.txt").write_text("one")

    async def again(**options: Any) -> None:
        await collected(tmp_path, 'ask(user("hi"))', sandbox="off", workdir=str(start), **options)

    await again()
    await again(samples=2)
    for name, options in (
        ("stdin", {"stdin": "prompt"}),
        ("withhold", {"withhold": ("topic",)}),
        ("pass_env", {"pass_env": ("MY_WISH",)}),
    ):
        with pytest.raises(ResumeRefused, match=name):
            await again(**options)
    (start / "src" / "own.txt").write_text("two")
    with pytest.raises(ResumeRefused, match="workdir_files"):
        await again()


def test_two_processes_never_write_the_same_file_of_calls(tmp_path: Path) -> None:
    from rollforge.agents.recorded_programs.recording import claim_journal
    from rollforge.store import RunFiles

    first, one = claim_journal(RunFiles(tmp_path / "run"))
    second, two = claim_journal(RunFiles(tmp_path / "run"))
    os.close(one)
    again, three = claim_journal(RunFiles(tmp_path / "run"))
    for handle in (two, three):
        os.close(handle)
    assert [path.name for path in (first, second, again)] == [
        "rollouts_calls.jsonl",
        "rollouts_calls_2.jsonl",
        "rollouts_calls.jsonl",
    ]
