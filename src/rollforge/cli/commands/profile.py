"""`rollforge profile`: statistics per task and per agent, and where to look first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.commands.reading_flags import Reading, index_elsewhere, strict_exit
from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit

EXAMPLE = "rollforge profile runs/first"


def profile(
    run: Annotated[list[str], Parameter(name="run")],
    /,
    *,
    threshold: float = 0.5,
    tolerance: float = 1e-9,
    rollout_infos: Flag = False,
    parquet: Flag = False,
    gym_files: Flag = False,
    look: int = 5,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    reading: Reading = Reading(),  # noqa: B008  (a record of defaults, never changed)
    stage: Literal["auto", "all"] = "auto",
    json: Flag = False,
) -> Exit:
    """Profile a run per task and per agent: write NeMo Gym's profile files and print what a person can act on.

    Writes `rollouts_reward_profiling.jsonl` (one row per task) and `rollouts_agent_metrics.json` (one entry per agent) beside
    the run.

    Parameters
    ----------
    run
        A rollouts file, its folder, or several files (or a glob) read as one run.
    threshold
        A rollout solves its task when its reward is at least this.
    tolerance
        Rewards of a group that differ by no more than this are the same: the group teaches nothing.
    rollout_infos
        Write every rollout's own numbers into its task's row.
    parquet
        Also write the per-task profile as Parquet.
    gym_files
        Also write `STEM_materialized_inputs.jsonl` and `STEM_repeat_level_metrics.json`, which NeMo Gym's own commands read.
    look
        How many tasks to name per reason to look.
    out
        Write the files into this folder instead of beside the run.
    stage
        Of an adaptive run (collect --goal): auto takes the first stage, which is unbiased; all takes every rollout.
    json
        Print one JSON object on stdout instead of tables.
    """
    from rollforge.index import open_index
    from rollforge.steps.profile import ProfileOptions

    options = ProfileOptions(
        threshold=threshold, tolerance=tolerance, where=reading.where, look=look, stage=stage
    )
    index_elsewhere(run, reading.on, reading.workers)
    with open_index(run, verifier=reading.verifier, workers=reading.workers) as index:
        index.refuse_tasks()
        import msgspec

        from rollforge.steps.profile import profile_index, write_profile
        from rollforge.steps.profile.profile_files import agent_entries

        made = profile_index(index, options)
        made.summary.files = write_profile(
            made, index, out=out, rollout_infos=rollout_infos, parquet=parquet, where=reading.where
        )
        if gym_files:
            from rollforge.steps.profile import write_gym_files

            made.summary.files |= write_gym_files(index, out=out, where=reading.where)
        if json:
            print_json(msgspec.to_builtins(made.summary) | {"agents": agent_entries(made.agents)})
        else:
            from rollforge.cli.render.profile import print_profile
            from rollforge.store.failure_reasons import failures_by_verifier

            print_profile(made, [str(files.rollouts) for files in index.runs], reading.where)
            if why := failures_by_verifier(index.runs, index.verifier):
                say(f"note: {why}")
            for path in made.summary.files.values():
                say(f"wrote {path}")
        return strict_exit(index, is_strict=reading.strict)
