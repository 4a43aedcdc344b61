"""No way of giving a key to rollforge leaves it in a run's files, on stdout or stderr, or in a sink.

Each way has a secret of its own, so one command tries many. Everything that was written or printed is searched for all of them.
"""

from __future__ import annotations

import base64
import html
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from rollforge.endpoint.failures import failure_from_exception, failure_from_status
from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.text_safety.markup import tag
from rollforge.text_safety.outgoing import cut
from rollforge.text_safety.redaction import SECRETS, Redactor

TRIED: list[str] = []


def secret(way: str) -> str:
    """A secret for one way, of a shape that no rule about shapes knows."""
    TRIED.append(way)
    return f"LEAK{len(TRIED)}q7Zr{len(TRIED)}xW9v"


def run(
    folder: Path, *words: str, env: dict[str, str] | None = None, verb: str = "collect"
) -> subprocess.CompletedProcess[str]:
    tasks = folder / "tasks.jsonl"
    if not tasks.exists():
        tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(4, 0, "math")))
    is_whole = verb != "collect" or "-o" in words
    begin = [verb] if is_whole else [verb, "-i", "tasks.jsonl", "-o", "run", "-m", "simulated"]
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *begin, *words],
        cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def assert_no_leak(folder: Path, done: subprocess.CompletedProcess[str], *secrets: str) -> None:
    places = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    places |= {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("config.toml", "verifier.py")
    }
    places["names of files"] = "\n".join(map(str, folder.rglob("*"))).encode()
    for value in secrets:
        spellings = {
            value,
            base64.b64encode(value.encode()).decode(),
            base64.b64encode(f"user:{value}".encode()).decode(),
        }
        leaks = [name for name, data in places.items() if any(one.encode() in data for one in spellings)]
        assert not leaks, f"{value} is in {leaks}"


def test_keys_in_the_environment_and_echoed_by_the_server(tmp_path: Path) -> None:
    """1–6: the key of --api-key-env, echoed in error bodies with several statuses, on stderr, in failures and in the manifest."""
    for status in ("401", "400", "500", "422", "403"):
        key = secret(f"Authorization header echoed in a {status}")
        folder = tmp_path / status
        folder.mkdir()
        with SimulatedProcess(SimulateOptions(faults=(f"echo-headers=1.0,status={status}",))) as server:
            done = run(
                folder, "--base-url", server.base_url, "--api-key-env", "MY_KEY", "--attempts", "1", "--retries", "0",
                "--json", env={"MY_KEY": key},
            )  # fmt: skip
        assert done.returncode != 0
        assert_no_leak(folder, done, key)
    key = secret("key of --api-key-env in a healthy run")
    done = run(tmp_path, "--api-key-env", "MY_KEY", "--verifier", "exact", env={"MY_KEY": key})
    assert done.returncode == 0, done.stderr
    assert_no_leak(tmp_path, done, key)


@pytest.mark.parametrize(
    "words",
    [
        ("-S", "api_key={}"),
        ("-S", "extra_body.api_key={}"),
        ("-S", "metadata.token={}"),
        ("-S", "headers.Authorization={}"),
        ("-S", "extra_body.accessToken={}"),
        ("-S", "extra_body.clientSecret={}"),
        ("--api-key-env", "{}"),
        ("--step-size", "2", "--buffer", "host=127.0.0.1 password={}"),
        ("--on", "ray:127.0.0.1:9?token={}"),
        ("--set", "password={}"),
        ("--api-key-env", "sk-{}abcdefghijklmnop"),
        ("--base-url", "http://user:{}@127.0.0.1:9/v1"),
        ("--base-url", "http://127.0.0.1:9/v1?api_key={}"),
        ("--base-url", "http://{}@127.0.0.1:9/v1"),
        ("--gym-agent", "http://user:{}@127.0.0.1:9"),
        ("--gym-resources", "http://127.0.0.1:9?token={}"),
        ("--verifier", "judge", "--verifier-set", "api_key={}"),
        ("--verifier", "judge", "--verifier-set", "base_url=http://user:{}@127.0.0.1:9/v1"),
        ("--step-size", "2", "--buffer", "postgresql://user:{}@127.0.0.1:9/db"),
        ("--step-size", "2", "--buffer", "postgresql://127.0.0.1:9/db?password={}"),
        ("--step-size", "2", "--sink", "mlflow=http://user:{}@127.0.0.1:9"),
        ("--step-size", "2", "--sink", "otel=http://127.0.0.1:9?token={}"),
        ("--tools", "mcp:http://user:{}@127.0.0.1:9/mcp"),
        ("--tools", "mcp:http://127.0.0.1:9/mcp?token={}"),
        ("--input", "https://user:{}@127.0.0.1:9/tasks.jsonl"),
    ],
    ids=lambda words: " ".join(words),
)
def test_keys_typed_where_they_do_not_belong(tmp_path: Path, words: tuple[str, ...]) -> None:
    """7–26: refused, or used and masked; never repeated."""
    key = secret(" ".join(words))
    begin = [word.format(key) for word in words]
    done = run(tmp_path, *begin, "--json")
    assert_no_leak(tmp_path, done, key)
    assert "Traceback" not in done.stderr


