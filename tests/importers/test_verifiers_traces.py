"""Logs of verifiers: what is no log is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.errors import DataError
from rollforge.importers.verifiers_traces import read_verifiers


@pytest.mark.parametrize("line", ["[1]", '{"reward": 1.0}'])
def test_a_line_that_is_no_trace_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match="neither a trace nor a result"):
        list(read_verifiers(path, None))
