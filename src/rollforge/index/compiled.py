"""This module finds the compiled reader, where there is one, and says which answers it hands out to Python.

It loads nothing else, so that reading can begin before anything else is there.
"""

from __future__ import annotations

try:
    from rollforge.index._rows import Rows

    IS_THERE = hasattr(Rows, "read")  # else it was compiled from an older source
except ImportError:
    IS_THERE = False

LONG_STARTS = b'trac{|"e{|"t{|"o{|n { |"<!do<htmexcejavatypereferangerro'
"""The first four bytes of long error messages, as they are escaped and folded."""

LOOKED_AT = 400
"""A refusal or an error message shows itself at the start; a long text that merely mentions one is neither."""


def new_rows() -> Rows:
    """A reader that has read nothing yet."""
    return Rows(LOOKED_AT, LONG_STARTS)
