"""Table of an evaluation: one row per task set and metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.cli.render.console import out
from rollforge.cli.render.numbers import interval, mean_text, percent

if TYPE_CHECKING:
    from rollforge.steps.evaluation import TasksetResult


def print_tasksets(tasksets: dict[str, TasksetResult], k: int, *, title: str = "") -> None:
    """Print one row per task set and metric; a narrow terminal gets the most used statistics, --json has all."""
    from rich.table import Table

    columns = _columns(k, is_wide=out().width >= 120)
    table = Table(box=None, pad_edge=False, header_style="dim", title=title or None, title_justify="left")
    for name in ("taskset", "metric"):
        table.add_column(name, no_wrap=True)
    for name in [*columns, "tasks", "judged"]:
        table.add_column(name, justify="right", no_wrap=True)
    for taskset, result in tasksets.items():
        for metric in sorted(result.metrics, key=lambda name: name != "reward"):
            statistics = result.metrics[metric]
            mean = statistics.get(f"mean@{k}")
            if mean is None and metric != "reward":
                continue
            cells = {name: mean_text(statistic.value) for name, statistic in statistics.items()}
            cells["95 % interval"] = interval(mean.ci) if mean else ""
            shown = [cells.get(column, "") for column in columns]
            judged = mean.tasks if mean else 0
            table.add_row(taskset, metric, *shown, f"{judged:,}/{result.tasks:,}", percent(result.coverage))
    out().print(table)


def _columns(k: int, *, is_wide: bool) -> list[str]:
    head = [f"mean@{k}", "95 % interval"]
    if k == 1:
        return head
    if is_wide:
        return [*head, *(f"{name}@{k}" for name in ("std", "best", "worst", "maj", "pass"))]
    return [*head, f"best@{k}", f"pass@{k}"]
