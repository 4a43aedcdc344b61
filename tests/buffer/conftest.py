"""Fixtures: a buffer in SQLite, and one in a PostgreSQL server that the tests start themselves."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


def _binary(name):
    found = shutil.which(name) or next(iter(sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    return str(found) if found else None


def _server_user():
    """PostgreSQL refuses to run as root: then as `postgres`, or whoever owns nothing."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return pytest.skip("PostgreSQL does not run as root, and there is no other user here")


@pytest.fixture(scope="session")
def postgres_server():
    """The address of a server in a temporary directory, reached over its Unix socket."""
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    initdb, postgres = _binary("initdb"), _binary("postgres")
    if not initdb or not postgres:
        pytest.skip("no PostgreSQL server on this machine (apt-get install postgresql)")
    user = _server_user()
    folder = Path(tempfile.mkdtemp(prefix="rollforge-pg-"))
    identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", data, "-U", "rollforge", "-A", "trust", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **identity,
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [postgres, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
            stdout=log,
            stderr=log,
            cwd=folder,
            **identity,
        )
    url = f"postgresql://rollforge@/postgres?host={folder}"
    try:
        _await(url, folder / "log")
        yield url
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _await(url, log):
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(log.read_text())


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    """An empty place for a buffer, once per database."""
    if request.param == "sqlite":
        return str(tmp_path / "buffer.db")
    import psycopg

    url = request.getfixturevalue("postgres_server")
    name = f"b{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return url.replace("/postgres?", f"/{name}?")
