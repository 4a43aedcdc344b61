"""Command-line names of the options about metrics."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from rollforge.assembly.monitoring import MonitorChoice, SinkChoice

_METRICS = Group("Metrics", sort_key=5)


@Parameter(name="*", group=_METRICS)
class SinkFlags(SinkChoice):
    """Flags for metric sinks."""

    sink: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=_METRICS)
class MonitorFlags(MonitorChoice):
    """Flags for what is reported during a collection."""

    sink: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
