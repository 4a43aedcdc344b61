"""Opens everything that a collection needs, in order, and always closes it: client, model, judge, files, engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from rollforge.adaptive.design import priced
from rollforge.agents.base import Agent, Preparation, make_agent
from rollforge.endpoint import HIGHEST, Client, ClientOptions, ConcurrencyRange, Limiter, Model, ModelOptions
from rollforge.environments.base import Environment
from rollforge.errors import Failure, RollforgeError, UsageError
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.batch.answer_loop import BatchEngine
from rollforge.steps.collect.collect_options import CollectOptions, parse_share
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.engine import CollectEngine
from rollforge.steps.collect.live import FAILURES_KEPT, Live, LiveSnapshot
from rollforge.steps.collect.observer import Observer
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import Schedule
from rollforge.steps.collect.server_load import follow_server
from rollforge.store import DurableFile, run_id
from rollforge.store.costs import read_costs
from rollforge.store.failure_reasons import failures_text, most_frequent
from rollforge.text_safety.outgoing import cut
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.probes import PROBE_CALLS, SprinkledProbes
from rollforge.verifiers.running.ready_verifier import RunningJudge, make_judge, parse_workers
from rollforge.verifiers.running.verdict_cache import VerdictCache

OFTEN = 0.05
"""Ratio of failed to successful verdicts from which the progress line quotes the failures."""
SPARE_FILES = 128
"""File descriptors reserved for purposes other than connections."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """The open parts of a running collection."""

    engine: CollectEngine
    limiter: Limiter
    client: Client
    model: Model
    rollouts: DurableFile
    judge: RunningJudge | None
    probes: SprinkledProbes | None
    schedule: Schedule

    def snapshot(self) -> LiveSnapshot:
        """Current counters of the run."""
        ages = self.engine.ages()
        self.engine.live.expected = self.schedule.expected
        goal, cost = self.schedule.progress(), self.engine.meter.facts()
        return self.engine.live.snapshot(
            in_flight=self.limiter.in_flight,
            limit=self.limiter.limit,
            verifying=self.engine.verifying,
            slowest_s=ages[0] if ages else 0.0,
            stragglers=sum(age > 60 for age in ages),
            retries=self.client.budget.spent,
            retry_causes=dict(self.client.retry_causes),
            model=self.engine.options.model,
            server=", ".join(point.url for point in self.client.endpoints),
            served=self.model.served,
            notice=self._notice(),
            light=self.engine.watch.light,
            judging=self.judge.counters if self.judge is not None else None,
            goal=priced(goal, cost.total if cost is not None else None) if goal is not None else None,
            cost=cost,
        )

    def _notice(self) -> str:
        if not self.client.has_answered and self.client.last_failure:
            return f"nothing answered yet; last failure: {cut(self.client.last_failure, 200)}"
        down = [point for point in self.client.endpoints if point.breaker.state != "closed"]
        if down and len(down) == len(self.client.endpoints):
            return f"waiting for {down[0].url}"
        if down:
            return f"{len(down)} endpoints down"
        failed = most_frequent(self.engine.live.verifier_failures, FAILURES_KEPT)
        if failed and sum(count for _, count in failed) >= OFTEN * self.engine.live.judged:
            return failures_text(failed)
        if self.engine.notice:
            return self.engine.notice
        if self.engine.watch.signals:
            return "; ".join(self.engine.watch.signals.values())
        return "draining" if self.client.is_draining else ""


class Tools(NamedTuple):
    """Parts that several engines share: limiter, client, model, verifier probes."""

    limiter: Limiter
    client: Client
    model: Model
    probes: SprinkledProbes | None


@asynccontextmanager
async def open_tools(
    options: CollectOptions,
    *,
    agent: Agent,
    judge: RunningJudge | None,
    notes: list[str],
    tasks: int,
    sharers: int = 1,
) -> AsyncIterator[Tools]:
    """Open client, model, agent and judge; `sharers` is the number of processes that use the same server."""
    async with AsyncExitStack() as stack:
        limiter = Limiter(_affordable(options.concurrency, notes), now=time.monotonic())
        client = await stack.enter_async_context(_make_client(options, stack, limiter, notes))
        if options.concurrency == "auto" and options.base_urls and not options.uses_batches:
            await _fit_to_slots(client, limiter, sharers)
        if options.base_urls and not limiter.is_fixed and not options.uses_batches:
            follower = asyncio.create_task(follow_server(client, limiter))
            stack.push_async_callback(_end, follower)
        model = Model(
            client,
            ModelOptions(
                name=options.model,
                api=options.api,
                logprobs=options.logprobs,
                names_samples=options.model == "simulated",
            ),
        )
        client.keeps_large_slots = True  # the engine releases them when the row is written
        await agent.start(model)
        yield Tools(limiter, client, model, await _start_judge(judge, options, stack, notes, tasks))


@asynccontextmanager
async def open_machinery(
    plan: CollectPlan,
    options: CollectOptions,
    *,
    agent: Agent,
    judge: RunningJudge | None,
    observer: Observer | None,
    notes: list[str],
    schedule: Schedule,
) -> AsyncIterator[Machinery]:
    """Open everything the engine needs; messages for the user are added to `notes`."""
    async with AsyncExitStack() as stack:
        tools = open_tools(options, agent=agent, judge=judge, notes=notes, tasks=len(plan.tasks))
        limiter, client, model, probes = await stack.enter_async_context(tools)
        meter = CostMeter(
            options,
            before=read_costs(plan.files) if options.asks_price and plan.is_resumed else None,
            notes=notes,
            is_batch=options.batch,
        )
        rollouts, failures = DurableFile(plan.files.rollouts), DurableFile(plan.files.failures)
        live = Live(expected=schedule.expected, finished=plan.ledger.finished)
        live.given_up = plan.ledger.given_up(options.attempts)
        if observer is not None:
            owed, given_up = plan.ledger.counts_by_task(options.attempts)
            run = run_id(plan.files, plan.manifest)
            observer.begin(run, plan.ledger.task_ids[plan.order], owed[plan.order], given_up[plan.order])
            stack.push_async_callback(observer.close)
        engine = (BatchEngine if options.uses_batches else CollectEngine)(
            plan,
            options,
            agent=agent,
            judge=judge,
            limiter=limiter,
            budget=client.budget,
            large=client.large,
            rollouts=rollouts,
            failures=failures,
            live=live,
            meter=meter,
            observer=observer,
            probes=probes,
            schedule=schedule,
        )
        for file in (rollouts, failures):
            await file.start()
            stack.push_async_callback(_close_quietly, file, engine)
        yield Machinery(engine, limiter, client, model, rollouts, judge, probes, schedule)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _close_quietly(file: DurableFile, engine: CollectEngine) -> None:
    """Close without raising: a disk error has already stopped the run, and closing must not hide its cause."""
    try:
        await file.close()
    except RollforgeError as error:
        engine.stop("disk", error)


def judge_for(verifier: Verifier, options: CollectOptions) -> RunningJudge:
    """The verifier, set up as the options say."""
    return make_judge(
        verifier,
        workers=parse_workers(options.verify_workers),
        timeout=options.verify_timeout_s,
        cache=VerdictCache(options.verify_cache) if options.verify_cache else None,
        output=options.verifier_output,
        # One answer per task has no equals, but for those of earlier runs.
        sharing="auto" if options.samples > 1 or options.verify_cache else "never",
    )


async def _start_judge(
    judge: RunningJudge | None, options: CollectOptions, stack: AsyncExitStack, notes: list[str], tasks: int
) -> SprinkledProbes | None:
    if judge is None:
        return None
    await judge.start()
    stack.push_async_callback(judge.close)
    if judge.note:
        notes.append(judge.note)
    if options.probe is None:
        return None
    probes = SprinkledProbes(judge, parse_share(options.probe, "--probe"), tasks)
    probed = round(probes.share * tasks)
    if "base_url" in options.verifier_options and probed:
        notes.append(
            f"the probe makes about {count_of(probed * PROBE_CALLS, 'more call')} to the judge model "
            f"({count_of(probed, 'task')} × {PROBE_CALLS})"
        )
    return probes


def _make_client(
    options: CollectOptions, stack: AsyncExitStack, limiter: Limiter, notes: list[str]
) -> Client:
    urls = () if options.is_offline else options.base_urls
    if not urls and options.asks_model and not options.is_offline:
        from rollforge.simulate import SimulatedProcess, SimulateOptions

        server = stack.enter_context(SimulatedProcess(SimulateOptions(seed=options.seed)))
        urls = (server.base_url,)
        notes.append(f"the answers are simulated by the embedded model at {server.base_url}")
    keys = [key for name in options.key_envs if (key := os.environ.get(name))]
    return Client(
        ClientOptions(
            base_urls=urls,
            request_timeout_s=options.request_timeout_s,
            retries=options.retries,
            retry_budget=options.retry_budget,
            outage_patience_s=options.outage_patience_s,
            max_response_bytes=options.max_response_bytes,
            rpm=options.rpm,
            tpm=options.tpm,
        ),
        keys=keys,
        limiter=limiter,
    )


async def _fit_to_slots(client: Client, limiter: Limiter, sharers: int) -> None:
    """Limit concurrency to a llama.cpp server's number of slots (from `/props` or `/slots`), since more requests would only queue
    there.
    """
    if not client.endpoints[0].is_plain:
        return
    slots: object = None
    for path in ("/props", "/slots"):
        try:
            answer = await client.get_json(path, is_at_root=True)
        except Failure:
            continue
        slots = (
            answer.get("total_slots")
            if isinstance(answer, dict)
            else len(answer)
            if is_slots(answer)
            else None
        )
        if slots is not None:
            break
    if isinstance(slots, int) and 1 <= slots <= HIGHEST:
        most = max(1, slots * len(client.endpoints) // sharers)
        limiter.cap(most, time.monotonic(), f"the server has {slots} slots")


def is_slots(answer: object) -> bool:
    """Whether the JSON is llama.cpp's list of slots, each with a number and a busy flag."""
    return isinstance(answer, list) and all(
        isinstance(slot, dict) and "id" in slot and ("is_processing" in slot or "state" in slot)
        for slot in answer
    )


