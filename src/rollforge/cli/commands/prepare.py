"""`rollforge prepare`: from scored rollouts to files that a trainer's own loader accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from rollforge.cli.render.console import print_json
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    pass

EXAMPLE = "rollforge prepare dpo runs/first -o data/dpo --to trl --min-gap 0.3"

Progress = Literal["auto", "rich", "plain", "json", "none"]

_WHICH = Group("Which rollouts", sort_key=1)
_PAIRS = Group("Pairs, labels and groups", sort_key=2)
_ROWS = Group("How rows are written", sort_key=3)
_FILES = Group("Files", sort_key=4)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WhichFlags:
    """Which rollouts are used."""

    where: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Condition over any metric: "reward == 1.0 and set_overlap >= 0.95"."""
    min_reward: Annotated[float | None, Parameter(group=_WHICH)] = None
    """Reward that counts as right; by default 1.0 for rewards of 0 and 1, else 0.95."""
    per_task: Annotated[int | None, Parameter(group=_WHICH)] = None
    """Keep the best N rollouts of each task."""
    band: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Keep tasks with a pass rate in this range: 0.1-0.9; 0-1 leaves out those that always or never pass."""
    dedupe: Annotated[Literal["none", "exact", "near"], Parameter(group=_WHICH)] = "none"
    """Drop answers equal, or nearly equal, to a better one of the same task."""
    dedupe_prompts: Annotated[Literal["none", "exact", "near"], Parameter(group=_WHICH)] = "none"
    """Drop tasks whose prompt an earlier task has."""
    near: Annotated[float, Parameter(group=_WHICH)] = 0.8
    """Share of equal word triples from which texts are near duplicates."""
    balance: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Equal numbers per value of: difficulty, label (kto), a column, a task field."""
    min_chars: Annotated[int | None, Parameter(group=_WHICH)] = None
    """Shortest answer, in characters."""
    max_chars: Annotated[int | None, Parameter(group=_WHICH)] = None
    """Longest answer, in characters."""
    max_tokens: Annotated[int | None, Parameter(group=_WHICH)] = None
    """Longest prompt and answer together, tool schemas and results included, in tokens of --tokenizer."""
    tokenizer: Annotated[str | None, Parameter(group=_WHICH)] = None
    """A tokenizer.json, or the folder it is in."""
    keep_truncated: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Keep answers that the token limit cut off."""
    keep_error_text: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Keep answers that look like error messages, such as HTML pages."""
    decontaminate: Annotated[list[str], Parameter(group=_WHICH, negative=())] = field(default_factory=list)
    """File of evaluation prompts; tasks that share a word sequence with it are dropped."""
    ngram: Annotated[int, Parameter(group=_WHICH)] = 13
    """Words in a shared sequence."""
    verifier: Annotated[str | None, Parameter(group=_WHICH)] = None
    """Whose verdicts count; by default the verdict of record."""
    apart: Annotated[bool, Parameter(group=_WHICH, negative=())] = False
    """Several runs: never group or pair rollouts of different runs."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PairFlags:
    """How rollouts combine."""

    min_gap: Annotated[float, Parameter(group=_PAIRS)] = 0.2
    """Smallest reward gap between chosen and rejected."""
    strategy: Annotated[Literal["inwards", "all", "best", "hardest"], Parameter(group=_PAIRS)] = "inwards"
    """inwards: best with worst, then the next; all: every pair; best: the best against each; hardest: nearest worse one."""
    high: Annotated[float | None, Parameter(group=_PAIRS)] = None
    """Chosen (or desirable) from this reward."""
    low: Annotated[float | None, Parameter(group=_PAIRS)] = None
    """Rejected (or undesirable) up to this reward."""
    chosen_where: Annotated[str | None, Parameter(group=_PAIRS)] = None
    """Condition for the chosen."""
    rejected_where: Annotated[str | None, Parameter(group=_PAIRS)] = None
    """Condition for the rejected."""
    max_pairs: Annotated[int | None, Parameter(group=_PAIRS)] = None
    """Most pairs per task."""
    max_uses: Annotated[int | None, Parameter(group=_PAIRS)] = None
    """Most pairs that one rollout is in."""
    length_ratio: Annotated[float | None, Parameter(group=_PAIRS)] = None
    """Match lengths: the longer answer has at most this many times the characters of the shorter."""
    across_prompts: Annotated[bool, Parameter(group=_PAIRS, negative=())] = False
    """Tiers across prompts, for unpaired methods (kto) only."""
    min_spread: Annotated[float, Parameter(group=_PAIRS)] = 0.0
    """grpo: a group has signal when its highest reward exceeds its lowest by more."""
    ground_truth: Annotated[str | None, Parameter(group=_PAIRS)] = None
    """ppo, grpo: task field with the reference answer; by default expected_answer, answer, …"""
    shape: Annotated[Literal["auto", "pairs", "scored", "prompts", "groups"], Parameter(group=_PAIRS)] = (
        "auto"
    )
    """rm: pairs or scored; ppo, grpo: prompts, or groups of scored rollouts with advantages."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowFlags:
    """How rows are written; every default is the exporter's own."""

    arguments: Annotated[Literal["auto", "object", "string", "text"], Parameter(group=_ROWS)] = "auto"
    """Call arguments as an object, a JSON string, or text in the message."""
    tools: Annotated[Literal["auto", "list", "string", "system"], Parameter(group=_ROWS)] = "auto"
    """Tool schemas as a list, a JSON string, or in the system text."""
    reasoning: Annotated[Literal["auto", "field", "think", "drop"], Parameter(group=_ROWS)] = "auto"
    """Reasoning in its own field, as <think> in the text, or left out."""
    keys: Annotated[Literal["auto", "uniform", "present"], Parameter(group=_ROWS)] = "auto"
    """The same keys in every message, or only those with a value."""
    pairs: Annotated[Literal["auto", "whole", "step"], Parameter(group=_ROWS)] = "auto"
    """Whole answers, or the first message in which they differ."""
    untidy: Annotated[Literal["auto", "keep", "cut", "refuse"], Parameter(group=_ROWS)] = "auto"
    """Rollouts without a proper end: keep, cut back to the last whole turn, or refuse."""
    images: Annotated[Literal["refuse", "pass"], Parameter(group=_ROWS)] = "refuse"
    """Images: refuse the rollout, or pass their address on (chat)."""
    template: Annotated[str | None, Parameter(group=_ROWS)] = None
    """Chat template or tokenizer_config.json: picks the form of rows and proves it by rendering each."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """What files come out."""

    split: Annotated[str, Parameter(group=_FILES)] = "1"
    """Shares of train, validation and test, by prompt; they sum to 1: 0.98/0.02."""
    order: Annotated[Literal["file", "shuffled", "easy-first", "hard-first"], Parameter(group=_FILES)] = (
        "file"
    )
    """Order of the rows; easy-first is a curriculum."""
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"], group=_FILES)] = None
    """A seeded sample of this many examples."""
    shards: Annotated[int, Parameter(group=_FILES)] = 1
    """Files per split."""
    format: Annotated[Literal["auto", "jsonl", "parquet"], Parameter(group=_FILES)] = "auto"
    """File type, where the trainer reads several."""
    seed: Annotated[int, Parameter(group=_FILES)] = 0
    """Seed of everything drawn at random."""


def prepare(
    recipe: str | None = None,
    /,
    *runs: str,
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    to: str | None = None,
    which: WhichFlags = WhichFlags(),  # noqa: B008  (frozen)
    pairs: PairFlags = PairFlags(),  # noqa: B008
    rows: RowFlags = RowFlags(),  # noqa: B008
    files: FileFlags = FileFlags(),  # noqa: B008
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    progress: Progress = "auto",
) -> Exit:
    """Prepare training data: select rollouts by a recipe and write them as a trainer's loader reads them.

    Parameters
    ----------
    recipe
        sft, dpo, kto, rm, ppo or grpo.
    runs
        One or more runs: files, folders or globs; several are pooled.
    out
        Folder of the data set; it appears only when everything is written and checked.
    to
        Exporter: trl, verl, openrlhf, nemo-rl, llama-factory, axolotl, chat or gym.
    from_
        A manifest.json: make the same bytes again. Give its runs only if they have moved.
    dry_run
        Count only, also at other thresholds; write nothing.
    force
        Go on although `rollforge check` found an error; the manifest records it.
    json
        Print the manifest on stdout.
    progress
        How progress is shown while it works.
    """
    from rollforge.cli.render.prepare import show_manifest, watcher
    from rollforge.steps import prepare as step

    with watcher(progress) as report:
        if from_ is not None:
            if out is None:
                raise UsageError("--from needs a folder to write to", hint="give -o DIR")
            moved = [word for word in (recipe, *runs) if word is not None]
            _refuse_beside_from(moved, to, (which, pairs, rows, files), dry_run=dry_run)
            manifest = step.prepare_again(from_, out=out, runs=moved, progress=report)
        else:
            _require(recipe, runs, to)
            options = _options(which, pairs, rows, files)
            step.refuse_mistakes(str(recipe), to=str(to), out=out, dry_run=dry_run, **options)
            checked = _checked(str(recipe), runs, force=force, is_dry=dry_run, verifier=which.verifier)
            manifest = step.prepare(
                str(recipe),
                runs,
                to=str(to),
                out=out,
                dry_run=dry_run,
                check=checked,
                progress=report,
                **options,
            )
    if json:
        print_json(manifest)
    else:
        show_manifest(manifest, out)
    return Exit.DONE


def _refuse_beside_from(
    moved: Sequence[str], to: str | None, flags: tuple[object, ...], *, dry_run: bool
) -> None:
    """The manifest has the recipe and every option; whoever gives others wants another data set."""
    from rollforge.recipes import RECIPES

    has_flags = flags != (WhichFlags(), PairFlags(), RowFlags(), FileFlags())
    if has_flags or dry_run or to is not None or any(word in RECIPES.names() for word in moved):
        raise UsageError(
            "--from takes recipe, exporter and options from the manifest; others cannot be given beside it",
            hint="only where the runs are now: rollforge prepare --from MANIFEST RUN… -o DIR",
        )


def _checked(
    recipe: str, runs: Sequence[str], *, force: bool, is_dry: bool, verifier: str | None
) -> dict[str, Any]:
    """What `rollforge check --for RECIPE` says about the runs; a dry run only counts, so it is not stopped."""
    from rollforge.api import gate

    return gate(recipe, runs, force=force, verifier=verifier, stops=not is_dry)


def _require(recipe: str | None, runs: tuple[str, ...], to: str | None) -> None:
    if recipe is None:
        raise UsageError("prepare needs a recipe", hint=f"for example: {EXAMPLE}")
    if not runs:
        raise UsageError(f"prepare {recipe} needs a run", hint=f"for example: {EXAMPLE}")
    if to is None:
        raise UsageError("prepare needs --to EXPORTER", hint="see them all: rollforge list exporters")


def _options(which: WhichFlags, pairs: PairFlags, rows: RowFlags, files: FileFlags) -> dict[str, Any]:
    options = {**asdict(which), **asdict(pairs), **asdict(rows), **asdict(files)}
    options["split"] = _numbers("--split", files.split, "/")
    options["band"] = None if which.band is None else _numbers("--band", which.band, "-")
    if options["band"] is not None and len(options["band"]) != 2:
        raise UsageError(f"--band {which.band}: give two numbers", hint="--band 0.1-0.9")
    return options


def _numbers(flag: str, text: str, separator: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(separator))
    except ValueError as error:
        raise UsageError(
            f"{flag} {text}: expected numbers between {separator!r}", hint="--split 0.98/0.02, --band 0.1-0.9"
        ) from error
