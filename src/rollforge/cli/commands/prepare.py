"""`rollforge prepare`: from scored rollouts to files that a trainer's own loader accepts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from rollforge.cli.commands.reading_flags import index_elsewhere
from rollforge.cli.converters import BAND, Flag, within
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import Progress
from rollforge.config import numbers_between
from rollforge.errors import Exit, UsageError
from rollforge.steps.prepare.settings import FileSettings, PairSettings, RowSettings, SelectionSettings

if TYPE_CHECKING:
    from cyclopts import Token

    from rollforge.steps.prepare import DatasetManifest

EXAMPLE = "rollforge prepare dpo runs/first -o data/dpo --to trl --min-gap 0.3"
COMMON = (
    *("--out", "--to", "--dry-run", "--ignore", "--force", "--json", "--where", "--min-reward"),
    *("--per-task", "--band", "--dedupe", "--decontaminate", "--min-gap", "--split", "--limit"),
)
"""Flags that `prepare -h` shows."""


def _split(_: Any, tokens: Sequence[Token]) -> tuple[float, ...]:
    return numbers_between("--split", tokens[0].value, "/")


def _shares_text(shares: tuple[float, ...]) -> str:
    return "/".join(f"{share:g}" for share in shares)


_FILES = Group("Files", sort_key=4)


@Parameter(name="*", group=Group("Which rollouts", sort_key=1), negative=())
class SelectionFlags(SelectionSettings):
    """Command-line names of the options about rollouts."""

    band: Annotated[tuple[float, float] | None, BAND]
    decontaminate: Annotated[tuple[str, ...], Parameter(metavar="FILE")]


@Parameter(name="*", group=Group("Pairs, labels and groups", sort_key=2), negative=())
class PairFlags(PairSettings):
    """Command-line names of the options about pairs."""


@Parameter(name="*", group=Group("How rows are written", sort_key=3), negative=())
class RowFlags(RowSettings):
    """Command-line names of the options about rows."""


@Parameter(name="*", group=_FILES, negative=())
class FileFlags(FileSettings):
    """Command-line names of the options about files."""

    split: Annotated[
        tuple[float, ...],
        Parameter(converter=_split, n_tokens=1, metavar="SHARE/SHARE", show_default=_shares_text),
    ]
    limit: Annotated[int | None, Parameter(alias="-n")]


def prepare(
    recipe: str | None = None,
    /,
    *runs: str,
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    to: str | None = None,
    which: SelectionFlags = SelectionFlags(),  # noqa: B008  (frozen)
    pairs: PairFlags = PairFlags(),  # noqa: B008
    rows: RowFlags = RowFlags(),  # noqa: B008
    files: FileFlags = FileFlags(),  # noqa: B008
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    push: Annotated[str | None, Parameter(metavar="ORG/NAME")] = None,
    public: Flag = False,
    dry_run: Flag = False,
    ignore: Annotated[tuple[str, ...], Parameter(negative=(), metavar="ID")] = (),
    force: Flag = False,
    workers: Annotated[int | None, within(1, 1024)] = None,
    on: str | None = None,
    json: Flag = False,
    progress: Progress = "auto",
) -> Exit:
    """Prepare training data: select rollouts by a recipe and write them as a trainer's loader reads them.

    Parameters
    ----------
    recipe
        sft, dpo, kto, rm, ppo, grpo, or a recipe of an installed package.
    runs
        One or more runs: files, folders or globs; several are pooled.
    out
        Folder of the dataset; it appears only after everything is written and checked.
    to
        Exporter: trl, verl, openrlhf, nemo-rl, llama-factory, axolotl, chat, gym or atif.
    from_
        A manifest.json: write the same bytes again. Name its runs only if they have moved.
    push
        Also push the dataset to this name on the Hugging Face Hub, private; needs the extra `hub` and a token (HF_TOKEN).
    public
        Make the pushed dataset public.
    dry_run
        Count only, also at other thresholds; write nothing.
    ignore
        Id of a check that may fail; repeatable. The manifest records it.
    force
        Continue although `rollforge check` found an error; the manifest records it.
    workers
        Threads for the first pass over the text. Default: one per core for large files.
    on
        Where the first pass over the text runs: local, processes, or ray (ray:HOST:PORT); --workers says how many.
    json
        Print the manifest on stdout.
    progress
        How to show progress.
    """
    from rollforge.api import gate
    from rollforge.cli.render.prepare import show_manifest, watcher
    from rollforge.index import open_index
    from rollforge.steps import prepare as step

    target = step.PushTarget.check(push, is_public=public) if push is not None and not dry_run else None
    before = None if dry_run or out is None else _dataset_in(Path(out))
    with watcher(progress) as report:
        if from_ is not None:
            if out is None:
                raise UsageError("--from needs a folder to write to", hint="give -o DIR")
            moved = [word for word in (recipe, *runs) if word is not None]
            _refuse_beside_from(moved, to, (which, pairs, rows, files), dry_run=dry_run)
            manifest = step.prepare_again(from_, out=out, runs=moved, progress=report)
        else:
            _require(recipe, runs, to)
            options = vars(which) | vars(pairs) | vars(rows) | vars(files)
            job = step.understand(str(recipe), to=str(to), out=out, dry_run=dry_run, **options)
            index_elsewhere(list(runs), on, workers)
            with open_index(runs, verifier=which.verifier, workers=workers) as index:
                checked = gate(str(recipe), runs, index=index, ignore=ignore, force=force, stops=not dry_run)
                manifest = step.carry_out(job, runs, check=checked, index=index, progress=report)
    if before is not None and (before.recipe, before.to) != (manifest.recipe, manifest.to):
        say(
            f"note: {out} held a dataset for {before.recipe} → {before.to}, which this one replaced; "
            "to keep both, give each its own folder with -o"
        )
    if target is not None and out is not None:
        manifest = step.push_dataset(Path(out), manifest, target)
    if json:
        print_json(manifest)
    else:
        show_manifest(manifest, out)
    return Exit.DONE


def _dataset_in(folder: Path) -> DatasetManifest | None:
    """The manifest of the dataset that is in the folder already; None without one."""
    from rollforge.steps import prepare as step

    return step.read_manifest(folder) if (folder / "manifest.json").is_file() else None


def _refuse_beside_from(
    moved: Sequence[str], to: str | None, flags: tuple[object, ...], *, dry_run: bool
) -> None:
    """Refuse options that conflict with --from: the manifest contains the recipe and every option."""
    from rollforge.recipes import RECIPES

    has_flags = flags != (SelectionFlags(), PairFlags(), RowFlags(), FileFlags())
    if has_flags or dry_run or to is not None or any(word in RECIPES.names() for word in moved):
        raise UsageError(
            "--from takes recipe, exporter and options from the manifest; others cannot be given beside it",
            hint="only where the runs are now: rollforge prepare --from MANIFEST RUN… -o DIR",
        )


def _require(recipe: str | None, runs: tuple[str, ...], to: str | None) -> None:
    from rollforge.recipes import RECIPES

    if recipe is None:
        raise UsageError("prepare needs a recipe", hint=f"for example: {EXAMPLE}")
    if not runs:
        raise UsageError(f"prepare {recipe} needs a run", hint=f"for example: {EXAMPLE}")
    if Path(recipe).exists() and recipe not in RECIPES.names() and runs[-1] in RECIPES.names():
        swapped = ["rollforge", "prepare", runs[-1], recipe, *runs[:-1], "--to", to or "trl", "-o", "DIR"]
        raise UsageError("prepare takes the recipe first, then the run", hint=shlex.join(swapped))
    if ":" in recipe and recipe not in RECIPES.names():
        raise UsageError(
            f"{recipe}: a recipe cannot be named by its file",
            hint="install it as a package with an entry point of the group rollforge.recipes; ready ones: rollforge list recipes",
        )
    if to is None:
        raise UsageError("prepare needs --to EXPORTER", hint="see them all: rollforge list exporters")
