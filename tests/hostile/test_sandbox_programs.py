"""Programs that cheat: with bubblewrap, without it, and with `--sandbox off`, as whole commands."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollforge import sandbox
from tests.builders import make_rollout, write_rows
from tests.programs.running import ASK

SECRET = "the-expected-output-4711"

needs_bubblewrap = pytest.mark.skipif(
    sandbox.find_bubblewrap().prefix is None, reason="bubblewrap does not work here"
)
needs_closed_files = pytest.mark.skipif(
    not sandbox.hides_files(), reason="neither Landlock nor another user can close off files here"
)

needs_landlock = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 4,
    reason="no Landlock that closes off TCP (Linux 6.7)",
)

CHEATS = {
    "reads the task file": "import glob\nfor p in glob.glob({folder!r} + '/**/*.jsonl', recursive=True):\n    find(open(p).read())",
    "reads the task file by name": "find(open({folder!r} + '/rollouts_tasks.jsonl').read())",
    "reads other processes' environment": "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n    attempt(p)",
    "reads its parent's memory map": "import os, glob\nfor p in glob.glob('/proc/%d/fd/*' % os.getppid()):\n    attempt(p)",
    "reads descriptors it inherited": "import os\nfor n in range(3, 256):\n    attempt(n)",
    "reads the home directory": "import glob, os\nfor p in glob.glob({home!r} + '/*.txt'):\n    attempt(p)",
    "follows a link in its own directory": "import os\nos.symlink({folder!r}, 'x')\nattempt('x/rollouts_tasks.jsonl')",
    "mounts a user namespace": "import ctypes\nctypes.CDLL(None).unshare(0x10020000)\nattempt({folder!r} + '/rollouts_tasks.jsonl')",
    "asks the network": "import urllib.request\nfind(urllib.request.urlopen({url!r}, timeout=3).read().decode())",
}
PRELUDE = """
def find(text):
    if {half!r} + {rest!r} in text:
        print({half!r} + {rest!r})
        raise SystemExit
def attempt(path):
    try:
        find(open(path, errors='replace').read(1 << 20))
    except OSError:
        pass
"""


def made_run(folder: Path, programs: dict[str, str]) -> Path:
    """A run whose answers are programs; the expected output is in the tasks file and in the home directory."""
    tests = {"inputs": [""], "outputs": [SECRET]}
    tasks, rows = [], []
    for number, program in enumerate(programs.values()):
        row = make_rollout(number, 0, None, text=f"```python\n{program}\n```")
        tasks.append(
            {
                "responses_create_params": row["responses_create_params"],
                "_ng_task_index": number,
                "verifier_metadata": {"unit_tests": tests},
            }
        )
        rows.append(row)
    write_rows(folder / "rollouts_tasks.jsonl", tasks)
    return write_rows(folder / "rollouts.jsonl", rows)


def verify(
    run: Path, *more: str, path: str | None = None, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EXPECTED": SECRET, "HOME": str(home or Path.home())}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "rollforge", "verify", str(run), "--verifier", "code", *more],
        capture_output=True,
        text=True,
        env=environment,
        cwd=run.parent,
        timeout=300,
        check=False,
    )


def cheats(folder: Path, home: Path) -> dict[str, str]:
    names = {"folder": str(folder), "home": str(home), "url": "http://127.0.0.1:9/"}
    prelude = PRELUDE.format(half=SECRET[:9], rest=SECRET[9:])
    return {name: prelude + body.format(**names) for name, body in CHEATS.items()}


def rewards(run: Path) -> list[float | None]:
    lines = run.with_name("rollouts_verdicts.jsonl").read_text().splitlines()
    by_task = {row["_ng_task_index"]: row["reward"] for row in map(json.loads, lines)}
    return [by_task[task] for task in sorted(by_task)]


@needs_bubblewrap
def test_no_cheat_is_rewarded_under_bubblewrap(tmp_path: Path, tried: Callable[..., None]) -> None:
    tried(programs=len(CHEATS))
    home = tmp_path / "home"
    home.mkdir()
    (home / "notes.txt").write_text(SECRET)
    run = made_run(tmp_path / "run", {**cheats(tmp_path / "run", home), "knows": f"print({SECRET!r})"})
    done = verify(run, home=home)
    assert done.returncode == 0, done.stderr
    assert dict(zip([*CHEATS, "knows"], rewards(run), strict=True)) == {
        **dict.fromkeys(CHEATS, 0.0),
        "knows": 1.0,
    }


@pytest.mark.parametrize("mode", [(), ("--sandbox", "auto"), ("--sandbox", "require")])
def test_without_bubblewrap_nothing_runs(tmp_path: Path, mode: tuple[str, ...]) -> None:
    mark = tmp_path / "ran"
    run = made_run(tmp_path / "run", {"marks": f"open({str(mark)!r}, 'w')"})
    done = verify(run, *mode, path="/nowhere")
    assert done.returncode == 2
    assert "apt-get install bubblewrap" in done.stderr
    assert not mark.exists()
    assert not run.with_name("rollouts_verdicts.jsonl").exists()


@needs_closed_files
def test_no_cheat_is_rewarded_with_the_sandbox_off_where_the_kernel_can_help(
    tmp_path: Path, tried: Callable[..., None]
) -> None:
    tried(programs=len(CHEATS))
    home = tmp_path / "home"
    home.mkdir()
    (home / "notes.txt").write_text(SECRET)
    run = made_run(tmp_path / "run", {**cheats(tmp_path / "run", home), "knows": f"print({SECRET!r})"})
    done = verify(run, "--sandbox", "off", "--progress", "none", path="/nowhere", home=home)
    assert done.returncode == 0, done.stderr
    assert "limits only" in done.stderr
    assert dict(zip([*CHEATS, "knows"], rewards(run), strict=True)) == {
        **dict.fromkeys(CHEATS, 0.0),
        "knows": 1.0,
    }


@needs_landlock
def test_with_the_sandbox_off_the_kernel_closes_what_every_user_may_read(tmp_path: Path) -> None:
    """Another user id alone would leave world-readable files, world-writable folders and the network open."""
    source = """
