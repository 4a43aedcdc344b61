"""Runs one program and kills all its descendants at the end; it is the first process inside the sandbox, or the program's parent
without one.

Executed as a script by the bare interpreter, so it imports only the standard library. As a subreaper it adopts the program's
orphans, so a program that forks twice and opens its own session cannot outlive it. In a sandbox without a network it also
forwards a loopback port to the proxy's Unix socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import threading

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PIECE = 1 << 16
ROUNDS = 1000
"""Rounds of killing all remaining processes."""


def main() -> None:
    """Run the program that the first argument describes, as JSON."""
    plan = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: _end(128 + signal.SIGTERM))
    for name, most in plan["limits"]:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
    if plan["relay"]:
        _start_relay(plan["relay"]["port"], plan["relay"]["socket"])
    child = os.fork()
    if child == 0:
        _become(plan)
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    code = os.waitstatus_to_exitcode(status)
    _end(code if code >= 0 else 128 - code)


def _become(plan: dict[str, list[str]]) -> None:
    """Replace this process by the program."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execvp(plan["argv"][0], plan["argv"])
    except OSError as error:
        os.write(2, f"{plan['argv'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def _end(code: int) -> None:
    """Kill all descendants, then exit."""
    for _ in range(ROUNDS):
        left = _children()
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            for _ in left:
                os.waitpid(-1, 0)
    os._exit(code)


def _children() -> list[int]:
    """Child processes of this process."""
    pids = []
    for name in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():  # noqa: PTH112, PTH208
        with contextlib.suppress(OSError), open(f"/proc/self/task/{name}/children") as file:  # noqa: PTH123
            pids += [int(word) for word in file.read().split()]
    return pids


def _start_relay(port: int, path: str) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    threading.Thread(target=_relay, args=(listener, path), daemon=True).start()


def _relay(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_carry, args=(client, path), daemon=True).start()


def _carry(client: socket.socket, path: str) -> None:
    """Copy bytes in both directions until one side closes."""
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(PIECE)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)
        except OSError:
            return


if __name__ == "__main__":
    main()
