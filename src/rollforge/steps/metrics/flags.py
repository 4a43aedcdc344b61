"""Flags: suspicious properties of a run's numbers, in words. They are hints; only `check` decides."""

from __future__ import annotations

from collections.abc import Mapping

from rollforge.statistics.counts import count_of
from rollforge.statistics.intervals import LEVEL, normal_quantile, wilson
from rollforge.steps.metrics.metric_records import Flag, RunMetrics

LOW_MEAN = 0.3
OUTLIER = 10.0
LOW_COVERAGE = 0.9
MANY, FEW = 0.2, 0.05
LEAST = 20
"""Fewest rollouts, and four times the fewest groups, for a flag about a distribution."""


def find_flags(
    metrics: RunMetrics, *, is_uncorrected: bool = False, mixed: Mapping[str, int] | None = None
) -> list[Flag]:
    """Flags of a run, the most serious first; `mixed`: verdicts by verifier, if several judged samples of one task."""
    flags = [
        *_verifiers(mixed or {}),
        *_rewards(metrics),
        *_missing(metrics),
        *_answers(metrics),
        *_stages(metrics, is_uncorrected),
    ]
    return [Flag(name, text) for name, text in flags]


def _stages(metrics: RunMetrics, is_uncorrected: bool) -> list[tuple[str, str]]:
    """Flags for the effects of adaptive sampling."""
    if is_uncorrected:
        text = "tasks were sampled adaptively and all stages are averaged here: means and pass@k are biased"
        return [("adaptive-biased", text)]
    facts = metrics.adaptive
    if facts is None:
        return []
    if facts.runs > 1 or "at_k" in facts.left_out:
        text = (
            f"{facts.runs:,} of these runs were sampled adaptively: numbers about rewards and answers are over the first stage "
            f"of each, {facts.rollouts:,} rollouts of {facts.tasks:,} tasks; pass@k beyond it is left out, see each run alone"
        )
        return [("adaptive-run", text)]
    goal = f" (goal {facts.goal})" if facts.goal else ""
    beyond = (
        f"; k above {facts.first} stands on {facts.audited:,} audited tasks"
        if any(name.startswith("pass@") and int(name[5:]) > facts.first for name in metrics.at_k)
        else ""
    )
    text = (
        f"tasks were sampled adaptively{goal}: numbers about rewards and answers are over the first stage, "
        f"{count_of(facts.first, 'sample')} of each of {count_of(facts.tasks, 'begun task')}{beyond}"
    )
    absent = sorted(
        {name for name in facts.left_out if name.startswith("pass@")}, key=lambda name: int(name[5:])
    )
    if absent:
        names = f"{absent[0]} … {absent[-1]} are" if len(absent) > 1 else f"{absent[0]} is"
        text += f"; {names} left out: {facts.left_out[absent[-1]]}"
    return [("adaptive-run", text)]


def _verifiers(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    if not counts:
        return []
    names = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:3])
    more = ", …" if len(counts) > 3 else ""
    text = (
        f"rewards come from {len(counts)} verifiers: {names}{more}; their mean says little, "
        f"see one alone: --verifier {next(iter(counts))}"
    )
    return [("mixed-verifiers", text)]


