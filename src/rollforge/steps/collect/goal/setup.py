"""Makes the schedule from the options and the run on disk: with a goal, with a top-up condition, or plain."""

from __future__ import annotations

import msgspec
import numpy as np

from rollforge.adaptive.design import DESIGN, GOALS, SamplingDesign, read_design
from rollforge.errors import DataError, UsageError
from rollforge.index import Index, open_index
from rollforge.recipes.base import Candidates
from rollforge.recipes.recipe_columns import FLAGS, answer_codes, candidate_columns, rollout_keys
from rollforge.recipes.usable import usable_by_group
from rollforge.steps.collect.collect_options import CollectOptions, parse_share
from rollforge.steps.collect.goal.from_options import make_design, recipe_options
from rollforge.steps.collect.goal.goal_schedule import GoalSchedule, Recorded
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import PlainSchedule, Schedule
from rollforge.store import Manifest, RunFiles

TASK_NUMBERS = """
select task, count(*) as rollouts, count(reward) as judged, avg(reward) as mean_reward, stddev_samp(reward) as std_reward,
       min(reward) as min_reward, max(reward) as max_reward,
       avg(case when reward is null then null when reward >= {threshold} then 1.0 else 0.0 end) as pass_rate
from rollouts where rollout < {base} group by task"""
"""Task statistics available in a --top-up condition, over the samples that every task had before."""

TASK_COLUMNS = (
    "task",
    "rollouts",
    "judged",
    "mean_reward",
    "std_reward",
    "min_reward",
    "max_reward",
    "pass_rate",
)


def design_of(options: CollectOptions, old: Manifest | None) -> SamplingDesign | None:
    """The sampling design of this collection; None for uniform sampling."""
    before = read_design(old.extra) if old is not None else None
    if options.goal is None and options.top_up is None:
        return None
    base = 0
    if before is not None:
        base = before.base
    elif old is not None and (old.state == "done" or options.top_up is not None):
        base = old.samples
    if options.top_up is not None and not base:
        raise UsageError(
            "--top-up chooses among the tasks of an existing run, and there is none",
            hint="collect first without it; then repeat the command with --top-up and a larger -k",
        )
    if options.goal is None:
        if options.samples <= base and not (before and before.top_up == options.top_up):
            raise UsageError(
                f"--top-up: every task has {base} samples already, and -k is {options.samples}",
                hint=f"say how many they should have: -k {2 * base}",
            )
        return SamplingDesign(
            first=base, whole=options.samples, most=options.samples, base=base, top_up=options.top_up
        )
    made = make_design(
        options,
        samples=options.samples,
        audit=parse_share(options.audit, "--audit"),
        seed=options.seed,
        base=base,
    )
    if before is not None:  # statistics stand on the first stage that the run began with
        made = msgspec.structs.replace(
            made, first=before.first, audit=min(before.audit, made.audit), seed=before.seed
        )
    return msgspec.structs.replace(made, top_up=options.top_up)


def make_schedule(plan: CollectPlan, options: CollectOptions) -> Schedule:
    """The schedule of a collection; the design is recorded in the manifest, so that statistics can be corrected."""
    design = plan.design
    if design is None:
        return PlainSchedule(plan, options.attempts)
    before = read_design(plan.manifest.extra)
    plan.manifest.extra[DESIGN] = msgspec.to_builtins(design)
    if not _has_rollouts(plan.files):
        if design.top_up is not None:
            raise UsageError(
                f"--top-up chooses among the tasks of an existing run, and {plan.files.rollouts} has no rollouts",
                hint="collect first without it; then repeat the command with --top-up and a larger -k",
            )
        return GoalSchedule(plan, design, Recorded(None), attempts=options.attempts)
    with open_index(plan.files.rollouts) as index:
        design = plan.design = _since(design, before, index)
        plan.manifest.extra[DESIGN] = msgspec.to_builtins(design)
        if design.top_up is not None:
            plan.order = _chosen(plan, index, design)
        if design.recipe is None:
            return PlainSchedule(plan, options.attempts)
        return GoalSchedule(plan, design, Recorded(index, design.earlier), attempts=options.attempts)


def _since(design: SamplingDesign, before: SamplingDesign | None, index: Index) -> SamplingDesign:
    """The design with the number of rollouts at its start; a resumed design keeps its start."""
    if before is not None and msgspec.structs.replace(before, earlier=0) == design:
        return before
    return msgspec.structs.replace(design, earlier=len(index) + index.duplicate_count)


def _has_rollouts(files: RunFiles) -> bool:
    return files.rollouts.exists() and files.rollouts.stat().st_size > 0


def _chosen(plan: CollectPlan, index: Index, design: SamplingDesign) -> np.ndarray:
    """The order without the tasks for which the condition does not hold."""
    label = f"--top-up {design.top_up!r}"
    numbers = TASK_NUMBERS.format(threshold=design.min_reward or 0.5, base=design.base)
    try:
        rows = index.select(f"select task from ({numbers}) where ({design.top_up}\n)", label=label)
    except DataError:  # not the condition's fault
        raise
    except UsageError as error:
        raise UsageError(
            str(error),
            hint=f'a condition over {", ".join(TASK_COLUMNS)}: --top-up "pass_rate between 0.1 and 0.9"',
        ) from error
    tasks = set(rows.column("task").to_pylist())
    ids = plan.ledger.task_ids[plan.order].tolist()
    chosen = plan.order[np.array([task in tasks for task in ids], dtype=bool)]
    if not len(chosen):
        raise UsageError(
            f"{label} holds for no task of {plan.files.rollouts}",
            hint=f"see the tasks: rollforge profile {plan.files.rollouts.parent}",
        )
    plan.notes.append(f"--top-up: {len(chosen):,} of {len(ids):,} tasks")
    return np.asarray(chosen)


def count_usable(files: RunFiles, design: SamplingDesign) -> int:
    """Number of usable units of a run on disk, as `prepare` counts them."""
    if not _has_rollouts(files):
        return 0
    with open_index(files.rollouts) as index:
        columns = candidate_columns(index)
    columns["task_key"], columns["sample_key"] = columns["task"], columns["rollout"]
    order = np.lexsort((columns["sample_key"], columns["task_key"]))
    columns = {name: column[order] for name, column in columns.items()}
    _, group = np.unique(columns["task"], return_inverse=True)
    candidates = Candidates(
        row=columns["row"],
        group=group,
        reward=np.asarray(columns["reward"], dtype=np.float64),
        answer=answer_codes(columns),
        chars=columns["answer_chars"],
        key=rollout_keys(columns),
        flags={name: columns[name] for name in FLAGS},
    )
    return int(usable_by_group(str(design.recipe), candidates, recipe_options(design)).sum())


def unit_of(design: SamplingDesign) -> str:
    """The unit that a goal counts."""
    return GOALS[str(design.recipe)]
