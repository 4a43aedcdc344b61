"""The report of a prepared dataset: kept and dropped rollouts with reasons, example rows, and their origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from rollforge.charts import Bar, Interval, bar_chart, column_chart, interval_chart
from rollforge.conversations.turns import Turn, turns_of
from rollforge.errors import DataError
from rollforge.json_shapes import RowJson
from rollforge.runtime.typed_decoding import convert, decode_json
from rollforge.statistics.counts import count_of
from rollforge.steps.report.exemplars import turns
from rollforge.steps.report.figures import Figure, is_unset, number, title_of
from rollforge.steps.report.inputs import ManifestFacts, SummaryFacts
from rollforge.steps.report.page import Section, command, document, figures, tiles
from rollforge.store import UNREADABLE, parquet_file, reason_of
from rollforge.store.lineage_table import lineage_batches
from rollforge.store.reading import bounded_lines, read_row, read_whole
from rollforge.text_safety.markup import Html, join, table, tag

EXAMPLES = 10
EXAMPLE_BYTES = 24 << 10
LINEAGE = "lineage.parquet"
SIDES = {"chosen": "chosen", "rejected": "rejected", "completion": "assistant", "response": "assistant"}
"""Keys of a row with conversations → their headings."""


class ExampleRow(Struct, frozen=True, kw_only=True):
    """One row of the dataset, with the rollouts behind it."""

    file: str
    line: int
    row: Any
    origins: Sequence[str] = ()


def report_dataset(folder: Path, *, with_texts: bool = True) -> bytes:
    """The report of a dataset folder as one HTML file."""
    manifest = _read_manifest(folder)
    rows = sum(file.rows for file in manifest.files)
    title = f"{manifest.recipe} dataset for {manifest.to}"
    name = Path(title_of(str(folder))).name
    head = join(
        [
            tag("h1", title),
            tag("p", f"{name}: {count_of(rows, 'row')} of kind {manifest.kind}", css="soft"),
            _verdict(manifest),
        ]
    )
    sections = [
        Section("counts", "Kept and dropped", _counts(manifest)),
        Section("numbers", "What the rows look like", _numbers(manifest)),
        Section(
            "examples",
            "Examples",
            _examples(folder, manifest) if with_texts else tag("p", "Texts are left out."),
        ),
        Section("lineage", "Where they come from", _lineage(manifest)),
        Section("made", "How it was made", _made(manifest)),
    ]
    return document(f"rollforge report: {name}", head, sections)


def _read_manifest(folder: Path) -> ManifestFacts:
    path = folder / "manifest.json"
    try:
        return decode_json(read_whole(path), ManifestFacts)
    except UNREADABLE as error:
        raise DataError(
            f"{path}: not a manifest of rollforge prepare: {error}",
            hint="give a folder that prepare wrote",
        ) from error


def _verdict(manifest: ManifestFacts) -> Html:
    gate = manifest.check
    if gate.forced and not gate.ok:
        grade, words = "bad", f"Made with --force although the checks found errors: {', '.join(gate.errors)}."
    elif not gate.ran:
        grade, words = "doubt", "The run was not checked before this dataset was made."
    elif gate.warnings or manifest.flags:
        grade, words = "doubt", "The checks passed, with remarks."
    else:
        grade, words = "good", "The checks passed."
    remarks = [
        *(f"warning {name}" for name in gate.warnings),
        *(f"{flag.id}: {flag.text}" for flag in manifest.flags),
    ]
    return tag(
        "div", tag("strong", words), tag("ul", *(tag("li", one) for one in remarks)), css=f"verdict {grade}"
    )


def _counts(manifest: ManifestFacts) -> Html:
    fates = {str(name): count for name, count in _numbers_of(manifest.counts.get("rollouts"))}
    total = fates.pop("in", 0)
    bars = [
        Bar(label=name, count=count, css="fill-3" if name == "kept" else "fill-muted")
        for name, count in fates.items()
    ]
    examples = dict(_numbers_of(manifest.counts.get("examples")))
    tasks = dict(_numbers_of(manifest.counts.get("tasks")))
    shown = [
        (f"{sum(file.rows for file in manifest.files):,}", "rows written"),
        (f"{fates.get('kept', 0):,} of {total:,}", "rollouts used"),
        (f"{tasks.get('kept', 0):,} of {tasks.get('in', 0):,}", "tasks used"),
    ]
    shown += [(f"{count:,}", f"rows of split {split}") for split, count in manifest.splits.items()]
    chart = Figure(
        name="fates",
        heading="What became of each rollout",
        scene=bar_chart(
            bars, unit="rollouts", title="Rollouts kept and dropped, by reason",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"n = {count_of(total, 'rollout')} of {tasks.get('in', 0):,} tasks; {examples.get('planned', 0):,} examples planned, "
        f"{examples.get('written', 0):,} written.",
        headers=("fate", "rollouts"),
        rows=[[bar.label, f"{bar.count:,}"] for bar in bars],
    )  # fmt: skip
    return join([tiles(shown), figures([chart])])


def _numbers_of(counts: object) -> Iterator[tuple[str, int]]:
    for name, count in counts.items() if isinstance(counts, dict) else ():
        if isinstance(count, int):
            yield name, count


def _numbers(manifest: ManifestFacts) -> Html:
    summaries = {
        name: summary
        for name, value in manifest.statistics.items()
        if (summary := _summary(value)) is not None
    }
    lengths = {name: one for name, one in summaries.items() if name.endswith("chars")}
    rest = [
        [
            name.replace("_", " "),
            number(one.mean),
            number(one.std),
            number(one.min),
            number(one.median),
            number(one.max),
            f"{one.n:,}",
        ]
        for name, one in summaries.items()
    ]
    others = [
        [name.replace("_", " "), number(value)]
        for name, value in manifest.statistics.items()
        if isinstance(value, int | float)
    ]
    return join(
        [
            figures([_histogram(manifest), _difficulty(manifest), _lengths(lengths) if lengths else None]),
            table(("statistic", "mean", "std", "min", "median", "max", "n"), rest) if rest else None,
            table(("statistic", "value"), others) if others else None,
        ]
    )


def _summary(value: object) -> SummaryFacts | None:
    try:
        return convert(value, SummaryFacts)
    except msgspec.ValidationError:
        return None


def _histogram(manifest: ManifestFacts) -> Figure | None:
    names = {"pair": "gap between chosen and rejected", "prompt": "mean reward of the prompt"}
    return _distribution(manifest, "histogram", names.get(manifest.kind, "reward"), "")


def _difficulty(manifest: ManifestFacts) -> Figure | None:
    words = " Difficulty is one minus the mean reward of the task's judged rollouts."
    return _distribution(manifest, "difficulty_histogram", "difficulty of the task", words)


def _distribution(manifest: ManifestFacts, key: str, name: str, words: str) -> Figure | None:
    histogram = manifest.statistics.get(key)
    if not isinstance(histogram, dict) or not histogram.get("counts"):
        return None
    edges, counts = histogram["edges"], histogram["counts"]
    bars = [
        Bar(label=f"{edges[position]:g} – {edges[position + 1]:g}", count=count)
        for position, count in enumerate(counts)
    ]
    return Figure(
        name=key,
        heading=name.capitalize(),
        scene=column_chart(
            edges, bars, x_title=name, y_title="rows", title=f"Distribution of the {name}",
            description="; ".join(f"{bar.label}: {bar.count:,}" for bar in bars),
        ),
        caption=f"n = {count_of(sum(counts), 'row')}.{words}",
        headers=(name, "rows"),
        rows=[[bar.label, f"{bar.count:,}"] for bar in bars],
    )  # fmt: skip


def _lengths(lengths: dict[str, SummaryFacts]) -> Figure:
    items = [
        Interval(
            label=name.replace("_", " "), value=one.median, low=one.min, high=one.max,
            words=f"median {number(one.median)} ({number(one.min)} … {number(one.max)}), n = {one.n:,}", css=css,
        )
        for (name, one), css in zip(lengths.items(), "1234" * 3, strict=False)
    ]  # fmt: skip
    return Figure(
        name="lengths",
        heading="Length of answers",
        scene=interval_chart(
            items, x_title="characters", title="Length of answers", x_range=(0, max(one.max for one in lengths.values()) * 1.02),
            description="; ".join(f"{item.label}: {item.words}" for item in items),
        ),
        caption="Dot: median; line: from the shortest to the longest. Beside each line n, the answers that it is over.",
        headers=("answers", "mean", "median", "min", "max", "n"),
        rows=[
            [name, number(one.mean), number(one.median), number(one.min), number(one.max), f"{one.n:,}"]
            for name, one in lengths.items()
        ],
    )  # fmt: skip


def _examples(folder: Path, manifest: ManifestFacts) -> Html:
    origins = _origins(folder)
    parts = []
    for position, one in enumerate(_rows(folder, manifest)):
        behind = origins.get((one.file, one.line))
        head = tag("p", tag("b", f"{one.file}:{one.line}"), f" — {behind}" if behind else "")
        where = f"{folder / one.file}:{one.line}"
        body = [
            turns(dataset_turns(one.row), EXAMPLE_BYTES),
            tag("p", "trace it: ", command(f"rollforge show --example {where}")),
        ]
        summary = tag("summary", f"{one.file}, line {one.line:,}")
        parts.append(
            tag(
                "details", summary, tag("div", head, *body, css="rollout"), open="" if position == 0 else None
            )
        )
    return join(parts) if parts else tag("p", "The dataset has no rows.")


def dataset_turns(row: Any) -> list[Turn]:
    """A dataset row as turns; other content is shown as JSON."""
    if not isinstance(row, dict):
        return [Turn("other", str(row))]
    turns: list[Turn] = []
    if "messages" in row or ("prompt" in row and "chosen" not in row):
        turns = turns_of(cast("RowJson", row))
    for key, label in SIDES.items():
        if key in row and key in ("chosen", "rejected"):
            prompt = turns_of({"prompt": row.get("prompt")}) if key == "chosen" else []
            answer_turns = turns_of({"completion": row[key]})
            turns += [
                *prompt,
                *(Turn(one.kind, one.text, f"{label} {one.title}".strip()) for one in answer_turns),
            ]
    conversation_keys = {"messages", "prompt", *SIDES}
    rest = {key: value for key, value in row.items() if key not in conversation_keys or not turns}
    if rest:
        turns.append(
            Turn("other", msgspec.json.format(msgspec.json.encode(rest), indent=2).decode(), "columns")
        )
    return turns


def _rows(folder: Path, manifest: ManifestFacts) -> Iterator[ExampleRow]:
    """Ten rows, or all of fewer: some of each file, evenly spaced over it."""
    files = [file for file in manifest.files if file.rows and (folder / file.path).is_file()]
    for file, count in zip(files, _shares([file.rows for file in files]), strict=True):
        if not count:
            continue
        path = folder / file.path
        read = parquet_rows if path.suffix == ".parquet" else jsonl_rows
        lines = [1 + number * file.rows // count for number in range(count)]
        for line, row in read(path, lines):
            yield ExampleRow(file=file.path, line=line, row=row)


def _shares(sizes: Sequence[int]) -> list[int]:
    """How many examples to take from each file: one after another in turn, until there are enough."""
    shares = [0] * len(sizes)
    for _ in range(min(EXAMPLES, sum(sizes))):
        able = [number for number, size in enumerate(sizes) if shares[number] < size]
        shares[min(able, key=lambda number: shares[number])] += 1
    return shares


def jsonl_rows(path: Path, lines: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """(line, row) for these lines of a JSONL file, in ascending order."""
    wanted, last = set(lines), max(lines)
    with path.open("rb") as file:
        for number_, data in enumerate(bounded_lines(file), 1):
            if number_ in wanted:
                yield number_, _read(data, path, number_)
            if number_ >= last:
                return


def _read(data: bytes, path: Path, line: int) -> RowJson:
    try:
        return read_row(data)
    except (
        ValueError,
        *UNREADABLE,
    ) as error:  # bad JSON is a ValueError in the library that reads the odd rows
        raise DataError(f"{path}:{line}: {reason_of(error)}", hint="prepare the dataset again") from error


def parquet_rows(path: Path, lines: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """(line, row) for these ascending lines of a Parquet file."""
    with parquet_file(path, hint="prepare the dataset again") as file:
        begin, group = 0, 0
        for line in lines:
            if not 0 < line <= file.metadata.num_rows:
                raise DataError(f"{path}: there is no row {line}", hint="prepare the dataset again")
            while line > begin + file.metadata.row_group(group).num_rows:
                begin += file.metadata.row_group(group).num_rows
                group += 1
            yield line, file.read_row_group(group).slice(line - 1 - begin, 1).to_pylist()[0]


def _origins(folder: Path) -> dict[tuple[str, int], str]:
    """Lineage of the rows; empty without a lineage file."""
    path = folder / LINEAGE
    if not path.is_file():
        return {}
    origins: dict[tuple[str, int], str] = {}
    needed = ("file", "line", "run", "task", "rollout", "reward")
    for rows in lineage_batches(path, needed):
        for one in rows.to_pylist():
            origins[one["file"], one["line"]] = _origin(one)
    return origins


def _origin(one: dict[str, Any]) -> str:
    words = f"{one['run']}, task {one['task']}, sample {one['rollout']}, reward {number(one['reward'])}"
    if one.get("rejected_rollout") is not None:
        words += f"; rejected: sample {one['rejected_rollout']}, reward {number(one.get('rejected_reward'))}"
    return words


def _lineage(manifest: ManifestFacts) -> Html:
    rows = [[one.run, one.file, f"{one.bytes:,}", one.sha256] for one in manifest.inputs]
    return join(
        [
            tag(
                "p",
                "Every row names its rollouts in ",
                command(LINEAGE),
                ". The dataset was made from these files:",
            ),
            table(("run", "file", "bytes", "SHA-256"), rows, numeric=False),
        ]
    )


def _made(manifest: ManifestFacts) -> Html:
    options = [[name, _shown(value)] for name, value in manifest.options.items() if not is_unset(value)]
    files = [[one.path, one.split, f"{one.rows:,}", f"{one.bytes:,}", one.sha256] for one in manifest.files]
    versions = [[name, version] for name, version in manifest.versions.items()]
    return join(
        [
            tag("h3", "Files"),
            table(("file", "split", "rows", "bytes", "SHA-256"), files, numeric=False),
            tag("h3", "Options"),
            table(("option", "value"), options, numeric=False),
            tag("h3", "Versions"),
            table(("package", "version"), versions, numeric=False),
        ]
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def is_dataset(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a prepared dataset's folder."""
    return (Path(path) / "manifest.json").is_file()
