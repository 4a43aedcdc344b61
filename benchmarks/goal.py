"""Tokens to reach a goal: adaptive sampling against uniform `-k 8`, over five mixes of difficulty, with an oracle as second line.

Real commands against the simulated model. The tasks of a mix are chosen by their simulated pass rates. Uniform sampling takes tasks
in any order and stops at the goal; the oracle knows every pass rate and takes the tasks that bring most first. Both are
read off one uniform run over all tasks, whose samples are the same as those of the adaptive run.

`--schedule-only` drives the same schedule without model and files, every sample costing one token: many draws in little time.
A goal of 75 groups is reached early or late by luck; `--tasks 30000` sets goals of 760 groups and more. "knowing the mix" is the
best rule that knows how many tasks have which pass rate from the start, but not which tasks: no rule can do better on average.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from tests.goal_driver import drive, summarize_quickly

from rollforge.adaptive.design import GoalProgress, SamplingDesign
from rollforge.adaptive.sampling_rule import Sizes, best_rule
from rollforge.simulate import example_tasks
from rollforge.simulate.draws import digest
from rollforge.simulate.skill import pass_rate
from rollforge.steps.collect.goal.from_options import first_stage
from rollforge.steps.collect.goal.task_book import TaskJudge

SAMPLES = 8
MIXES = ("bimodal", "uniform", "hard", "easy", "long-tailed")
RECIPES = ("grpo", "dpo")
LIMITS = {("bimodal", "grpo"): 0.6, ("bimodal", "dpo"): 0.6, ("hard", "grpo"): 0.6, ("hard", "dpo"): 0.6}
NEVER_ABOVE = 1.02
ORDERS = 200
"""Orders of the tasks over which uniform sampling's tokens are averaged."""
KNOWN = 20_000
"""Pass rates that stand for a mix."""
POOL = 25
"""Example tasks made per task of a mix."""