import socket
done = []
for name, attempt in (
    ("read", lambda: open({path!r} + "/tasks.jsonl").read()),
    ("list", lambda: __import__("os").listdir({path!r})),
    ("write", lambda: open({path!r} + "/written", "w")),
    ("connect", lambda: socket.create_connection(("127.0.0.1", {port}), timeout=5)),
):
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
send(repr(done).encode())
"""
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "tasks.jsonl").write_text(SECRET)
        (folder / "tasks.jsonl").chmod(0o644)
        text = source.format(path=name, port=server.getsockname()[1])
        code = compile(text, "<test>", "exec")
        with sandbox.Sandbox("off").start(code, sandbox.Limits()) as confined:
            assert confined.wait(60.0).message == b"[]"
    assert sandbox.hides_files()


def test_a_run_judged_without_a_sandbox_says_so_in_check(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", {str(n): f"print({SECRET!r})" for n in range(4)})
    assert "limits only" in verify(run, "--sandbox", "off", "--json").stderr
    checked = subprocess.run(
        [sys.executable, "-m", "rollforge", "check", str(run), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    findings = {finding["id"]: finding for finding in json.loads(checked.stdout)["findings"]}
    assert findings["unsandboxed"]["level"] == "warning"


@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_a_run_judged_without_a_sandbox_says_so_in_its_manifest(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    run = made_run(tmp_path / "run", {str(n): f"print({SECRET!r})" for n in range(4)})
    manifest = run.parent / "rollouts_run.json"
    manifest.write_text('{"rollforge": "0.1.0", "state": "done", "notes": ["one of before"], "later": 1}')
    for _ in range(2):
        assert verify(run, "--sandbox", "off", *more).returncode == 0
    now = json.loads(manifest.read_bytes())
    assert now["notes"][0] == "one of before"
    assert [note.partition(",")[0] for note in now["notes"][1:]] == ["programs run with limits only"]
    assert now["later"] == 1


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root that can give up its capabilities",
)
def test_root_without_capabilities_runs_programs_with_the_sandbox_off() -> None:
    """As in containers that drop all capabilities: programs get no user id of their own."""
    source = """
from rollforge import sandbox
with sandbox.Sandbox("off").start(compile("send(b'ran')", "<test>", "exec"), sandbox.Limits()) as confined:
    print(confined.wait(60.0).message)
"""
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", source],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "b'ran'\n", done.stderr


def test_test_scripts_and_programs_as_agents_without_a_sandbox_are_findings_too(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "tasks.jsonl",
        [{"prompt": f"{n}?", "test_script": "echo 1 > $ROLLFORGE_REWARD"} for n in range(3)],
    )
    (tmp_path / "agent.py").write_text(ASK + "ask(user('hello'))\n")
    program = f"program:{Path(sys.executable).resolve()} {tmp_path / 'agent.py'}"
    words = [
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--agent",
        program,
        "--sandbox",
        "off",
    ]
    command = [sys.executable, "-m", "rollforge"]
    done = subprocess.run(
        [*command, *words, "--verifier", "script", "--progress", "none"],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "test scripts run without a sandbox" in done.stderr
    assert "programs are not fully confined" in done.stderr
    checked = subprocess.run(
        [*command, "check", "run", "--json"], capture_output=True, cwd=tmp_path, timeout=300, check=False
    )
    texts = [one["text"] for one in json.loads(checked.stdout)["findings"] if one["id"] == "unsandboxed"]
    assert [text.partition(" ran")[0] for text in texts] == [
        "the agents are programs that",
        "3 of 3 programs",
    ]


@needs_bubblewrap
@pytest.mark.parametrize("place", ["bin/python3", "opt/py/bin/python3"])
def test_the_home_directory_stays_hidden_wherever_python_lives(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollforge.sandbox import bubblewrap

    home = tmp_path / "home"
    (home / place).parent.mkdir(parents=True)
    (home / place).write_bytes(b"")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(bubblewrap, "python", lambda: home / place)
    files = bubblewrap.python_files()
    assert home not in files
    assert not any(home.is_relative_to(path) for path in files)


@needs_bubblewrap
def test_all_processes_together_have_a_memory_limit() -> None:
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(200 << 20)
        for n in range(0, len(x), 4096): x[n] = 1
        time.sleep(60)
time.sleep(60)
send(b'kept')
"""
    limits = sandbox.Limits(total_memory_bytes=600 << 20)
    code = compile(source, "<test>", "exec")
    with sandbox.Sandbox("require", packages=False).start(code, limits) as confined:
        assert confined.wait(50.0).ended == "memory"
