"""`rollforge experiences`: rollouts in, training experiences out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.assembly.monitoring import refuse_password
from rollforge.cli.commands.monitoring import SinkFlags
from rollforge.cli.converters import within
from rollforge.cli.render.console import out, print_json, say
from rollforge.errors import Exit
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.steps.experiences import ExperiencesResult

EXAMPLE = "rollforge experiences runs/first --buffer runs/buffer.db"


def experiences(
    run: str,
    /,
    *,
    pipeline: str | None = None,
    out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None,
    buffer: str | None = None,
    step_size: Annotated[int, within(1)] = 64,
    taskset: str = "",
    model_version: int | None = None,
    per_turn: Annotated[bool, Parameter(negative=())] = False,
    where: str | None = None,
    verifier: str | None = None,
    sinks: SinkFlags = SinkFlags(),  # noqa: B008  (frozen)
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Turn a run into experiences, through a pipeline of operators, into a file or a buffer.

    Parameters
    ----------
    run
        The run: a folder or a rollouts file.
    pipeline
        TOML file of [[operator]] tables; without it everything goes through as it is.
    out
        JSONL file to write; by default beside the run, unless --buffer is given.
    buffer
        Append to the experience buffer at this path or postgresql:// URL.
    step_size
        Tasks that go through the pipeline together.
    taskset
        Name of the task set, kept on every experience.
    model_version
        Version of the policy that made the rollouts, for staleness.
    per_turn
        One experience per model call, for step-wise training.
    where
        Only rollouts for which this expression holds, for example "reward is not null".
    verifier
        Whose verdicts count, when there are several.
    dry_run
        Run the pipeline and print the ledger, write nothing.
    json
        Print one JSON object on stdout instead of a table.
    """
    import msgspec

    from rollforge.steps.experiences import ExperienceOptions, make_experiences

    refuse_password(buffer)
    result = make_experiences(
        ExperienceOptions(
            run=run,
            pipeline=pipeline,
            out=out,
            buffer=buffer,
            step_size=step_size,
            taskset=taskset,
            model_version=model_version,
            per_turn=per_turn,
            where=where,
            verifier=verifier,
            sinks=tuple(sinks.sink) or ("jsonl",),
            profile=sinks.metric_names,
            dry_run=dry_run,
        )
    )
    if json:
        print_json(msgspec.to_builtins(result))
    else:
        _print(result)
    return Exit.DONE


def _print(result: ExperiencesResult) -> None:
    from rich.table import Table

    table = Table("operator", "in", "out", "dropped", box=None, pad_edge=False)
    for ledger in result.ledgers:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger["dropped"].items()) or "–"
        table.add_row(ledger["operator"], f"{ledger['in']:,}", f"{ledger['out']:,}", reasons)
    if result.ledgers:
        out().print(table)
    labels = ", ".join(f"{count:,} {label}" for label, count in sorted(result.fidelity.items())) or "none"
    say(
        f"{count_of(result.experiences, 'experience')} from {count_of(result.rollouts, 'rollout')} in {count_of(result.steps, 'step')}"
        f" (tokens: {labels})"
    )
    if result.duplicates:
        say(f"  {result.duplicates:,} were in the buffer already")
    for target in filter(None, (result.out, result.buffer)):
        say(f"  → {target}")
