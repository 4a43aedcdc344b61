"""Runs LLaMA-Factory's own converter on the prepared folders below the one given; prints what it saw as JSON."""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
audio = types.ModuleType("torchaudio")  # only its name is asked for: text data touches no sound
audio.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
sys.modules["torchaudio"] = audio

from datasets import load_dataset  # noqa: E402
from llamafactory.data.converter import SharegptDatasetConverter  # noqa: E402
from llamafactory.data.parser import get_dataset_list  # noqa: E402


def main(folder: Path, recipes: list[str]) -> None:
    found = {}
    for recipe in recipes:
        place = folder / f"{recipe}-llama-factory"
        (entry,) = get_dataset_list(["train"], str(place))
        convert = SharegptDatasetConverter(entry, SimpleNamespace(media_dir="."))
        data = load_dataset(
            "json", data_files=str(place / entry.dataset_name), split="train", cache_dir=tempfile.mkdtemp()
        )
        rows = [convert(row) for row in data]
        found[recipe] = {
            "rows": len(rows),
            "kept": sum(1 for row in rows if row["_prompt"] and row["_response"]),
            "sides": sorted({len(row["_response"]) for row in rows}),
            "numbers": any(
                "6.674e-11" in turn["content"] for row in rows for turn in row["_prompt"] + row["_response"]
            ),
            "tools": any("[0.3, 0.6]" in row["_tools"] for row in rows),
        }
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]), sys.argv[2:])
