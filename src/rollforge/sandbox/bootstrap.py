"""The first code inside a sandboxed process: gives up privileges, sets limits, then runs the code from the pipe.

It runs as source (`python -c`) with one argument: its marshalled settings in hexadecimal. It imports nothing from rollforge.
Bubblewrap has already hidden the file system; without it, Landlock restricts files here if the kernel supports it.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

TYPE_CHECKING = False  # `typing` is not imported: it would cost every verdict its start-up time
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534


def main() -> None:
    """Run the steps in the only order in which each is still permitted."""
    settings = marshal.loads(bytes.fromhex(sys.argv[1]))
    sys.path += settings["path"]
    if settings["uid"]:
        change_user(settings["uid"])
    if settings["restrict"]:
        restrict(settings)
    for name, value in settings["limits"]:
        limit(getattr(resource, name), value)
    inside, outside = settings["pipes"]

    def read(size: int) -> bytes:
        parts = []
        while size:
            part = os.read(inside, min(size, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive() -> bytes:
        return read(int.from_bytes(read(8), "big"))

    def send(data: bytes) -> None:
        left = memoryview(len(data).to_bytes(8, "big") + data)
        while left:
            left = left[os.write(outside, left) :]

    runner_globals = {"__name__": "runner", "receive": receive, "send": send, "pipes": (inside, outside)}
    exec(marshal.loads(receive()), runner_globals)


def change_user(uid: int) -> None:
    """Switch to an unused user id."""
    os.setgroups([])
    try:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:  # a container may not map user ids as high
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def limit(kind: int, value: int) -> None:
    """Lower one limit permanently."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def restrict(settings: dict[str, Any]) -> None:
    """Without bubblewrap: drop privileges and capabilities, restrict files to the given ones, block dangerous system calls."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    landlock(libc, ctypes, settings["readable"], settings["writable"])
    if settings["seccomp"]:
        filters = ctypes.create_string_buffer(settings["seccomp"])
        words = (ctypes.c_uint64 * 2)(len(settings["seccomp"]) // 8, ctypes.addressof(filters))
        libc.prctl(22, 2, ctypes.byref(words), 0, 0)  # PR_SET_SECCOMP
    if os.getuid() == 0 and hasattr(libc, "capset"):
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        libc.capset(header, (ctypes.c_uint32 * 6)())


def landlock(libc: Any, ctypes: Any, readable: list[str], writable: list[str]) -> None:
    """Block every file outside the given paths; also TCP and signals if the kernel supports it."""
    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    file_rights = 1 | 2 | 4 | (1 << 14 if version >= 3 else 0) | (1 << 15 if version >= 5 else 0)
    all_rights = (1 << 13) - 1 | file_rights | (1 << 13 if version >= 2 else 0)
    words = [all_rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0]
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(444, (ctypes.c_uint64 * 3)(*words), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return
    for paths, rights in ((readable, 1 | 4 | 8), (writable, all_rights & ~1)):
        for path in paths:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights if os.path.isdir(path) else rights & file_rights  # noqa: PTH112
            rule = allowed.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
            libc.syscall(445, ruleset, 1, ctypes.create_string_buffer(rule, len(rule)), 0)
            os.close(handle)
    libc.syscall(446, ruleset, 0)
    os.close(ruleset)


if __name__ == "__main__":
    main()
