"""`tried`: a hostile test says how many inputs, programs or kills it tried; the end of the run prints the sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Call it with what this test tried: `tried(kills=20, tails=5)`; a test that does not call it counts as one case."""

    def add(**counts: int) -> None:
        request.node.user_properties.append(("tried", counts))

    return add
