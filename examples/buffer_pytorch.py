"""Train a tiny policy from an experience buffer with plain PyTorch: claim, update, acknowledge.

Kill it at any moment and start it again: what was not acknowledged comes back, what was acknowledged does not.

    pip install 'rollforge' torch
    python examples/buffer_pytorch.py
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import torch

from rollforge.buffer import Batch, Experience, open_buffer
from rollforge.metrics import TrainerBatch, trainer_metrics
from rollforge.operators.chain import pipeline_from_config
from rollforge.sinks.base import SinkOptions, open_sinks

VOCABULARY, TASKS, GROUP = 12, 32, 8


def make_experiences(version: int) -> list[Experience]:
    """Rollouts of a policy that answers with one token; token 7 is right. Yours come from `rollforge collect`."""
    chance = random.Random(version)
    made = []
    for task in range(TASKS):
        for run in range(GROUP):
            token = chance.randrange(VOCABULARY)
            made.append(
                Experience(
                    id=f"{version}/{task}/{run}",
                    task=f"{version}/{task}",
                    run=f"{version}/{task}/{run}",
                    reward=float(token == 7),
                    model_version=version,
                    fidelity="exact",
                    tokens=np.array([0, token], dtype=np.int32),
                    prompt_length=1,
                    mask=np.array([True]),
                    logprobs=np.array([-np.log(VOCABULARY)], dtype=np.float32),
                )
            )
    return made


def update(policy: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
    """One policy-gradient step, and the metrics of its batch."""
    tokens = torch.tensor(np.stack([e.tokens for e in batch.experiences]), dtype=torch.long)
    advantages = torch.tensor([e.advantage or 0.0 for e in batch.experiences])
    logprobs = torch.log_softmax(policy(tokens[:, 0]), dim=-1).gather(1, tokens[:, 1:])
    loss = -(advantages[:, None] * logprobs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return trainer_metrics(
        TrainerBatch(
            prompt_lengths=[1] * len(batch),
            response_lengths=[1] * len(batch),
            rewards=[e.reward or 0.0 for e in batch.experiences],
            advantages=advantages[:, None],
            old_logprobs=np.stack([e.logprobs for e in batch.experiences]),
            logprobs=logprobs,
        )
    )


def main(folder: Path) -> float:
    """Fill a buffer, train from it, log every step; returns the trained policy's chance of the right token."""
    torch.manual_seed(0)
    policy = torch.nn.Embedding(VOCABULARY, VOCABULARY)
    torch.nn.init.zeros_(policy.weight)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.5)
    pipeline = pipeline_from_config(
        [{"use": "zero_signal_filter"}, {"use": "group_advantages", "method": "grpo"}]
    )
    sinks = open_sinks(["jsonl", "console"], SinkOptions(directory=folder))
    with open_buffer(folder / "buffer.db", capacity=10_000) as buffer, sinks:
        for version in range(4):
            kept, metrics = pipeline.run(make_experiences(version))
            buffer.append(kept)
            sinks.log(metrics, step=version)
        buffer.finish()
        step = 0
        while batch := buffer.claim(64, sampler="uniform", version=4):
            numbers = update(policy, optimizer, batch)
            buffer.acknowledge(batch)
            sinks.log(numbers | batch.metrics(), step=step)
            step += 1
    with torch.no_grad():
        return float(torch.softmax(policy(torch.tensor([0])), dim=-1)[0, 7])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(f"chance of the right token after training: {main(Path(place)):.2f}")
