"""A run's files: names, durable appends, the lock, the ledger of what is owed, the manifest.

Rules of the data: a line is appended whole and acknowledged only after it is on disk; a torn last line is cut before the first
append; owed rollouts are determined by key, independent of line order; only one process writes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollforge.store.files import RunFiles

if TYPE_CHECKING:
    from rollforge.store.atomic import replacing, write_atomically
    from rollforge.store.durable import DurableFile
    from rollforge.store.ledger import Ledger
    from rollforge.store.lock import RunLock
    from rollforge.store.manifest import Manifest, is_alive, read_manifest, run_id
    from rollforge.store.reading import UNREADABLE, parquet_file, read_json, reason_of
    from rollforge.store.tail import damaged_bytes, damaged_file, mend_tail

__all__ = [
    "UNREADABLE",
    "DurableFile",
    "Ledger",
    "Manifest",
    "RunFiles",
    "RunLock",
    "damaged_bytes",
    "damaged_file",
    "is_alive",
    "mend_tail",
    "parquet_file",
    "read_json",
    "read_manifest",
    "reason_of",
    "replacing",
    "run_id",
    "write_atomically",
]

_MODULE_OF = {
    "DurableFile": "durable", "mend_tail": "tail", "damaged_file": "tail", "damaged_bytes": "tail",
    "replacing": "atomic", "write_atomically": "atomic",
    "Ledger": "ledger",
    "RunLock": "lock", "Manifest": "manifest", "is_alive": "manifest", "read_manifest": "manifest", "run_id": "manifest",
    "UNREADABLE": "reading", "parquet_file": "reading", "read_json": "reading", "reason_of": "reading",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a submodule on first use: readers only need file names, while writing imports asyncio."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rollforge.store.{_MODULE_OF[name]}"), name)
