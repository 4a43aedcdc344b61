"""This module says what an exporter is: examples in, one trainer's rows out, and the contract those rows must keep.

An exporter is a pure function from an example to a row; it reads no file and chooses no rollout. It declares the recipes its
trainer can take, its defaults (where arguments, tools and reasoning stand; what happens to untidy rollouts), how a written
row is checked when it is read back, and the lines a user pastes to load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.exporters import EXPORTERS
from rollforge.exporters.contract import message_problems
from rollforge.exporters.examples import Demonstration, Example, Kind, Labelled, Pair, Prompt, Scored
from rollforge.exporters.messages import Message
from rollforge.exporters.shape import (
    Arguments,
    Shaping,
    Tools,
    keys_used,
    shape,
    shape_for_lines,
    tools_from_system,
    tools_in_system,
    unshape,
)
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject

Container = Literal["jsonl", "parquet"]

_MESSAGE_COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "demonstration": ("messages",),
    "pair": ("prompt", "chosen", "rejected"),
    "labelled": ("prompt", "completion"),
    "prompt": ("prompt", "input"),
    "scored": ("prompt", "completion"),
    "raw": (),
}


_NO_KEYS: frozenset[str] = frozenset()


@cache
def _kinds(column: str, keys: frozenset[str]) -> frozenset[str]:
    return frozenset(f"{column}.{key}" for key in keys)


class KeysGrew(Exception):
    """A message needs keys that the rows written so far do not have; the data set is written again with them."""

    def __init__(self, keys: dict[str, frozenset[str]]) -> None:
        super().__init__(str(keys))
        self.keys = keys
        """Column → all optional keys that its messages need, as far as seen."""


class FormChanged(Exception):
    """A row shows that the chosen form would be damaged by the trainer's loader; the data set is written again in another."""

    def __init__(self, reason: str, **form: str) -> None:
        super().__init__(reason)
        self.form = form
        """Field of `Shaping` → its new value."""


