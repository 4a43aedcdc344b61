"""A pipeline of operators, with counts for each operator under its name.

`experience_pipeline/{operator}/in`, `out`, `dropped/{reason}` and the operator's own numbers;
`time/experience_pipeline/{operator}` in seconds. Operator names are unique, so that counts cannot overwrite each other or those
of the pipeline.
"""

from __future__ import annotations

import inspect
import json
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import msgspec.inspect

from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience
from rollforge.operators import OPERATORS
from rollforge.operators.base import Operator, Outcome, spread
from rollforge.registry import load_target, refuse_unknown
from rollforge.runtime.typed_decoding import convert

OWN_NAMES = frozenset({"total", "input_count", "experience_count", "input_reward", "output_reward"})
"""Names of the pipeline's own numbers, which operators may not use."""


LedgerRow = TypedDict(
    "LedgerRow", {"operator": str, "in": int, "out": int, "dropped": dict[str, int], "seconds": float}
)
"""Counts of one operator, as commands print them."""


class OperatorLedger(msgspec.Struct, kw_only=True):
    """Cumulative counts of one operator since the pipeline was made."""

    name: str
    seen: int = 0
    experiences_kept: int = 0
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: float = 0.0

    def to_row(self) -> LedgerRow:
        return {
            "operator": self.name,
            "in": self.seen,
            "out": self.experiences_kept,
            "dropped": dict(self.dropped),
            "seconds": round(self.seconds, 6),
        }


class CustomFunction:
    """A user's function over the list of experiences, as an operator."""

    def __init__(self, function: Callable[[list[Experience]], Any], target: str) -> None:
        self._function = function
        self._target = target

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        result = self._function(list(experiences))
        if isinstance(result, Outcome):
            return result
        returned_experiences = list(result) if isinstance(result, Iterable) else [result]
        if not all(isinstance(experience, Experience) for experience in returned_experiences):
            raise UsageError(
                f"{self._target} returned something that is no list of experiences",
                hint="return the experiences that go on, as a list",
            )
        gone = len(experiences) - len(returned_experiences)
        return Outcome(
            experiences=returned_experiences, dropped=Counter({"function": gone} if gone > 0 else {})
        )


