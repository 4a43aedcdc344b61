"""The index: a rollouts file as columns, with the place of every line in it.

One pass over the text makes Parquet parts beside the file (`rollouts_index/`); every later question is answered from those.
The parts are a cache: safe to delete, extended when the file grows, made anew on any other change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollforge.index.opening import open_index
    from rollforge.index.view import Index

__all__ = ["Index", "open_index"]


def __getattr__(name: str) -> object:
    """Both with all that they load, when they are first named: whoever reads text has better things to do before."""
    if name == "open_index":
        from rollforge.index.opening import open_index

        return open_index
    if name == "Index":
        from rollforge.index.view import Index

        return Index
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
