"""The index: a rollouts file as columns, with the place of every line in it.

One pass over the text makes Parquet parts beside the file (`rollouts_index/`); every later question is answered from those.
The parts are a cache: safe to delete, extended when the file grows, made anew on any other change.
"""

from rollforge.index.view import Index, open_index

__all__ = ["Index", "open_index"]
