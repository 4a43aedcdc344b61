"""Hostile programs in the sandbox: the host, the network, other rollouts, the verdict, the disk outside, the deadline."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rollforge.sandbox.programs import HOME, WORK, find_program_bubblewrap
from rollforge.verifiers.script import _write_inside
from tests.programs.running import collected

needs_bubblewrap = pytest.mark.skipif(
    find_program_bubblewrap()[0] is None, reason="bubblewrap does not work here"
)


@needs_bubblewrap
async def test_it_cannot_read_the_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    ran = await collected(
        tmp_path,
        f"""
ask(user("hi"))
seen = []
paths = [{str(secret)!r}, {str(tmp_path / "tasks.jsonl")!r}, {str(Path.home() / ".bashrc")!r}, "/etc/shadow", "/etc/hostname"]
for path in paths + [{str(tmp_path / "run" / "rollouts_calls.jsonl")!r}]:
    try:
        open(path).read()
        seen.append(path)
    except OSError:
        pass
own = [pid for pid in os.listdir("/proc") if pid.isdigit()]
print(json.dumps([seen, sorted(os.listdir("/home")), os.getuid(), len(own) < 8]))
""",
        sandbox="require",
    )
    assert ran.rows[0]["_rf"]["program"]["stdout"] == '[[], ["agent"], 1000, true]\n'


@needs_bubblewrap
async def test_a_prompt_that_names_a_file_of_the_host_does_not_show_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    ran = await collected(
        tmp_path,
        'ask(user("hi"))\nprint(sys.argv[1], os.path.exists(sys.argv[1]))',
        words="{prompt}",
        tasks=[{"prompt": str(secret)}],
        sandbox="require",
    )
    assert ran.rows[0]["_rf"]["program"]["stdout"] == f"{secret} False\n", ran.failures


@needs_bubblewrap
async def test_it_reaches_the_model_and_nothing_else(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        """
import socket
ask(user("hi"))
reached = []
port = json.load(open(os.environ["ROLLFORGE_TASK"]))["port"]
for place in [("127.0.0.1", port), ("1.1.1.1", 53), ("8.8.8.8", 443)]:
    try:
        socket.create_connection(place, timeout=1)
        reached.append(place)
    except OSError:
        pass
interfaces = [name for _, name in socket.if_nameindex()]
print(json.dumps([reached, interfaces]))
""",
        tasks=[{"port": _listening()}],
        sandbox="require",
    )
    assert ran.rows[0]["_rf"]["program"]["stdout"] == '[[], ["lo"]]\n', ran.failures


def _listening() -> int:
    """A port of this machine on which something listens."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    _KEPT.append(listener)
    return int(listener.getsockname()[1])


_KEPT: list[object] = []


@needs_bubblewrap
async def test_it_cannot_find_or_use_another_rollouts_secret(tmp_path: Path) -> None:
    """Eight at once: each looks for other secrets wherever it can, and guesses; only its own is ever answered."""
    ran = await collected(
        tmp_path,
        """
import glob, re
own = os.environ["OPENAI_API_KEY"][3:]
ask(user("hi"))
found = set()
for path in glob.glob("/proc/*/environ") + glob.glob("/tmp/**", recursive=True) + glob.glob("/rollforge*/**", recursive=True):
    try:
        found |= set(re.findall(rb"rf-([0-9a-f]{32})", open(path, "rb").read()))
    except OSError:
        pass
found.discard(own.encode())
codes = []
for guess in ["0" * 32, own[::-1], own[:-1], ""]:
    os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:8642/r/" + guess + "/v1"
    os.environ["OPENAI_API_KEY"] = "rf-" + guess
    try:
        ask(user("hi"))
        codes.append(200)
    except urllib.error.HTTPError as error:
        codes.append(error.code)
print(json.dumps([len(found), codes]))
""",
        samples=8,
        concurrency="8",
        sandbox="require",
    )
    printed = {row["_rf"]["program"]["stdout"] for row in ran.rows}
    assert printed == {"[0, [401, 401, 401, 401]]\n"}, ran.failures
    assert all(row["_rf"]["program"]["calls"] == 1 for row in ran.rows)


