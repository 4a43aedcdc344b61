from __future__ import annotations

import os
import time
from pathlib import Path
from types import CodeType

import pytest

from rollforge import sandbox as sandbox_module
from rollforge.errors import UsageError
from rollforge.sandbox import Limits, Sandbox, SandboxReply

HAS_BUBBLEWRAP = sandbox_module.find_bubblewrap().prefix is not None
needs_bubblewrap = pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="bubblewrap does not work here")


def compiled(source: str) -> CodeType:
    return compile(source, "<test>", "exec")


def run(
    source: str, *, mode: sandbox_module.Mode = "auto", seconds: float = 20.0, **limits: int
) -> SandboxReply:
    """What a program that may `send` says, confined."""
    with Sandbox(mode, packages=False).start(compiled(source), Limits(**limits)) as confined:
        return confined.wait(seconds)


def said(source: str, **limits: int) -> str:
    """The text a program says; one that raises says so."""
    body = "\n".join(f"    {line}" for line in source.splitlines())
    reply = run(
        f"try:\n{body}\nexcept BaseException as e:\n    send(f'raised {{type(e).__name__}}'.encode())",
        **limits,
    )
    return (reply.message or reply.ended.encode()).decode()


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_messages_and_prints_come_back_apart(mode: sandbox_module.Mode) -> None:
    source = "print('printed', flush=True)\nsend(receive().upper())\nsend(b'second')"
    with Sandbox(mode, packages=False).start(compiled(source), Limits()) as confined:
        first = confined.ask(b"hello" * 100_000, 20.0)
        second = confined.wait(20.0)
    assert (first.message, first.output) == (b"HELLO" * 100_000, b"printed\n")
    assert second.message == b"second"


@needs_bubblewrap
def test_the_environment_and_files_of_the_user_are_out_of_sight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    secret = tmp_path / "secret.txt"
    secret.write_text("sk-secret")
    assert "secret" not in said("import os\nsend(repr(dict(os.environ)).encode())")
    assert said(f"send(open({str(secret)!r}, 'rb').read())") == "raised FileNotFoundError"
    for place in (str(Path.home()), "/etc/passwd", "/root", "/home", "/var", "/proc/self/environ", "/proc/1"):
        assert said(f"import os\nos.stat({place!r})\nsend(b'seen')") == "raised FileNotFoundError", place


@needs_bubblewrap
def test_the_system_is_read_only_and_the_scratch_directory_is_not() -> None:
    assert said("open('/usr/x', 'w')\nsend(b'written')") in ("raised OSError", "raised PermissionError")
    assert said("open('x', 'w').write('y')\nsend(open('/tmp/x', 'rb').read())") == "y"


@needs_bubblewrap
def test_no_other_process_can_be_seen_or_signalled() -> None:
    ours = os.getpid()
    source = f"import os\nos.kill({ours}, 0)\nsend(b'reached')"
    assert said(source) == "raised ProcessLookupError"
    assert said("import os\nos.kill(1, 9)\nsend(b'reached')") == "raised PermissionError"
    assert said("import os\nsend(str(os.getuid()).encode())") != str(os.getuid()) or os.getuid() != 0


@needs_bubblewrap
def test_there_is_no_network() -> None:
    source = "import socket\ns = socket.socket()\ns.settimeout(3)\ns.connect(('127.0.0.1', 9))\nsend(b'up')"
    assert said(source) in ("raised OSError", "raised ConnectionRefusedError")
    assert (
        said("import socket\nsocket.create_connection(('192.0.2.1', 80), 3)\nsend(b'up')") == "raised OSError"
    )
    assert said("import socket\nsend(repr(socket.if_nameindex()).encode())") == "[(1, 'lo')]"


@needs_bubblewrap
def test_a_listening_socket_of_the_host_is_not_reachable() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 3)\nsend(b'reached')"
        assert said(source).startswith("raised")


def test_memory_is_limited() -> None:
    assert said("x = bytearray(1 << 30)\nsend(b'allocated')", memory_bytes=512 << 20) == "raised MemoryError"


def test_cpu_time_is_limited() -> None:
    assert run("while True: pass", cpu_seconds=1).ended == "died"


def test_waiting_is_limited() -> None:
    started = time.monotonic()
    assert run("import time\ntime.sleep(100)", seconds=0.5).ended == "late"
    assert time.monotonic() - started < 60


def test_a_file_cannot_outgrow_its_limit() -> None:
    source = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    source += (
        "f = open('big', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))\nf.flush()\nsend(b'filled')"
    )
    assert said(source, file_bytes=8 << 20) == "raised OSError"


@needs_bubblewrap
def test_many_files_cannot_fill_the_disk() -> None:
    source = "for n in range(100): open(str(n), 'wb').write(bytes(1 << 20))\nsend(b'filled')"
    assert said(source, file_bytes=8 << 20) == "raised OSError"


@needs_bubblewrap
def test_forking_is_limited_and_what_was_forked_dies_with_the_program() -> None:
    source = """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        count += 1
except BlockingIOError:
    pass
send(str(count).encode())
time.sleep(1000)
"""
    before = processes_sleeping()
    with Sandbox("require", packages=False).start(compiled(source), Limits(processes=20)) as confined:
        count = int(confined.wait(20.0).message or b"-1")
    assert 0 < count < 40
    until = time.monotonic() + 30
    while processes_sleeping() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_sleeping() <= before


def processes_sleeping() -> int:
    """How many processes with high user ids there are: those of sandboxes run by root."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += entry.stat().st_uid >= 1 << 30
            except OSError:
                continue
    return found


def test_endless_output_ends_the_program() -> None:
    reply = run("import sys\nwhile True: sys.stdout.write('x' * 65536)", output_bytes=1 << 20)
    assert reply.ended == "too much"
    assert len(reply.output) < 2 << 20


def test_an_endless_message_ends_the_program() -> None:
    source = "import os\nos.write(pipes[1], (1 << 60).to_bytes(8, 'big'))\n"
    source += "while True: os.write(pipes[1], bytes(65536))"
    assert run(source, output_bytes=1 << 20).ended == "too much"


def test_ignoring_every_signal_does_not_help() -> None:
    source = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.alarm(0)
send(b'deaf')
while True: time.sleep(1)
"""
    with Sandbox("auto", packages=False).start(compiled(source), Limits()) as confined:
        assert confined.wait(20.0).message == b"deaf"
        assert confined.wait(0.2).ended == "late"


def test_a_limit_cannot_be_raised_again() -> None:
    source = "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)\nsend(b'raised it')"
    if HAS_BUBBLEWRAP:
        assert said(source) in ("raised ValueError", "raised PermissionError")


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_without_bubblewrap_programs_are_refused_with_how_to_install_it(
    mode: sandbox_module.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_module.find_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(UsageError, match="no bwrap in PATH") as caught:
            Sandbox(mode)
        assert "apt-get install bubblewrap" in (caught.value.hint or "")
        assert Sandbox("off").kind == "limits"
    finally:
        sandbox_module.find_bubblewrap.cache_clear()
