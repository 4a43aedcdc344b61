"""Main program of a worker process: messages from stdin, answers to the original stdout.

The worker code's prints go to stderr, so they cannot mix with answers. End of file on stdin means that the parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from rollforge.executors.base import Worker, answered, dismiss
from rollforge.executors.processes import HEAD
from rollforge.registry import load_target
from rollforge.runtime.event_loop import run_async
from rollforge.text_safety.outgoing import guard_output
from rollforge.text_safety.redaction import SECRETS


def main() -> None:
    """Serve messages until stdin ends."""
    guard_output()  # its stderr is the user's terminal
    SECRETS.learn_environment()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)
    worker: Worker = load_target(sys.argv[1])()
    run_async(_serve(worker, answers))


async def _serve(worker: Worker, answers: int) -> None:
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    waiting = asyncio.create_task(_read(questions))
    try:
        while (message := await waiting) is not None:
            waiting = asyncio.create_task(_read(questions))
            answering = asyncio.create_task(answered(worker, message))
            await asyncio.wait([waiting, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and waiting.done() and waiting.result() is None:
                answering.cancel()  # the asker is gone
                return
            is_answer, answer = await answering
            await asyncio.to_thread(_write, answers, HEAD.pack(is_answer, len(answer)) + answer)
    except BrokenPipeError:
        pass
    finally:
        await dismiss(worker)


async def _read(questions: asyncio.StreamReader) -> bytes | None:
    try:
        _, length = HEAD.unpack(await questions.readexactly(HEAD.size))
        return await questions.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


if __name__ == "__main__":
    main()