class Exporter:
    """One trainer's rows. Subclasses fill in the rows of the kinds they support."""

    name: ClassVar[str]
    recipes: ClassVar[tuple[str, ...]]
    shaping: ClassVar[Shaping] = Shaping()
    policies: ClassVar[Policies] = Policies()
    container: ClassVar[Container] = "jsonl"
    containers: ClassVar[tuple[Container, ...]] = ("jsonl",)
    pair_form: ClassVar[Literal["whole", "step"]] = "whole"
    """`step` where the trainer would otherwise learn tool results, or the last message only."""
    is_raw: ClassVar[bool] = False
    """Rows are copied, not converted."""
    has_task_rows: ClassVar[bool] = False
    """A prompt is written as its task row, not as messages."""
    prompt_tools: ClassVar[Tools] = "string"
    """Where a prompt set has tool schemas, which is beside the prompt and not in it unless said otherwise."""
    takes_images: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False
    """Offline scored groups are a row of this exporter."""

    def __init__(self, shape_as: Shaping | None = None) -> None:
        self.shape_as = shape_as or self.shaping
        self.keys: dict[str, frozenset[str]] = {}
        """Column → the optional keys that its messages all have; columns are typed one by one, so each has its own."""
        self.fallback: Arguments | None = "string"
        """The form of arguments to change to when the loader would damage objects; None where the template takes no other."""
        self.is_first_file = True
        """Rows go into the file from which the loader learns its types."""
        self.is_columnar = False
        """Rows go into columns (Parquet), which want values and not encoded text."""
        self._prompt: tuple[list[Message], bytes | None, list[msgspec.Raw], frozenset[str]] | None = None
        self._tools: tuple[bytes, msgspec.Raw] | None = None
        self.kinds: set[str] = set()
        """What the last row used that not every row has; the writer keeps rows with each of them near the front."""

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        """How messages of this kind of row are written, unless the user asks for another form."""
        return cls.shaping

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        """Field of `Shaping` → the values that rows of this kind can carry; a field that is not here may have any."""
        return {}

    @classmethod
    def containers_for(cls, kind: Kind) -> tuple[Container, ...]:
        """The file types in which the trainer reads rows of this kind."""
        return cls.containers

    @classmethod
    def is_inferred(cls, kind: Kind) -> bool:
        """Whether the trainer's loader infers types from JSON rows of this kind, and so may change what they hold."""
        return not cls.is_raw

    def start_over(self) -> None:
        """Forget what earlier rows looked like."""
        self.kinds = set()
        self._prompt = None

    def row(self, example: Example) -> JsonObject:
        """The example as this trainer's row."""
        self.kinds = set()
        match example:
            case Demonstration():
                return self.demonstration(example)
            case Pair():
                return self.pair(example)
            case Labelled():
                return self.labelled(example)
            case Prompt():
                self._note_numbers(example.numbers)
                return self.prompt(example)
            case Scored():
                self._note_numbers(example.numbers)
                if example.tokens:
                    self.kinds.add("tokens")
                return self.scored(example)

    def _note_numbers(self, numbers: dict[str, float | int | None]) -> None:
        """A column of which the loader has seen nothing but null takes no number later."""
        self.kinds.update(name for name, value in numbers.items() if value is not None)

    def line(self, example: Example) -> bytes:
        """The example as one JSONL line, without its end."""
        return msgspec.json.encode(self.row(example))

    def frame(self, kind: Kind, value: float | bool) -> tuple[bytes, ...]:
        """Where rows are copied: what stands before, between and after the lines of one, given its gap or its label."""
        raise NotImplementedError

    def demonstration(self, example: Demonstration) -> JsonObject:
        raise NotImplementedError

    def pair(self, example: Pair) -> JsonObject:
        raise NotImplementedError

    def labelled(self, example: Labelled) -> JsonObject:
        raise NotImplementedError

    def prompt(self, example: Prompt) -> JsonObject:
        raise NotImplementedError

    def scored(self, example: Scored) -> JsonObject:
        raise NotImplementedError

    def messages(
        self, messages: list[Message], tools: bytes | None = None, *, column: str = "messages"
    ) -> list[Any]:
        """Messages in this trainer's keys; with `tools` given and no column for them, written into the system text."""
        if self.shape_as.tools == "system" and tools is not None:
            messages = tools_in_system(messages, tools, as_text=self.shape_as.arguments == "text")
        keys = self.keys.get(column, _NO_KEYS)
        rows: list[Any]
        if self.is_columnar:
            rows, used = shape(messages, self.shape_as, keys), keys_used(messages, self.shape_as)
        else:
            rows, used = shape_for_lines(messages, self.shape_as, keys)
        if used:
            self.kinds |= _kinds(column, used)
            if self.shape_as.keys == "uniform" and not used <= keys:
                raise KeysGrew({**self.keys, column: keys | used})
        return rows

    def prompt_messages(
        self, prompt: list[Message], tools: bytes | None = None, *, column: str = "prompt"
    ) -> list[Any]:
        """The same for a prompt, already encoded where rows are lines: the rollouts of a task share it, so it is shaped once."""
        if self.is_columnar:
            return self.messages(prompt, tools, column=column)
        known = self._prompt
        if known is None or known[0] is not prompt or known[1] is not tools:
            kinds, self.kinds = self.kinds, set()
            rows = self.messages(prompt, tools, column=column)
            encoded = [msgspec.Raw(msgspec.json.encode(row)) for row in rows]
            known = self._prompt = (prompt, tools, encoded, frozenset(self.kinds))
            self.kinds |= kinds
        else:
            self.kinds |= known[3]
        return known[2]

    def conversation(
        self, prompt: list[Message], answer: list[Message], tools: bytes | None = None
    ) -> list[Any]:
        """Prompt and answer as one list of messages."""
        return self.prompt_messages(prompt, tools, column="messages") + self.messages(answer)

    def tools(self, tools: bytes | None) -> object:
        """The `tools` column: a JSON text, a list, or null."""
        if tools is None or self.shape_as.tools == "system":
            return None
        self.kinds.add("tools")
        if self.shape_as.tools != "string":
            return msgspec.Raw(tools)
        if self.is_columnar:
            return tools.decode()
        if self._tools is None or self._tools[0] is not tools:
            self._tools = (tools, msgspec.Raw(msgspec.json.encode(tools.decode())))
        return self._tools[1]

    def row_type(self, recipe: str, kind: Kind) -> Any:
        """The type a written row is decoded as when it is read back; anything more or less is a broken contract."""
        raise NotImplementedError

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        """What is wrong with a row that has the right type."""
        for name in _MESSAGE_COLUMNS[kind]:
            messages = getattr(row, name, None)
            if isinstance(messages, list):
                yield from message_problems(messages, self.shape_as, where=name)
        if kind == "pair" and row.chosen == row.rejected:
            yield "chosen equals rejected"

    def back(self, row: JsonObject) -> dict[str, list[Message]]:
        """The messages behind a written row, by column: the inverse of `row` for what its shaping keeps."""
        found = {}
        for name in ("messages", "prompt", "chosen", "rejected", "completion", "input"):
            if isinstance(row.get(name), list):
                messages = unshape(row[name], self.shape_as)
                if self.shape_as.tools == "system":
                    messages, _ = tools_from_system(messages)
                found[name] = messages
        return found

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        """The Arrow schema of a Parquet file of these rows."""
        raise NotImplementedError

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        """Lines that load these files in this trainer, as Markdown."""
        raise NotImplementedError

    def companions(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> dict[str, str]:
        """Further files that the trainer reads beside the data."""
        return {}


def load_exporter(name: str) -> type[Exporter]:
    """The exporter called `name`."""
    found: type[Exporter] = EXPORTERS.load(name)
    return found


def refuse_unsupported(exporter: type[Exporter], recipe: str) -> None:
    """Raise when the trainer cannot take the recipe, naming what it can and who else could."""
    if recipe in exporter.recipes:
        return
    others = [name for name in EXPORTERS.names() if recipe in load_exporter(name).recipes]
    raise UsageError(
        f"{exporter.name} cannot take {recipe} data; it takes {', '.join(exporter.recipes)}",
        hint=f"exporters that take {recipe}: {', '.join(others)}",
    )