def test_keys_that_are_used_and_masked(tmp_path: Path) -> None:
    """27–33: NeMo Gym's word, config file, a verifier's own option, and what a verifier returns and raises."""
    gym, own, config = secret("+policy_api_key="), secret("a verifier's option"), secret("config file")
    named = secret("a variable that a verifier's option names")
    (tmp_path / "verifier.py").write_text(
        "import os\n"
        "def verify(task, response, access_token='', endpoint='', key_env=''):\n"
        "    if task.index == 1:\n"
        "        raise ValueError(f'cannot reach {endpoint} with {access_token}')\n"
        "    return {'reward': 1.0, 'note': f'{access_token} {endpoint} {os.environ.get(key_env)}'}\n"
    )
    (tmp_path / "config.toml").write_text(
        "[collect]\nverifier = 'verifier.py:verify'\n"
        f"verifier_set = ['access_token={own}', 'endpoint=http://x.example/?token={config}', 'key_env=NAMED_KEY']\n"
    )
    done = run(
        tmp_path, f"+policy_api_key={gym}", "--config", "config.toml", "--json", "--verify-workers", "0",
        env={"NAMED_KEY": named, "ROLLFORGE_COLLECT_OUTAGE_PATIENCE": "5s"},
    )  # fmt: skip
    rows = (tmp_path / "run" / "rollouts.jsonl").read_text()
    assert "***" in rows, done.stderr
    assert_no_leak(tmp_path, done, gym, own, config, named)
    again = run(
        tmp_path, f"+policy_api_key={gym}", "--config", "config.toml", "--json", env={"NAMED_KEY": named}
    )
    assert again.returncode in (0, 3), "masked settings do not keep a run from being resumed"
    assert_no_leak(tmp_path, again, gym, own, config, named)


@pytest.mark.parametrize(
    "command",
    [
        *("cat --api-key {}", "cat --token={}", "env OPENAI_API_KEY={} cat", "cat --env=OPENAI_API_KEY={}"),
        *("cat -H 'X-Api-Key: {}'", "cat -H Authorization:{}", "cat -H 'Authorization: ApiKey {}'"),
        *("cat -u user:{}", "sh -c 'cat --api-key {}'", """sh -c 'cat -H "Private-Token: {}"'"""),
    ],
)
def test_a_key_in_the_command_line_of_a_program(tmp_path: Path, command: str) -> None:
    key = secret(command)
    program = (
        "--agent",
        f"program:{command.format(key)}",
        "--sandbox",
        "off",
        "--no-verify",
        "--attempts",
        "1",
    )
    for more in ((), ("--workers", "2", "--fresh")):
        done = run(tmp_path, *program, *more, "--json")
        assert done.returncode == 3, done.stderr
        assert_no_leak(tmp_path, done, key)
    assert "***" in (tmp_path / "run" / "rollouts_run.json").read_text()


@pytest.mark.parametrize("name", ["MY_KEY", "DBPASSWORD", "MYSECRET", "github_token", "GITHUB_PAT"])
def test_a_variable_that_a_program_gets_and_prints(tmp_path: Path, name: str) -> None:
    key = secret(f"--pass-env {name}")
    program = f'program:sh -c "echo ${name}; echo ${name} >&2; exit 3"'
    words = ("--agent", program, "--sandbox", "off", "--pass-env", name, "--no-verify", "--attempts", "1")
    done = run(tmp_path, *words, "--json", env={name: key})
    assert done.returncode == 3, done.stderr
    assert "***" in (tmp_path / "run" / "rollouts_failures.jsonl").read_text()
    assert_no_leak(tmp_path, done, key)


