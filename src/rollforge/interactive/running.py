"""`collect` and `verify` as coroutines, for sync and async callers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollforge.assembly.group_verdicts import with_group_verdicts
from rollforge.assembly.monitoring import MonitorChoice, open_monitor
from rollforge.errors import Exit
from rollforge.index import open_index
from rollforge.interactive.buckets import read_file, written_run
from rollforge.interactive.in_memory import task_source
from rollforge.interactive.keyword_values import fitted, path_of, texts_of
from rollforge.interactive.option_records import (
    resolve,
    take_counts,
    take_record,
    take_sampling,
    take_verifier_settings,
)
from rollforge.interactive.outcome import RunOutcome
from rollforge.interactive.progress import Progress, make_progress
from rollforge.interactive.waiting import WaitingWork
from rollforge.statistics.counts import count_of
from rollforge.steps.collect import (
    Collection,
    CollectOptions,
    CollectResult,
    Observer,
    ScaleOptions,
    ShardedCollection,
)
from rollforge.steps.collect.batch.batch_step import write_batch
from rollforge.steps.collect.program_options import sandbox_fields
from rollforge.steps.probe import ProbeOptions, probe
from rollforge.steps.profile import write_gym_files
from rollforge.steps.verify import SpreadVerification, Verification, VerifyOptions, VerifySummary
from rollforge.store import RunFiles, read_manifest

if TYPE_CHECKING:
    from rollforge.steps.collect.live import LiveSnapshot
    from rollforge.verifiers.probes import ProbeReport


def collecting(
    tasks: Any,
    out: str | Path,
    model: str,
    base_url: str | Sequence[str],
    verifier: Any,
    samples: int,
    limit: int | None,
    progress: Progress,
    options: Mapping[str, Any],
) -> WaitingWork[CollectResult]:
    """Prepare the work of `collect`; invalid arguments raise here, before anything is written."""
    keywords = resolve("collect", options)
    path_of(out, name="out", command="collect")
    samples = fitted(samples, int, name="samples", field="samples", command="collect")
    limit = fitted(limit, int | None, name="limit", field="limit", command="collect")
    samples, limit = take_counts(keywords, samples=samples, limit=limit)
    take_sampling(keywords)
    if keywords.pop("fast", False):
        keywords["verify_mode"] = "fast"
    if (sandbox := keywords.pop("sandbox", None)) is not None:
        keywords |= sandbox_fields(
            sandbox,
            agent=keywords.get("agent"),
            verifier=verifier,
            verifier_options=keywords.get("verifier_options") or {},
        )
    if keywords.get("no_verify"):
        verifier = None
    gym_files = bool(keywords.pop("gym_files", False))
    monitor, scale = take_record(keywords, MonitorChoice), take_record(keywords, ScaleOptions)
    chosen = CollectOptions(
        input=str(tasks) if isinstance(tasks, str | Path) else "-",
        out=str(out),
        model=model,
        base_urls=texts_of(base_url, name="base_url", command="collect"),
        verifier=verifier,
        samples=samples,
        limit=limit,
        **keywords,
    )
    chosen.check()
    monitor.check()
    if scale:
        scale.check(chosen)
        monitor.refuse_shards()
    with ExitStack() as opening:
        tasks = opening.enter_context(read_file(tasks))
        out = opening.enter_context(written_run(out, is_collected=True))
        is_sharded = bool(scale) or RunFiles(out).is_sharded
        if is_sharded:
            scale.check(chosen)
            monitor.refuse_shards()
        needed = None if chosen.shuffle or chosen.skip_bad else chosen.limit
        here = replace(chosen, input=task_source(tasks, out, limit=needed), out=str(out))
        if here.write_batch is not None:
            return requests_work(here, held=opening.pop_all())
        if is_sharded:
            return sharded_work(here, scale, progress, held=opening.pop_all())
        observer = opening.enter_context(open_monitor(monitor, here.out, here.to_config()))
        held = opening.pop_all()
    return collection_work(here, progress, held=held, observer=observer, gym_files=gym_files)


def collection_work(
    options: CollectOptions,
    progress: Progress,
    label: str = "",
    *,
    held: ExitStack | None = None,
    observer: Observer | None = None,
    gym_files: bool = False,
) -> WaitingWork[CollectResult]:
    """The work of one collection, with groups judged at its end; `held` is closed afterwards."""
    collection = Collection(options, command=_command(), observer=observer)
    shown = make_progress(progress, lambda: collect_line(collection.snapshot(), label))

    async def run() -> CollectResult:
        try:
            with held or ExitStack():
                result = await with_group_verdicts(collection, await collection.run())
                if gym_files:
                    with open_index(options.out) as index:
                        write_gym_files(index)
                return result
        finally:
            shown.close()

    return WaitingWork(run, drain=collection.drain, abort=collection.abort, show=shown.show)


def sharded_work(
    options: CollectOptions, scale: ScaleOptions, progress: Progress, *, held: ExitStack
) -> WaitingWork[CollectResult]:
    """The work of a sharded collection, with one shard here or all of them in workers; `held` is closed afterwards."""
    collection = ShardedCollection(options, scale, command=_command())
    shown = make_progress(progress, lambda: collect_line(collection.snapshot()))

    async def run() -> CollectResult:
        try:
            with held:
                return await with_group_verdicts(collection, await collection.run())
        finally:
            shown.close()

    return WaitingWork(run, drain=collection.drain, abort=collection.abort, show=shown.show)


def requests_work(options: CollectOptions, *, held: ExitStack) -> WaitingWork[CollectResult]:
    """The work of `write_batch`: owed rollouts become files of requests, and nothing is sent; `held` is closed afterwards."""

    async def run() -> CollectResult:
        with held:
            written = await write_batch(options, command=_command())
        manifest = read_manifest(RunFiles(options.out))
        assert manifest is not None, "written with the requests"
        return CollectResult(
            run=written.run,
            ending="requests",
            exit_code=Exit.DONE,
            message=f"wrote {count_of(written.requests, 'request')} to {', '.join(written.files)}",
            expected=manifest.expected,
            finished=manifest.finished,
            fresh=0,
            owed=manifest.expected - manifest.finished,
            unjudged=manifest.unjudged,
            failed=manifest.failed,
            elapsed_s=0.0,
            rollouts_per_s=None,
            tokens_per_s=None,
            bottleneck="",
        )

    return WaitingWork(run)


def _command() -> list[str]:
    """The command to resume, stored in the manifest: the script, or the notebook's interpreter."""
    return ["python", *sys.argv[:1]] if sys.argv and sys.argv[0] else ["python"]


