"""Runs verl's own dataset classes on the prepared folders below the one given; prints what they saw as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import tiny
from omegaconf import OmegaConf
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.dataset.rm_dataset import RMDataset


def main(folder: Path) -> None:
    found = {}
    tokenizer = tiny.tokenizer("qwen2_5")
    config = OmegaConf.create({"max_length": 8192, "truncation": "error", "ignore_input_ids_mismatch": True})
    data = MultiTurnSFTDataset(str(folder / "sft-verl/train.parquet"), tokenizer, config)
    items = [data[i] for i in range(len(data))]
    trained = [tokenizer.decode(item["input_ids"][item["loss_mask"] == 1]) for item in items]
    found["sft"] = {"rows": len(items), "trained": trained}
    data = RMDataset(
        str(folder / "rm-verl/train.parquet"),
        tokenizer,
        "prompt",
        "chosen",
        "rejected",
        max_length=8192,
        cache_dir=tempfile.mkdtemp(),
    )
    found["rm"] = {"rows": len(data), "shape": list(data[0]["input_ids"].shape)}
    config = OmegaConf.create(
        {
            "prompt_key": "prompt",
            "max_prompt_length": 8192,
            "filter_overlong_prompts": True,
            "truncation": "error",
            "cache_dir": tempfile.mkdtemp(),
        }
    )
    data = RLHFDataset(str(folder / "grpo-verl/train.parquet"), tokenizer, config)
    rows = [data[i] for i in range(len(data))]
    found["grpo"] = {
        "rows": len(rows),
        "ground_truth": [row["reward_model"]["ground_truth"] for row in rows],
        "index": [row["index"] for row in rows],
        "roles": sorted({m["role"] for row in rows for m in row["raw_prompt"]}),
    }
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
