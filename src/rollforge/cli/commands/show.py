"""`rollforge show`: rollouts to read."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.commands.reading_flags import check_count, say_doubt, strict_exit
from rollforge.cli.converters import Flag, within
from rollforge.cli.render.show import print_line, print_rollouts
from rollforge.errors import Exit, UsageError
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.index import Index
    from rollforge.steps.show import Pick, Shown, ShowOptions

EXAMPLE = 'rollforge show runs/first --where "reward = 0 and turns = 1" --sample 3'

COMMON = ("--task", "--rollout", "--reward", "--where", "--sort", "--sample", "--best", "--worst", "--suspicious", "--limit", "--line",
    "--calls", "--label", "--raw", "--full", "--json")  # fmt: skip
"""Flags that `-h` shows."""


_ORDERS = ("best", "worst", "suspicious", "sort", "sample")
EXCLUDED = {
    "sort": ("best", "worst", "suspicious"),
    "sample": ("best", "worst", "suspicious", "sort"),
    "line": ("task", "rollout", "reward", "where", *_ORDERS),
}
"""Options that exclude each other: an order is listed, random or by reward; --line selects a single line."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Choice:
    """Flags that select rollouts."""

    task: list[int] | None = None
    """Only rollouts of this task (give it again for more tasks)."""
    rollout: int | None = None
    """Only the rollout with this number within its task, from 0."""
    reward: float | None = None
    """Only rollouts with this reward."""
    where: str | None = None
    """Only rollouts for which this SQL expression over the columns holds."""
    sort: str | None = None
    """Order by this column or expression, like "answer_chars desc"."""
    sample: int | None = None
    """Draw this many rollouts at random."""
    seed: int = 0
    """Another seed draws another sample."""
    best: Flag = False
    """Highest reward first; `--best 5` shows five."""
    worst: Flag = False
    """Lowest reward first; `--worst 5` shows five."""
    suspicious: Flag = False
    """Those that look wrong first: rewarded though empty or cut off, one answer with two rewards, error texts."""
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None
    """At most this many. Default: 5."""
    line: int | None = None
    """The line with this number, even when it is no row."""

    def options(self) -> ShowOptions:
        """The choice as options of the step; --line becomes a SQL condition."""
        from rollforge.steps.show import ShowOptions

        counts = [count for count in (self.sample, self.limit) if count is not None]
        return ShowOptions(
            tasks=self.task or (), rollout=self.rollout, reward=self.reward, sort=self.sort, seed=self.seed,
            sample=None if self.sample is None else min(counts), limit=min(counts, default=5),
            where=self.where if self.line is None else f"line = {self.line}", pick=self.pick(),
        )  # fmt: skip

    def check(self) -> None:
        """Raise when two options contradict each other, or a number makes no sense."""
        self.pick()
        typed_flags = self.given()
        for one, others in EXCLUDED.items():
            for other in others:
                if one in typed_flags and other in typed_flags:
                    raise UsageError(
                        f"--{one} and --{other} exclude each other", hint="leave one of them out"
                    )
        for name in ("limit", "sample"):
            count = getattr(self, name)
            if count is not None:
                check_count(name, count)
        if self.reward is not None and not math.isfinite(self.reward):
            raise UsageError(
                f"--reward {self.reward} is not a number that a reward can have",
                hint="--reward 1, or for the unjudged: --where 'reward is null'",
            )

    def given(self) -> set[str]:
        """Names of the options that were used."""
        default = Choice()
        return {name for name in vars(self) if getattr(self, name) != getattr(default, name)}

    def pick(self) -> Pick | None:
        """Which of best, worst and suspicious was used; more than one is refused."""
        names: tuple[Pick, ...] = ("best", "worst", "suspicious")
        picks = [name for name in names if getattr(self, name)]
        if len(picks) > 1:
            raise UsageError(
                f"--{picks[0]} and --{picks[1]} exclude each other", hint="leave one of them out"
            )
        return picks[0] if picks else None


