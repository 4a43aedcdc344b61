"""The (task, rollout) keys that begin the lines of a block, as in rollforge's own rows; the rest of a line is not read."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rollforge.records import ROLLOUT_KEY, TASK_KEY
from rollforge.runtime.native import load_native

_KEY = re.compile(rb'\{"%s":(\d{1,18}),"%s":(\d{1,18})[,}]' % (TASK_KEY.encode(), ROLLOUT_KEY.encode()))


def leading_keys(block: memoryview) -> NDArray[np.int64]:
    """Task, rollout and end offset of each whole line; task and rollout are -1 where the line does not begin with them."""
    native = load_native("rollforge.index._rows")
    if native is not None:
        return np.frombuffer(native.leading_keys(block), np.int64).reshape(-1, 3)
    numbers: list[int] = []  # a flat list becomes an array sooner than tuples do
    text, start = bytes(block), 0
    while end := text.find(b"\n", start) + 1:
        key = _KEY.match(text, start, end)
        numbers += (int(key[1]), int(key[2]), end) if key is not None else (-1, -1, end)
        start = end
    return np.array(numbers, np.int64).reshape(-1, 3)
