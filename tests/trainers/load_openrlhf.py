"""Runs OpenRLHF's own dataset classes on the prepared folders below the one given; prints what they saw as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import tiny
from datasets import load_dataset
from openrlhf.datasets.prompts_dataset import PromptDataset
from openrlhf.datasets.reward_dataset import RewardDataset
from openrlhf.datasets.sft_dataset import SFTDataset


def strategy(**keys: object) -> SimpleNamespace:
    """What the dataset classes ask of a training strategy."""
    return SimpleNamespace(
        args=SimpleNamespace(data=SimpleNamespace(apply_chat_template=True, **keys)), is_rank_0=lambda: False
    )


def load(place: Path):
    return load_dataset(
        "json", data_files=str(place / "train.jsonl"), split="train", cache_dir=tempfile.mkdtemp()
    )


def main(folder: Path) -> None:
    found = {}
    tokenizer = tiny.tokenizer("qwen2_5")
    data = SFTDataset(
        load(folder / "sft-openrlhf"),
        tokenizer,
        8192,
        strategy(input_key="messages"),
        multiturn=True,
        num_processors=None,
    )
    found["sft"] = {"rows": len(data), "masked": int(data[0][2].sum())}
    keys = {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}
    for recipe in ("dpo", "rm"):
        rows = load(folder / f"{recipe}-openrlhf")
        data = RewardDataset(
            rows, tokenizer, 8192, strategy(**keys), is_dpo=recipe == "dpo", num_processors=None
        )
        found[recipe] = {
            "rows": len(data),
            "differ": all(
                not (data[i][0].shape == data[i][2].shape and bool((data[i][0] == data[i][2]).all()))
                for i in range(len(data))
            ),
            "extra": [float(data[i][4]) for i in range(len(data))] if recipe == "rm" else [],
        }
    data = PromptDataset(
        load(folder / "ppo-openrlhf"), tokenizer, strategy(input_key="input", label_key="label")
    )
    found["ppo"] = {"rows": len(data), "labels": list(data.labels), "prompt": data.prompts[0]}
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
