"""Train with TRL from an experience buffer: the answers that beat their group become SFT data, batch by batch.

The trainer's own log goes to rollforge's sinks through a callback, under the names every other metric has.

    pip install 'rollforge' trl
    rollforge collect -i tasks.jsonl -o runs/first -m MODEL --base-url URL --verifier math -k 8
    rollforge experiences runs/first --pipeline pipeline.toml --buffer runs/buffer.db
    python examples/buffer_trl.py runs/buffer.db MODEL out/
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rollforge.buffer import Buffer, open_buffer
from rollforge.metrics import trl_callback
from rollforge.sinks.base import SinkOptions, open_sinks

BATCH = 256


def rows(buffer: Buffer) -> Iterator[dict[str, object]]:
    """Prompt and answer of every experience with a positive advantage; a batch is acknowledged when all of it was given."""
    while batch := buffer.claim(BATCH, timeout=0, partial=True):
        for experience in batch.experiences:
            if (experience.advantage or 0.0) > 0:
                prompt = [
                    {"role": m["role"], "content": m["content"]} for m in experience.messages if "role" in m
                ]
                yield {
                    "prompt": prompt,
                    "completion": [{"role": "assistant", "content": experience.response}],
                }
        buffer.acknowledge(batch)


def main(place: str, model: str, out: str) -> None:
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    has_gpu = torch.cuda.is_available()
    sinks = open_sinks(["jsonl", "console"], SinkOptions(directory=Path(out)))
    with open_buffer(place) as buffer, sinks:
        trainer = SFTTrainer(
            model=model,
            train_dataset=Dataset.from_list(list(rows(buffer))),
            args=SFTConfig(
                out, num_train_epochs=1, logging_steps=1, report_to="none", bf16=has_gpu, use_cpu=not has_gpu
            ),
            callbacks=[trl_callback(lambda metrics, step: sinks.log(metrics, step=step))],
        )
        trainer.train()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/buffer_trl.py BUFFER MODEL OUT")
    main(*sys.argv[1:])
