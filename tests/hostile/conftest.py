"""`tried`: a hostile test says how many inputs, programs or kills it tried; the end of the run prints the sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Call it with the number of things this test tried; a test that does not call it counts as one."""

    def add(count: int) -> None:
        request.node.user_properties.append(("tried", count))

    return add