async def only_model(options: CollectOptions) -> str:
    """Name of the only model that the server offers, for `-m auto`."""
    async with AsyncExitStack() as stack:
        limiter = Limiter(ConcurrencyRange.parse("1"), now=time.monotonic())
        client = await stack.enter_async_context(_make_client(options, stack, limiter, []))
        try:
            names = await client.models()
        except Failure as failure:
            raise UsageError(
                f"-m auto: {options.base_urls[0]}/models does not say which models there are: {failure.message}",
                hint="give the model's name with -m",
            ) from failure
    if len(names) != 1:
        raise UsageError(
            f"-m auto: the server offers {len(names)} models",
            hint=f"choose one with -m: {', '.join(names[:10])}" if names else "give the model's name with -m",
        )
    return names[0]


def _affordable(wanted: str, notes: list[str]) -> ConcurrencyRange:
    """The requested concurrency, reduced with a note to the connections that this process may open."""
    limits = ConcurrencyRange.parse(wanted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    most = max(1, soft - SPARE_FILES) if soft != resource.RLIM_INFINITY else limits.high
    if limits.high <= most:
        return limits
    if wanted != "auto":
        notes.append(f"concurrency is capped at {most} by the limit of open files (ulimit -n {soft})")
    return ConcurrencyRange(min(limits.low, most), most)


@asynccontextmanager
async def prepared_agent(
    options: CollectOptions, environment: Environment | None = None
) -> AsyncIterator[tuple[Agent, Preparation]]:
    """The agent of the options or of the environment, prepared with its tools and servers; closed at the end."""
    agent_options = options.to_agent_options()
    agent = environment.agent(agent_options) if environment is not None else None
    agent = agent or make_agent(options.agent, agent_options)
    try:
        preparation = await agent.prepare()
        yield (
            agent,
            msgspec.structs.replace(
                preparation, fingerprint={"agent": agent.name, **preparation.fingerprint}
            ),
        )
    finally:
        await agent.close()


def with_verifier_of(environment: Environment | None, options: CollectOptions) -> CollectOptions:
    """The options with the environment's verifier, unless the user named one or turned verification off."""
    named = environment.verifier if environment is not None else None
    if named is None or options.verifier is not None or options.no_verify:
        return options
    verifier_options = {**named.options, **options.verifier_options}
    return replace(options, verifier=named.name, verifier_options=verifier_options)


async def rehearse_agent(options: CollectOptions, environment: Environment | None = None) -> Preparation:
    """Requirements and abilities of the agent for a dry run; everything is closed again."""
    async with prepared_agent(options, environment) as (_, prepared):
        return prepared
