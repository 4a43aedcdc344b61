"""Metrics as NeMo Gym and Trinity-RFT compute and name them, even where that is debatable, so that tools can be compared.

NeMo Gym: pass@k and majority@k in 0–100, tasks with fewer than k rollouts skipped, for rewards other than 0 and 1 the best of
the first k. Trinity-RFT: best@k and worst@k from 1000 resamples with replacement, seed 42, population std.
"""

from __future__ import annotations

from collections import Counter
from math import comb, sqrt
from typing import Any, TypedDict

import numpy as np

from rollforge.adaptive.design import stage_condition
from rollforge.errors import UsageError
from rollforge.index import ByTask, Index, top_level_numbers
from rollforge.records import ATTEMPT_KEY
from rollforge.statistics import at_k, stats
from rollforge.statistics.stats import Floats
from rollforge.steps.metrics.run_metrics import masked_rollouts
from rollforge.steps.metrics.votes import answers_of

ANSWERS = "extracted_answer"

NemoMetrics = dict[str, float | dict[str, list[float]]]
"""NeMo Gym's metric names → numbers; `per_sample_aggregate` contains lists."""


class NemoAgent(TypedDict):
    """One agent's entry in `_aggregate_metrics.json`."""

    agent_ref: dict[str, str | None]
    agent_metrics: NemoMetrics
    key_metrics: NemoMetrics


@np.errstate(over="ignore", invalid="ignore")  # numbers near the largest have no mean
def nemo_gym_metrics(index: Index, where: str | None = None) -> list[NemoAgent]:
    """One entry per agent, as in `_aggregate_metrics.json`; for an adaptive run, over the unbiased first stage."""
    entries = []
    where = stage_condition(index.checked(where) if where else None, index.first_stage)
    _check_some(ByTask(index, where), where)
    for agent in _agents(index, where):
        chosen = "agent IS NULL" if agent is None else "agent = '" + agent.replace("'", "''") + "'"
        rows = ByTask(index, f"{index.checked(where)} and {chosen}" if where else chosen)
        metrics: NemoMetrics = {}
        fields = nemo_fields(index)
        if not np.isnan(rows.one("attempt")).all():
            fields["attempt"] = ATTEMPT_KEY
        for column, values in rows.floats(list(fields)):
            metrics |= nemo_statistics(fields[column], values)
        metrics |= _nemo_at_k(rows)
        if masked := masked_rollouts(rows):
            metrics["coverage/masked_rollouts"] = masked
        key_metrics = {name: value for name, value in metrics.items() if name.startswith("mean/")}
        entries.append(NemoAgent(agent_ref={"name": agent}, agent_metrics=metrics, key_metrics=key_metrics))
    return entries


def _check_some(rows: ByTask, where: str | None) -> None:
    """Refuse a condition without matching rollouts, because an empty result would look like a valid one."""
    if where is not None and not len(rows):
        raise UsageError(f"no rollout matches --where {where!r}", hint="ask for others, or leave --where out")


def nemo_fields(index: Index) -> dict[str, str]:
    """Top-level number columns and usage columns, with their names; NeMo Gym ignores nested ones."""
    names = index.name_by_column
    return {column: names[column] for column in top_level_numbers(index)}


def nemo_statistics(name: str, values: Floats) -> NemoMetrics:
    """`mean/x`, `max/x`, … without undefined ones."""
    summary = stats.summarize(values)
    statistics = {
        "mean": summary.mean,
        "max": summary.max,
        "min": summary.min,
        "median": summary.median,
        "std": summary.std,
    }
    if summary.n == 1 and summary.missing == 0:
        statistics["std"] = 0.0
    return {f"{stat}/{name}": value for stat, value in statistics.items() if value is not None}


def _agents(index: Index, where: str | None) -> list[str | None]:
    names = index.table(["agent"], where).column("agent").unique().to_pylist()
    return sorted(names, key=lambda name: (name is None, name or ""))


def _groups(rows: ByTask, values: list[Any]) -> list[list[Any]]:
    ends = [*rows.starts[1:].tolist(), len(rows)]
    return [values[first:end] for first, end in zip(rows.starts.tolist(), ends, strict=True)]


def _nemo_at_k(rows: ByTask) -> NemoMetrics:
    score_groups = _groups(rows, rows.one("reward").tolist())
    scores = {"accuracy": [[value for value in group if value == value] for group in score_groups]}
    answers: list[list[int]] = []
    if ANSWERS in rows.index.columns():
        answer_numbers = answers_of(rows, ANSWERS, np.ones(len(rows), dtype=np.bool_))
        answers = _groups(rows, answer_numbers.tolist())
        scores["no_answer"] = [[float(answer == 0) for answer in group] for group in answers]
    votes = [_judged(*group) for group in zip(answers, score_groups, strict=True)] if answers else []
    widest = max((len(group) for group in score_groups), default=0)
    numbers: NemoMetrics = {}
    for k in range(1, widest + 1):
        for name, groups in scores.items():
            numbers |= _nemo_pass(name, groups, k)
        if any(votes):
            voted = [_nemo_vote(group[:k]) for group in votes if group]
            numbers[f"majority@{k}/accuracy"] = 100 * float(np.mean(voted))
    numbers["per_sample_aggregate"] = {
        name: [100 * float(np.mean(drawn)) for i in range(widest) if (drawn := _nth(groups, i))]
        for name, groups in scores.items()
    }
    return numbers


