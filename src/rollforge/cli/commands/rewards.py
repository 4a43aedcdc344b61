"""`rollforge rewards`: a verifier as the reward of a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rollforge.cli.converters import SETTINGS, Flag
from rollforge.cli.render.console import out as stdout
from rollforge.cli.render.console import print_json
from rollforge.errors import Exit, UsageError
from rollforge.records import JsonFields

if TYPE_CHECKING:
    from rollforge.rewards import DatasetVerifier

EXAMPLE = "rollforge rewards --write openrlhf math"


def rewards(
    verifier: str | None = None,
    /,
    *,
    path: Literal["verl"] | None = None,
    write: Literal["trl", "verl", "openrlhf", "nemo-rl"] | None = None,
    dataset: Path | None = None,
    verifier_set: Annotated[JsonFields | None, SETTINGS] = None,
    on_unjudged: str | None = None,
    json: Flag = False,
) -> Exit:
    """Use a verifier as the reward of a trainer: print the adapter's path, or a file that the trainer loads.

    The file goes to stdout: add > reward.py. In Python: from rollforge.rewards import reward; reward("math").

    Parameters
    ----------
    verifier
        Name of a built-in verifier, file.py:function or module:function.
    path
        Print the path of the adapter file, for a trainer that takes a path and arguments (verl).
    write
        Print a file that gives this trainer the verifier; for nemo-rl, the part of its configuration.
    dataset
        Take verifier and options from the manifest of this prepared dataset; a changed verifier is refused.
    verifier_set
        Option of the verifier as key=value; repeatable.
    on_unjudged
        What an answer without a verdict becomes: none (trl only), retry-then-raise, or value=NUMBER. Default: none for
        trl, retry-then-raise elsewhere.
    json
        Print one JSON object on stdout.
    """
    from rollforge.rewards import adapter_path, read_dataset, write_adapter

    if (path is None) == (write is None):
        raise UsageError(
            "say what to print: --path verl, or --write trl|verl|openrlhf|nemo-rl",
            hint=f"for example: {EXAMPLE}",
        )
    if path is not None:
        text = str(adapter_path(path))
        _print(text, {"trainer": path, "path": text, "name": "compute_score"}, json=json)
        return Exit.DONE
    assert write is not None
    if dataset is not None and (verifier is not None or verifier_set):
        raise UsageError(
            "--dataset names the verifier and its options already",
            hint="leave out the verifier, or --dataset",
        )
    chosen: str | DatasetVerifier | None = read_dataset(dataset) if dataset is not None else verifier
    if chosen is None:
        raise UsageError(
            "which verifier?", hint=f"for example: {EXAMPLE}; see them: rollforge list verifiers"
        )
    text = write_adapter(write, chosen, verifier_set or {}, on_unjudged)
    _print(text, {"trainer": write, "text": text}, json=json)
    return Exit.DONE


def _print(text: str, record: JsonFields, *, json: bool) -> None:
    if json:
        print_json(record)
    else:
        stdout().print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
