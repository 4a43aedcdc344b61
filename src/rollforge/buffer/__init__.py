"""A durable buffer of experiences between producers and trainers.

```python
from rollforge.buffer import open_buffer

buffer = open_buffer("runs/buffer.db", capacity=50_000)
while batch := buffer.claim(64, sampler="staleness", version=step, timeout=600):
    loss = update(batch.experiences)           # your training step
    buffer.acknowledge(batch)                  # from here on nobody sees these again
    log(batch.metrics() | {"actor/loss": loss})
    step += 1
```

SQLite by default, PostgreSQL by URL (`postgresql://…`) when several machines share it. A claimed batch that is not acknowledged
is served again when its claimant dies or its lease runs out; an acknowledged one never is.
"""

from __future__ import annotations

from rollforge.buffer.batch import Batch, BufferFull, BufferOptions, LeaseLost
from rollforge.buffer.buffer import Buffer, open_buffer
from rollforge.buffer.mixture import Mixture
from rollforge.buffer.samplers import SAMPLERS, Sampler
from rollforge.experience import Experience

__all__ = [
    "SAMPLERS",
    "Batch",
    "Buffer",
    "BufferFull",
    "BufferOptions",
    "Experience",
    "LeaseLost",
    "Mixture",
    "Sampler",
    "open_buffer",
]