def show(
    *run: Annotated[str, Parameter(name="run")],
    example: str | None = None,
    choice: Choice = Choice(),  # noqa: B008  (a record of defaults, never changed)
    calls: Flag = False,
    label: Flag = False,
    stratified: Flag = False,
    blind: Flag = False,
    raw: Flag = False,
    full: Flag = False,
    verifier: str | None = None,
    strict: Flag = False,
    workers: Annotated[int | None, within(1, 1024)] = None,
    json: Flag = False,
) -> Exit:
    """Print rollouts for reading: prompt, reasoning, tool calls and answer laid out, reward and numbers beside them.

    Parameters
    ----------
    run
        A rollouts file, its folder, or several files (or a glob) read as one run.
    example
        Show the rollouts behind a row of a prepared dataset, given as FILE:LINE; needs no run.
    calls
        Show the recorded model calls of programs whose rollout is not finished (killed, failed, running); with --task or --rollout,
        of every attempt at it.
    label
        Ask about one verdict after another: agree, disagree or unsure. Rollouts are drawn at random by --seed, which is what rates
        need; with --suspicious, those that look wrong come first.
    stratified
        With --label: draw as many rollouts that pass as that fail. Rates weight the two by their shares of the run.
    blind
        With --label: hide the verdict, ask whether the answer is right, and show the verdict afterwards.
    raw
        Print the lines unchanged, as bytes of the file.
    full
        Do not fold long texts.
    verifier
        Whose verdicts count. Default: the run's verdict of record, else the inline ones.
    strict
        Exit with code 2 when a line cannot be read or is odd.
    workers
        Readers at once for the first pass over the text.
    json
        Print one JSON object on stdout.
    """
    choice.check()
    for flag, is_given in (("--raw", raw), ("--label", label)):
        if is_given and json:
            raise UsageError(f"{flag} and --json exclude each other", hint="leave one of them out")
    if stratified and choice.suspicious:
        raise UsageError("--stratified and --suspicious exclude each other", hint="leave one of them out")
    if example is not None:
        _check_alone(choice)
        shown = _behind(example)
        sides = ("chosen", "rejected") if len(shown) == 2 else ()
        return print_rollouts(shown, raw=raw, full=full, json=json, sides=sides)
    runs, choice = _take_number(run, choice)
    if not runs:
        raise UsageError("no run given", hint="rollforge show RUN, or rollforge show --example FILE:LINE")
    if calls:
        return _show_calls(runs, choice, full=full, json=json)
    from rollforge.index import open_index
    from rollforge.steps.show import show_line, show_rollouts

    with open_index(runs, verifier=verifier, workers=workers) as index:
        say_doubt(index)
        if label:
            return _label(index, choice, stratified=stratified, blind=blind)
        if choice.line is not None:
            seen = show_line(index, choice.line)
            if seen.reason is not None or raw:
                return print_line(seen, raw=raw, json=json)
        shown = show_rollouts(index, choice.options())
        from rollforge.cli.render.console import say

        if choice.task and choice.sample is not None and 0 < len(shown) < choice.sample:
            say(
                f"note: no more than {len(shown)} fit, and all are shown; --rollout {choice.sample} shows the one with that number"
            )
        print_rollouts(shown, raw=raw, full=full, json=json, hint="" if shown else _missing(index, choice))
        return strict_exit(index, is_strict=strict)


def _missing(index: Index, choice: Choice) -> str:
    """The next step when the run has no rollouts, no such task, or no rollout with such a number."""
    if len(index) == 0:
        files = shlex.join(str(run.rollouts) for run in index.runs)
        what = "no line could be read as one" if index.rejected_lines else "the file has none"
        return f"{what}: rollforge validate {files}"
    for name, numbers in (("task", choice.task or []), ("rollout", [choice.rollout])):
        numbers_typed = [number for number in numbers if number is not None]
        [span] = index.select(f"SELECT min({name}) AS first, max({name}) AS last FROM rollouts").to_pylist()
        first, last = span["first"], span["last"]
        if numbers_typed and first is not None and not any(first <= one <= last for one in numbers_typed):
            return f"the {name}s of the run have the numbers {first} to {last}"
    return ""