def collect_line(now: LiveSnapshot | None, label: str = "") -> str:
    """Progress of a collection in one line."""
    head = f"{label}: " if label else ""
    if now is None:
        return f"{head}reading tasks"
    parts = [f"{now.finished:,} of {count_of(now.expected, 'rollout')}"]
    if now.reward is not None:
        parts.append(f"reward {now.reward:.3f} over {now.judged:,}")
    if now.rate:
        parts.append(f"{now.rate:.3g}/s")
    if now.eta_s:
        parts.append(f"{now.eta_s / 60:.0f} min left" if now.eta_s >= 90 else f"{now.eta_s:.0f} s left")
    if now.failures:
        parts.append(f"{sum(now.failures.values()):,} failed attempts")
    if now.light == "red":
        parts.append("verification looks BROKEN")
    if now.notice:
        parts.append(now.notice)
    return head + " · ".join(parts)


def verifying(
    run: str, verifier: Any, progress: Progress, options: Mapping[str, Any]
) -> WaitingWork[VerifySummary]:
    """Prepare the work of `verify`."""
    rest = dict(options)
    workers = rest.pop("workers", None)  # processes; those of the verifier are `verify_workers`
    keywords = resolve("verify", rest)
    take_verifier_settings(keywords, options="options", mode="mode")
    on = keywords.pop("on", None)
    is_spread = workers is not None or on not in (None, "local")
    verification: list[Verification | SpreadVerification] = []

    async def judge() -> VerifySummary:
        with written_run(run) as path:
            chosen = VerifyOptions(run=path, verifier=verifier, **keywords)
            verification.append(
                SpreadVerification(chosen, on=on, workers=workers) if is_spread else Verification(chosen)
            )
            try:
                return await verification[0].run()
            finally:
                shown.close()

    def line() -> str:
        if not verification:
            return f"{run}: starting the verifier"
        now = verification[0].snapshot()
        mean = f" · reward {now.mean:.3f}" if now.mean is not None else ""
        return f"{now.done:,} judged, {now.already:,} before{mean} · {now.rate:.3g}/s"

    def drain() -> None:
        for one in verification:
            one.stop()

    def abort() -> None:
        for one in verification:
            one.abort()

    shown = make_progress(progress, line)
    return WaitingWork(
        judge,
        drain=drain,
        abort=abort,
        show=shown.show,
    )


def probing(run: str | Path, verifier: Any, options: Mapping[str, Any]) -> WaitingWork[ProbeReport]:
    """Prepare the work of `probe`."""
    chosen = ProbeOptions(run=run, verifier=verifier, **resolve("probe", options))
    return WaitingWork(lambda: probe(chosen))


def tell_verified(summary: VerifySummary, *, strict: bool) -> None:
    """Warn, or raise, if a verification did not finish."""
    codes = {"done": Exit.DONE, "interrupted": Exit.INTERRUPTED}
    missing = summary.owed + summary.failed
    text = f"{summary.judged:,} of {count_of(summary.rollouts, 'rollout')} judged, {missing:,} not"
    outcome = RunOutcome(summary.state, text, codes.get(summary.state, Exit.INCOMPLETE))
    outcome.tell(f"verification of {summary.run}", strict=strict, run=summary, stacklevel=4)
