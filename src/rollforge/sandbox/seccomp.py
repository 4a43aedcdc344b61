"""Seccomp filter for untrusted programs: blocks new user namespaces and kernel interfaces that unit tests never need.

The filter is a classic BPF program over the system call number. Denied calls fail with EPERM (`clone3` with ENOSYS, so that the C
library falls back to `clone`, whose flags can be checked). Only x86-64 and arm64 are supported; elsewhere there is no filter.
"""

from __future__ import annotations

import platform
import struct

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_NEWUSER = 0x10000000
_X32_BIT = 0x40000000

_CALLS = {
    "x86_64": {
        "arch": 0xC000003E,
        "clone": 56,
        "unshare": 272,
        "denied": (
            *(101, 308, 310, 311, 312),  # ptrace, setns, process_vm_readv, process_vm_writev, kcmp
            *(248, 249, 250, 298, 321, 323, 425),  # keys, perf_event_open, bpf, userfaultfd, io_uring_setup
            *(165, 166, 155, 161, 175, 313, 246, 304),  # mount, umount2, pivot_root, chroot, modules, kexec, handles
        ),
    },
    "aarch64": {
        "arch": 0xC00000B7,
        "clone": 220,
        "unshare": 97,
        "denied": (
            *(117, 268, 270, 271, 272),
            *(217, 218, 219, 241, 280, 282, 425),
            *(40, 39, 41, 51, 105, 273, 104, 265),
        ),
    },
}  # fmt: skip
_CLONE3 = 435


def seccomp_filter() -> bytes | None:
    """The filter in the format of the kernel and `bwrap --seccomp`; None on an unsupported architecture."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return None
    arch, clone, unshare = calls["arch"], calls["clone"], calls["unshare"]
    denied = calls["denied"]
    assert isinstance(arch, int)
    assert isinstance(clone, int)
    assert isinstance(unshare, int)
    assert isinstance(denied, tuple)
    program = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, arch, 1, 0),
        _op(_RETURN, _KILL),  # another architecture's calls would have other numbers
        _op(_LOAD, _NUMBER_AT),
        _op(_AT_LEAST, _X32_BIT, 0, 1),
        _op(_RETURN, _ERRNO | _EPERM),
        _op(_EQUAL, _CLONE3, 0, 1),
        _op(_RETURN, _ERRNO | _ENOSYS),
    ]
    for number in denied:
        program += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ERRNO | _EPERM)]
    program += [
        _op(_EQUAL, clone, 1, 0),
        _op(_EQUAL, unshare, 0, 2),
        _op(_LOAD, _FIRST_ARGUMENT_AT),
        _op(_ANY_BIT, _CLONE_NEWUSER, 1, 0),
        _op(_RETURN, _ALLOW),
        _op(_RETURN, _ERRNO | _EPERM),
    ]
    return b"".join(program)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
