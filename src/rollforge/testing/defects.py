"""Plants defects: each turns a healthy run into one with a single known fault of realistic size.

A defect names the finding that should detect it, and that finding's minimal level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rollforge.checks.building_blocks.evidence_source import ProbeOutcome
from rollforge.testing.made_rows import (
    COPY,
    ECHO,
    EMPTY,
    ERROR,
    NEAR_COPY,
    NORMAL,
    REFUSAL,
    TRICK,
    Array,
    Shape,
)
from rollforge.testing.runs import MadeRun, healthy_run, rehash, varied_shape

Rng = np.random.Generator
_ORDINARY = {"mean": (0.15, 0.85)}


@dataclass(frozen=True)
class Defect:
    """One kind of defect."""

    name: str
    plant: Callable[[MadeRun, Rng], None]
    finding: str
    """Id of the finding that should detect it."""
    level: Literal["error", "warning", "note"] = "error"
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Required shape of the run for this defect."""
    least_rollouts: int = 1000


DEFECTS: dict[str, Defect] = {}


def _defect(
    name: str,
    finding: str,
    level: Literal["error", "warning", "note"] = "error",
    *,
    least_rollouts: int = 1000,
    **shape: Any,
) -> Callable[[Callable[[MadeRun, Rng], None]], Callable[[MadeRun, Rng], None]]:
    def add(plant: Callable[[MadeRun, Rng], None]) -> Callable[[MadeRun, Rng], None]:
        DEFECTS[name] = Defect(name, plant, finding, level, shape, least_rollouts)
        return plant

    return add


def sick_run(name: str, *, seed: int = 0, shape: Shape | None = None) -> MadeRun:
    """A run of random shape with this defect."""
    defect = DEFECTS[name]
    run = healthy_run(shape or _shape_for(defect, seed), seed=seed)
    defect.plant(run, np.random.default_rng([seed, 3]))
    return run


