"""Sampling that differs from the request: copies instead of samples, another model, missing usage, unknown tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools, about_text, has_one_each
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, Share, settle_text, share
from rollforge.checks.building_blocks.text_samples import BUDGET, bare
from rollforge.statistics.stats import Ints

LONG_ENOUGH = 40
"""Length in characters from which two equal answers are no coincidence."""

GENERIC = frozenset({"", "default", "model", "policy", "policymodel", "local", "test", "simulated", "auto"})
VERSION = re.compile(
    r"\d+|v\d+|latest|preview|main|rev|[0-9a-f]*\d[0-9a-f]*[a-f][0-9a-f]{5,}|"
    r"fp4|fp8|fp16|f16|f32|bf16|mxfp4|nvfp4|int4|int8|\d+bit|w\d+a\d+|i?q\d+|[ksml]|x+s|xl|nl|i1|ud|imat|"
    r"awq|gptq|bnb|exl2|exl3|mlx|gguf|ggml|safetensors|bin|hf"
)
"""Words after a model's name that keep it the same model: versions, revisions, quantisations, file suffixes."""
SIZE = re.compile(r"\d+x?\d*[bm]")
"""A number of parameters: names with different numbers are different models."""
VARIANT = re.compile(r"mini|nano|lite|tiny|small|medium|large|base|distill|pro|flash|turbo|haiku|sonnet|opus")
"""Words that name another model of the same family."""
FILE = re.compile(r"\.(?:gguf|ggml|bin|safetensors)$")
"""File suffixes of a model: a server that reports its file, such as llama.cpp's, accepts any model name."""

LOOKED_AT = 60

MOST_MEMBERS = 64
"""Most samples of one task whose trajectories are compared."""

COPIED = 0.75
"""A task's samples act alike when at least this share of them has the same trajectory."""