class Pipeline:
    """A chain of operators."""

    def __init__(
        self, operators: Sequence[tuple[str, Operator]], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        names = unique_names([name for name, _ in operators])
        self._operators = [(name, operator) for name, (_, operator) in zip(names, operators, strict=True)]
        self._clock = clock
        self.ledgers = [OperatorLedger(name=name) for name in names]

    def run(self, experiences: Sequence[Experience]) -> tuple[list[Experience], dict[str, float]]:
        """Run one step through all operators; returns the resulting experiences and the step's metrics."""
        metrics: dict[str, float] = {"experience_pipeline/input_count": len(experiences)}
        metrics |= _rewards("experience_pipeline/input_reward", experiences)
        started = self._clock()
        for (name, operator), ledger in zip(self._operators, self.ledgers, strict=True):
            before = self._clock()
            outcome = operator.apply(experiences)
            if not isinstance(outcome, Outcome):
                raise UsageError(
                    f"the operator {name!r} returned {type(outcome).__name__}, not an Outcome",
                    hint="return rollforge.operators.base.Outcome(experiences)",
                )
            seconds = self._clock() - before
            metrics |= _step_metrics(name, len(experiences), outcome, seconds)
            _enter(ledger, len(experiences), outcome, seconds)
            experiences = outcome.experiences
        metrics["experience_pipeline/experience_count"] = len(experiences)
        metrics |= _rewards("experience_pipeline/output_reward", experiences)
        metrics["time/experience_pipeline/total"] = self._clock() - started
        return list(experiences), metrics


def unique_names(names: Sequence[str]) -> list[str]:
    """Make names unique by appending the first unused number to repeated ones: dedupe, dedupe_2."""
    unique: list[str] = []
    for name in names:
        if name in OWN_NAMES:
            raise UsageError(
                f"no operator can be called {name!r}, as a number of the pipeline is", hint='add name = "…"'
            )
        numbered = (f"{name}_{number}" for number in count(2))
        taken = {*unique, *names}
        unique.append(name if name not in unique else next(other for other in numbered if other not in taken))
    return unique


def _step_metrics(name: str, seen: int, outcome: Outcome, seconds: float) -> dict[str, float]:
    prefix = f"experience_pipeline/{name}"
    numbers = {f"{prefix}/{metric}": float(value) for metric, value in outcome.metrics.items()}
    numbers |= {f"{prefix}/in": seen, f"{prefix}/out": len(outcome.experiences)}
    numbers[f"{prefix}/dropped"] = outcome.dropped.total()
    numbers |= {f"{prefix}/dropped/{reason}": count for reason, count in outcome.dropped.items()}
    return numbers | {f"time/experience_pipeline/{name}": seconds}


def _enter(ledger: OperatorLedger, seen: int, outcome: Outcome, seconds: float) -> None:
    ledger.seen += seen
    ledger.experiences_kept += len(outcome.experiences)
    ledger.dropped += outcome.dropped
    ledger.seconds += seconds


def _rewards(name: str, experiences: Sequence[Experience]) -> dict[str, float]:
    return spread(name, [experience.reward for experience in experiences if experience.reward is not None])


def pipeline_from_config(entries: Sequence[Mapping[str, Any]]) -> Pipeline:
    """The pipeline for a list of tables, each with `use` (a member's name or `file.py:function`), an optional `name`, and
    options.
    """
    return Pipeline([_operator(dict(entry), number) for number, entry in enumerate(entries, start=1)])


def _operator(entry: dict[str, object], position: int) -> tuple[str, Operator]:
    use = entry.pop("use", None)
    if not isinstance(use, str):
        raise UsageError(
            f"operator {position} has no 'use'",
            hint='write use = "reward_filter"; see them all: rollforge list operators',
        )
    name = str(entry.pop("name", use.rpartition(":")[2]))
    if "/" in name or not name or name != name.strip() or not name.isprintable():
        raise UsageError(
            f"operator {position}: its name {name!r} cannot stand in a metric's name",
            hint="use letters, digits, dashes and underscores",
        )
    if ":" in use:
        return name, custom_operator(use, entry)
    kind = OPERATORS.load(use)
    refuse_unknown(entry, kind.__struct_fields__, f"operator {position} ({use})")
    try:
        return name, convert(entry, kind)
    except msgspec.ValidationError as error:
        words = _option_words(kind)
        option = re.search(r"at `\$\.(\w+)", str(error))
        if option is None or option[1] not in words:
            takes = ", ".join(f"{name} ({what})" for name, what in words.items())
            raise UsageError(f"operator {position} ({use}): {error}", hint=f"its options: {takes}") from error
        value = json.dumps(entry[option[1]], default=str)
        raise UsageError(
            f"operator {position} ({use}): {option[1]} = {value} is not understood",
            hint=f"{option[1]} is {words[option[1]]}",
        ) from error


def _option_words(kind: type[Operator]) -> dict[str, str]:
    """Option → what it takes, in words."""
    described = msgspec.inspect.type_info(kind)
    fields = described.fields if isinstance(described, msgspec.inspect.StructType) else ()
    return {field.name: _type_in_words(field.type) for field in fields if not field.name.startswith("_")}


def _type_in_words(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.UnionType(types=members):
            return " or ".join(
                _type_in_words(one) for one in members if not isinstance(one, msgspec.inspect.NoneType)
            )
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(json.dumps(value) for value in values)
        case msgspec.inspect.FloatType():
            return "a number"
        case msgspec.inspect.IntType():
            return "a whole number"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.DictType(value_type=value):
            return f"a table, each value {_type_in_words(value)}"
        case msgspec.inspect.CollectionType(item_type=item):
            return f"a list, each item {_type_in_words(item)}"
    return "a text"


def custom_operator(target: str, options: Mapping[str, Any]) -> Operator:
    """A user's function, with its options bound, or a user's class with `apply`."""
    made_by = load_target(target)
    is_class = isinstance(made_by, type)
    try:
        inspect.signature(made_by).bind(*([] if is_class else [[]]), **options)
    except TypeError as error:
        raise UsageError(f"{target}: {error}", hint="give its options beside 'use'") from error
    if is_class:
        operator: Operator = made_by(**options)
        if not hasattr(operator, "apply"):
            raise UsageError(f"{target} is no operator: it has no apply", hint="see docs/operators.md")
        return operator
    return CustomFunction(lambda experiences: made_by(experiences, **options), target)


PIPELINE_FORM = (
    'each operator is a table: [[operator]], and below it use = "dedupe"; '
    "names: rollforge list operators (an example: docs/commands/experiences.md)"
)


def read_pipeline(path: str | Path) -> Pipeline:
    """The pipeline in a TOML file of `[[operator]]` tables."""
    try:
        with Path(path).open("rb") as file:
            config = tomllib.load(file)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: no such file", hint=f"give the TOML file of the pipeline; {PIPELINE_FORM}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no TOML: {error}", hint=f"give a TOML file; {PIPELINE_FORM}") from error
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="give the TOML file with the [[operator]] tables"
        ) from error
    entries = config.pop("operator", None)
    if config or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        wrong = f"unknown key {next(iter(config))!r}" if config else "no [[operator]] table"
        raise UsageError(
            f"{path}: {wrong}", hint="a pipeline is a list of [[operator]] tables, each with 'use'"
        )
    try:
        return pipeline_from_config(entries)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error
