"""A trainer callback that logs a Hugging Face or TRL trainer's metrics under rollforge's names.

Values stay as they are; names become rollforge's (`reward` → `critic/rewards/mean`), and names without a counterpart go under
`training/`. transformers is imported only when a callback is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollforge.errors import UsageError
from rollforge.metrics.moments import plain_number

NAMES = {
    "reward": "critic/rewards/mean",
    "reward_std": "critic/rewards/std",
    "frac_reward_zero_std": "critic/frac_reward_zero_std",
    "loss": "actor/loss",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "clip_ratio": "actor/pg_clipfrac",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "clip_ratio/low_mean": "actor/pg_clipfrac_low",
    "clip_ratio/high_mean": "actor/pg_clipfrac_high",
    "completions/mean_length": "response_length/mean",
    "completions/max_length": "response_length/max",
    "completions/min_length": "response_length/min",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "completion_length": "response_length/mean",
    "num_tokens": "perf/total_num_tokens",
    "step_time": "time/step",
}
"""TRL's names → ours. `completions/clipped_ratio` is a true truncation rate, so it may become our truncation metric."""

Log = Callable[[Mapping[str, float], int], None]


def rename_trl(logs: Mapping[str, Any]) -> dict[str, float]:
    """A trainer's log with rollforge's names, without values that are not numbers."""
    renamed: dict[str, float] = {}
    for name, value in logs.items():
        number = plain_number(value)
        if number is None:
            continue
        if name.startswith("rewards/"):
            renamed[f"critic/{name}"] = number
        else:
            renamed[NAMES.get(name, f"training/{name}")] = number
    return renamed


def trl_callback(log: Log) -> Any:
    """A callback for `Trainer(callbacks=[…])` that hands every log to `log(metrics, step)`.

    ```python
    with open_sinks(["jsonl", "tensorboard"], SinkOptions(directory=out)) as sinks:
        trainer = GRPOTrainer(…, callbacks=[trl_callback(lambda metrics, step: sinks.log(metrics, step=step))])
    ```
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise UsageError("a trainer's callback needs transformers", hint="pip install trl") from error

    class RollforgeCallback(TrainerCallback):  # type: ignore[misc]
        """Passes the trainer's log on under rollforge's names."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs:
                log(rename_trl(logs), int(state.global_step))

    return RollforgeCallback()