def _nth(groups: list[list[float]], position: int) -> list[float]:
    return [group[position] for group in groups if position < len(group)]


def _nemo_pass(name: str, groups: list[list[float]], k: int) -> NemoMetrics:
    enough = [group for group in groups if len(group) >= k]
    numbers: NemoMetrics = {}
    if enough:
        numbers[f"pass@{k}/{name}"] = 100 * float(np.mean([_nemo_pass_of(group, k) for group in enough]))
    averages = [float(np.mean(group[:k])) for group in groups if group]
    if averages:
        numbers[f"pass@1[avg-of-{k}]/{name}"] = 100 * float(np.mean(averages))
    runs = [_nth(groups, i) for i in range(k)]
    if k > 1 and all(runs):
        spread = float(np.std([100 * float(np.mean(run)) for run in runs], ddof=1))
        numbers[f"pass@1[avg-of-{k}]/{name}/std_dev_across_runs"] = spread
        numbers[f"pass@1[avg-of-{k}]/{name}/std_err_across_runs"] = spread / sqrt(k)
    return numbers


def _nemo_pass_of(group: list[float], k: int) -> float:
    if all(value in (0.0, 1.0) for value in group):
        n, right = len(group), int(sum(group))
        return 1 - comb(n - right, k) / comb(n, k)
    return max(group[:k])


def _judged(answers: list[int], scores: list[float]) -> list[tuple[int, float]]:
    """Answers (0: none) and scores of the rollouts with a score."""
    return [(answer, score) for answer, score in zip(answers, scores, strict=True) if score == score]


def _nemo_vote(votes: list[tuple[int, float]]) -> float:
    """Score of the most common (answer, score) pair, as in NeMo Gym: ties are averaged, no answer scores 0."""
    pairs = Counter((answer, score) for answer, score in votes if answer)
    if not pairs:
        return 0.0
    most = max(pairs.values())
    return float(np.mean([score for (_, score), count in pairs.items() if count == most]))


@np.errstate(over="ignore", invalid="ignore")
def trinity_metrics(
    index: Index, where: str | None = None, *, taskset: str | None = None
) -> dict[str, float]:
    """`rollout/…` as in training and `eval/<taskset>/…` as in evaluation, over all tasks; for an adaptive run, the first stage."""
    where = stage_condition(index.checked(where) if where else None, index.first_stage)
    rows = ByTask(index, where)
    _check_some(rows, where)
    name_of_set = taskset or index.runs[0].stem
    numbers: dict[str, float] = {}
    fields = nemo_fields(index)
    for column, values in rows.floats(list(fields)):
        name = fields[column]
        by_size = dict(_in_order(values, rows))
        means = np.concatenate([drawn.mean(axis=1) for drawn in by_size.values()]) if by_size else np.zeros(0)
        if not len(means):
            continue
        numbers |= {
            f"rollout/{name}/mean": float(means.mean()),
            f"rollout/{name}/max": float(means.max()),
            f"rollout/{name}/min": float(means.min()),
        }
        numbers |= {
            f"eval/{name_of_set}/{name}/{key}": value for key, value in _trinity_eval(by_size).items()
        }
    return numbers


def _in_order(values: Floats, rows: ByTask) -> list[tuple[int, Floats]]:
    """Tasks grouped by size, with their non-missing values in rollout order."""
    group = np.repeat(np.arange(len(rows.starts)), rows.sizes)
    has_value = ~np.isnan(values)
    values, group = values[has_value], group[has_value]
    counts = np.bincount(group, minlength=len(rows.starts))
    begins = np.cumsum(counts) - counts
    return [
        (size, values[begins[members][:, None] + np.arange(size)])
        for size in np.unique(counts[counts > 0]).tolist()
        for members in [np.flatnonzero(counts == size)]
    ]


def _trinity_eval(by_size: dict[int, Floats]) -> dict[str, float]:
    """Mean over tasks of each task's value; tasks of another size get separate keys, as in Trinity-RFT."""
    values: dict[str, list[Floats]] = {}
    for size, drawn in by_size.items():
        values.setdefault(f"mean@{size}", []).append(drawn.mean(axis=1))
        values.setdefault(f"std@{size}", []).append(drawn.std(axis=1))
        for k in at_k.ladder(size):
            best, worst = _bootstrap(drawn, size, k)
            values.setdefault(f"best@{k}", []).append(best)
            values.setdefault(f"worst@{k}", []).append(worst)
    return {key: float(np.concatenate(arrays).mean()) for key, arrays in values.items()}


def _bootstrap(drawn: Floats, size: int, k: int) -> tuple[Floats, Floats]:
    """Bootstrap with the same draws for every task, as in Trinity-RFT, which reseeds at each call."""
    rng = np.random.RandomState(at_k.BOOTSTRAP_SEED)
    draws = rng.choice(size, size=(at_k.BOOTSTRAP_ROUNDS, k), replace=True)
    best, worst = np.empty(len(drawn)), np.empty(len(drawn))
    step = max(1, 4_000_000 // draws.size)
    for first in range(0, len(drawn), step):
        resampled = drawn[first : first + step][:, draws]
        best[first : first + step] = resampled.max(axis=2).mean(axis=1)
        worst[first : first + step] = resampled.min(axis=2).mean(axis=1)
    return best, worst