def test_a_password_in_an_address_that_a_program_gets(tmp_path: Path) -> None:
    key = secret("--pass-env DATABASE_URL")
    program = 'program:sh -c "echo $DATABASE_URL; exit 3"'
    words = (
        "--agent",
        program,
        "--sandbox",
        "off",
        "--pass-env",
        "DATABASE_URL",
        "--no-verify",
        "--attempts",
        "1",
    )
    done = run(tmp_path, *words, "--json", env={"DATABASE_URL": f"postgresql://me:{key}@127.0.0.1/db"})
    assert done.returncode == 3, done.stderr
    assert_no_leak(tmp_path, done, key)


@pytest.mark.parametrize("form", [("-o", "{}"), ("--out={}",)], ids=str)
def test_a_key_in_the_address_of_a_bucket_names_no_folder(tmp_path: Path, form: tuple[str, ...]) -> None:
    key = secret(f"bucket address in {form[0]}")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"prompt": "?"}) + "\n")
    address = f"s3://bucket/run?secret_access_key={key}"
    words = ("-i", "tasks.jsonl", "-m", "simulated", *(word.format(address) for word in form))
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "collect", *words, "--no-verify"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "holds a key" in done.stderr, done.stderr
    assert_no_leak(tmp_path, done, key)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_half_a_secret_at_the_end_of_a_message_that_was_cut() -> None:
    key = secret("a message that is cut inside the key")
    SECRETS.learn(key)
    text = "x" * 480 + f"({key}) ({key}) ({key})"
    for most in range(470, 520):
        assert key[:4] not in cut(text, most)
    for begin in range(460, 500):
        body = json.dumps({"error": {"message": "x" * begin + key}}).encode()
        assert key[:4] not in failure_from_status(400, body, {}).message
        assert key[:4] not in failure_from_exception(OSError("x" * begin + key), 1.0).message


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """A server that repeats every header in its refusal."""
    with SimulatedProcess(SimulateOptions(faults=("echo-headers=1.0,status=400",))) as server:
        yield server.base_url


@pytest.mark.parametrize("key", ["topsecretkey", "secret", "4711471147114711", "se-cret", "üxyzabc1"])
def test_keys_that_look_like_words_or_numbers(tmp_path: Path, echo: str, key: str) -> None:
    TRIED.append(key)
    done = run(
        tmp_path, "--base-url", echo, "--api-key-env", "MY_KEY", "--attempts", "1", "--retries", "0", env={"MY_KEY": key}
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "Bearer ***" in (tmp_path / "run" / "rollouts_failures.jsonl").read_text()
    for path in (tmp_path / "run").rglob("*.json*"):
        assert f"Bearer {key}" not in path.read_text()


@pytest.mark.parametrize("verifier", ["judge", "equivalence_judge"])
def test_keys_of_a_judge_that_echoes_them(tmp_path: Path, echo: str, verifier: str) -> None:
    """`collect` in one process and in several, `verify` in both, and the probe of a judge."""
    key = secret(f"key of a {verifier}")
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"prompt": "1 + 1?", "expected_answer": "2", "rubric": "Is it 2?"}) + "\n"
    )
    options = [f"base_url={echo}", "model=m", "api_key_env=MY_KEY"]
    judge = ["--verifier", verifier, *(word for one in options for word in ("--verifier-set", one))]
    for words in (
        ["collect", "-i", "tasks.jsonl", "-m", "simulated", "-o", "run", *judge],
        ["collect", "-i", "tasks.jsonl", "-m", "simulated", "-o", "spread", "--workers", "2", *judge],
        ["verify", "run", "--fresh", *judge],
        ["verify", "run", "--fresh", "--workers", "2", *judge],
        ["verify", "run", "--probe", *judge],
    ):
        done = run(tmp_path, *words[1:], verb=words[0], env={"MY_KEY": key})
        assert done.returncode in (3, 5), done.stderr
        assert_no_leak(tmp_path, done, key)
    assert "Bearer ***" in (tmp_path / "run" / "rollouts_failures.jsonl").read_text()