@check("identical-samples", "collection", warn_share=0.1, max_share=0.5, copies=0.75, max_copied=0.15)
def identical_samples(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The samples of a task are all or mostly the same answer: seed or temperature was not applied."""
    if not run.n:
        return
    chars = run.answer_chars[run.order]
    shortest = np.fmin.reduceat(np.nan_to_num(chars, nan=0.0), run.starts)
    eligible = (run.sizes > 1) & (shortest >= LONG_ENOUGH) & (run.per_group(run.is_refusal) == 0)
    times = np.bincount(run.answer_code)[run.answer_code]
    most = np.maximum.reduceat(times[run.order], run.starts)
    same = eligible & (most > 1) & (most >= limits["copies"] * run.sizes)
    differs = _acts_differently(run, same)
    eligible, same = eligible & ~differs, same & ~differs
    is_shared = same & _has_answer_of_others(run, same, times)
    eligible, same = eligible & ~is_shared, same & ~is_shared
    estimate = share(int(same.sum()), int(eligible.sum()))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    is_all = bool((most[same] == run.sizes[same]).all())
    text = f"in {estimate.count:,} of {estimate.n:,} tasks {'all' if is_all else 'most or all'} samples are the same answer"
    if level is None:
        estimate, text = _copies(run, eligible)
        level = "warning" if estimate.low > limits["max_copied"] else None
    if level is None or int(eligible.sum()) < 5:
        return
    yield Finding(
        level=level,
        text=text + settle_text(estimate, level, limits["max_share"]),
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(same),
        next="collect again with --temperature above 0 and no fixed seed in the request; look for a cache before the server",
    )


def _acts_differently(run: Evidence, same: Bools) -> Bools:
    """Tasks with tool calls whose samples end in the same text after different trajectories. Unread tasks count as such."""
    differs = same & (run.per_group(run.tool_calls > 0) > 0)
    groups = run.draw(differs, max(1, BUDGET // max(int(run.sizes.max(initial=1)), 1)))
    for group in groups.tolist():
        members = run.order[run.starts[group] : run.starts[group] + run.sizes[group]]
        trajectories = Counter(item.trajectory for item in run.read(members[:MOST_MEMBERS]))
        differs[group] = trajectories.most_common(1)[0][1] < COPIED * trajectories.total()
    return differs


def _copies(run: Evidence, eligible: Bools) -> tuple[Share, str]:
    """The share of samples in these tasks that repeat another sample of their task."""
    first = np.zeros(int(run.answer_code.max(initial=-1)) + 1, dtype=np.int64)
    first[run.answer_code] = np.arange(run.n)  # any one of the samples with that answer
    distinct = run.per_group(run.flags(first))
    wanted = int(run.sizes[eligible].sum())
    estimate = share(wanted - int(distinct[eligible].sum()), wanted, independent=float(eligible.sum()))
    return (
        estimate,
        f"{estimate.count:,} of {estimate.n:,} samples ({estimate.value:.0%}) are word for word that of another of their task",
    )


def _has_answer_of_others(run: Evidence, same: Bools, times: Ints) -> Bools:
    """Tasks whose single answer is also that of several other tasks: a choice among fixed phrases, unless the run has only one."""
    first = run.order[np.lexsort((-times[run.order], run.group[run.order]))][run.starts]
    answers = run.answer_hash[first]
    distinct, codes, counts = np.unique(answers[same], return_inverse=True, return_counts=True)
    shared = np.zeros(run.groups, dtype=np.bool_)
    if len(distinct) > 1:
        shared[same] = counts[codes] > 2
    return shared


@check("near-identical-samples", "collection", max_share=0.5, likeness=0.97)
def near_identical_samples(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The samples of a task differ only in formatting or a few characters."""
    eligible = (run.sizes > 1) & run.groups_with_different_answers
    groups = run.draw(np.flatnonzero(eligible), LOOKED_AT)
    pairs = [_two_of(run, int(group)) for group in groups]
    positions = [position for pair in pairs for position in pair]
    samples = run.read(positions)
    alike = [
        _is_alike(one.answer, other.answer, limits["likeness"])
        for one, other in zip(samples[::2], samples[1::2], strict=True)
    ]
    looked = [position for position, item in enumerate(alike) if item is not None]
    estimate = share(sum(bool(alike[position]) for position in looked), len(looked))
    level = estimate.level_above(warning=limits["max_share"] / 2, error=limits["max_share"])
    if level is None or estimate.n < 10:
        return
    yield Finding(
        level=level,
        text=f"in {estimate.count:,} of {estimate.n:,} tasks looked at, two samples are the same but for a few characters",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(groups[[position for position in looked if alike[position]]]),
        next="collect again with a higher --temperature, or fewer samples per task",
    )


def _two_of(run: Evidence, group: int) -> tuple[int, int]:
    members = run.order[run.starts[group] : run.starts[group] + run.sizes[group]]
    other = np.flatnonzero(run.answer_hash[members] != run.answer_hash[members[0]])
    return int(members[0]), int(members[other[0]])


def _is_alike(one: str, other: str, likeness: float) -> bool | None:
    if min(len(one), len(other)) < LONG_ENOUGH:
        return None
    if bare(one) == bare(other):
        return True
    if abs(len(one) - len(other)) > (1 - likeness) * max(len(one), len(other)):
        return False
    first, second = one.split(), other.split()
    return SequenceMatcher(None, first[:300], second[:300], autojunk=False).ratio() >= likeness


@check("wrong-model", "collection", max_share=0.01)
def wrong_model(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The server's model name differs from the requested one, or changes during the run."""
    counts = run.model.counts()
    if not counts:
        return
    requested_models = [run.about.model] if run.about.model is not None else _asked_models(run)
    others = {
        name: count
        for name, count in counts.items()
        if requested_models and not any(is_same_model(one, name) for one in requested_models)
    }
    minor = sum(counts.values()) - max(counts.values())
    total = sum(counts.values())
    if others:
        estimate = share(sum(others.values()), total)
        is_clear = estimate.low > limits["max_share"] and all(
            _is_other_size(one, name)
            or (not _has_word_in_common(one, name) and FILE.search(name.casefold()) is None)
            for name in others
            for one in requested_models
        )
        level: Level = "error" if is_clear else "warning"
        text = f"{estimate.count:,} of {total:,} answers come from {about_text(others)}, asked was {', '.join(requested_models)}"
    elif minor and len(requested_models) < 2 and not has_one_each(run.agent, run.model, run.model.codes >= 0):
        estimate = share(minor, total)
        level = "error" if not requested_models and estimate.low > limits["max_share"] else "warning"
        text = f"answers come from {len(counts)} models: {about_text(counts)}"
    else:
        return
    is_other = np.isin(run.model.codes, [run.model.names.index(name) for name in others or list(counts)[1:]])
    yield Finding(
        level=level,
        text=text,
        value=estimate.value,
        threshold=limits["max_share"],
        n=total,
        interval=estimate.interval,
        where=run.lines(is_other),
        next="check -m and --base-url: a router or a fallback may answer in the model's place",
    )


def _asked_models(run: Evidence) -> list[str]:
    """The models named in requests, for runs whose manifest names none."""
    return sorted({item.asked for item in run.spread_samples if item.asked})


def is_same_model(requested_name: str, answered: str) -> bool:
    """Whether the server's name can mean the requested model: equal, a dated or quantised version of it, or its path."""
    first, second = (_words(name) for name in (requested_name, answered))
    if {"".join(first), "".join(second)} & GENERIC:
        return True
    short, long = sorted((first, second), key=len)
    return long[: len(short)] == short and all(VERSION.fullmatch(word) for word in long[len(short) :])


def _words(name: str) -> list[str]:
    # Sizes such as 0.5b are one word; other dots separate versions.
    return re.findall(r"\d+\.\d+b\b|[a-z0-9]+", re.split(r"[/\\]", name.casefold())[-1])


def _is_other_size(requested_name: str, answered: str) -> bool:
    """Whether the names have different sizes, if both have one, or are different variants of a family."""
    first, second = (set(_words(name)) for name in (requested_name, answered))
    sizes = [{word for word in words if SIZE.fullmatch(word) or "." in word} for words in (first, second)]
    if all(sizes) and sizes[0] != sizes[1]:
        return True
    return any(VARIANT.fullmatch(word) for word in first ^ second)


def _has_word_in_common(requested_name: str, answered: str) -> bool:
    words = [set(re.findall(r"[a-z]{3,}", name.casefold())) for name in (requested_name, answered)]
    return bool(words[0] & words[1])


@check("missing-usage", "collection", warn_share=0.01)
def missing_usage(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Some answers come without token counts."""
    name = next((item for item in ("total_tokens", "output_tokens") if item in run.source.numbers), None)
    if name in run.source.whole_numbers:
        return
    missing = np.isnan(run.number(name)) if name is not None else np.ones(run.n, dtype=np.bool_)
    estimate = share(int(missing.sum()), run.n)
    if not run.n or estimate.value <= limits["warn_share"]:
        return
    yield Finding(
        level="note" if estimate.count == run.n else "warning",
        text=f"{estimate.count:,} of {run.n:,} rollouts have no token counts; lengths and costs leave them out",
        value=estimate.value,
        threshold=limits["warn_share"],
        n=run.n,
        interval=estimate.interval,
        where=run.lines(missing) if estimate.count < run.n else [],
        next="let the server report usage (with streaming: stream_options.include_usage)",
    )


@check("unknown-tools", "collection", warn_share=0.005, max_share=0.05)
def unknown_tools(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The model calls tools that it was not offered."""
    drawn = run.draw(run.tool_calls > 0, 200)
    if not len(drawn):
        return
    samples = run.read(drawn)
    offered = [position for position, item in enumerate(samples) if item.tools]
    unknown = [
        position for position in offered if set(samples[position].calls) - set(samples[position].tools or ())
    ]
    estimate = share(len(unknown), len(offered))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None:
        return
    names = sorted(
        {
            name
            for position in unknown
            for name in set(samples[position].calls) - set(samples[position].tools or ())
        }
    )
    yield Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} rollouts with tool calls that were looked at call tools they were not offered: "
        f"{', '.join(names[:3])}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drawn[unknown]),
        next=f'compare tools and calls: rollforge show {run.name} --where "tool_calls > 0" --limit 5',
        quotes=names[:3],
    )
