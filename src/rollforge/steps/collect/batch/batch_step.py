"""Batches in the collect step: requests written to files, results read from files, or both by way of the provider."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from rollforge import __version__
from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.endpoint.batch_api import BatchApi
from rollforge.errors import UsageError
from rollforge.steps.collect.batch.answer_loop import BatchEngine
from rollforge.steps.collect.batch.request_files import RequestWriter, WrittenRequests, write_requests
from rollforge.steps.collect.batch.results import BatchReport, BatchResults
from rollforge.steps.collect.batch.rounds import BatchRounds, clear_folder
from rollforge.steps.collect.chosen_verifier import chosen_verifier
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.goal.setup import design_of, make_schedule
from rollforge.steps.collect.machinery import prepared_agent
from rollforge.steps.collect.plan import CollectPlan, make_plan
from rollforge.store import RunFiles, RunLock
from rollforge.store.outputs import refuse_output
from rollforge.text_safety.redaction import SECRETS


async def collect_batches(
    engine: BatchEngine, plan: CollectPlan, options: CollectOptions, client: Client, model: Model
) -> BatchReport:
    """Convert batch results to rollouts; returns a report on the results."""
    writer = RequestWriter(plan, options, model)
    results = BatchResults(plan, writer.run, max_response_bytes=options.max_response_bytes)
    engine.use(results, model, writer.api)
    if options.read_batch:
        for path in options.read_batch:
            results.add(Path(path))
        await _read_all(engine, results, options)
    else:
        await BatchRounds(engine, plan, options, BatchApi(client), writer, results).run()
        clear_folder(plan.files.batch_files)
    return results.report


async def _read_all(engine: BatchEngine, results: BatchResults, options: CollectOptions) -> None:
    """Convert all results to rollouts; with a goal, they decide which samples are requested next."""
    requested_keys: set[tuple[int, int]] = set()
    while not engine.is_stopping:
        used = results.report.used
        requested_keys |= {
            (ask.position, sample) for ask in iter(engine.next_ask, None) for sample in ask.samples
        }
        await engine.run()
        if results.report.used == used:
            break
    results.count_gaps(sorted(requested_keys), options.attempts)


async def write_batch(options: CollectOptions, *, command: list[str]) -> WrittenRequests:
    """Plan the run and write its owed rollouts as request files; nothing is sent."""
    if options.model == "auto":
        raise UsageError("-m auto asks a server, and --write-batch has none", hint="give the model's name")
    options.check()
    refuse_output(options.write_batch or "", reads=[options.input or ""], flag="--write-batch")
    SECRETS.learn_environment(*options.key_envs)
    SECRETS.learn_from(options.to_config())
    SECRETS.learn_words(command)
    verifier = chosen_verifier(options)
    with RunLock(RunFiles(options.out).lock):
        async with prepared_agent(options) as (_, prepared):
            plan = make_plan(
                options,
                needs=verifier.needs if verifier else (),
                verifier_fingerprint=verifier.fingerprint if verifier else None,
                version=__version__,
                command=command,
                agent=prepared,
                design_of=design_of,
            )
            try:
                return _write(plan, options)
            finally:
                plan.tasks.close()


def _write(plan: CollectPlan, options: CollectOptions) -> WrittenRequests:
    manifest = plan.manifest
    manifest.state, manifest.updated = "interrupted", time.time()
    manifest.pid, manifest.host, manifest.finished = os.getpid(), socket.gethostname(), plan.ledger.finished
    manifest.write(plan.files)  # the ids of the requests come from it
    model = Model(Client(ClientOptions(base_urls=())), model_options(options))
    writer = RequestWriter(plan, options, model)
    assert options.write_batch is not None
    schedule = make_schedule(plan, options)
    files, requests, size = write_requests(
        writer, schedule, Path(options.write_batch), most=options.batch_size
    )
    manifest.write(plan.files)
    return WrittenRequests(
        run=options.out, files=[str(path) for path in files], requests=requests, bytes=size
    )


def model_options(options: CollectOptions) -> ModelOptions:
    """Model name and request options."""
    return ModelOptions(
        name=options.model,
        api=options.api,
        logprobs=options.logprobs,
        names_samples=options.model == "simulated",
    )
