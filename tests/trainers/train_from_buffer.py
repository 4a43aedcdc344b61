"""Runs in the trainers' environment: the TRL example, on a tiny model, from a buffer made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tiny

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "examples"))

import buffer_trl  # noqa: E402  (found through the path above)

from rollforge.buffer import Experience, open_buffer  # noqa: E402

folder = Path(sys.argv[1])
tiny.tokenizer().save_pretrained(folder / "model")
tiny.model().save_pretrained(folder / "model")
with open_buffer(folder / "buffer.db") as buffer:
    buffer.append(
        Experience(
            id=str(i),
            task=str(i // 2),
            run=str(i),
            reward=float(i % 2),
            advantage=float(i % 2) - 0.5,
            messages=[{"role": "user", "content": f"question {i // 2}", "type": "message"}],
            response=f"answer {i}",
        )
        for i in range(16)
    )
buffer_trl.main(str(folder / "buffer.db"), str(folder / "model"), str(folder / "out"))
with open_buffer(folder / "buffer.db") as buffer:
    counters = buffer.counters()
lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
print(
    "RESULT",
    json.dumps(
        {"counters": counters, "steps": [line["step"] for line in lines], "first": lines[0]["metrics"]}
    ),
)
