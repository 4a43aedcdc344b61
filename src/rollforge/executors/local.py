"""One worker in this process and this event loop."""

from __future__ import annotations

from rollforge.executors.base import ExecutorOptions, Hand, Message, Worker, WorkerLost, dismiss, host_name
from rollforge.registry import load_target


class Local:
    """Runs the worker in this process, without copying messages."""

    def __init__(self, options: ExecutorOptions) -> None:
        self._hands: list[_Here] = []

    async def start(self, target: str) -> list[Hand]:
        self._hands = [_Here(load_target(target)())]
        return [*self._hands]

    async def replace(self, lost: Hand) -> Hand | None:
        raise WorkerLost(f"{lost.name} is this process, which cannot be replaced")

    async def close(self) -> None:
        for hand in self._hands:
            await hand.close()


class _Here:
    """Handle of a worker object in this process."""

    def __init__(self, worker: Worker) -> None:
        self.name = host_name(0)
        self._worker = worker

    async def ask(self, message: Message) -> Message:
        return await self._worker.handle(message)

    async def close(self) -> None:
        await dismiss(self._worker)
