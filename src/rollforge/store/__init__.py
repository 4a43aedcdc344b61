"""A run's files: names, durable appends, the lock, the ledger of what is owed, the manifest.

Rules of the data: a line is appended whole and acknowledged only after it is on disk; a torn last line is cut before the first
append; what is owed is known by key, whatever order the lines are in; one writer at a time.
"""

from rollforge.store.durable import DurableFile, mend_tail, write_atomically
from rollforge.store.files import RunFiles
from rollforge.store.ledger import Ledger
from rollforge.store.lock import RunLock
from rollforge.store.manifest import Manifest, is_alive, read_manifest

__all__ = [
    "DurableFile",
    "Ledger",
    "Manifest",
    "RunFiles",
    "RunLock",
    "is_alive",
    "mend_tail",
    "read_manifest",
    "write_atomically",
]
