"""`rollforge validate`: task files, rollout files and datasets, every bad line by number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.converters import Flag, within
from rollforge.cli.render.console import print_json
from rollforge.cli.render.validate import print_file
from rollforge.errors import Exit

EXAMPLE = "rollforge validate tasks.jsonl --verifier exact"


def validate(
    files: Annotated[list[str], Parameter(name="file")],
    /,
    *,
    verifier: str | None = None,
    prompt_template: Path | None = None,
    split: str | None = None,
    hub_config: str | None = None,
    map: Annotated[tuple[str, ...], Parameter(negative=(), metavar="FIELD=PATH")] = (),
    fix: Flag = False,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"]), within(0)] = 20,
    json: Flag = False,
) -> Exit:
    """Check every row of task files, rollout files and prepared datasets; exit with code 2 if anything is wrong.

    Each finding has file, line, JSON path, what was expected and a hint. Beyond the schema: items that NeMo Gym would silently
    take for something else, duplicates, prompts that occur in two files, tool definitions, fields of mixed type.

    Parameters
    ----------
    files
        What `collect -i` takes: JSONL, a JSON array or CSV (also .gz, .zst), Arrow, Parquet, hf://datasets/ORG/NAME. Prompts are
        compared between files.
    verifier
        Also require the task fields this verifier reads.
    prompt_template
        YAML file that makes the prompt from the fields of each task row, as in `collect`.
    split
        Split of a dataset on the Hub.
    hub_config
        Config (subset) of a dataset on the Hub; with an hf:// file, --config NAME means the same.
    map
        Fields of the task from the dataset's own, as FIELD=PATH[|STEP], as in `collect`; repeatable.
    fix
        Write `NAME.clean.jsonl` with the good lines and `NAME.rejects.jsonl` with the others and the reasons.
    out
        The folder for these two files. Default: beside the file.
    limit
        Findings printed per file; --json has the first 1,000 and some of each further kind.
    json
        Print one JSON object on stdout.
    """
    from rollforge.steps.validate import ValidateOptions, validate_files
    from rollforge.tasks import FieldMap, HubSplit, PromptTemplate

    template = PromptTemplate.load(prompt_template) if prompt_template is not None else None
    folder = str(out) if out is not None else None
    options = ValidateOptions(
        needs=_needs(verifier),
        fix=fix,
        out=folder,
        prompt_template=template,
        part=HubSplit(split, hub_config),
        mapping=FieldMap.parse(map),
    )
    report = validate_files(files, options)
    if json:
        print_json(report)
    else:
        for one in report.files:
            print_file(one, limit)
    return Exit.DONE if report.ok else Exit.USAGE


def _needs(verifier: str | None) -> tuple[str, ...]:
    if verifier is None:
        return ()
    from rollforge.verifiers.base import load_verifier

    return tuple(load_verifier(verifier).needs)
