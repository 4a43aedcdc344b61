"""The index: a run's files as columns, with the place of every line.

One pass over the text makes Parquet parts beside the file (`rollouts_index/`); every later question is answered from those. The parts
are a cache: safe to delete, extended when the file grows, rebuilt after any other change. Other packages import from here only.
"""

from rollforge.index.answer_kind import begins_like_error
from rollforge.index.arrow import arrow_array, arrow_floats, codes, flags, floats, ints, texts
from rollforge.index.by_task import ByTask
from rollforge.index.index import Index, LineKeys, line_keys, open_index, top_level_numbers
from rollforge.index.jsonl import byte_stream, is_compressed, read_lines, read_spans
from rollforge.index.row_facts import UnreadableLine, split_line
from rollforge.index.state import BadLineAt
from rollforge.index.text_hash import prompt_hash, split_messages

__all__ = [
    "BadLineAt",
    "ByTask",
    "Index",
    "LineKeys",
    "UnreadableLine",
    "arrow_array",
    "arrow_floats",
    "begins_like_error",
    "byte_stream",
    "codes",
    "flags",
    "floats",
    "ints",
    "is_compressed",
    "line_keys",
    "open_index",
    "prompt_hash",
    "read_lines",
    "read_spans",
    "split_line",
    "split_messages",
    "texts",
    "top_level_numbers",
]
