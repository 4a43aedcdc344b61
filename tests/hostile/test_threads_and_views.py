"""Threads that learn secrets and addresses at once, what a sandbox shows of the home directory, numbers that no float holds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollforge import sandbox
from rollforge.errors import UsageError
from rollforge.experience.from_rollout import _finite_logprobs, _reward, row_metrics
from rollforge.sandbox import programs
from rollforge.steps.serve.aggregate import aggregate
from rollforge.store import reading
from rollforge.store.costs import CostTally, to_units
from rollforge.store.objects import ObjectFolder
from rollforge.text_safety.bucket_addresses import Addresses
from rollforge.text_safety.redaction import Redactor
from rollforge.verifiers.judge import RubricJudge, RubricJudgeOptions

HUGE = 10**400


def test_addresses_are_added_while_other_threads_print() -> None:
    addresses = Addresses()
    ended = threading.Event()

    def printed() -> None:
        while not ended.is_set():
            addresses.text("nothing of that kind")
            addresses.data(b"nothing of that kind")

    with ThreadPoolExecutor(2) as threads:
        printing = [threads.submit(printed) for _ in range(2)]
        for number in range(3000):
            addresses.add(f"/tmp/copy-{number}-", f"s3://bucket/{number}-")
        ended.set()
        for one in printing:
            one.result()
    assert addresses.text("in /tmp/copy-2999-") == "in s3://bucket/2999-"


def test_no_secret_is_lost_when_threads_learn_at_once() -> None:
    redactor = Redactor()
    keys = [f"key-{number:04d}-of-a-thread" for number in range(200)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(redactor.learn, keys))
    assert redactor.text(" ".join(keys)).split() == ["***"] * len(keys)


def test_the_stderr_of_a_worker_process_holds_no_key() -> None:
    key = "sk-worker-secret-0123456789"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rollforge.executors.process_worker", f"no_module_{key}:worker"],
        env={**os.environ, "OPENAI_API_KEY": key},
        input=b"",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode != 0 and b"no_module_***" in done.stderr
    assert key.encode() not in done.stderr


@pytest.mark.parametrize("where", ["home", "working directory"])
def test_an_installation_around_the_run_shows_its_own_parts_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """`python -m venv ~`, a project inside its virtual environment, `~/bin/python3` behind one."""
    home = tmp_path / "home"
    project = home / "project"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    project.mkdir()
    (home / "pyvenv.cfg").write_text("")
    (home / "bin" / "python").write_text("")
    monkeypatch.setenv("HOME", str(home if where == "home" else tmp_path / "nobody"))
    monkeypatch.chdir(tmp_path if where == "home" else project)
    shown = programs._installation(home / "bin" / "agent")
    assert shown and home not in shown and project not in shown
    assert {path.name for path in shown} <= {"bin", "lib", "pyvenv.cfg"}

    other = tmp_path / "env"
    (other / "bin").mkdir(parents=True)
    (other / "pyvenv.cfg").write_text("")
    (other / "bin" / "python").symlink_to(home / "bin" / "python")
    shown = programs._installation(other / "bin" / "agent")
    assert home not in shown and (where == "working directory" or other in shown)


def test_packages_beside_the_run_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --target .`: the packages' directory is where the tasks are."""
    site = sandbox._site_packages()
    assert site is not None
    monkeypatch.chdir(Path(site) / "msgspec")
    assert sandbox._site_packages() is None


def test_numbers_that_no_float_holds_are_no_numbers() -> None:
    assert _reward({"reward": HUGE}) is None
    assert row_metrics({"reward": 1, "length": 3, "size": -HUGE}) == {"length": 3.0}  # type: ignore[typeddict-unknown-key]
    assert _finite_logprobs([-0.5, -HUGE], 2) == []
    row = {"reward": 1.0, "_ng_task_index": 0, "size": HUGE, "response": {"usage": {"input_tokens": HUGE}}}
    assert aggregate([row])  # type: ignore[list-item]
    judge = RubricJudge(RubricJudgeOptions(rubric="r", model="m", base_url="http://127.0.0.1:9"))
    with pytest.raises(ValueError, match="is no number"):
        judge._read(f'```verdict-n0\n{{"score": {HUGE}}}\n```', "n0")


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_ENDPOINT", "http://me:pass-4711word@127.0.0.1:9", "pass-4711word"),
        ("AWS_ENDPOINT_URL", "http://me:pass-4711word@127.0.0.1:9", "pass-4711word"),
        ("MLFLOW_TRACKING_URI", "https://me:pass-4711word@host", "pass-4711word"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0LWtleS0xMjM=", "c2VjcmV0LWtleS0xMjM="),
        ("AZURE_CLIENT_SECRET", "client-4711-secret", "client-4711-secret"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x=1,api-key=abc123def456", "abc123def456"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20zzz999yyy8", "zzz999yyy8"),
    ],
)
def test_settings_of_libraries_hold_secrets_too(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, secret: str
) -> None:
    monkeypatch.setenv(name, value)
    redactor = Redactor()
    redactor.learn_environment()
    assert secret not in redactor.text(f"the server says: {value} or {secret}")
    assert redactor.text("us-east-1 /srv/cache offline") == "us-east-1 /srv/cache offline"


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("az://box/run", {"AZURE_STORAGE_ACCOUNT_KEY": "sk-no-base64", "AZURE_STORAGE_ACCOUNT_NAME": "a"}),
        ("gs://box/run", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{bad"}),
        ("s3://a b/run", {}),
        ("s3://box/run", {"AWS_ENDPOINT_URL": "no-address"}),
    ],
)
def test_a_store_that_cannot_be_opened_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, variables: dict[str, str]
) -> None:
    pytest.importorskip("obstore")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError):
        ObjectFolder(address)


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_line_that_is_too_long_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """A tail of NUL bytes, as some file systems leave after a power loss, takes no memory and hides no other line."""
    monkeypatch.setattr(reading, "LONGEST_LINE", 1000)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 999 + b"\n" + b"\0" * 5000 + (b"\n[]\n" if is_ended else b""))
    expected = [b"{}\n", b"x" * 999 + b"\n", *([b"\0\n", b"[]\n"] if is_ended else [b"\0"])]
    assert list(reading.lines_of(path)) == expected


@pytest.mark.parametrize("cost", ["1e308", "-5", "1e12"])
def test_absurd_costs_in_a_file_are_unknown(cost: str) -> None:
    tally = CostTally()
    for add in (tally.add_rollout, tally.add_failure, tally.add_judge):
        add(float(cost))
        add(2.0)
    assert (tally.unknown_rollouts, tally.unknown_failures, tally.unknown_judges) == (1, 1, 1)
    assert (tally.rollouts, tally.failures, tally.judges) == (to_units(2.0),) * 3
