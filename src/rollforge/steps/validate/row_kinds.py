"""Recognises the kind of a row, and checks the row accordingly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import float_info

from rollforge.records import ATTEMPT_KEY, PARAMS_KEY, ROLLOUT_KEY, TASK_KEY, has_field
from rollforge.steps.validate.datasets import ANSWERS, DATASET_KEYS, check_dataset
from rollforge.steps.validate.item_checks import MADE_ELSEWHERE
from rollforge.steps.validate.outcomes import check_rollout
from rollforge.steps.validate.params import check_params
from rollforge.steps.validate.validation_records import FileKind, RowFault
from rollforge.tasks import BadRow, PromptTemplate, is_typed_task, task_row, unwrap_typed_task


def kind_of_row(row: Mapping[str, object]) -> FileKind | None:
    """The kind that the row's keys indicate; None if they indicate none."""
    if PARAMS_KEY in row:
        return "rollouts" if "response" in row else "tasks"
    if "invocations" in row and "reward" in row:
        return "rollouts"
    if is_typed_task(row):
        return "tasks"
    if any(key in row for key in DATASET_KEYS):
        return "dataset"
    return "rollouts" if "response" in row else None


def check_row(
    row: Mapping[str, object], needs: Sequence[str], template: PromptTemplate | None = None
) -> Iterator[RowFault]:
    """Check one row as its own kind."""
    claimed = kind_of_row(row)
    if template is not None and claimed != "rollouts":
        yield from _check_filled(row, needs, template)
        return
    if claimed is None:
        keys = ", ".join(list(row)[:6]) or "no keys"
        yield RowFault(
            "", f"neither a task, a rollout nor a row of a dataset (keys: {keys})", f"a task has {PARAMS_KEY}"
        )
        return
    yield from _check_sizes(row)
    if claimed == "tasks" and is_typed_task(row):
        row = unwrap_typed_task(row)
        if PARAMS_KEY not in row:
            yield RowFault(PARAMS_KEY, "the task has no prompt of its own", MADE_ELSEWHERE, "warning")
    if claimed == "dataset":
        yield from check_dataset(row)
        if not any(key in row for key in ANSWERS):
            yield from _check_needs(row, needs)
        return
    faults = list(_check_indices(row))
    if PARAMS_KEY in row:
        faults += check_params(row[PARAMS_KEY], PARAMS_KEY)
    yield from faults
    if claimed == "rollouts":
        yield from check_rollout(row)
        return
    if not any(fault.level == "error" for fault in faults):
        yield from _check_as_task(row)
    yield from _check_needs(row, needs)


def _check_as_task(row: Mapping[str, object]) -> Iterator[RowFault]:
    """Check a row with the code with which `collect` reads tasks."""
    try:
        task_row(row, may_lack_prompt=True)
    except BadRow as error:
        yield RowFault(error.path, str(error), error.hint)


def _check_filled(
    row: Mapping[str, object], needs: Sequence[str], template: PromptTemplate
) -> Iterator[RowFault]:
    """Check a row whose prompt comes from a template."""
    try:
        filled = task_row(row, template=template)
    except BadRow as error:
        yield RowFault(error.path, str(error), error.hint)
        return
    yield from _check_sizes(row)
    yield from _check_indices(row)
    yield from check_params(filled[PARAMS_KEY], PARAMS_KEY)
    yield from _check_needs(row, needs)


def _check_needs(row: Mapping[str, object], needs: Sequence[str]) -> Iterator[RowFault]:
    """Check the fields that the verifier reads, as `verify` looks them up."""
    for need in needs:
        if not has_field(row, need):
            name, *others = need.split("|")
            alternatives = f" (or {', '.join(others)})" if others else ""
            hint = "add the field, or choose another --verifier"
            yield RowFault(name, f"missing: the verifier needs it{alternatives}", hint)


def _check_indices(row: Mapping[str, object]) -> Iterator[RowFault]:
    for key in (TASK_KEY, ROLLOUT_KEY, ATTEMPT_KEY):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            yield RowFault(
                key, f"expected a whole number from 0, got {value!r}", "count from 0, or leave it out"
            )
    agent = row.get("agent_ref")
    if agent is not None and not (isinstance(agent, dict) and isinstance(agent.get("name"), str)):
        yield RowFault("agent_ref", "expected an object with a name", 'write {"name": "…"}')


def _check_sizes(row: Mapping[str, object]) -> Iterator[RowFault]:
    """Check for integers beyond float range, which readers turn into infinity or refuse."""
    for name, value in row.items():
        if isinstance(value, int) and abs(value) > float_info.max:
            yield RowFault(
                name, f"a number of {len(str(abs(value)))} digits is out of range", "write it as text"
            )
