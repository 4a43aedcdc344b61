"""Writes the tasks of a run as they will be sent: each row of the input checked, converted and numbered."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.agents.base import Preparation
from rollforge.agents.transcript import tool_names
from rollforge.errors import DataError, UsageError
from rollforge.json_shapes import ParamsJson, ToolJson
from rollforge.records import PARAMS_KEY, TASK_KEY, JsonFields, JsonObject, has_field, to_json
from rollforge.registry import did_you_mean
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.tasks import BadRow, FieldMap, PromptTemplate, TaskFile, TaskSource, to_task_row
from rollforge.text_safety.outgoing import outgoing_bytes

SHOWN_BAD_LINES = 20


class BadTaskLine(msgspec.Struct, frozen=True):
    """A line of the task file that cannot be a task."""

    file: str
    line: int
    what: str
    hint: str = ""


def _and_more(count: int) -> str:
    return f"; the same in {count:,} more {'line' if count == 1 else 'lines'}" if count else ""


class BadTasks(DataError):
    """The task file has bad lines; `lines` holds them all."""

    def __init__(self, lines: list[BadTaskLine]) -> None:
        faults: dict[tuple[str, str | None], list[BadTaskLine]] = {}
        for bad in lines:
            faults.setdefault((bad.what, bad.hint), []).append(bad)
        shown = "\n".join(
            f"  {same[0].file}:{same[0].line}: {what}{f' ({hint})' if hint else ''}{_and_more(len(same) - 1)}"
            for (what, hint), same in list(faults.items())[:SHOWN_BAD_LINES]
        )
        left = sum(len(same) for same in list(faults.values())[SHOWN_BAD_LINES:])
        more = f"\n  … and {left:,} more" if left else ""
        super().__init__(
            f"{len(lines):,} bad {'line' if len(lines) == 1 else 'lines'} in the task file; nothing was sent\n{shown}{more}",
            hint="mend them, or leave them out with --skip-bad; --json lists them all",
        )
        self.lines = lines


class TaskWriter:
    """Single pass over the input: checks, converts and writes each row, and records its offset and id."""

    def __init__(
        self, options: CollectOptions, file: BinaryIO, needs: tuple[str, ...], agent: Preparation
    ) -> None:
        self.bad: list[BadTaskLine] = []
        self.ids = array("q")
        self._offsets = array("q")
        self._lines = array("q")
        self._is_stamped = False
        self._rows = 0
        self._offset = 0
        self._options = options
        self._file = file
        self._needs = needs
        self._agent = agent
        self._template = PromptTemplate.load(options.prompt_template) if options.prompt_template else None
        self._mapping = FieldMap.parse(options.map)
        self._unseen = set(agent.hides)
        self.unrouted = agent.routes.names
        """Names with an entry in --agent-map or --fan-out that no row has carried yet."""

    def write_all(self, source: TaskSource) -> None:
        """Write every selected task; bad lines are collected in `bad`."""
        chosen = self._choice(source)
        for ordinal, (name, number, line) in enumerate(source.lines()):
            if chosen is None and self._options.limit is not None and self._rows >= self._options.limit:
                break
            if chosen is not None and not chosen[ordinal]:
                continue
            try:
                self._write(line, ordinal, number)
            except BadRow as error:
                self.bad.append(BadTaskLine(name, number, str(error), error.hint))
        self._refuse_repeated_stamps(self._options.input)
        if self._unseen and self.ids:
            raise UsageError(
                f"--withhold {sorted(self._unseen)[0]}: no task has this field",
                hint="the program would read what it was to hide: check the name against the fields of the task file",
            )

    def _choice(self, source: TaskSource) -> NDArray[np.bool_] | None:
        """The lines drawn with --shuffle and --limit. A larger limit draws a superset."""
        if not (self._options.shuffle and self._options.limit is not None):
            return None
        count = sum(1 for _ in source.lines())
        chosen = np.zeros(count, dtype=np.bool_)
        chosen[np.random.default_rng(self._options.seed).permutation(count)[: self._options.limit]] = True
        return chosen

    def _write(self, line: bytes, ordinal: int, number: int) -> None:
        row = to_task_row(
            line,
            overrides=self._options.overrides,
            template=self._template,
            needs=self._needs,
            mapping=self._mapping,
            may_lack_prompt=self._agent.may_lack_prompt,
        )
        if self.unrouted:
            self.unrouted -= set(self._agent.routes.keys_of(row))
        for position, agent in enumerate(self._agent.routes.of(row)):
            if agent is not None:
                row["agent_ref"] = {"name": agent}
            self._write_task(dict(row), ordinal, number, position)
        self._rows += 1

    def _write_task(self, row: JsonObject, ordinal: int, number: int, position: int) -> None:
        check_agent(row, self._agent.agents)
        if self._unseen:
            self._unseen -= _keys_in(row, self._unseen)
        for field in self._agent.needs:
            if not has_field(row, field):
                raise BadRow(f"the agent needs the field {field!r}", hint=f"add {field!r} to the row")
        if self._agent.tools:
            row[PARAMS_KEY] = dict(row[PARAMS_KEY])
            offer_tools(row[PARAMS_KEY], self._agent.tools)
        # A row's tasks lie side by side, and stay where they are when the file grows.
        row[TASK_KEY] = index = self._task_id(row, ordinal, number) * self._agent.routes.width + position
        data = outgoing_bytes(to_json(row)) + b"\n"
        self._file.write(data)
        self.ids.append(index)
        self._lines.append(number)
        self._offsets.append(self._offset)
        self._offset += len(data)

    def _task_id(self, row: JsonFields, ordinal: int, number: int) -> int:
        """The row's own `_ng_task_index`, else its position in the file."""
        stamp = row.get(TASK_KEY)
        if self.ids and (stamp is not None) != self._is_stamped:
            raise BadRow(f"only some rows have {TASK_KEY}", hint="stamp all rows, or none")
        if stamp is None:
            return ordinal
        if not isinstance(stamp, int) or isinstance(stamp, bool) or not 0 <= stamp < 1 << 63:
            raise BadRow(f"{TASK_KEY} is {stamp!r}", hint="a whole number from 0 on, of at most 63 bits")
        self._is_stamped = True
        return stamp

    def _refuse_repeated_stamps(self, name: str) -> None:
        """Refuse duplicate task indices: two tasks would share rollouts, so skipping is no option."""
        ids = np.frombuffer(self.ids, np.int64)
        if not self._is_stamped or len(np.unique(ids)) == len(ids):
            return
        order = np.argsort(ids, kind="stable")
        repeats = order[1:][ids[order][1:] == ids[order][:-1]]
        raise BadTasks(
            [
                BadTaskLine(
                    name,
                    self._lines[i],
                    f"{TASK_KEY} {ids[i]} is already that of an earlier line",
                    "-k repeats a task",
                )
                for i in sorted(repeats)
            ]
        )

    def task_file(self, path: Path) -> TaskFile:
        """The written file at `path`, opened for random access."""
        return TaskFile(path, np.frombuffer(self._offsets, np.int64), np.frombuffer(self.ids, np.int64))


def _keys_in(value: object, names: set[str]) -> set[str]:
    """The names that are keys at any depth."""
    if isinstance(value, dict):
        return {*(names & value.keys()), *(key for inner in value.values() for key in _keys_in(inner, names))}
    return {key for inner in value for key in _keys_in(inner, names)} if isinstance(value, list) else set()


def check_agent(row: JsonFields, agent_names: frozenset[str] | None) -> None:
    """Raise `BadRow` for a row that names an agent unknown to the head server."""
    ref = row.get("agent_ref")
    name = ref.get("name") if isinstance(ref, dict) else None
    if agent_names is not None and isinstance(name, str) and name not in agent_names:
        raise BadRow(
            f"the head server knows no agent {name!r}{did_you_mean(name, sorted(agent_names))}",
            hint=f"it knows: {', '.join(sorted(agent_names))}; --agent-name NAME takes one for all rows",
            path="agent_ref.name",
        )


def offer_tools(params: ParamsJson, tools: list[ToolJson]) -> None:
    """Add tools to a task's params; a tool with the same name in the row is kept."""
    own = params.get("tools") or []
    named = tool_names(params)
    params["tools"] = [*own, *(tool for tool in tools if tool["name"] not in named)]
