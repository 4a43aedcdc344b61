"""The step `show`: selects rollouts and formats each as turns, tool calls and results.

Printing is up to `cli/render/show.py`. An invalid line can still be shown by its number.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rollforge.conversations.turns import Turn, turns_of
from rollforge.errors import UsageError
from rollforge.index import Index, read_lines
from rollforge.json_shapes import RowJson, without
from rollforge.records import PARAMS_KEY
from rollforge.review.random_order import random_order_sql
from rollforge.review.suspicion import ROWS_WITH_TWINS, bits_sql, reasons_in, score_sql
from rollforge.store.reading import UNREADABLE, read_row

Pick = Literal["best", "worst", "suspicious"]


class ShowOptions(Struct, frozen=True, kw_only=True):
    """Selection and order of rollouts to show."""

    tasks: Sequence[int] = ()
    rollout: int | None = None
    reward: float | None = None
    where: str | None = None
    sort: str | None = None
    sample: int | None = None
    seed: int = 0
    pick: Pick | None = None
    limit: int = 5


class Shown(Struct, kw_only=True):
    """One rollout in readable form."""

    file: str
    line: int
    row: int
    task: int
    rollout: int
    agent: str | None
    reward: float | None
    numbers: dict[str, float]
    facts: dict[str, Any]
    why: list[str]
    """Reasons why it is suspicious."""
    task_fields: RowJson
    turns: list[Turn]
    raw: msgspec.Raw
    """The unchanged line."""


def show_rollouts(index: Index, options: ShowOptions) -> list[Shown]:
    """Select, read and format rollouts."""
    table = _select(index, options)
    rows = table.column("row").to_pylist()
    fields = dict(index.task_rows(sorted(set(table.column("task").to_pylist()))))
    shown = []
    for facts, line in zip(table.to_pylist(), index.read(rows), strict=True):
        shown.append(_lay_out(index, facts, line, fields.get(facts["task"], {})))
    return shown


def _select(index: Index, options: ShowOptions) -> Any:
    order = _order(index, options)
    conditions = [f"task IN ({', '.join(map(str, options.tasks))})"] if options.tasks else []
    if options.rollout is not None:
        conditions.append(f"rollout = {options.rollout}")
    if options.reward is not None:
        conditions.append(f"abs(reward - {options.reward}) < 1e-9")
    if options.where is not None:
        conditions.append(index.checked(options.where))
    if options.pick in ("best", "worst"):
        conditions.append("reward IS NOT NULL")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    only = "WHERE suspicion > 0" if options.pick == "suspicious" else ""
    limit = f"LIMIT {options.sample if options.sample is not None else options.limit}"
    return index.select(
        f"SELECT * FROM (SELECT *, {score_sql()} AS suspicion, {bits_sql()} AS why FROM ({ROWS_WITH_TWINS}) {where}) "
        f"{only} ORDER BY {order} {limit}",
        label=_label(options),
    )


def _label(options: ShowOptions) -> str:
    """Name of the user's SQL in error messages."""
    text_by_flag = {"--where": options.where, "--sort": options.sort}
    return " ".join(f"{name} {text!r}" for name, text in text_by_flag.items() if text is not None) or "show"


def _order(index: Index, options: ShowOptions) -> str:
    # Whatever order the lines are in: those that arrived first are short.
    drawn = f"{random_order_sql(options.seed)}, row"
    if options.sample is not None:
        return drawn
    if options.sort is not None:
        return f"{index.checked_order(options.sort)}, task, rollout, row"
    by_pick = {
        "best": f"reward DESC, {drawn}",
        "worst": f"reward, {drawn}",
        "suspicious": f"suspicion DESC, {drawn}",
    }
    return by_pick.get(options.pick or "", "row")


_FACTS = (
    "finish_reason", "answer_chars", "turns", "tool_calls", "is_truncated", "is_empty", "is_refusal", "model", "verifier",
    "seconds",
)  # fmt: skip


def _lay_out(index: Index, facts: dict[str, Any], line: bytes, task_fields: RowJson) -> Shown:
    numbers = {
        name: facts[name] for name in index.numbers if name != "reward" and facts.get(name) is not None
    }
    return Shown(
        file=facts["file"], line=facts["line"], row=facts["row"], task=facts["task"], rollout=facts["rollout"],
        agent=facts["agent"], reward=facts["reward"], numbers=numbers,
        facts={name: facts[name] for name in (*_FACTS, *index.texts) if facts.get(name) not in (None, False)},
        why=reasons_in(facts["why"]),
        task_fields=without(task_fields, (PARAMS_KEY, "agent_ref")),
        turns=turns_of(read_row(line)), raw=msgspec.Raw(line),
    )  # fmt: skip


def as_json(shown: Shown) -> Shown:
    """Make a rollout JSON-encodable: a line that is not JSON becomes text."""
    try:
        msgspec.json.decode(shown.raw)
    except UNREADABLE:
        text = bytes(shown.raw).decode("utf-8", "replace")
        return msgspec.structs.replace(shown, raw=msgspec.Raw(msgspec.json.encode(text)))
    return shown


class SeenLine(Struct, kw_only=True):
    """One line of a file, valid or not."""

    file: str
    line: int
    offset: int
    reason: str | None
    """Why it is not a row, or which irregularity it has."""
    data: bytes


def show_line(index: Index, number: int) -> SeenLine:
    """Line `number` (from 1) of the run's one file."""
    if len(index.runs) != 1:
        raise UsageError("--line needs one file, not several", hint="name the file the line is in")
    if index.runs[0].is_sharded:
        raise UsageError(
            "--line needs one file, not shards",
            hint="name the part: RUN/shards/00000/e1/rollouts.jsonl --line N",
        )
    path = index.runs[0].rollouts
    reasons = {bad.line: bad.reason for bad in index.rejects if bad.file == str(path)}
    offset = passed = 0
    for passed, data in enumerate(read_lines(path), 1):
        if passed == number:
            return SeenLine(file=str(path), line=number, offset=offset, reason=reasons.get(number), data=data)
        offset += len(data) + 1
    raise UsageError(
        f"{path} has {passed:,} lines; there is no line {number:,}",
        hint=f"see the last one: rollforge show {shlex.quote(str(path))} --line {passed}"
        if passed
        else "the file is empty: collect some rollouts first",
    )
