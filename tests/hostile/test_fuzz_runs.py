"""Mutated runs under whole commands: a message and an exit code, no traceback, no hang.

A few hundred mutants in CI; `ROLLFORGE_TORTURE=1` tries 20,000. A fork server runs them (see `fork_server.py`); a sample is
compared with commands that Python starts afresh.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.hostile import fork_server, mutants
from tests.hostile.fork_server import Case, Ended

MUTANTS = int(
    os.environ.get("ROLLFORGE_TORTURE_MUTANTS") or (20_000 if os.environ.get("ROLLFORGE_TORTURE") else 160)
)
SEED = int(os.environ.get("ROLLFORGE_TORTURE_SEED", "0"))
SERVERS = int(os.environ.get("ROLLFORGE_TORTURE_SERVERS") or ((os.cpu_count() or 1) if MUTANTS > 1000 else 1))
"""Fork servers that share the cases."""
REPORT = os.environ.get("ROLLFORGE_TORTURE_REPORT", "")
"""A file that gets the progress and every bad end as it happens."""
COMPARED = 6
SECONDS = 60
"""Longer than this is a hang, even on a machine with much else to do."""

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where there is such a place: commands sync what they write, and a disk would set the pace."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None) as name:
        mutants.make_whole(Path(name) / "whole")
        yield Path(name)


def serve(folder: Path, name: str, cases: Iterable[Case]) -> list[Ended]:
    """Run the cases in a fork server of their own."""
    kinds = list({words[0]: words for lines in mutants.READER_BY_FILE.values() for words in lines}.values())
    (folder / name).mkdir()
    (folder / name / "cases").write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))
    with (folder / name / "cases").open("rb") as stdin, (folder / name / "err").open("w+b") as err:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "tests.hostile.fork_server"),
                *(folder / "whole", folder / name / "work", str(SECONDS), json.dumps(kinds)),
            ],
            stdin=stdin, stdout=subprocess.PIPE, stderr=err,
            env={**os.environ, **fork_server.ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert process.stdout is not None
        ended = []
        for line in process.stdout:
            ended.append(msgspec.json.decode(line, type=Ended))
            if REPORT and (ended[-1].complaint or len(ended) % 500 == 0):
                _report(name, len(ended), ended[-1])
    assert process.wait() == 0, (folder / name / "err").read_text()[-3000:]
    return ended


def _report(name: str, count: int, ended: Ended) -> None:
    """Write what has happened so far, for those who wait."""
    with Path(REPORT).open("a") as file:
        told = (
            f"mutant {ended.number}: {ended.complaint}, exit code {ended.code}\n{ended.err}\n"
            if ended.complaint
            else ""
        )
        file.write(f"{name}: {count} done\n{told}")


def serve_shared(folder: Path, cases: list[Case]) -> list[Ended]:
    """Run the cases in several fork servers at once."""
    ended: list[list[Ended]] = [[] for _ in range(SERVERS)]

    def work(number: int) -> None:
        ended[number] = serve(folder, f"server{number}", cases[number::SERVERS])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(SERVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted((one for some in ended for one in some), key=lambda one: one.number)


@pytest.mark.timeout(1800 + MUTANTS * 5)
def test_mutated_runs_end_in_messages_and_never_in_tracebacks(
    folder: Path, tried: Callable[..., None]
) -> None:
    cases = list(mutants.cases(folder / "whole", MUTANTS, SEED))
    ended = serve_shared(folder, cases)
    assert len(ended) == MUTANTS
    bad = [one for one in ended if one.complaint]
    tried(
        mutated_runs=len(ended),
        tracebacks=sum(one.complaint == "traceback" for one in bad),
        hangs=sum(one.is_hung for one in bad),
        other_unexpected_ends=sum(one.complaint not in ("traceback", "no end") for one in bad),
    )
    codes = Counter(one.code for one in ended)
    print("\nexit codes:", dict(sorted(codes.items())), "slowest:", max(one.seconds for one in ended))
    once = {
        (cases[one.number].words[0], one.complaint, (one.err.splitlines() or [""])[-1]): one for one in bad
    }
    assert not bad, f"{len(bad)} of {MUTANTS}:\n\n" + "\n\n".join(
        _described(cases[one.number], one) for one in once.values()
    )


def _described(case: Case, ended: Ended) -> str:
    words = " ".join(case.words)
    return f"mutant {case.number}, {case.file}: {words}\n{ended.complaint}, exit code {ended.code}\n{ended.err[-2500:]}"


def test_a_fork_server_runs_a_command_as_a_fresh_python_does(folder: Path) -> None:
    cases = list(mutants.cases(folder / "whole", COMPARED, SEED + 1))
    ended = serve(folder, "compared", cases)
    for case, forked in zip(cases, ended, strict=True):
        if case.words[0] == "claim":
            continue
        work = folder / "compared" / "work"
        fork_server.damaged_copy(folder / "whole", work, case)
        fresh = subprocess.run(
            [sys.executable, "-m", "rollforge", *case.words], cwd=work, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", check=False, timeout=300,
        )  # fmt: skip
        told = (fresh.returncode, _timeless(fresh.stdout[-6000:]), _timeless(fresh.stderr[-6000:]))
        assert told == (forked.code, _timeless(forked.out), _timeless(forked.err)), case.words


def _timeless(text: str) -> str:
    """Leave out what differs from run to run: times, rates, memory."""
    return re.sub(r"\d+([.:]\d+)*", "#", text)


COMPLAINTS = """
import os, sys, threading
from pathlib import Path
from tests.hostile import fork_server
from tests.hostile.fork_server import Ended

def ended(function, seconds=20.0):
    code, took, is_hung, out, err = fork_server.run_forked(function, Path("."), fork_server.Limits(seconds))
    return Ended(number=0, code=code, seconds=took, is_hung=is_hung, out=out, err=err).complaint

assert ended(lambda: 1 / 0) == "traceback"
assert ended(lambda: threading.Event().wait(), seconds=0.2) == "no end"
assert ended(lambda: os.kill(os.getpid(), 9)) == "signal 9"
assert ended(lambda: sys.exit(1)) == "exit code 1"
assert ended(lambda: bytearray(fork_server.MEMORY_BYTES)) == "traceback"
assert ended(lambda: sys.exit(2)) == ended(lambda: None) == ""
"""


def test_a_fork_server_notices_tracebacks_hangs_and_signals() -> None:
    """In a process of its own: what tests have loaded and started does not survive a fork."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", COMPLAINTS], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