def _shape_for(defect: Defect, seed: int) -> Shape:
    rng = np.random.default_rng([seed, 4])
    least_samples = int(defect.shape.get("least_samples", 1))
    fixed = {"form": "collected"} | {
        key: value for key, value in defect.shape.items() if key != "least_samples"
    }
    shape = varied_shape(seed, least_samples=least_samples, most_tasks=1200, **fixed)
    if "mean" not in fixed:
        shape = replace(shape, mean=float(rng.uniform(*_ORDINARY["mean"])))
    tasks = max(shape.tasks, -(-defect.least_rollouts // shape.samples), 100)
    return replace(shape, tasks=tasks)


# Helpers


def _low(run: MadeRun) -> float:
    return -1.0 if run.shape.kind == "signed" else 0.0


def _high(run: MadeRun) -> float:
    return 10.0 if run.shape.kind == "ten" else 1.0


def _set(run: MadeRun, chosen: Array, reward: float) -> None:
    """Set the reward of the selected judged rollouts."""
    judged = ~np.isnan(run.columns["reward"])
    run.columns["reward"] = np.where(chosen & judged, reward, run.columns["reward"])


def _some(run: MadeRun, rng: Rng, share: float) -> Array:
    return rng.random(len(run)) < share


def _after(run: MadeRun, share: float) -> Array:
    """Mask of rollouts verified after this fraction of the run's time."""
    started = run.columns["started"]
    is_late: Array = started > np.quantile(started, share)
    return is_late


# Broken verification


@_defect("always-zero", "identical-rewards", least_rollouts=2000)
def _always_zero(run: MadeRun, rng: Rng) -> None:
    _set(run, np.ones(len(run), dtype=np.bool_), 0.0)


@_defect("always-one", "identical-rewards", least_rollouts=2000)
def _always_one(run: MadeRun, rng: Rng) -> None:
    _set(run, np.ones(len(run), dtype=np.bool_), 1.0)


@_defect("always-half", "identical-rewards")
def _always_half(run: MadeRun, rng: Rng) -> None:
    _set(run, np.ones(len(run), dtype=np.bool_), 0.5)


@_defect("agent-broken", "flat-agent", agents=2, least_rollouts=4000)
def _agent_broken(run: MadeRun, rng: Rng) -> None:
    _set(run, run.columns["agent"] == "agent_1", _low(run))


@_defect("family-broken", "flat-family", least_rollouts=6000)
def _family_broken(run: MadeRun, rng: Rng) -> None:
    _set(run, np.asarray(run.families)[run.columns["task"]] == "logic", _low(run))


@_defect("judges-the-task", "task-only-rewards", least_samples=4, is_short=False, kind="binary")
def _judges_the_task(run: MadeRun, rng: Rng) -> None:
    by_task = (rng.random(run.shape.tasks) < run.shape.mean).astype(np.float64)
    judged = ~np.isnan(run.columns["reward"])
    run.columns["reward"] = np.where(judged, by_task[run.columns["task"]], np.nan)


@_defect("breaks-halfway", "stuck-rewards", order="shuffled")
def _breaks_halfway(run: MadeRun, rng: Rng) -> None:
    _set(run, _after(run, rng.uniform(0.3, 0.7)), _low(run))


@_defect("broken-for-a-while", "stuck-rewards", order="shuffled", least_rollouts=4000)
def _broken_for_a_while(run: MadeRun, rng: Rng) -> None:
    begin = rng.uniform(0.2, 0.7)
    _set(run, _after(run, begin) & ~_after(run, begin + 0.2), _low(run))


@_defect(
    "worse-from-a-point", "reward-shift", passes=True, least_samples=4, order="shuffled", least_rollouts=2000
)
def _worse_from_a_point(run: MadeRun, rng: Rng) -> None:
    _set(run, _after(run, rng.uniform(0.35, 0.65)) & _some(run, rng, 0.6), _low(run))


@_defect("times-out", "collapse-with-latency", order="shuffled")
def _times_out(run: MadeRun, rng: Rng) -> None:
    late = _after(run, rng.uniform(0.3, 0.7))
    run.columns["verify_seconds"] = np.where(late, 30.0 + rng.random(len(run)), run.columns["verify_seconds"])
    _set(run, late & _some(run, rng, 0.95), _low(run))


@_defect("fails-fast", "collapse-with-latency", order="shuffled")
def _fails_fast(run: MadeRun, rng: Rng) -> None:
    late = _after(run, rng.uniform(0.3, 0.7))
    run.columns["verify_seconds"] = np.where(late, 1e-5, run.columns["verify_seconds"])
    _set(run, late & _some(run, rng, 0.95), _low(run))


@_defect("errors-begin", "collapse-with-errors", order="shuffled")
def _errors_begin(run: MadeRun, rng: Rng) -> None:
    failed = _after(run, rng.uniform(0.3, 0.7)) & _some(run, rng, 0.9)
    run.columns["verifier_error"] = failed.astype(np.float64)
    run.metrics = [*run.metrics, "verifier_error"]
    _set(run, failed, _low(run))


@_defect("not-a-number", "non-finite-rewards")
def _not_a_number(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.01)
    chosen[0] = True
    run.columns["reward"] = np.where(chosen, np.nan, run.columns["reward"])
    noted = [(int(line), "NaN is no JSON; taken as missing") for line in run.columns["line"][chosen]]
    run.about = replace(run.about, noted=noted)


@_defect("outside-its-range", "out-of-range", kind="binary")
def _outside_its_range(run: MadeRun, rng: Rng) -> None:
    _set(run, _some(run, rng, 0.02), 1.5)
    run.about = replace(run.about, declared=(0.0, 1.0))


@_defect("far-outliers", "extreme-rewards")
def _far_outliers(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.005)
    chosen[np.flatnonzero(~np.isnan(run.columns["reward"]))[0]] = True
    _set(run, chosen, 1000.0)


def _answers(run: MadeRun, chosen: Array, kind: int) -> None:
    run.text_kind = np.where(chosen, kind, run.text_kind)
    for name in ("tool_calls",):
        run.columns[name] = np.where(chosen, 0, run.columns[name])
    run.columns["turns"] = np.where(chosen, 1, run.columns["turns"])
    run.columns["is_truncated"] = np.where(chosen, False, run.columns["is_truncated"])
    rehash(run)


@_defect("rewards-empty", "rewarded-empty", is_short=False)
def _rewards_empty(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.02)
    _answers(run, chosen, EMPTY)
    _set(run, chosen & _some(run, rng, 0.8), _high(run))


@_defect("rewards-refusals", "rewarded-refusal", is_short=False, refused=0.0, least_rollouts=2000)
def _rewards_refusals(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.04)
    _answers(run, chosen, REFUSAL)
    _set(run, chosen & _some(run, rng, 0.8), _high(run))


@_defect("rewards-truncated", "rewarded-truncated", truncated=0.08, mean=0.4)
def _rewards_truncated(run: MadeRun, rng: Rng) -> None:
    _set(run, run.columns["is_truncated"], _high(run))


@_defect("rewards-echoes", "rewarded-echo", is_short=False)
def _rewards_echoes(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.15)
    _answers(run, chosen, ECHO)
    _set(run, chosen, _high(run))


@_defect("flips-a-coin", "inconsistent-verdicts", is_short=True, has_tools=False, least_samples=4)
def _flips_a_coin(run: MadeRun, rng: Rng) -> None:
    flipped = _some(run, rng, 0.2)
    rewards = run.columns["reward"]
    run.columns["reward"] = np.where(flipped, _low(run) + _high(run) - rewards, rewards)


@_defect("cannot-extract", "missed-answers", is_short=False, kind="binary")
def _cannot_extract(run: MadeRun, rng: Rng) -> None:
    _set(run, (run.columns["reward"] == _high(run)) & _some(run, rng, 0.75), _low(run))


@_defect("cannot-extract-alone", "missed-answers", "warning", is_short=False, kind="binary")
def _cannot_extract_alone(run: MadeRun, rng: Rng) -> None:
    """Extraction fails as in `_cannot_extract`, with no other evidence of it on disk."""
    _cannot_extract(run, rng)
    run.metrics = ["format_score"]


@_defect("judged-twice", "verifiers-disagree", "warning")
def _judged_twice(run: MadeRun, rng: Rng) -> None:
    flipped = _some(run, rng, 0.2)
    rewards = run.columns["reward"]
    run.others = {"math": np.where(flipped, _low(run) + _high(run) - rewards, rewards)}


@_defect("probed-and-broken", "failed-probe")
def _probed_and_broken(run: MadeRun, rng: Rng) -> None:
    run.about = replace(run.about, probe=ProbeOutcome(is_broken=True, reasons=["empty answers pass"]))


@_defect("not-probed", "never-probed", "note")
def _not_probed(run: MadeRun, rng: Rng) -> None:
    """Do nothing: no synthetic run was probed."""


@_defect("hangs-on-some-tasks", "unjudged-clusters", "warning", least_samples=4, unjudged=0.0)
def _hangs_on_some_tasks(run: MadeRun, rng: Rng) -> None:
    hung = (rng.random(run.shape.tasks) < 0.1)[run.columns["task"]]
    run.columns["reward"] = np.where(hung, np.nan, run.columns["reward"])


@_defect("upside-down", "contradicting-metric")
def _upside_down(run: MadeRun, rng: Rng) -> None:
    run.columns["accuracy"] = 1.0 - run.columns["accuracy"]


@_defect("two-versions", "mixed-verifiers")
def _two_versions(run: MadeRun, rng: Rng) -> None:
    late = _after(run, rng.uniform(0.3, 0.9))
    first = int(np.argmax(late))
    late[np.argmax(run.columns["task"] == run.columns["task"][first])] = (
        False  # the change falls into a group
    )
    run.columns["fingerprint"] = np.where(late, "9e77d001", run.columns["fingerprint"])


@_defect("two-modes", "mixed-verifiers")
def _two_modes(run: MadeRun, rng: Rng) -> None:
    run.columns["mode"] = np.where(_some(run, rng, 0.3), "fast", "precise").astype(object)


# Broken collection


@_defect("verifier-down", "low-coverage")
def _verifier_down(run: MadeRun, rng: Rng) -> None:
    run.columns["reward"] = np.where(_some(run, rng, 0.35), np.nan, run.columns["reward"])


@_defect("rollouts-lost", "missing-rollouts")
def _rollouts_lost(run: MadeRun, rng: Rng) -> None:
    run.keep(~_some(run, rng, 0.2))


@_defect("groups-torn", "incomplete-groups", least_samples=4)
def _groups_torn(run: MadeRun, rng: Rng) -> None:
    torn = (rng.random(run.shape.tasks) < 0.5)[run.columns["task"]]
    run.keep(~(torn & (run.columns["rollout"] % 2 == 1)))


@_defect("written-twice", "duplicate-rollouts")
def _written_twice(run: MadeRun, rng: Rng) -> None:
    run.about = replace(run.about, duplicates=len(run) // 10)


@_defect("torn-lines", "bad-lines")
def _torn_lines(run: MadeRun, rng: Rng) -> None:
    run.about = replace(run.about, rejected_lines=len(run) // 30)


@_defect("field-appears", "late-fields", "warning")
def _field_appears(run: MadeRun, rng: Rng) -> None:
    late = np.arange(len(run)) > len(run) * rng.uniform(0.3, 0.7)
    run.columns["format_score"] = np.where(late, run.columns["format_score"], np.nan)


@_defect(
    "hard-ones-fail",
    "missing-not-at-random",
    least_samples=4,
    alike=0.5,
    kind="binary",
    mean=0.5,
    unjudged=0.0,
    failed=0.0,
    least_rollouts=2000,
)
def _hard_ones_fail(run: MadeRun, rng: Rng) -> None:
    task = run.columns["task"]
    rate = np.bincount(task, weights=np.nan_to_num(run.columns["reward"])) / np.maximum(np.bincount(task), 1)
    lost = rng.random(len(run)) < 0.5 * (1 - rate[task]) * (rng.random(run.shape.tasks) < 0.6)[task]
    run.columns["reward"] = np.where(lost, np.nan, run.columns["reward"])


@_defect("empty-answers", "empty-answers", is_short=False)
def _empty_answers(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.12)
    _answers(run, chosen, EMPTY)
    _set(run, chosen, _low(run))


@_defect("error-texts", "error-answers", is_short=False)
def _error_texts(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.03)
    _answers(run, chosen, ERROR)
    _set(run, chosen, _low(run))


@_defect("cut-off", "truncated-answers", truncated=0.45)
def _cut_off(run: MadeRun, rng: Rng) -> None:
    """Do nothing: the run's shape makes it sick."""


@_defect("records-nothing", "unrecorded-answers", "warning", form="unrecorded")
def _records_nothing(run: MadeRun, rng: Rng) -> None:
    """Do nothing: the run's shape makes it sick."""


@_defect("ends-in-errors", "failed-endings", "warning")
def _ends_in_errors(run: MadeRun, rng: Rng) -> None:
    run.columns["ends_badly"] = _some(run, rng, 0.15)


@_defect("says-nothing-in-between", "hollow-turns", "warning", has_tools=False)
def _says_nothing_in_between(run: MadeRun, rng: Rng) -> None:
    run.columns["is_hollow"] = _some(run, rng, 0.25)


@_defect("goes-round", "runaway-answers", "warning")
def _goes_round(run: MadeRun, rng: Rng) -> None:
    run.columns["loops"] = _some(run, rng, 0.25)


@_defect("logprobs-lost", "token-mismatch")
def _logprobs_lost(run: MadeRun, rng: Rng) -> None:
    run.columns["has_token_ids"] = ~run.columns["is_empty"]
    run.columns["loses_logprobs"] = _some(run, rng, 0.15)


@_defect("hopeless-tasks", "unhealthy-tasks", "warning", least_samples=4, truncated=0.02, least_rollouts=2000)
def _hopeless_tasks(run: MadeRun, rng: Rng) -> None:
    sick = (rng.random(run.shape.tasks) < 0.15)[run.columns["task"]]
    run.columns["is_truncated"] |= sick
    _set(run, sick, _low(run))


@_defect("tools-unseen", "unused-tools", "warning", has_tools=True)
def _tools_unseen(run: MadeRun, rng: Rng) -> None:
    run.columns["tool_calls"] = np.zeros(len(run), dtype=np.int64)
    run.columns["turns"] = np.ones(len(run), dtype=np.int64)


@_defect("server-decides", "server-sampling", "note")
def _server_decides(run: MadeRun, rng: Rng) -> None:
    """Do nothing: every synthetic run leaves sampling to the server."""


@_defect("times-out-and-again", "censored-by-timeout", "warning")
def _times_out_and_again(run: MadeRun, rng: Rng) -> None:
    run.about = replace(
        run.about, timed_out=run.columns["task"][_some(run, rng, 0.05)].tolist(), timeout_s=60.0
    )


@_defect("logprobs-ignored", "missing-logprobs", "warning")
def _logprobs_ignored(run: MadeRun, rng: Rng) -> None:
    run.about = replace(run.about, logprobs=True)


@_defect("seed-fixed", "identical-samples", is_short=False, has_tools=False, least_samples=2)
def _seed_fixed(run: MadeRun, rng: Rng) -> None:
    chosen = run.text_kind == NORMAL
    _answers(run, chosen, COPY)
    first = np.unique(run.columns["task"], return_index=True)[1]
    for name in ("value",):
        one = np.zeros(run.shape.tasks, dtype=run.value.dtype)
        one[run.columns["task"][first]] = getattr(run, name)[first]
        setattr(run, name, one[run.columns["task"]])


@_defect("nearly-copies", "near-identical-samples", is_short=False, has_tools=False, least_samples=2)
def _nearly_copies(run: MadeRun, rng: Rng) -> None:
    _seed_fixed(run, rng)
    _answers(run, run.text_kind == COPY, NEAR_COPY)


@_defect("another-model", "wrong-model")
def _another_model(run: MadeRun, rng: Rng) -> None:
    run.columns["model"] = np.full(len(run), "tiny-fallback")


@_defect("falls-back", "wrong-model")
def _falls_back(run: MadeRun, rng: Rng) -> None:
    run.columns["model"] = np.where(_some(run, rng, 0.2), "tiny-fallback", run.columns["model"])


@_defect("no-usage", "missing-usage", "warning")
def _no_usage(run: MadeRun, rng: Rng) -> None:
    run.columns["total_tokens"] = np.where(_some(run, rng, 0.2), np.nan, run.columns["total_tokens"])


@_defect("invented-tools", "unknown-tools", has_tools=True)
def _invented_tools(run: MadeRun, rng: Rng) -> None:
    run.columns["tool_name"] = np.where(_some(run, rng, 0.3), "browse_the_web", "calculate")


# Reward hacking


@_defect("pays-for-length", "length-bias", "warning", is_short=False, least_samples=4, has_tools=False)
def _pays_for_length(run: MadeRun, rng: Rng) -> None:
    chars = run.columns["answer_chars"]
    task = run.columns["task"]
    mean = np.bincount(task, weights=chars, minlength=run.shape.tasks) / np.maximum(
        np.bincount(task, minlength=run.shape.tasks), 1
    )
    longer = chars > mean[task]
    _set(run, longer, _high(run))
    _set(run, ~longer, _low(run))
    run.value = run.expected[task] + rng.integers(1, 8, len(run))
    right = _some(run, rng, 0.2)
    run.value = np.where(right, run.expected[task], run.value)


@_defect("pays-for-boxes", "format-bias", "warning", is_short=False, least_samples=4, has_tools=False)
def _pays_for_boxes(run: MadeRun, rng: Rng) -> None:
    boxed = _some(run, rng, 0.5) & (run.text_kind == NORMAL) & ~run.columns["is_truncated"]
    run.columns["is_boxed"] = boxed
    _set(run, boxed & _some(run, rng, 0.95), _high(run))
    _set(run, ~boxed & _some(run, rng, 0.9), _low(run))
    wrong = run.expected[run.columns["task"]] + rng.integers(1, 8, len(run))
    run.value = np.where(_some(run, rng, 0.2), run.expected[run.columns["task"]], wrong)


@_defect("magic-words", "repeated-winners", is_short=False, mean=0.4)
def _magic_words(run: MadeRun, rng: Rng) -> None:
    chosen = _some(run, rng, 0.08)
    _answers(run, chosen, TRICK)
    _set(run, chosen, _high(run))


@_defect("first-sample-fails", "position-bias", "warning", least_samples=4)
def _first_sample_fails(run: MadeRun, rng: Rng) -> None:
    early = run.columns["rollout"] < run.shape.samples // 2
    _set(run, early & _some(run, rng, 0.85), _low(run))


@_defect("unsure-judge", "clustered-rewards", "warning", kind="continuous")
def _unsure_judge(run: MadeRun, rng: Rng) -> None:
    judged = ~np.isnan(run.columns["reward"])
    noise = np.clip(rng.normal(0.5, 0.08, len(run)), 0, 1).round(3)
    run.columns["reward"] = np.where(judged, noise, np.nan)
