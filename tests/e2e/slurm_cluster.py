"""A Slurm cluster of two nodes on this machine: a real slurmctld and two slurmd, in a folder of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.servers import free_port

START_S = 60.0


CONF = """\
ClusterName=rf
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/{auth}
CredType=cred/{auth}
{auth_info}
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
JobRequeue=1
MinJobAge=600
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch, squeue and scontrol talk to the cluster; skips where Slurm cannot be had."""
    programs = {
        name: shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        for name in ("slurmctld", "slurmd", "munged")
    }
    missing = [name for name, path in programs.items() if path is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"Slurm is not here, or needs root: {missing or 'not root'}")
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir(parents=True)
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_munge(folder, str(programs["munged"])))
        control, first, second = (free_port() for _ in range(3))
        conf = folder / "slurm.conf"
        conf.write_text(
            CONF.format(
                host=socket.gethostname().partition(".")[0], auth="munge", auth_info=f"AuthInfo=socket={folder}/munge/munge.sock",
                control=control, first=first, second=second, user=getpass.getuser(), folder=folder,
            )
        )  # fmt: skip
        environment = os.environ | {"SLURM_CONF": str(conf)}
        running.append(
            _daemon([str(programs["slurmctld"]), "-D", "-f", str(conf)], environment, folder / "ctld.out")
        )
        for node in ("n1", "n2"):
            words = [str(programs["slurmd"]), "-D", "-N", node, "-f", str(conf)]
            running.append(_daemon(words, environment, folder / f"{node}.out"))
        _await_nodes(environment, folder)
        yield environment
    finally:
        for process in reversed(running):
            with suppress(ProcessLookupError):
                process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _munge(folder: Path, program: str) -> subprocess.Popen[bytes]:
    """An authenticator with a key and a socket of its own."""
    place = folder / "munge"
    place.mkdir(mode=0o755)
    key = place / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    words = [program, "--foreground", "--force", f"--key-file={key}", f"--socket={place}/munge.sock"]
    words += [f"--pid-file={place}/pid", f"--log-file={place}/log", f"--seed-file={place}/seed"]
    process = _daemon(words, dict(os.environ), place / "out")
    deadline = time.monotonic() + START_S
    while not (place / "munge.sock").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"munged does not start here: {(place / 'out').read_text()[-500:]}")
        time.sleep(0.1)
    return process


def _daemon(words: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(words, env=environment, stdout=out, stderr=out)


def _await_nodes(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        output = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"], env=environment, capture_output=True, text=True, check=False
        )
        if output.stdout.count("idle") == 2:
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace")[-800:] for path in folder.glob("*.out"))
    pytest.skip(f"Slurm does not come up here: {output.stdout}{output.stderr}\n{logs}")
