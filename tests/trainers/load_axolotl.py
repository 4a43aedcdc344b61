"""Runs Axolotl's own prompt strategies on the prepared folders below the one given; prints what they saw as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import tiny
from axolotl.prompt_strategies.chat_template import StrategyLoader
from axolotl.prompt_strategies.dpo.chat_template import default
from axolotl.utils.dict import DictDefault
from datasets import load_dataset


def load(place: Path):
    return load_dataset(
        "json", data_files=str(place / "train.jsonl"), split="train", cache_dir=tempfile.mkdtemp()
    )


def main(folder: Path) -> None:
    found = {}
    tokenizer = tiny.tokenizer("qwen3")
    cfg = DictDefault(
        {
            "train_on_inputs": False,
            "sequence_len": 8192,
            "chat_template": "tokenizer_default",
            "datasets": [{"chat_template": "tokenizer_default"}],
        }
    )
    dataset = DictDefault(
        {"field_messages": "messages", "field_tools": "tools", "chat_template": "tokenizer_default"}
    )
    strategy = StrategyLoader()(tokenizer, cfg, dataset)
    rows = [strategy.tokenize_prompt(row) for row in load(folder / "sft-axolotl")]
    texts = [tokenizer.decode(row["input_ids"]) for row in rows]
    found["sft"] = {
        "rows": len(rows),
        "numbers": any("6.674e-11" in text for text in texts) and any('"at": 0.3' in text for text in texts),
    }
    transform = default(cfg)
    transform = transform[0] if isinstance(transform, tuple) else transform
    pairs = [transform(row, tokenizer=tokenizer) for row in load(folder / "dpo-axolotl")]
    found["dpo"] = {"rows": len(pairs), "differ": all(pair["chosen"] != pair["rejected"] for pair in pairs)}
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