def _rewards(metrics: RunMetrics) -> list[tuple[str, str]]:
    counts, reward = metrics.counts, metrics.fields.get("reward")
    if counts.finished == 0:
        reason = "no rollouts" if metrics.where is None else f"no rollout matches --where {metrics.where!r}"
        return [("empty-run", reason)]
    if reward is None or reward.n == 0 or reward.mean is None or reward.min is None or reward.max is None:
        turns = metrics.facts.get("turns")
        if turns is None or turns.max == 0:
            text = (
                f"none of the {counts.finished:,} rows has a response or a reward: is this a file of tasks?"
            )
            return [("none-judged", text)]
        return [("none-judged", f"none of the {counts.finished:,} rollouts has a reward")]
    flags = []
    if reward.min == reward.max and reward.n > 1:
        doubt = (
            "verification may be broken" if reward.n >= LEAST else "too few to say whether verification works"
        )
        flags.append(("identical-rewards", f"all {reward.n:,} rewards are {reward.min:g}: {doubt}"))
    elif reward.mean < LOW_MEAN and reward.min >= 0:
        reason = (
            "tasks may be too hard"
            if reward.n >= LEAST
            else f"over {count_of(reward.n, 'rollout')} only, which says little"
        )
        flags.append(("low-mean", f"mean reward {reward.mean:.2f} is below {LOW_MEAN}: {reason}"))
    if max(abs(reward.min), abs(reward.max)) > OUTLIER:
        flags.append(("outlier-rewards", f"rewards reach from {reward.min:g} to {reward.max:g}"))
    equal = metrics.equal_groups
    if equal is not None and equal.of >= LEAST // 4 and _surely_above(equal.groups, equal.of, MANY):
        text = f"in {equal.groups:,} of {equal.of:,} groups all samples are the same text: is the temperature applied?"
        flags.append(("identical-samples", text))
    return flags


def _missing(metrics: RunMetrics) -> list[tuple[str, str]]:
    counts = metrics.counts
    flags = []
    if metrics.coverage is not None and counts.judged and metrics.coverage < LOW_COVERAGE:
        of = (
            "expected rollouts are there and judged"
            if counts.finished < (counts.expected or 0)
            else "rollouts are judged"
        )
        text = f"only {_percent(metrics.coverage)} of the {of}: means may be biased"
        flags.append(("low-coverage", text))
    if counts.judged and counts.unjudged:
        flags.append(("unjudged", f"{counts.unjudged:,} of {counts.finished:,} rollouts have no verdict"))
    if counts.masked:
        flags.append(
            (
                "masked",
                f"{count_of(counts.masked, 'rollout is', 'rollouts are')} masked (mask_sample): the reward is no measurement",
            )
        )
    if counts.failed:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in metrics.failures.items())
        flags.append(
            ("failed", f"{count_of(counts.failed, 'rollout', 'rollouts')} failed ({kinds}): not in any mean")
        )
    if counts.expected is not None and counts.finished + counts.failed < counts.expected:
        owed = counts.expected - counts.finished - counts.failed
        flags.append(("incomplete", f"{owed:,} of {counts.expected:,} expected rollouts are not there yet"))
    if counts.rejected_lines:
        flags.append(
            ("rejected-lines", f"{count_of(counts.rejected_lines, 'line', 'lines')} cannot be read: left out")
        )
    if counts.noted_lines:
        flags.append(
            (
                "odd-lines",
                f"{count_of(counts.noted_lines, 'row is', 'rows are')} odd in some field, which counts as missing",
            )
        )
    if counts.duplicates:
        text = f"{count_of(counts.duplicates, 'row has', 'rows have')} the key of a later row, which counts instead"
        flags.append(("duplicates", text))
    for name, count in metrics.mixed_types.items():
        flags.append(
            ("mixed-types", f"{name} is text in {count_of(count, 'row')}, where it counts as missing")
        )
    return flags


def _answers(metrics: RunMetrics) -> list[tuple[str, str]]:
    words = {
        "is_truncated": ("truncated", "answers end at the token limit"),
        "is_empty": ("empty-answers", "answers are empty"),
        "is_refusal": ("refusals", "answers are refusals"),
        "error_text": ("error-texts", "answers look like an error message"),
    }
    flags = []
    for name, (flag, text) in words.items():
        fact = metrics.facts.get(name)
        share = fact.mean if fact is not None else None
        if share is not None and share > FEW:
            flags.append((flag, f"{_percent(share)} of {text}"))
    return flags


def _surely_above(count: int, of: int, limit: float) -> bool:
    return wilson(count / of, of, normal_quantile((1 + LEVEL) / 2))[0] > limit


def _percent(share: float) -> str:
    """Percentage with the tables' rounding: one decimal, and 100 % only for an exact value."""
    if share == 1:
        return "100 %"
    text = f"{share * 100:.1f} %"
    return "> 99.9 %" if text == "100.0 %" else text
