"""The dataset card: a README in Hugging Face form, made from the manifest alone."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Kind
from rollforge.recipes.base import load_recipe
from rollforge.statistics.counts import count_of
from rollforge.steps.prepare.dataset_manifest import DatasetManifest, DatasetStatistics

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10**9, "1M<n<1B"),
)
_TASKS = {
    "sft": "text-generation",
    "dpo": "text-generation",
    "kto": "text-generation",
    "rm": "text-classification",
}


def files_by_split(manifest: DatasetManifest) -> dict[str, list[str]]:
    """Split → its files, in order."""
    paths_by_split: dict[str, list[str]] = {}
    for file in manifest.files:
        paths_by_split.setdefault(file.split, []).append(file.path)
    return paths_by_split


def write_card(manifest: DatasetManifest, exporter: Exporter) -> str:
    """Write the README."""
    files = files_by_split(manifest)
    rows = sum(manifest.splits.values())
    like = load_recipe(manifest.recipe).like
    kind: Kind = manifest.kind  # type: ignore[assignment]
    head = {
        "pretty_name": f"{manifest.recipe} data for {manifest.to}",
        "task_categories": [_TASKS.get(like, "reinforcement-learning")],
        "size_categories": [next(name for limit, name in _SIZES if rows < limit)],
        "tags": ["rollforge", manifest.recipe, manifest.to],
        # Name the files, so that `load_dataset` on this folder reads only the data.
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": names} for split, names in files.items()],
            }
        ],
    }
    parts = [
        # JSON values are YAML values: no YAML library needed.
        "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]),
        f"# {manifest.recipe} data for {manifest.to}",
        f"Made by `rollforge prepare {manifest.recipe}` (rollforge {manifest.versions['rollforge']}) from "
        f"{count_of(manifest.counts.rollouts['in'], 'rollout')}; how, to the last option and digest, is in `manifest.json`, and "
        "`rollforge prepare --from manifest.json` makes the same bytes again.",
        "## Load it",
        exporter.snippet(
            like,
            kind,
            files,
            manifest.form.layout or "messages",
            has_verifier=manifest.has_one_verifier,
        ),
        "## What is in it",
        _table(("split", "rows"), manifest.splits),
        _table(("rollouts", "count"), manifest.counts.rollouts),
        _table(("examples", "count"), manifest.counts.examples),
        _form_lines(manifest),
        _statistics_lines(manifest.statistics),
    ]
    if manifest.untidy:
        parts += ["Untidy rollouts, and what was done:", _table(("what", "rollouts"), manifest.untidy)]
    looks = [f"- {flag.text} (`{flag.id}`)" for flag in manifest.flags]
    if manifest.is_forced:
        looks.append("- made with --force: errors found by `rollforge check` were overruled")
    if looks:
        parts += ["## Look at this before training", "\n".join(looks)]
    parts += [
        "## Where a row comes from",
        "`lineage.parquet` maps every file and line to its run, task, rollout and verdict: "
        f"`rollforge show --example {next(iter(files.values()))[0] if files else 'train.jsonl'}:1`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: tuple[str, str], rows: Mapping[str, object]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "| --- | ---: |"]
    lines += [f"| {name} | {value:,} |" for name, value in rows.items() if isinstance(value, int)]
    return "\n".join(lines)


def _form_lines(manifest: DatasetManifest) -> str:
    form = manifest.form
    if form.copied:
        return "Rows are copied byte for byte."
    lines = [
        f"Call arguments: {form.arguments}; tool schemas: {form.tools}; reasoning: {form.reasoning}; "
        f"message keys: {form.keys}."
    ]
    if manifest.kind in ("pair", "labelled"):
        lines.append(f"Answers: {form.answers}.")
    lines += [f"Changed while writing: {change}." for change in form.changes or []]
    return " ".join(lines)


def _statistics_lines(statistics: DatasetStatistics) -> str:
    lines = ["| statistic | n | mean | min | median | max |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, value in statistics.distributions():
        numbers = " | ".join(f"{number:.4g}" for number in (value.mean, value.min, value.median, value.max))
        lines.append(f"| {name} | {value.n:,} | {numbers} |")
    return "\n".join(lines)
