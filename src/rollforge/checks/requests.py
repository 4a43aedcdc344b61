"""Requests not answered as asked: unseen tools, the server's default sampling, time-outs, missing logprobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share

LOGPROBS = re.compile(rb'"(?:logprobs|generation_log_probs)"\s*:\s*\[\s*[-{0-9]')
CHARS_PER_TOKEN = 8
"""More characters per token than any tokenizer reaches on JSON. With fewer input tokens, the request cannot contain the text."""


@check("unused-tools", "collection", min_rollouts=20, min_tasks=5)
def unused_tools(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Tools were offered and never called: the chat template may leave them out."""
    if (
        np.nan_to_num(run.tool_calls).any()
        or run.n < limits["min_rollouts"]
        or run.groups < limits["min_tasks"]
    ):
        return
    samples = run.spread_samples
    offered = [position for position, item in enumerate(samples) if item.tools]
    estimate = share(len(offered), len(samples))
    if estimate.low < 0.5 or len(offered) < limits["min_rollouts"]:
        return
    unseen = [
        position
        for position in offered
        if _cannot_hold_tools(samples[position].input_tokens, samples[position].tools_chars)
    ]
    is_unseen = len(unseen) > len(offered) / 2
    why = (
        f"; {len(unseen):,} requests counted fewer input tokens than the tools' own text has: the model never saw them"
        if is_unseen
        else ": the chat template may leave them out"
    )
    names = Counter(name for position in offered for name in samples[position].tools or ())
    common = [name for name, _ in names.most_common(3)]
    yield Finding(
        level="error" if is_unseen else "warning",
        text=f"none of {run.n:,} rollouts calls a tool, although {', '.join(common)} "
        f"{'were' if len(names) > 1 else 'was'} offered{why}",
        value=0.0,
        threshold=limits["min_rollouts"],
        n=run.n,
        interval=estimate.interval,
        where=run.lines(run.spread[offered]),
        next="ask the server for its rendered prompt, or use a model whose chat template knows tools",
        quotes=common,
    )


def _cannot_hold_tools(input_tokens: float | None, chars: int) -> bool:
    return input_tokens is not None and 0 < input_tokens * CHARS_PER_TOKEN < chars


@check("server-sampling", "collection")
def server_sampling(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Requests leave the sampling parameters to the server's defaults."""
    samples = [item for item in run.spread_samples if item.has_params]
    if not samples:
        return
    absent = [
        name
        for name in ("temperature", "top_p")
        if not any(item.sampling(name) is not None for item in samples)
    ]
    if not absent:
        return
    yield Finding(
        level="note",
        text=f"no request names {' or '.join(absent)}: the server's own defaults decided how answers were sampled "
        "(often with top_k or min_p as well)",
        value=float(len(absent)),
        n=len(samples),
        next="name them, so that the run can be repeated elsewhere: --temperature 1 --top-p 1",
    )


@check("censored-by-timeout", "collection", warn_share=0.01)
def censored_by_timeout(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rollouts were repeated after time-outs, so long answers are missing."""
    tasks = np.asarray(run.about.timed_out, dtype=np.int64)
    estimate = share(min(len(tasks), run.n), run.n)
    if not len(tasks) or not run.n:
        return
    limit = f" of {run.about.timeout_s:g} s" if run.about.timeout_s else ""
    hit = np.flatnonzero(np.isin(run.task_ids, tasks))
    yield Finding(
        level="warning" if estimate.value > limits["warn_share"] else "note",
        text=f"{len(tasks):,} attempts ended in a time-out{limit} and were drawn again or given up: answers that take longer are "
        f"missing, and lengths and rewards of {len(np.unique(tasks)):,} tasks are biased towards short ones",
        value=estimate.value,
        threshold=limits["warn_share"],
        n=run.n,
        interval=estimate.interval,
        where=run.tasks(hit),
        next=f"raise --request-timeout, or limit answers with --max-output-tokens; see them: {run.status}",
    )


@check("missing-logprobs", "collection", min_share=0.99)
def missing_logprobs(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Log-probabilities were asked for, and answers lack them."""
    if not run.about.logprobs or not run.n:
        return
    drawn = run.spread[~run.is_empty[run.spread]]
    has_them = np.asarray(
        [LOGPROBS.search(line) is not None for line in run.source.read(run.row[drawn].tolist())],
        dtype=np.bool_,
    )
    estimate = share(int(has_them.sum()), len(drawn))
    if not len(drawn) or estimate.value >= limits["min_share"]:
        return
    yield Finding(
        level="warning",
        text=f"log-probabilities were asked for, and {estimate.n - estimate.count:,} of {estimate.n:,} answers looked at have none: "
        "the server ignores the request",
        value=estimate.value,
        threshold=limits["min_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drawn[~has_them]),
        next="use a server that returns them, or another --api",
    )