@needs_bubblewrap
async def test_it_cannot_forge_the_verdict(tmp_path: Path) -> None:
    """It plants a reward, a test script, a result that is a link, and a variable; the script says 0."""
    ran = await collected(
        tmp_path,
        """
ask(user("hi"))
for name in ("reward.txt", "reward", "test_script", "reward-0"):
    for folder in (".", "/rollforge", os.environ["HOME"]):
        try:
            open(folder + "/" + name, "w").write("1")
        except OSError:
            pass
os.remove(os.environ["ROLLFORGE_TASK"])
os.symlink("/etc/passwd", os.environ["ROLLFORGE_RESULT"])
os.symlink("/", "root")
""",
        tasks=[
            {
                "test_script": 'ls root >/dev/null 2>&1 && echo 1 > "$ROLLFORGE_REWARD" || echo 0 > "$ROLLFORGE_REWARD"'
            }
        ],
        sandbox="require",
        verifier="script",
        verifier_options={"sandbox": "require"},
    )
    (row,) = ran.rows
    assert row["reward"] == 0.0 and "result" not in row["response"]


@needs_bubblewrap
async def test_it_cannot_write_outside(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        f"""
ask(user("hi"))
opened = []
for path in ["/usr/x", "/usr/bin/python3", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", sys.executable,
             "/proc/sysrq-trigger", "/etc/ssl/openssl.cnf", __file__]:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        opened.append(path)
    except OSError:
        pass
for path in [{str(tmp_path / "x")!r}, {str(Path.home() / "rollforge-was-here")!r}, "/etc/rollforge-was-here"]:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()  # in the sandbox's own memory, if anywhere
    except OSError:
        pass
print(json.dumps(opened))
""",
        sandbox="require",
    )
    assert ran.rows[0]["_rf"]["program"]["stdout"] == "[]\n"
    places = [tmp_path / "x", Path.home() / "rollforge-was-here", Path("/etc/rollforge-was-here")]
    assert not any(place.exists() for place in places)


@needs_bubblewrap
async def test_it_fills_no_memory_through_directories_that_are_not_its_own(tmp_path: Path) -> None:
    """Whatever it writes lies on disk or is bounded: files in memory belong to no process that could be measured."""
    ran = await collected(
        tmp_path,
        """
import multiprocessing
ask(user("hi"))
written = []
for path in ["/x", "/etc/x", "/home/x", "/dev/x", "/usr/src/x", "/tmp/x", "/dev/shm/x", os.getcwd() + "/x", os.environ["HOME"] + "/x"]:
    try:
        with open(path, "wb") as file:
            file.write(bytes(4 << 20))
        written.append(path)
    except OSError:
        pass
room = {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ("/tmp", "/dev/shm")}
with multiprocessing.Pool(1) as pool:
    assert pool.map(abs, [-1]) == [1]
print(json.dumps({"written": written, "room": room}))
""",
        sandbox="require",
    )
    seen = json.loads(ran.rows[0]["_rf"]["program"]["stdout"])
    assert seen["written"] == ["/tmp/x", "/dev/shm/x", f"{WORK}/x", f"{HOME}/x"]
    assert seen["room"] == {"/tmp": 1 << 30, "/dev/shm": 1 << 30}


SURVIVES = """
ask(user("hi"))
marker = json.load(open(os.environ["ROLLFORGE_TASK"]))["marker"]
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", marker])
        os._exit(0)
if "stay" in marker:
    import time
    time.sleep(600)
"""


def survivors(marker: str) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if marker.encode() in Path(f"/proc/{entry.name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("sandbox", ["off", pytest.param("require", marks=needs_bubblewrap)])
@pytest.mark.parametrize("ending", ["leave", "stay"])
async def test_nothing_it_started_outlives_its_end_or_its_deadline(
    tmp_path: Path, sandbox: str, ending: str
) -> None:
    """Forked twice, in sessions of their own, deaf to SIGTERM."""
    marker = f"marker-{ending}-{sandbox}-{os.getpid()}-{time.monotonic_ns()}"
    ran = await collected(
        tmp_path, SURVIVES, tasks=[{"marker": marker}], sandbox=sandbox, rollout_deadline_s=4.0
    )
    assert survivors(marker) == []
    assert [row["class"] for row in ran.failures] == (["timeout"] if ending == "stay" else [])


@needs_bubblewrap
async def test_a_unreadable_tree_is_removed_all_the_same(tmp_path: Path) -> None:
    import tempfile

    before = set(Path(tempfile.gettempdir()).glob("rollforge-program-*"))
    await collected(
        tmp_path,
        'ask(user("hi"))\nos.makedirs("a/b/c")\nos.chmod("a/b/c", 0)\nos.chmod("a/b", 0)\nos.chmod("a", 0)',
        sandbox="require",
    )
    left = set(Path(tempfile.gettempdir()).glob("rollforge-program-*")) - before
    assert not [path for path in left if any(path.rglob("a"))]


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", ""])
def test_an_artifact_that_leads_out_of_its_directory_is_not_laid_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(ValueError, match="outside its directory"):
        _write_inside(tmp_path / "work", name, b"data")
    assert not list(tmp_path.rglob("outside"))
