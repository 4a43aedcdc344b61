"""Workers as actors on an existing Ray cluster: one per node, or a given number spread over the nodes.

Ray core only. Ray starts actors and reports when they end; it has no durable state. Messages are paths, numbers and settings:
nothing goes through `ray.put`, and no rollout enters the object store. Actors are neither restarted nor retried by Ray, because
work handed to an actor that waits for a restart hangs when no node has room.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import socket
from typing import Any

from rollforge.errors import UsageError
from rollforge.executors.base import (
    ExecutorOptions,
    Hand,
    Message,
    Worker,
    WorkerLost,
    answered,
    dismiss,
    raise_fault,
)
from rollforge.registry import load_target
from rollforge.runtime.event_loop import GC_THRESHOLD

logger = logging.getLogger(__name__)

INSTALL = "pip install 'rollforge[ray]'"
READY_S = 120.0
"""Time for an actor to start: a node may have to load rollforge from a slow disk."""
ROOM_S = 10.0
"""Time limit per attempt for a replacement to be scheduled."""
ANSWER_S = 5.0
"""Time limit for a cluster address to answer."""


class Ray:
    """Attaches to a cluster and starts actors there; never starts a cluster."""

    def __init__(self, options: ExecutorOptions) -> None:
        self._ray = _import_ray()
        self._workers = options.workers
        self._address = options.address
        self._target = ""
        self._hands: list[_Actor] = []
        self._numbers = itertools.count()
        self._is_ours = False

    async def start(self, target: str) -> list[Hand]:
        self._target = target
        await asyncio.to_thread(self._attach)
        node_ids = self._node_ids()
        for node in node_ids:
            self._hands.append(self._made(node))
        started = await asyncio.gather(*(hand.wait_until_ready(READY_S) for hand in self._hands))
        ready = [hand for hand, is_ready in zip(self._hands, started, strict=True) if is_ready]
        if not ready:
            raise UsageError(
                f"no actor started on the Ray cluster within {READY_S:.0f} s",
                hint="see what holds its CPUs: ray status; rollforge must be installed on every node",
            )
        for hand in self._hands:
            if hand not in ready:
                await hand.close()
        self._hands = ready
        return [*ready]

    async def replace(self, lost: Hand) -> Hand | None:
        """A new actor on any node with room, since the node of the lost one may be gone."""
        hand = self._made(None)
        is_ready = False
        try:
            is_ready = await hand.wait_until_ready(ROOM_S)
        finally:
            if not is_ready:
                hand.kill()
        if not is_ready:
            return None
        self._hands.append(hand)
        return hand

    async def close(self) -> None:
        await asyncio.gather(*(hand.close() for hand in self._hands))
        if self._is_ours:
            await asyncio.to_thread(self._ray.shutdown)

    def _attach(self) -> None:
        """Connect to the named cluster, else to that of the environment, else to the one that this job runs on."""
        if self._ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        if address and address.startswith("ray://"):
            logger.warning(
                "ray:// calls are several times slower, and a lost connection ends the job; prefer ray job submit"
            )
        _refuse_silence(address)
        try:
            # "auto" attaches to a cluster that runs on this machine and raises when there is none.
            self._ray.init(
                address=address or "auto", log_to_driver=False, namespace="rollforge", logging_level="ERROR"
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "on this machine, and RAY_ADDRESS is not set"
            raise UsageError(
                f"there is no Ray cluster {where}: {error}",
                hint="start one (ray start --head), name one (--on ray:HOST:6379), or leave --on out; "
                "a cluster that asks for a token needs RAY_AUTH_MODE=token",
            ) from error
        self._is_ours = True

    def _node_ids(self) -> list[str | None]:
        """A node for each worker; None leaves the choice to Ray."""
        if self._workers is not None:
            return [None] * self._workers
        nodes = [
            node["NodeID"]
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        ]
        if not nodes:
            raise UsageError("the Ray cluster has no node with a CPU", hint="see them: ray status")
        return [*nodes]

    def _made(self, node: str | None) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy: Any = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)
        kind = self._ray.remote(_ActorWorker)
        actor = kind.options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy, max_concurrency=4
        ).remote(self._target)
        name = f"actor {next(self._numbers)}"  # several may be replaced at once, and a name is one worker's
        return _Actor(self._ray, actor, name + (f" on node {node[:8]}" if node else ""))


class _ActorWorker:
    """The actor class that wraps a worker."""

    def __init__(self, target: str) -> None:
        gc.set_threshold(*GC_THRESHOLD)  # the loop is Ray's, so `run_async` does not do it here
        self._worker: Worker = load_target(target)()

    async def is_ready(self) -> bool:
        return True

    async def handle(self, message: Message) -> tuple[bool, Message]:
        return await answered(self._worker, message)

    async def close(self) -> None:
        await dismiss(self._worker)


class _Actor:
    """Handle of a worker in an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self.name = name
        self._ray = ray
        self._actor = actor

    async def wait_until_ready(self, seconds: float) -> bool:
        """Whether the actor starts within this time."""
        try:
            async with asyncio.timeout(seconds):
                return bool(await self._actor.is_ready.remote())
        except (TimeoutError, self._ray.exceptions.RayError) as error:
            logger.warning("%s did not start: %s", self.name, error or "no room")
            return False

    async def ask(self, message: Message) -> Message:
        try:
            is_answer, answer = await self._actor.handle.remote(message)
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(f"{self.name} is gone: {type(error).__name__}") from error
        if not is_answer:
            raise_fault(answer, self.name)
        reply: Message = answer
        return reply

    async def close(self) -> None:
        try:
            async with asyncio.timeout(10.0):
                await self._actor.close.remote()
        except (TimeoutError, self._ray.exceptions.RayError):
            logger.debug("%s did not close by itself", self.name)
        self.kill()

    def kill(self) -> None:
        """End the actor at once, even if it is not scheduled yet. Without a connection it has ended, and calling Ray would start
        a cluster.
        """
        if self._ray.is_initialized():
            self._ray.kill(self._actor, no_restart=True)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError("--on ray needs Ray, which is not installed", hint=INSTALL) from error
    return ray


def _refuse_silence(address: str | None) -> None:
    """Raise if nothing listens at HOST:PORT, because Ray would retry for ten minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise UsageError(
            f"there is no Ray cluster at {address}: {error}",
            hint="start one (ray start --head), name one (--on ray:HOST:6379), or leave --on out",
        ) from error
