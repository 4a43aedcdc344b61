"""Examines the selected rows once, before the final write, and decides the form of the dataset.

The survey finds inexpressible examples, the keys that each column's messages need, values that the trainer's loader would damage,
and columns whose first value comes too late for type inference. Its result is one `Form`; the writer only follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from rollforge.conversations.chat_template import Prover
from rollforge.conversations.messages import Inexpressible
from rollforge.conversations.shape import TOOL_KEYS
from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.exporters.datasets_loader import call_arguments as loader
from rollforge.exporters.datasets_loader.late import first_late
from rollforge.exporters.datasets_loader.watch import LoaderWatch
from rollforge.exporters.examples import Demonstration, Example, Kind
from rollforge.exporters.form import Form
from rollforge.exporters.writer import RowWriter
from rollforge.recipes.base import Ints
from rollforge.statistics.stats import distinct
from rollforge.steps.prepare.asked_form import AskedForm, asked_form
from rollforge.steps.prepare.dataset_plan import DatasetPlan
from rollforge.steps.prepare.draft import Draft
from rollforge.steps.prepare.example_messages import ExampleSource, NumberedExample
from rollforge.steps.prepare.settings import Settings
from rollforge.steps.prepare.write_rows import Written

SAMPLE = 256
"""Number of sampled examples that suggest the draft's form."""


@dataclass
class Survey:
    """Result of the survey."""

    form: Form
    lost: dict[int, str] = field(default_factory=dict)
    """Inexpressible example number → reason."""
    marks: Counter[str] = field(default_factory=Counter)
    """Repair or irregularity → number of rollouts."""
    written: Written | None = None
    """The draft, if it became the dataset."""


def survey(
    source: ExampleSource,
    plan: DatasetPlan,
    exporter: Exporter,
    settings: Settings,
    requested_form: AskedForm,
    prompts: Ints,
    draft: Draft,
) -> Survey:
    """Examine all examples of the plan in writing order, and write the draft.

    Args:
        prompts: prompt of each candidate rollout. If an optional column occurs only outside the first split, a prompt that has it
            moves there (`plan.split` changes).
    """
    kind = plan.selection.kind
    parts = [numbers for _, _, numbers in plan.files(settings.shards)]
    draft.begin(_likely_form(source, parts, exporter, kind, requested_form, settings))
    source.marks.clear()
    seen = watch_rows(map(source.examples, parts), exporter, kind, requested_form, len(plan.split), draft)
    if seen.has_long_answers:
        _refuse_long_answers(settings)
        as_messages = msgspec.structs.replace(requested_form.form, layout="messages")
        return survey(
            source, plan, exporter, settings, requested_form._replace(form=as_messages), prompts, draft
        )
    if seen.times is not None:
        as_parquet = _as_parquet(seen.times, exporter, settings, kind)
        return survey(source, plan, exporter, settings, as_parquet, prompts, draft)
    form = seen.form
    if form.container == "jsonl" and exporter.is_inferred(kind):
        form = _bring_late_columns_forward(form, seen, plan, settings.shards, prompts)
    lost, marks = dict(seen.lost), source.marks.copy()
    if requested_form.prover is not None:
        lost |= _refused(source, parts, lost, exporter, kind, form, requested_form.prover)
    return Survey(form, lost, marks, draft.settle(form, lost))