def _show_calls(runs: list[str], choice: Choice, *, full: bool, json: bool) -> Exit:
    """Print the recorded model calls of unfinished attempts."""
    from rollforge.cli.render.show import print_attempts
    from rollforge.steps.show_calls import show_calls

    for name in sorted(choice.given() - {"task", "rollout", "limit"}):
        raise UsageError(
            f"--calls and --{name} exclude each other", hint="--task, --rollout and --limit choose attempts"
        )
    shown = show_calls(
        runs,
        tasks=choice.task or (),
        rollout=choice.rollout,
        limit=5 if choice.limit is None else choice.limit,
    )
    return print_attempts(shown, full=full, json=json)


def _label(index: Index, choice: Choice, *, stratified: bool, blind: bool) -> Exit:
    """Ask for labels until the queue is empty or the person stops."""
    from rollforge.cli.render.console import say
    from rollforge.cli.render.labels import ask_labels
    from rollforge.review.labels import MEASURING, Label, LabelFile, Opinion, Queue, label_queue, labelled
    from rollforge.steps.show import ShowOptions, show_rollouts

    if len(index.runs) != 1:
        raise UsageError("labels belong to one run", hint="name one run")
    file = LabelFile(index.runs[0])
    kind: Queue = "suspicious" if choice.suspicious else "stratified" if stratified else "random"
    done = labelled(index, file.newest(), kind)
    keys = label_queue(index, kind, seed=choice.seed, done=done, count=choice.limit or 1000)
    queue = (
        one for row, _, _ in keys for one in show_rollouts(index, ShowOptions(where=f"row = {row}", limit=1))
    )

    def keep(one: Shown, opinion: Opinion) -> None:
        verifier = one.facts.get("verifier")
        seed = choice.seed if kind in MEASURING else None
        file.add(
            Label(
                task=one.task,
                rollout=one.rollout,
                label=opinion,
                reward=one.reward,
                verifier=verifier,
                queue=kind,
                seed=seed,
                blind=blind,
            )
        )

    count = ask_labels(queue, keep, blind=blind)
    say(
        f"{count_of(count, 'label')} in {file.path}; what they say: rollforge metrics --labels {index.runs[0].name}"
    )
    return Exit.DONE


def _take_number(words: tuple[str, ...], choice: Choice) -> tuple[list[str], Choice]:
    """Separate runs from the limit: `--best 5` is short for `--best --limit 5`."""
    numbers = [word for word in words if word.isdigit() and not Path(word).exists()]
    if len(numbers) != 1 or choice.pick() is None:
        return list(words), choice
    number, pick = int(numbers[0]), choice.pick()
    if choice.limit not in (None, number):
        raise UsageError(
            f"--{pick} {number} and --limit {choice.limit} exclude each other", hint="leave out --limit"
        )
    check_count(str(pick), number)
    return [word for word in words if word != numbers[0]], replace(choice, limit=number)


def _check_alone(choice: Choice) -> None:
    """Refuse other selections beside --example: a dataset row already names its rollouts."""
    for name in sorted(choice.given()):
        raise UsageError(f"--example and --{name} exclude each other", hint="leave one of them out")


def _behind(example: str) -> list[Shown]:
    """The rollouts behind a row of a prepared dataset: a single one, or the chosen and the rejected one."""
    from rollforge.index import open_index
    from rollforge.steps.prepare import trace
    from rollforge.steps.show import ShowOptions, show_rollouts

    shown = []
    for origin in trace(example).origins:
        with open_index(origin.run, verifier=origin.verifier) as index:
            if origin.source_line is not None:
                chosen = ShowOptions(where=f"line = {origin.source_line}")
            else:  # a dataset made before lines were kept
                tasks = () if origin.task is None else (origin.task,)
                chosen = ShowOptions(tasks=tasks, rollout=origin.rollout)
            shown += show_rollouts(index, chosen)
    return shown
