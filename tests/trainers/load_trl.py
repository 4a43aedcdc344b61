"""Runs TRL on the prepared folders below the one given: two real optimiser steps each; prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import tiny
from datasets import load_dataset
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

STEPS = {
    "max_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "save_strategy": "no",
    "logging_steps": 1, "disable_tqdm": True, "gradient_checkpointing": False, "bf16": False,
}  # fmt: skip


def train(recipe: str, data, out: str):
    common = {"output_dir": out, **STEPS}
    tokenizer = tiny.tokenizer()
    if recipe == "sft":
        config = SFTConfig(**common, max_length=None)
        return SFTTrainer(tiny.model(), config, train_dataset=data, processing_class=tokenizer)
    if recipe == "dpo":
        return DPOTrainer(
            tiny.model(),
            ref_model=tiny.model(),
            args=DPOConfig(**common, max_length=None),
            train_dataset=data,
            processing_class=tokenizer,
        )
    if recipe == "kto":
        return KTOTrainer(
            tiny.model(),
            ref_model=tiny.model(),
            args=KTOConfig(**common, max_length=None),
            train_dataset=data,
            processing_class=tokenizer,
        )
    if recipe == "rm":
        return RewardTrainer(
            tiny.model("score"),
            args=RewardConfig(**common, max_length=None),
            train_dataset=data,
            processing_class=tokenizer,
        )
    config = GRPOConfig(**common, num_generations=2, max_completion_length=4, shuffle_dataset=False)

    def reward(completions, ground_truth, difficulty, **_):
        assert all(isinstance(truth, str) for truth in ground_truth)
        return [float(len(str(completion)) % 3) for completion in completions]

    return GRPOTrainer(
        tiny.model(), reward_funcs=reward, args=config, train_dataset=data, processing_class=tokenizer
    )


def main(folder: Path, recipes: list[str]) -> None:
    found = {}
    for recipe in recipes:
        place = folder / f"{recipe}-trl"
        data = load_dataset(
            str(place), cache_dir=tempfile.mkdtemp()
        )  # by folder: the card says which files are data
        written = tiny.rows(place / "train.jsonl")
        loaded = [data["train"][i] for i in range(len(written))]
        result = {
            "splits": {name: len(split) for name, split in data.items()},
            "exact": [tiny.without_nulls(row) for row in loaded]
            == [tiny.without_nulls(row) for row in written],
        }
        with tempfile.TemporaryDirectory() as out:
            trainer = train(recipe, data["train"], out)
            result["prepared"] = len(trainer.train_dataset)
            trainer.train()
            result["steps"] = trainer.state.global_step
            result["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found[recipe] = result
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]), sys.argv[2:])
