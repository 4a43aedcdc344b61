"""Compares two verifiers on the same rollouts: agreement, flips, paired difference.

A verifier is named as in the verdicts file; `NAME@fast` or `NAME@1f0c` picks one mode or fingerprint of it, and `recorded` is the
reward in the rollouts file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.records import RECORDED, JsonFields
from rollforge.registry import did_you_mean
from rollforge.review.labels import LabelFile, is_right
from rollforge.rollouts import Own, RolloutReader, TaskFields
from rollforge.statistics.counts import count_of
from rollforge.statistics.intervals import clustered_mean, paired_difference
from rollforge.steps.verify.choice import hash_of
from rollforge.steps.verify.tally import (
    RewardEstimate,
    RolloutRewards,
    estimate_of,
    reward_estimate,
    rewards_of,
)
from rollforge.steps.verify.verdicts import Key, VerdictRow, known_verifiers, read_verdicts
from rollforge.store import RunFiles
from rollforge.text_safety.markup import decimal, interval, result, table

LABELS = "labels"
"""Name under which people's labels are compared with a verifier."""
PASS = 0.5
"""Rewards from this value on pass; a flip (0→1 or 1→0) crosses it."""
EXAMPLES = 3
EXCERPT = 300

Flip = Literal["0→1", "1→0", "changed"]


class FlipExample(msgspec.Struct, frozen=True):
    """A rollout on which the two verifiers disagree."""

    flip: Flip
    task: int
    rollout: int
    a: float
    b: float
    prompt: str
    expected: str | None
    answer: str
    """The end of the answer."""
    details_a: JsonFields
    details_b: JsonFields


class FlipTable(msgspec.Struct, kw_only=True):
    """Comparison of two verifiers on the rollouts that both judged."""

    a: str
    b: str
    n: int
    """Number of rollouts that both judged, the basis of all other numbers."""
    agree: int
    """Number with equal rewards."""
    up: int
    """Number that A fails and B passes (0→1)."""
    down: int
    """Number that A passes and B fails (1→0)."""
    changed: int
    """Number with different rewards on the same side of the pass threshold."""
    only_a: int
    only_b: int
    neither: int
    """Number that at most one of the two judged."""
    mean_a: RewardEstimate
    mean_b: RewardEstimate
    difference: RewardEstimate
    """Mean paired difference B − A, with an interval over tasks."""
    examples: list[FlipExample] = []

    def _repr_html_(self) -> str:
        means = (("mean A", self.mean_a), ("mean B", self.mean_b), ("B − A, paired", self.difference))
        return result(
            f"A = {self.a}, B = {self.b}, over {count_of(self.n, 'rollout')} that both judged",
            table(
                ("", "rollouts"),
                [
                    ("agree", f"{self.agree:,}"),
                    ("0→1 (only B passes it)", f"{self.up:,}"),
                    ("1→0 (only A passes it)", f"{self.down:,}"),
                    ("other number, same side", f"{self.changed:,}"),
                    ("only A judged", f"{self.only_a:,}"),
                    ("only B judged", f"{self.only_b:,}"),
                ],
            ),
            table(
                ("", "value", "95 % interval"), [[name, decimal(m.mean), interval(m.ci)] for name, m in means]
            ),
        )


