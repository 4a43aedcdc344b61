"""Every test of the index runs twice: with the compiled reader, where it is installed, and without it."""

from __future__ import annotations

import pytest

from rollforge.index import native_reader


@pytest.fixture(autouse=True, params=["compiled", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and not native_reader.is_available():
        pytest.skip("rollforge was installed without a compiler")
    monkeypatch.setattr(native_reader, "is_available", lambda: request.param == "compiled")
