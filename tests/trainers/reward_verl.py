"""verl's own reward manager with rollforge's adapter, configured as the dataset card says. Prints the scores as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tiny
import torch
import verl.trainer
from hydra import compose, initialize_config_dir
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

from rollforge.rewards import adapter_path


def configuration(words: list[str]):
    """The trainer's configuration with the words of its command line."""
    folder = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=words)


def item(row: dict, text: str, tokenizer) -> DataProto:
    """One answer as verl's rollout hands it to the reward manager."""
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"] or [0]])
    batch = {"responses": ids, "attention_mask": torch.ones_like(ids)}
    others = {
        name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")
    }
    return DataProto.from_dict(tensors=batch, non_tensors=others)


async def score(place: Path, answers: dict[str, list[str]], words: list[str]) -> list[dict]:
    tokenizer = tiny.tokenizer()
    manager = load_reward_manager(configuration(words), tokenizer)
    jobs = [
        manager.run_single(item(row, text, tokenizer))
        for row in pq.read_table(place / "train.parquet").to_pylist()
        for text in answers[row["extra_info"]["task_id"]]
    ]
    return await asyncio.gather(*jobs)


def main(folder: Path) -> None:
    place = folder / "grpo-verl"
    answers = json.loads((folder / "answers.json").read_text())
    prefix = "reward.custom_reward_function"
    path = f"{prefix}.path={adapter_path('verl')}"
    words = json.loads((folder / "words.json").read_text())  # those of the card, as the shell expands them
    found = {
        name: asyncio.run(score(place, answers, [*words, f"{prefix}.name={name}"]))
        for name in ("compute_score", "compute_score_async")
    }
    verifier = f"{Path(__file__).parent / 'silent_verifier.py'}:verify"
    silent = [path, f"+{prefix}.reward_kwargs.verifier={verifier}"]
    try:
        asyncio.run(score(place, answers, silent))
        found["raised"] = None
    except Exception as error:  # noqa: BLE001  (what ends the job is the finding)
        found["raised"] = f"{type(error).__name__}: {error}"
    said = [*silent, f"+{prefix}.reward_kwargs.on_unjudged='value=0'"]
    found["said"] = asyncio.run(score(place, answers, said))[:3]
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