class _Side:
    """The rewards of one verifier."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.verifier, _, self.pick = name.partition("@")
        self.reward_by_key: dict[Key, float] = {}

    def takes(self, verifier: str | None, fingerprint: str | None, mode: str | None) -> bool:
        if verifier != self.verifier:
            return False
        return not self.pick or self.pick == mode or (fingerprint or "").startswith(self.pick)

    def inline(self, key: Key, own: Own, reward: float | None) -> None:
        if reward is not None and (
            self.name == RECORDED or self.takes(own.verifier, own.fingerprint, own.mode)
        ):
            self.reward_by_key[key] = reward

    def later(self, row: VerdictRow) -> None:
        if not self.takes(row.verifier, row.fingerprint, row.mode):
            return
        if row.reward is not None:
            self.reward_by_key[row.key] = row.reward
        else:
            self.reward_by_key.pop(row.key, None)


def compare(run: str | Path, a: str, b: str, *, tasks: str | Path | None = None) -> FlipTable:
    """Compare the verifiers `a` and `b` over a run."""
    files = RunFiles(run)
    if not files.rollouts.exists() and not files.is_sharded:
        raise UsageError(f"{files.rollouts}: no such run", hint="give a run: a rollouts file, or its folder")
    first, second = _Side(a), _Side(b)
    keys = _read(files, first, second)
    for side in (first, second):
        if side.name == LABELS:
            side.reward_by_key |= _labelled(files)
    for side in (first, second):
        if not side.reward_by_key:
            verifier_names = known_verifiers(files)
            if side.name == LABELS:
                raise UsageError(
                    f"{files.labels}: nobody has labelled a rollout of this run",
                    hint=f"label some: rollforge show {files.name} --label",
                )
            if side.name == RECORDED:
                raise UsageError(
                    f"{files.rollouts}: no rollout has a reward of its own",
                    hint=f"judged by: {', '.join(verifier_names)}"
                    if verifier_names
                    else f"judge it first: rollforge verify {files.name} --verifier NAME",
                )
            verifier_names.append(RECORDED)
            raise UsageError(
                f"no verdict in this run is by {side.name!r}{did_you_mean(side.name, verifier_names)}",
                hint=f"judged by: {', '.join(verifier_names)}; one mode or fingerprint of it: NAME@fast, NAME@1f0c",
            )
    table, flips = _tabulate(first, second, keys, rewards_of(files).first_stage)
    with TaskFields(files, tasks) as fields:
        table.examples = _examples(files, flips, first, second, fields)
    return table


def flip_keys(run: str | Path, a: str, b: str, kind: str) -> list[Key]:
    """Rollouts with one kind of flip between two verifiers, as sorted (task, rollout)."""
    files = RunFiles(run)
    first, second = _Side(a), _Side(b)
    keys = _read(files, first, second)
    _, flips = _tabulate(first, second, keys)
    return sorted(key for key, flip in flips.items() if flip == kind)


def _labelled(files: RunFiles) -> dict[Key, float]:
    """Rewards of labelled answers according to people: 1 or 0."""
    return {
        (one.task, one.rollout): float(opinion)
        for one in LabelFile(files).newest()
        if (opinion := is_right(one, PASS)) is not None
    }


def _read(files: RunFiles, first: _Side, second: _Side) -> int:
    keys = set()
    for rollout in RolloutReader(files.rollouts, files):
        keys.add(rollout.key)
        for side in (first, second):
            side.inline(rollout.key, rollout.own, rollout.reward)
    for row, _ in read_verdicts(files.verdicts):
        for side in (first, second):
            side.later(row)
    return len(keys)


def flip_of(a: float, b: float) -> Flip | None:
    """Kind of flip between two rewards; None if they agree."""
    if a == b:
        return None
    if (a >= PASS) == (b >= PASS):
        return "changed"
    return "0→1" if b > a else "1→0"


def _tabulate(
    first: _Side, second: _Side, rollouts: int, first_stage: int | None = None
) -> tuple[FlipTable, dict[Key, Flip]]:
    means = tuple(RolloutRewards(first_stage) for _ in range(2))
    gaps: dict[int, list[tuple[float, float]]] = {}
    flips: dict[Key, Flip] = {}
    both = first.reward_by_key.keys() & second.reward_by_key.keys()
    for key in both:
        a, b = first.reward_by_key[key], second.reward_by_key[key]
        for mean, value in zip(means, (a, b), strict=True):
            mean.add_rollout(key, value)
        if means[0].counts_rollout(key):
            gaps.setdefault(key[0], []).append((a, b))
        flip = flip_of(a, b)
        if flip is not None:
            flips[key] = flip
    counts = [sum(flip == kind for flip in flips.values()) for kind in ("0→1", "1→0", "changed")]
    only_a, only_b = len(first.reward_by_key) - len(both), len(second.reward_by_key) - len(both)
    table = FlipTable(
        a=first.name,
        b=second.name,
        n=len(both),
        agree=len(both) - len(flips),
        up=counts[0],
        down=counts[1],
        changed=counts[2],
        only_a=only_a,
        only_b=only_b,
        neither=max(0, rollouts - len(both) - only_a - only_b),
        mean_a=estimate_of(means[0]),
        mean_b=estimate_of(means[1]),
        difference=_difference(gaps, first_stage),
    )
    return table, flips


def _difference(
    pairs_by_task: dict[int, list[tuple[float, float]]], first_stage: int | None
) -> RewardEstimate:
    """Mean of B − A over rollouts. It may go both ways, so it is no share, not even where all differences are 0 or 1."""
    pairs = list(pairs_by_task.values())
    sizes = [len(task) for task in pairs]
    estimate = clustered_mean([sum(b - a for a, b in task) for task in pairs], sizes)
    if estimate.low is None or estimate.low == estimate.high:  # equal in all tasks
        means = [[sum(side) / len(task) for side in zip(*task, strict=True)] for task in pairs]
        estimate = paired_difference([mean[0] for mean in means], [mean[1] for mean in means])
    return reward_estimate(estimate, n=sum(sizes), first_stage=first_stage)


def _examples(
    files: RunFiles, flips: dict[Key, Flip], first: _Side, second: _Side, tasks: TaskFields
) -> list[FlipExample]:
    """A few rollouts of each flip, from different tasks if possible; deterministic."""
    chosen: dict[Key, Flip] = {}
    for kind in ("0→1", "1→0", "changed"):
        of_kind = sorted((key for key, flip in flips.items() if flip == kind), key=hash_of)
        one_per_task = list({key[0]: key for key in reversed(of_kind)}.values())[::-1]
        for key in [*one_per_task, *of_kind]:
            if sum(flip == kind for flip in chosen.values()) < EXAMPLES:
                chosen[key] = flips[key]
    details = _details(files, chosen, first, second) if chosen else {}
    example_by_key: dict[Key, FlipExample] = {}
    for rollout in RolloutReader(files.rollouts, files) if chosen else ():
        key = rollout.key
        if key not in chosen:
            continue
        task = tasks.of(rollout)
        expected = task.get("expected_answer")
        example_by_key[key] = FlipExample(
            flip=chosen[key],
            task=key[0],
            rollout=key[1],
            a=first.reward_by_key[key],
            b=second.reward_by_key[key],
            prompt=task.prompt[-EXCERPT:],
            expected=None if expected is None else str(expected)[:EXCERPT],
            answer=rollout.response.text[-EXCERPT:],
            details_a=details.get((key, "a"), {}),
            details_b=details.get((key, "b"), {}),
        )
    return [example_by_key[key] for key in chosen if key in example_by_key]


def _details(
    files: RunFiles, chosen: dict[Key, Flip], first: _Side, second: _Side
) -> dict[tuple[Key, str], JsonFields]:
    """Fields of each verifier's verdict besides the reward."""
    left_out = {"verifier", "fingerprint", "at", "seconds", "shared", "error", "reward"}
    details: dict[tuple[Key, str], JsonFields] = {}
    for row, line in read_verdicts(files.verdicts):
        if row.key not in chosen:
            continue
        fields = {
            name: value
            for name, value in msgspec.json.decode(line).items()
            if name not in left_out and not name.startswith("_ng_")
        }
        for side, letter in ((first, "a"), (second, "b")):
            if side.takes(row.verifier, row.fingerprint, row.mode):
                details[row.key, letter] = fields
    return details