def test_a_key_of_the_model_in_worker_processes(tmp_path: Path, echo: str) -> None:
    key = secret("key of --api-key-env with --workers")
    done = run(
        tmp_path, "--base-url", echo, "--api-key-env", "MY_KEY", "--attempts", "1", "--retries", "0", "--workers", "2",
        env={"MY_KEY": key},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert_no_leak(tmp_path, done, key)


def test_every_reading_command_stays_clean(tmp_path: Path) -> None:
    key = secret("key echoed as an answer, then read by status, show and profile")
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"prompt": f"repeat {key}", "expected_answer": "1"}) + "\n"
    )
    done = run(tmp_path, "--verifier", "exact", "--api-key-env", "MY_KEY", env={"MY_KEY": key})
    assert done.returncode == 0, done.stderr
    (tmp_path / "tasks.jsonl").unlink()
    for verb in ("status", "show", "profile", "metrics"):
        shown = run(tmp_path, "run", verb=verb)
        assert_no_leak(tmp_path, shown, key)


@pytest.mark.parametrize(
    "key",
    ["pa\"ss&w<0>rd'9", "clé-secrète-4711", "back\\slash-11/22", "sp ace+key/12345", "key>>>???~~~4711"],
)
def test_a_secret_is_known_in_every_spelling(key: str) -> None:
    redactor = Redactor()
    redactor.learn(key)
    TRIED.append(key)
    data = key.encode()
    for text in (
        *(key, json.dumps(key), json.dumps(key, ensure_ascii=False), json.dumps(key).replace("/", "\\/")),
        *(json.dumps(json.dumps(key, ensure_ascii=False), ensure_ascii=False), repr(key)),
        *(html.escape(key), html.escape(key, quote=False), str(tag("p", key))),
        *(quote(key), quote(key, safe=""), quote_plus(key)),
        *(base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode().rstrip("=")),
    ):
        assert "***" in redactor.text(f"({text})") and len(redactor.text(text)) < 12, text


def test_a_task_row_is_the_users_own_unless_a_known_secret_is_in_it(tmp_path: Path) -> None:
    """What looks like a key in a prompt is text to learn from; the keys of this command are secrets there too."""
    key, text = secret("a known key in a task row"), "sk-of-nobody-0123456789abcdef"
    row = {"prompt": f"{key} {text}", "expected_answer": text, "api_key": text, "metadata": {"token": key}}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    done = run(tmp_path, "--verifier", "exact", "--api-key-env", "MY_KEY", env={"MY_KEY": key})
    assert done.returncode == 0, done.stderr
    (tmp_path / "tasks.jsonl").unlink()
    assert_no_leak(tmp_path, done, key)
    written = json.loads((tmp_path / "run" / "rollouts_tasks.jsonl").read_text())
    assert (written["prompt"], written["api_key"], written["metadata"]) == (
        f"*** {text}",
        text,
        {"token": "***"},
    )


def test_words_that_are_no_secrets_are_left_alone() -> None:
    redactor = Redactor()
    redactor.learn_words(
        ["--sort", "reward", "-S", "max_tokens=123456", "--api-key-env", "OPENAI_API_KEY", "--seed=7"]
    )
    redactor.learn_from(
        {"api_key": "EMPTY", "token": "simulated", "max_output_tokens": 5, "model": "qwen2.5-7b"}
    )
    redactor.learn_from(
        {"agent": "program:python agent.py --model=qwen2.5-7b -c 'time: 12:30:45' http://h:8000/v1"}
    )
    redactor.learn_from(
        {"maxTokens": "qwen2.5-7b", "api_key_env": "MY_API_KEY_2", "pass_env": ["PATH", "HOME"]}
    )
    text = "EMPTY simulated OPENAI_API_KEY qwen2.5-7b 123456 MY_API_KEY_2 12:30:45 http://h:8000/v1 /usr/bin agent.py"
    assert redactor.text(text) == text
    assert redactor.data(text.encode()) == text.encode()
    for placeholder in ("EMPTY", "not-needed", "no-api-key", "your_api_key", "simulated", "unused", "none"):
        redactor.learn(placeholder)
    redactor.learn("20261118")
    text = '{"a":20261118,"b":"not-needed EMPTY none unused"}'
    assert redactor.text(text) == text


def test_at_least_the_known_ways_were_tried() -> None:
    if len(TRIED) > 5:  # with the tests above, in one process
        print(f"{len(TRIED)} ways of giving a secret were tried")
