"""Options of `collect` about shards and workers."""

from __future__ import annotations

import shlex

import msgspec

from rollforge.errors import UsageError
from rollforge.steps.collect.collect_options import CollectOptions


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for shards, workers and their place."""

    shard: str | None = None
    """Collect one shard of the run in this process: I/N with I from 0, or slurm for the task of a Slurm array."""
    workers: int | None = None
    """Processes that share the work; with --on ray, actors (default there: one per node)."""
    on: str | None = None
    """Where the workers run: local, or ray (ray:HOST:PORT names a cluster; needs rollforge[ray])."""

    def __bool__(self) -> bool:
        return self.shard is not None or self.workers is not None or self.on not in (None, "local")

    def check(self, options: CollectOptions) -> None:
        """Refuse impossible combinations before anything is written."""
        if self.shard is not None and (self.workers is not None or self.on not in (None, "local")):
            raise UsageError(
                "--shard runs one shard in this process; --workers and --on run them all",
                hint="give one of them",
            )
        if options.pilot is not None:
            raise UsageError(
                "--pilot collects into a single file",
                hint="leave out --shard, --workers and --on for the pilot",
            )
        if options.probe is not None:
            file, verifier = shlex.quote(options.input or "TASKS"), shlex.quote(str(options.verifier))
            raise UsageError(
                "--probe asks the verifier of one process",
                hint=f"leave it out, and probe it before: rollforge verify -i {file} --verifier {verifier} --probe",
            )
        if options.goal is not None or options.top_up is not None:
            raise UsageError(
                f"{'--goal' if options.goal else '--top-up'} cannot be combined with shards: what to sample next depends on all tasks",
                hint="collect in one process, or give each shard's tasks a run and a goal of their own",
            )
        if options.uses_batches:
            raise UsageError(
                "--batch cannot be combined with shards",
                hint="collect with --batch into a run without shards",
            )
        if options.verifier is not None and not isinstance(options.verifier, str):
            raise UsageError(
                "a function cannot be sent to other processes", hint="name the verifier: file.py:function"
            )
