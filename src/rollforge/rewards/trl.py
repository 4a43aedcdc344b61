"""TRL: `reward("math")` is a reward function for GRPOTrainer and RLOOTrainer.

TRL leaves a reward of None out of the group's baseline and gives it no gradient, so an answer without a verdict is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rollforge.errors import UsageError
from rollforge.records import JsonFields
from rollforge.rewards.dataset_verifier import OnChange, read_dataset
from rollforge.rewards.scoring import RETRIES, UNJUDGED, Judgement, Scorer, ScorerOptions
from rollforge.rewards.trainer_rows import make_response, make_task
from rollforge.verifiers.base import Mode
from rollforge.verifiers.running.ready_verifier import Workers

_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")
"""Keyword arguments from TRL that are not columns of the row."""


class Reward:
    """A verifier as a TRL reward function: `reward_funcs=[reward("math")]`. It can be pickled and survives forks."""

    def __init__(
        self,
        verifier: str | Callable[..., Any],
        options: JsonFields | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        on_unjudged: str | float = "none",
        mode: Mode | None = None,
        workers: Workers = "auto",
        timeout_s: float = 60.0,
        retries: int = RETRIES,
        splits_reasoning: bool = False,
        name: str | None = None,
    ) -> None:
        """Make a reward function; the verifier starts at the first call.

        Args:
            verifier: A built-in verifier's name, `file.py:function`, `module:function`, or a function.
            options: Options of the verifier, as with --verifier-set.
            fields: Field that the verifier needs → column of the dataset, for datasets that rollforge did not prepare.
            on_unjudged: `none`, `retry-then-raise`, or `value=NUMBER`.
            workers: Worker processes; `auto` uses idle cores, 0 runs the verifier in this process without protection.
            timeout_s: Longest time for one verdict.
            retries: Further calls after one that failed.
            splits_reasoning: Take a leading <think>…</think> out of the answer, as a server with a reasoning parser does.
            name: The name in the trainer's log; by default the verifier's.
        """
        self.scorer = Scorer(
            ScorerOptions(
                verifier=verifier,
                options=options or {},
                mode=mode,
                workers=workers,
                timeout_s=timeout_s,
                retries=retries,
                on_unjudged=on_unjudged,
            )
        )
        self._fields = dict(fields or {})
        self._splits_reasoning = splits_reasoning
        self.__name__ = name or re.sub(r"\W+", "_", self.scorer.verifier.name).strip("_")

    @classmethod
    def from_dataset(cls, folder: str | Path, *, on_change: OnChange = "refuse", **options: Any) -> Self:
        """The verifier that judged a prepared dataset, with its options; nothing is configured twice.

        Args:
            folder: A folder written by `rollforge prepare`.
            on_change: Whether another fingerprint of the verifier is refused, or only warned about.
            options: Other arguments of `reward`, such as `timeout_s`.
        """
        dataset = read_dataset(folder, on_change=on_change)
        return cls(dataset.verifier, dataset.options, mode=dataset.mode, **options)

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        completion_ids: object = None,
        **columns: Any,
    ) -> list[float | None]:
        """Compute one reward per completion; None without a verdict."""
        if completions is None:
            raise UsageError(
                "no completions", hint="TRL calls reward functions with prompts=… and completions=…"
            )
        judgements = self.judge(prompts, completions, columns)
        log_metric = columns.get("log_metric")
        if callable(log_metric):
            log_metric(UNJUDGED, float(sum(not one.is_judged for one in judgements)))
        return [one.reward for one in judgements]

    def judge(
        self, prompts: Sequence[Any] | None, completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Judgement]:
        """Judge the completions; returns the full judgements behind the rewards."""
        rows = _rows(columns, len(completions))
        pairs = []
        for position, completion in enumerate(completions):
            prompt = prompts[position] if prompts is not None else None
            task = make_task(rows[position], prompt=prompt, fields=self._fields)
            self.scorer.check_fields(task)
            pairs.append((task, make_response(completion, splits_reasoning=self._splits_reasoning)))
        return self.scorer.score(pairs)

    def close(self) -> None:
        """Stop the verifier's worker processes."""
        self.scorer.close()


def _rows(columns: Mapping[str, Any], count: int) -> list[JsonFields]:
    """Rows from columns that are passed by name, with one value per completion."""
    row_columns = {
        name: values
        for name, values in columns.items()
        if name not in _NOT_COLUMNS and isinstance(values, Sequence) and not isinstance(values, str)
    }
    wrong = next((name for name, values in row_columns.items() if len(values) != count), None)
    if wrong is not None:
        raise UsageError(
            f"the column {wrong!r} has {len(row_columns[wrong])} values for {count} completions",
            hint="TRL passes one value per completion; set num_generations and the columns alike",
        )
    return [{name: values[position] for name, values in row_columns.items()} for position in range(count)]


reward = Reward
"""`reward("math")`, `reward.from_dataset(DIR)`."""
