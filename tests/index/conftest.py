"""Every test of the index runs twice: with the compiled reader, where there is one, and without it."""

from __future__ import annotations

import pytest

from rollforge.index import fast


@pytest.fixture(autouse=True, params=["compiled", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and not fast.IS_THERE:
        pytest.skip("rollforge was installed without a compiler")
    monkeypatch.setattr(fast, "IS_THERE", request.param == "compiled")
