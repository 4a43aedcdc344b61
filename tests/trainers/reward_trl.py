"""TRL's own trainers with rollforge's reward: collected answers through its reward path, then real steps. Prints JSON.

Arguments: the folder with `grpo-trl`, `ppo-trl` and `answers.json` (one list of answers per prompt, in the order of the rows).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import tiny
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from rollforge.rewards import reward

SHORT = {
    "max_steps": 2,
    "report_to": [],
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 4,
}


def refuse_short(task, response) -> float | None:
    """Cannot judge every answer: None for some."""
    return None if len(response.text) % 2 else 1.0


def main(folder: Path) -> None:
    os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
    answers = json.loads((folder / "answers.json").read_text())
    found: dict = {}
    saved = tempfile.mkdtemp()  # RLOO loads its reference model from a path
    tiny.model().save_pretrained(saved)
    tiny.tokenizer().save_pretrained(saved)
    for recipe, kind, config in (("grpo", GRPOTrainer, GRPOConfig), ("ppo", RLOOTrainer, RLOOConfig)):
        place = folder / f"{recipe}-trl"
        data = load_dataset("json", data_files={"train": str(place / "train.jsonl")})["train"]
        trainer = kind(
            model=saved,
            processing_class=tiny.tokenizer(),
            args=config(output_dir=tempfile.mkdtemp(), **SHORT),
            train_dataset=data,
            reward_funcs=[reward.from_dataset(place), reward(refuse_short, name="some")],
        )
        inputs, completions = [], []
        for row in data:
            for text in answers[row["task_id"]]:
                inputs.append(row)
                completions.append([{"role": "assistant", "content": text}])
        rewards = trainer._calculate_rewards(
            inputs, [row["prompt"] for row in inputs], completions, [[0]] * len(inputs)
        )
        trainer._pending_metrics.clear()
        result = trainer.train()
        log = trainer.state.log_history
        found[recipe] = {
            "rewards": rewards[:, 0].tolist(),
            "steps": result.global_step,
            "logged": [key for key in log[0] if "rollforge" in key or key.startswith("rewards/")],
            "unjudged": [entry["rollforge/unjudged"] for entry in log if "rollforge/unjudged" in entry],
            "loss": result.training_loss,
        }
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
