"""Every sink, operator and sampler keeps its family's contract and is documented by name."""

from pathlib import Path

import pytest

from rollforge.buffer import SAMPLERS
from rollforge.operators import OPERATORS
from rollforge.sinks import SINKS
from rollforge.sinks.base import SinkOptions

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", SINKS.names())
def test_a_sink_makes_no_contact_until_it_is_started(name, tmp_path):
    sink = SINKS.load(name)(SinkOptions(directory=tmp_path / "out"))
    assert isinstance(sink.is_remote, bool)
    assert all(callable(getattr(sink, method)) for method in ("start", "log", "close"))
    sink.close()
    assert not (tmp_path / "out").exists()
    assert f"`{name}`" in (DOCS / "sinks.md").read_text()


@pytest.mark.parametrize("name", OPERATORS.names())
def test_an_operator_works_with_its_defaults_on_nothing_and_documents_its_options(name):
    operator = OPERATORS.load(name)()
    outcome = operator.apply([])
    assert outcome.experiences == []
    assert outcome.dropped.total() == 0
    (row,) = [
        line for line in (DOCS / "operators.md").read_text().splitlines() if line.startswith(f"| `{name}`")
    ]
    for option in operator.__struct_fields__:
        assert option.startswith("_") or f"`{option}`" in row, option


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_a_query_or_a_function_and_is_documented(name):
    sampler = SAMPLERS[name]()
    assert sampler.name == name
    assert (sampler.query is None) != (sampler.choose is None)
    assert f"`{name}`" in (DOCS / "buffer.md").read_text()