def rates_of(mix: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """The pass rates that the tasks of a mix should have."""
    kind = rng.random(count)
    match mix:
        case "bimodal":  # 47 % never, 47 % always, the rest in between
            return np.where(kind < 0.47, 0.0, np.where(kind < 0.94, 1.0, rng.uniform(0.25, 0.75, count)))
        case (
            "bimodal-10"
        ):  # more in between: a rule that knows the mix needs 0.58 of uniform sampling's tokens for grpo
            return np.where(kind < 0.45, 0.0, np.where(kind < 0.9, 1.0, rng.uniform(0.2, 0.8, count)))
        case "uniform":
            return rng.random(count)
        case "hard":  # 85 % never solved, the rest seldom
            return np.where(kind < 0.85, 0.0, rng.uniform(0.05, 0.5, count))
        case "easy":
            return np.where(kind < 0.7, 1.0, rng.uniform(0.5, 0.95, count))
        case _:  # most tasks near 0, ever fewer the easier
            return rng.beta(0.3, 2.0, count)


class Comparison(NamedTuple):
    """Tokens to one goal, three ways."""

    recipe: str
    goal: int
    usable: int
    adaptive: float
    uniform: float
    oracle: float


class Pool:
    """Example tasks with the pass rates that the simulated model has on them."""

    def __init__(self, count: int) -> None:
        self.rows = list(example_tasks(count, 0, "math"))
        self.rates = np.array([self._rate(row) for row in self.rows])
        self._free = list(np.argsort(self.rates, kind="stable"))

    @staticmethod
    def _rate(row: dict) -> float:
        text = row["responses_create_params"]["input"][0]["content"]
        return pass_rate(0, f"{digest('user', text):016x}", row["difficulty"], 0.5)

    def choose(self, wanted: np.ndarray) -> list[int]:
        """For each wanted rate the nearest task that is not taken."""
        free = list(self._free)
        rates = [self.rates[place] for place in free]
        chosen = []
        for rate in wanted:
            at = int(np.searchsorted(rates, rate))
            if at == len(rates) or (at and rate - rates[at - 1] < rates[at] - rate):
                at -= 1
            chosen.append(free.pop(at))
            del rates[at]
        return chosen


def collect(tasks: Path, run: Path, *more: str) -> dict:
    words = [
        sys.executable,
        "-m",
        "rollforge",
        "collect",
        "-i",
        str(tasks),
        "-o",
        str(run),
        "-m",
        "simulated",
    ]
    words += ["--verifier", "exact", "-k", str(SAMPLES), "--json", "--progress", "none", *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def read(run: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and tokens of a uniform run, [task, sample]."""
    rewards, tokens = np.zeros((count, SAMPLES)), np.zeros((count, SAMPLES))
    for line in (run / "rollouts.jsonl").open():
        row = json.loads(line)
        place = row["_ng_task_index"], row["_ng_rollout_index"]
        rewards[place] = row["reward"]
        tokens[place] = row["response"]["usage"]["total_tokens"]
    return rewards, tokens


def units_of(recipe: str, rewards: np.ndarray) -> np.ndarray:
    """Usable units of each whole group."""
    yes = rewards.sum(axis=1)
    no = SAMPLES - yes
    return np.minimum(yes, no) if recipe == "dpo" else ((yes > 0) & (no > 0)).astype(float)


def usual_tokens(goal: int, units: np.ndarray, tokens: np.ndarray, rng: np.random.Generator) -> float:
    """Tokens of uniform sampling until the goal, on average over orders of the tasks: one order is a matter of luck."""
    orders = (rng.permutation(len(units)) for _ in range(ORDERS))
    return float(np.mean([tokens_until(goal, units[order], tokens[order]) for order in orders]))


def tokens_until(goal: int, units: np.ndarray, tokens: np.ndarray) -> float:
    """Tokens of whole groups, in this order, until the goal is reached."""
    last = int(np.searchsorted(np.cumsum(units), goal))
    return float(tokens[: last + 1].sum())


def worth(recipe: str, rates: np.ndarray) -> np.ndarray:
    """Expected units of a whole group, for the oracle."""
    yes = np.arange(SAMPLES + 1)
    chance = np.array([[_binomial(k, rate) for k in yes] for rate in rates])
    made = np.minimum(yes, SAMPLES - yes) if recipe == "dpo" else ((yes > 0) & (yes < SAMPLES)).astype(float)
    return chance @ made


def _binomial(successes: int, rate: float) -> float:
    from math import comb

    return comb(SAMPLES, successes) * rate**successes * (1 - rate) ** (SAMPLES - successes)


def knowing_the_mix(mix: str, recipe: str, first: int = first_stage(SAMPLES)) -> float:
    """The best rule's samples per unit with this first stage, as a share of uniform sampling's, when it knows the mix."""
    rates = rates_of(mix, KNOWN, np.random.default_rng(0))
    counts = np.arange(SAMPLES + 2)
    likelihood = np.array([[np.mean(rates**hit * (1 - rates) ** miss) for miss in counts] for hit in counts])
    with np.errstate(invalid="ignore"):
        chance = np.nan_to_num(likelihood[1:, :-1] / likelihood[:-1, :-1])
    pairs = np.minimum(counts[:, None], counts[None, :])
    units = (pairs if recipe == "dpo" else pairs > 0).astype(float)
    rule = best_rule(chance, units, Sizes(first, SAMPLES, SAMPLES))
    return float(worth(recipe, rates).mean()) / SAMPLES / rule.rate


def drive_schedule(recipe: str, goal: int, rewards: np.ndarray) -> GoalProgress:
    """What a goal takes when each answer is read off the table of rewards."""
    design = SamplingDesign(
        recipe=recipe, target=goal, first=first_stage(SAMPLES), whole=SAMPLES, most=SAMPLES, audit=0.01
    )
    # Rewards of 0 and 1 need no recipe to be counted, and counting would take most of the time.
    with patch.object(TaskJudge, "summarize", summarize_quickly):
        schedule, _ = drive(
            [0.0] * len(rewards),
            design,
            rewards=lambda position, sample: float(rewards[position, sample]),
            tokens=1,
        )
    return schedule.progress()


def compare_schedules(mix: str, seed: int, tasks: int, share: float, orders: int) -> Iterator[Comparison]:
    """One draw of a mix without a model."""
    rng = np.random.default_rng(seed)
    rates = rates_of(mix, tasks, rng)
    rewards = (rng.random((tasks, SAMPLES)) < rates[:, None]).astype(float)
    spent = np.full(tasks, float(SAMPLES))
    for recipe in RECIPES:
        units = units_of(recipe, rewards)
        goal = max(1, int(share * units.sum()))
        made = [drive_schedule(recipe, goal, rng.permutation(rewards)) for _ in range(orders)]
        best = np.argsort(-worth(recipe, rates), kind="stable")
        yield Comparison(
            recipe=recipe,
            goal=goal,
            usable=min(one.usable for one in made),
            adaptive=float(np.mean([one.tokens for one in made])),
            uniform=usual_tokens(goal, units, spent, rng),
            oracle=tokens_until(goal, units[best], spent[best]),
        )


def compare_commands(mix: str, seed: int, tasks: int, share: float, pool: Pool) -> Iterator[Comparison]:
    """One draw of a mix with whole commands against the simulated model."""
    rng = np.random.default_rng(seed)
    chosen = pool.choose(rates_of(mix, tasks, rng))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "tasks.jsonl"
        path.write_text("".join(json.dumps(pool.rows[place]) + "\n" for place in chosen))
        collect(path, folder / "uniform")
        rewards, tokens = read(folder / "uniform", tasks)
        spent = tokens.sum(axis=1)
        for recipe in RECIPES:
            units = units_of(recipe, rewards)
            goal = max(1, int(share * units.sum()))
            result = collect(path, folder / recipe, "--goal", f"{recipe}={goal}")["goal"]
            best = np.argsort(-worth(recipe, pool.rates[chosen]), kind="stable")
            yield Comparison(
                recipe=recipe,
                goal=goal,
                usable=result["usable"],
                adaptive=result["tokens"],
                uniform=usual_tokens(goal, units, spent, rng),
                oracle=tokens_until(goal, units[best], spent[best]),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3000, help="tasks per mix")
    parser.add_argument(
        "--share",
        type=float,
        default=0.45,
        help="goal: this share of what uniform sampling makes of all tasks",
    )
    parser.add_argument("--mixes", nargs="*", default=MIXES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="draws of each mix")
    parser.add_argument("--schedule-only", action="store_true", help="without model and files")
    parser.add_argument(
        "--orders",
        type=int,
        default=4,
        help="with --schedule-only: orders of the tasks to average over, because one order is a matter of luck",
    )
    asked = parser.parse_args()
    pool = None if asked.schedule_only else Pool(POOL * asked.tasks)
    is_reached = True
    missed: list[str] = []
    sums: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3))
    print(
        f"{'mix':<12} {'seed':>4} {'goal':<10} {'usable':>7} {'uniform':>11} {'adaptive':>11} {'ratio':>6} {'oracle':>6} {'limit':>6}"
    )
    for mix, seed in itertools.product(asked.mixes, asked.seeds):
        draw = (mix, seed, asked.tasks, asked.share)
        for one in compare_schedules(*draw, asked.orders) if pool is None else compare_commands(*draw, pool):
            ratio, limit = one.adaptive / one.uniform, LIMITS.get((mix, one.recipe), NEVER_ABOVE)
            is_reached &= one.usable >= one.goal
            missed += [f"{mix} {one.recipe} seed {seed}"] if ratio > limit else []
            sums[mix, one.recipe] += (one.adaptive, one.uniform, one.oracle)
            print(
                f"{mix:<12} {seed:>4} {one.recipe}={one.goal:<5} "
                f"{one.usable:>7,} {one.uniform:>11,.0f} {one.adaptive:>11,.0f} {ratio:>6.2f} "
                f"{one.oracle / one.uniform:>6.2f} {limit:>6.2f}",
                flush=True,
            )
    report(sums)
    print(f"limits NOT met: {', '.join(missed)}" if missed else "all limits met")
    return bool(missed) or not is_reached


def report(sums: dict[tuple[str, str], np.ndarray]) -> None:
    """Print the ratios over all draws of each mix; the limits hold for every draw."""
    for (mix, recipe), (adaptive, uniform, oracle) in sums.items():
        ratio, limit = adaptive / uniform, LIMITS.get((mix, recipe), NEVER_ABOVE)
        print(
            f"{mix:<12} {recipe:<5} over all seeds: {ratio:.3f} (limit {limit}), "
            f"knowing the mix {knowing_the_mix(mix, recipe):.3f}, oracle {oracle / uniform:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