def _likely_form(
    source: ExampleSource,
    parts: Iterable[Ints],
    exporter: Exporter,
    kind: Kind,
    requested_form: AskedForm,
    settings: Settings,
) -> Form | None:
    """The form of an evenly spaced sample of examples; None if the sample is no guide."""
    numbers = np.concatenate(list(parts))
    sample = numbers[:: max(1, len(numbers) // SAMPLE)]
    seen = watch_rows([source.examples(sample)], exporter, kind, requested_form, len(numbers))
    if seen.has_long_answers and settings.layout == "auto":
        requested_form = requested_form._replace(
            form=msgspec.structs.replace(requested_form.form, layout="messages")
        )
        return _likely_form(source, [numbers], exporter, kind, requested_form, settings)
    return None if seen.has_long_answers or seen.times is not None else seen.form


@dataclass
class RowsSeen:
    """Result of one pass over the rows."""

    form: Form
    lost: dict[int, str]
    times: str | None
    """A field in which every text of a file looks like a time, if any."""
    has_long_answers: bool
    """Whether the layout is `completion` but an answer has several messages, which ended the pass."""
    uses: list[frozenset[str]]
    codes: Ints
    """Per example, its index in `uses`, which lists the optional values of its row."""
    sizes: Ints
    """Size of each row in bytes; 0 if not needed."""


def watch_rows(
    files: Iterable[Iterable[NumberedExample]],
    exporter: Exporter,
    kind: Kind,
    requested_form: AskedForm,
    size: int,
    draft: Draft | None = None,
) -> RowsSeen:
    """One pass over the examples of all files, in writing order; `size` is one more than the highest number."""
    watch = LoaderWatch(exporter, kind, requested_form.form, requested_form.fallback)
    lost: dict[int, str] = {}
    slips: dict[int, str] = {}
    code_by_use: dict[frozenset[str], int] = {frozenset(): 0}
    codes, sizes = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for file in files:
        if draft is not None:
            draft.begin_file()
        for number, example in file:
            if requested_form.form.layout == "completion" and _is_long(example):
                return RowsSeen(requested_form.form, {}, None, True, [], codes, sizes)
            try:
                if isinstance(example, Inexpressible):
                    raise example
                sizes[number] = watch.look(example, loader.SURE_BYTES)
            except Inexpressible as error:
                lost[number] = str(error)
                continue
            if watch.slip is not None:
                slips[number] = watch.slip
            if watch.used:
                use = frozenset(watch.used)
                if use not in code_by_use:
                    code_by_use[use] = len(code_by_use)
                    if draft is not None and draft.form is not None:
                        draft.meet(_keys([_uses_in(use, draft.form)]))
                codes[number] = code_by_use[use]
            if draft is not None:
                draft.add(number, example, slips=watch.slip is not None)
        watch.end_file()
    if watch.form.shaping.arguments == "object":
        lost |= slips
    uses = [_uses_in(use, watch.form) for use in code_by_use]
    written = np.delete(codes, list(lost))
    form = msgspec.structs.replace(watch.form, keys=_keys(uses[code] for code in distinct(written)))
    return RowsSeen(form, lost, watch.times, False, uses, codes, sizes)


def _is_long(example: Example | Inexpressible) -> bool:
    """Whether a demonstration needs a single message list, because tool results in a completion would be trained on."""
    return isinstance(example, Demonstration) and (len(example.answer) != 1 or not example.prompt)


def _refuse_long_answers(settings: Settings) -> None:
    if settings.layout == "completion":
        raise UsageError(
            "--layout completion: some answers are several messages, and the trainer would learn tool results",
            hint="leave --layout out, or select single answers: --where 'turns = 1'",
        )


def _uses_in(use: frozenset[str], form: Form) -> frozenset[str]:
    """Uses that remain in the final form: calls in the text need no keys, schemas in the system text no column."""
    gone = {"tools"} if form.shaping.tools == "system" else set()
    is_text = form.shaping.arguments == "text"
    return frozenset(
        name for name in use if name not in gone and not (is_text and name.rpartition(".")[2] in TOOL_KEYS)
    )


def _keys(uses: Iterable[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Column → the optional keys of its messages."""
    keys: dict[str, set[str]] = {}
    for use in uses:
        for column, _, key in (name.partition(".") for name in use if "." in name):
            keys.setdefault(column, set()).add(key)
    return {column: frozenset(names) for column, names in sorted(keys.items())}


def _as_parquet(column: str, exporter: Exporter, settings: Settings, kind: Kind) -> AskedForm:
    """Switch to Parquet, where column types are explicit, so that no loader parses texts as times."""
    if settings.format != "auto" or "parquet" not in exporter.containers_for(kind):
        raise UsageError(
            f"every text of {column} looks like a date, and the loader of {exporter.name} would make times of them",
            hint="--format parquet, or --to chat --format parquet, keeps them texts",
        )
    parquet_form = asked_form(type(exporter), settings, kind, "parquet")
    change = f"written as Parquet: every text of {column} looks like a date, which JSON cannot say is a text"
    return parquet_form._replace(form=msgspec.structs.replace(parquet_form.form, changes=(change,)))


def _bring_late_columns_forward(
    form: Form, seen: RowsSeen, plan: DatasetPlan, shards: int, prompts: Ints
) -> Form:
    """Move examples to the front until the loader can infer every column from the start of the first file."""
    front: list[int] = []
    changes: list[str] = []
    while True:
        lost = np.array(list(seen.lost), dtype=np.int64)
        files = [numbers[~np.isin(numbers, lost)] for _, _, numbers in plan.files(shards, front)]
        late = first_late(files, seen.codes, seen.uses, seen.sizes, front, loader.SURE_BYTES)
        if late is None:
            return msgspec.structs.replace(form, front=tuple(front), changes=(*form.changes, *changes))
        if plan.split[late] != 0:
            plan.swap_into_first(late, front, prompts)
            changes.append(
                f"the prompt of example {late} was moved to {plan.splits[0]}, the only one of its kind:"
                " the loader learns all columns there"
            )
        front.insert(0, late)
        changes.append(f"example {late} was moved to the front, so that the loader learns its columns")


def _refused(
    source: ExampleSource,
    parts: Iterable[Ints],
    lost: dict[int, str],
    exporter: Exporter,
    kind: Kind,
    form: Form,
    prover: Prover,
) -> dict[int, str]:
    """Examples that the chat template refuses in their final form."""
    refused: dict[int, str] = {}
    write = RowWriter(form)
    for part in parts:
        for number, example in source.examples(part[~np.isin(part, list(lost))]):
            if isinstance(example, Inexpressible):
                continue
            try:
                prover.prove(msgspec.json.decode(exporter.line(example, kind, write)))
            except Inexpressible as error:
                refused[number] = str(error)
    return refused
