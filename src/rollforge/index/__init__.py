"""The index: a run's files as columns, with the byte offset of every line.

One pass over the text makes Parquet parts beside the file (`rollouts_index/`); every later question is answered from those. The parts
are a cache: safe to delete, extended when the file grows, rebuilt after any other change. Other packages import from here only.
"""

from rollforge.index.answer_kind import begins_like_error
from rollforge.index.arrow import (
    array_floats,
    arrow_array,
    arrow_floats,
    arrow_texts,
    codes,
    flags,
    floats,
    ints,
    is_known,
    texts,
)
from rollforge.index.by_task import ByTask, SharedGroups
from rollforge.index.index import Index, open_index
from rollforge.index.indexed_parts import (
    IndexUnit,
    IndexUpdate,
    index_units,
    recorded_states,
    update_index,
)
from rollforge.index.jsonl import byte_stream, is_compressed, read_lines, read_spans
from rollforge.index.keys_by_line import LineKeys, line_keys
from rollforge.index.row_facts import AnswerFacts, UnreadableLine, response_facts, split_line
from rollforge.index.state import BadLineAt
from rollforge.index.text_hash import prompt_hash, split_messages, text_hashes
from rollforge.index.top_level import top_level_numbers

__all__ = [
    "AnswerFacts",
    "BadLineAt",
    "ByTask",
    "Index",
    "IndexUnit",
    "IndexUpdate",
    "LineKeys",
    "SharedGroups",
    "UnreadableLine",
    "array_floats",
    "arrow_array",
    "arrow_floats",
    "arrow_texts",
    "begins_like_error",
    "byte_stream",
    "codes",
    "flags",
    "floats",
    "index_units",
    "ints",
    "is_compressed",
    "is_known",
    "line_keys",
    "open_index",
    "prompt_hash",
    "read_lines",
    "read_spans",
    "recorded_states",
    "response_facts",
    "split_line",
    "split_messages",
    "text_hashes",
    "texts",
    "top_level_numbers",
    "update_index",
]
