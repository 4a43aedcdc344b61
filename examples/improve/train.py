"""Trains the model on CPU with TRL: train.py sft|dpo|grpo DATASET MODEL OUT [SEED] [STEPS].

DATASET is a folder that `rollforge prepare … --to trl` wrote. GRPO makes its own answers, and rollforge's verifier, read from the
dataset's manifest, is their reward.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

LONGEST_ANSWER = 32


def idle_cores() -> int:
    """Threads that wait for each other on a busy core make a step twenty times slower."""
    cores = os.cpu_count() or 1
    return int(os.environ.get("THREADS", 0)) or max(1, round(cores - os.getloadavg()[0]))


def settings(out: str, seed: int, steps: int, **more: Any) -> dict[str, Any]:
    shared = {
        "output_dir": f"{out}.log",
        "seed": seed,
        "max_steps": steps,
        "use_cpu": True,
        "report_to": "none",
    }
    shared |= {
        "save_strategy": "no",
        "logging_steps": 10,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 3,
    }
    return {**shared, "gradient_checkpointing": False, "bf16": False, **more}


def trainer_of(recipe: str, rows: Any, model: Any, tokenizer: Any, out: str, seed: int, steps: int) -> Any:
    shared = {"model": model, "train_dataset": rows, "processing_class": tokenizer}
    if recipe == "sft":
        from trl import SFTConfig, SFTTrainer

        options = settings(out, seed, steps or 20, per_device_train_batch_size=8, learning_rate=5e-5)
        return SFTTrainer(args=SFTConfig(**options, max_length=128), **shared)
    if recipe == "dpo":
        from trl import DPOConfig, DPOTrainer

        options = settings(out, seed, steps or 20, per_device_train_batch_size=4, learning_rate=1e-5)
        return DPOTrainer(args=DPOConfig(**options, max_length=128, beta=0.1), **shared)
    from trl import GRPOConfig, GRPOTrainer

    from rollforge.rewards import Reward

    options = settings(out, seed, steps or 16, per_device_train_batch_size=16, learning_rate=2e-5)
    config = GRPOConfig(
        **options, num_generations=8, max_completion_length=LONGEST_ANSWER, temperature=0.8, beta=0.0
    )
    judge = Reward.from_dataset(sys.argv[2])
    return GRPOTrainer(args=config, reward_funcs=[judge], **shared)


def main(recipe: str, dataset: str, base: str, out: str, seed: int = 0, steps: int = 0) -> None:
    torch.set_num_threads(idle_cores())
    rows = load_dataset("json", data_files=f"{dataset}/train.jsonl", split="train").shuffle(seed=seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(base)
    trainer = trainer_of(recipe, rows, model, tokenizer, out, seed, steps)
    trainer.train()
    trainer.save_model(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:5], *(int(word) for word in sys.argv[5:7]))
