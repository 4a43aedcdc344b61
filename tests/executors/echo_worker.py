"""A worker for tests: says back what it hears, raises or ends when told to."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from rollforge.errors import UsageError


class EchoWorker:
    """Answers every message."""

    async def handle(self, message: bytes) -> bytes:
        word, _, rest = message.partition(b" ")
        match word:
            case b"raise":
                raise UsageError("the worker refuses", hint="ask otherwise")
            case b"crash":
                raise ZeroDivisionError("a defect")
            case b"die":
                os._exit(9)
            case b"pid":
                return str(os.getpid()).encode()
            case b"gc":
                return repr(gc.get_threshold()).encode()
            case b"print":
                print("this must not reach the asker", flush=True)
                return b"printed"
            case b"sleep":
                await asyncio.sleep(float(rest))
                return b"slept"
            case b"close-file":
                self._path = Path(rest.decode())
                return b"ok"
        return message

    async def close(self) -> None:
        path = getattr(self, "_path", None)
        if path is not None:
            path.write_text("closed")
