"""Output of `index`: a line per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.cli.render.table import put
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.index import IndexUpdate

WORDS = {"built": "index built", "extended": "index extended", "current": "index already current"}


def print_update(update: IndexUpdate) -> None:
    """Print what the update did, then what the index holds."""
    rejected = count_of(update.rejected_lines, "line rejected", "lines rejected")
    put(
        f"{update.run}: {WORDS[update.index]}: {count_of(update.rows, 'row')}, {rejected}, "
        f"{update.bytes / 1e6:.2f} MB of {count_of(update.files, 'file')}"
    )
