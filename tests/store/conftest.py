"""The store's fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.store.bucket import WorkingCopy


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkingCopy:
    """The working copy of a bucket in memory."""
    obstore = pytest.importorskip(
        "obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = WorkingCopy("s3://data/run")
    made.objects._store = obstore.store.MemoryStore()
    return made
