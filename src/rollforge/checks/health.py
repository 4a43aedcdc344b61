"""Single bad rollouts: failed endings, hollow turns, endless repetition, inconsistent token counts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, settle_text, share
from rollforge.statistics.stats import Ints
from rollforge.store.reading import UNREADABLE

_decode = msgspec.json.Decoder(dict[str, object]).decode

LONGEST_UNIT = 200
LEAST_TIMES = 6
"""Repetitions of a unit at the end of an answer that make a loop."""
TAIL = LONGEST_UNIT * LEAST_TIMES
"""Characters at the end of an answer that are searched for repetition."""
LEAST_LOOP = 200
"""Fewest characters of a loop."""


def _found(
    run: Evidence,
    drawn: Ints,
    is_bad: Bools,
    limits: Limits,
    text: str,
    advice: str,
    *,
    most: Level = "warning",
) -> Iterator[Finding]:
    estimate = share(int(is_bad.sum()), len(drawn), independent=run.independent(run.flags(drawn)))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None:
        return
    if level == "error":
        level = most
    yield Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} rollouts looked at ({estimate.value:.1%}) {text}"
        f"{settle_text(estimate, level, limits['max_share'])}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drawn[is_bad]),
        next=f"{advice}; see one: rollforge show {run.name} --line {int(run.line[drawn[is_bad][0]])}",
    )


@check("failed-endings", "collection", warn_share=0.01, max_share=0.05)
def failed_endings(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rollouts that end on a failed model call, or on a tool call that nobody answered."""
    drawn = run.spread
    is_bad = np.asarray([item.ends_badly for item in run.spread_samples], dtype=np.bool_)
    text = "end on a failed model call or an unanswered tool call"
    yield from _found(run, drawn, is_bad, limits, text, "they are failures, not answers: let the agent raise")


@check("hollow-turns", "collection", warn_share=0.02, max_share=0.1)
def hollow_turns(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rollouts with a turn in which the model neither says nor does anything."""
    drawn = run.spread[~run.is_empty[run.spread]]
    samples = [
        item
        for item, is_empty in zip(run.spread_samples, run.is_empty[run.spread], strict=True)
        if not is_empty
    ]
    is_bad = np.asarray([item.hollow_turns > 0 for item in samples], dtype=np.bool_)
    text = "have a turn in which the model says and does nothing"
    yield from _found(run, drawn, is_bad, limits, text, "look at stop words and the chat template")


@check("runaway-answers", "collection", warn_share=0.02, max_share=0.1)
def runaway_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that end in the same words again and again."""
    drawn = run.spread
    is_bad = np.asarray([is_loop(item.answer) for item in run.spread_samples], dtype=np.bool_)
    text = "end in the same words again and again"
    yield from _found(
        run, drawn, is_bad, limits, text, "lower --max-output-tokens or sample at another temperature"
    )


def is_loop(answer: str) -> bool:
    """Whether the end of the answer is one unit, repeated."""
    end = answer[-TAIL:]
    for size in range(1, min(LONGEST_UNIT, len(end) // LEAST_TIMES) + 1):
        if end[-1 - size] != end[-1]:
            continue  # most sizes end here
        unit = end[-size:]
        if not unit.strip():
            continue
        times = max(LEAST_TIMES, -(-LEAST_LOOP // size))
        if size * times <= len(end) and end.endswith(unit * times) and len(set(unit)) > 1:
            return True
    return False


@check("token-mismatch", "collection", warn_share=0.0, max_share=0.01, max_counted=0.1)
def token_mismatch(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Recorded token ids and log-probabilities, or the server's own count, do not add up."""
    drawn = run.spread[run.has_token_ids[run.spread]]
    if not len(drawn):
        return
    kinds = [_mismatch(line) for line in run.source.read(run.row[drawn].tolist())]
    is_misaligned = np.asarray([kind == "logprobs" for kind in kinds], dtype=np.bool_)
    is_miscounted = np.asarray([kind == "usage" for kind in kinds], dtype=np.bool_)
    advice = "mend the server or the agent that records them"
    text = "have more or fewer log-probabilities than token ids: training would pair them wrongly"
    yield from _found(run, drawn, is_misaligned, limits, text, advice, most="error")
    # The server's count may include tokens that belong to no item, so this alone proves nothing.
    if float(is_miscounted.mean()) > limits["max_counted"]:
        text = "have more or fewer token ids than the server counted"
        yield from _found(run, drawn, is_miscounted, limits, text, advice)


def _mismatch(line: bytes) -> str:
    """`logprobs` if an item's log-probabilities and token ids differ in number, `usage` if a single call's count differs, else
    empty.
    """
    try:
        response = _decode(line).get("response")
    except UNREADABLE:
        return ""
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return ""
    items = [item for item in response["output"] if isinstance(item, dict)]
    ids = [
        item["generation_token_ids"] for item in items if isinstance(item.get("generation_token_ids"), list)
    ]
    for item in items:
        tokens, logprobs = item.get("generation_token_ids"), item.get("generation_log_probs")
        if (
            isinstance(tokens, list)
            and isinstance(logprobs, list)
            and logprobs
            and len(tokens) != len(logprobs)
        ):
            return "logprobs"
    usage = response.get("usage")
    counted = usage.get("output_tokens") if isinstance(usage, dict) else None
    # Servers may count the closing token or not, and several calls may share one usage.
    is_other = len(ids) == 1 and isinstance(counted, int) and counted > 0 and abs(counted - len(ids[0])) > 2
    return "usage" if is_other else ""


@check("unhealthy-tasks", "collection", min_samples=4, warn_share=0.02, max_share=0.2)
def unhealthy_tasks(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Tasks none of whose rollouts has a whole answer: empty, cut off or an error message every time."""
    is_bad = (run.is_empty & ~run.is_unrecorded) | run.is_truncated | run.error_text
    many = run.sizes >= limits["min_samples"]
    sick = many & (run.per_group(is_bad) == run.sizes)
    estimate = share(int(sick.sum()), int(many.sum()))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    # At a high rate of cut-off answers such tasks happen by chance, and truncated-answers reports them.
    by_chance = float(is_bad.mean() ** max(int(np.median(run.sizes)), 1)) if run.n else 0.0
    if level is None or estimate.low <= by_chance:
        return
    yield Finding(
        level="warning" if level == "error" else level,
        text=f"in {estimate.count:,} of {estimate.n:,} tasks ({estimate.value:.1%}) no rollout has a whole answer: all are "
        f"empty, cut off or "
        "error messages",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(sick),
        next=f"read one: rollforge show {run.name} --task {int(run.task_ids[np.flatnonzero(sick)[0]])}",
    )
