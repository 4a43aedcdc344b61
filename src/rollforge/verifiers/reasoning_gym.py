"""Rewards answers to reasoning-gym's generated tasks, by each task family's own scorer.

A row carries its family's name and entry under `verifier_metadata.reasoning_gym`, as `tasks(name, count, seed)` writes it. The answer
is the content of the last `<answer>` tags, or of the last `\\boxed{}`, or else the whole text.

A scorer that raises is a failure to judge. Some families' scorers give part of the reward for nonsense, and one gives all of it for
any text; the probes of `rollforge verify --probe` show it. Extra: `reasoning-gym`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields, Response, Task, from_json
from rollforge.registry import did_you_mean
from rollforge.verifiers.building_blocks.verdict_fields import AnswerVerdictJson
from rollforge.verifiers.exact import last_boxed

needs = ("verifier_metadata.reasoning_gym",)

ASK = "Give your final answer between <answer> and </answer>."
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym:
    """Judges with the scorer of the row's task family."""

    def __init__(self) -> None:
        _library()

    def verify(self, task: Task, response: Response) -> AnswerVerdictJson:
        source = (task.get("verifier_metadata") or {}).get("reasoning_gym")
        if not isinstance(source, dict) or "name" not in source or "entry" not in source:
            raise ValueError("the task has no verifier_metadata.reasoning_gym with name and entry")
        answer = extracted(response.text)
        score = float(_scorer(str(source["name"])).score_answer(answer or None, entry=source["entry"]))
        if not math.isfinite(score):
            raise ValueError(f"the scorer of {source['name']} gave {score}")
        return {"reward": score, "extracted_answer": answer[:1000]}


def tasks(name: str, count: int, seed: int = 0, **config: Any) -> Iterator[JsonFields]:
    """`count` task rows of one family, determined by the seed.

    Args:
        name: The family, as reasoning-gym calls it: `gcd`, `chain_sum`, …
        config: The family's own settings.
    """
    library = _library()
    _known(name)
    try:
        entries = library.create_dataset(name, size=count, seed=seed, **config)
    except (TypeError, ValueError, AssertionError) as error:  # how its config classes refuse a setting
        raise UsageError(
            f"reasoning-gym refuses the settings of {name}: {error}",
            hint=f"see them: python -c 'import reasoning_gym; print(reasoning_gym.create_dataset(\"{name}\").config)'",
        ) from error
    for number, entry in enumerate(entries):
        plain = from_json(
            msgspec.json.encode(entry, enc_hook=_plain)
        )  # as it will be when read from the file
        yield {
            "responses_create_params": {
                "input": [{"role": "user", "content": f"{plain['question']}\n\n{ASK}"}]
            },
            "expected_answer": plain.get("answer"),
            "verifier_metadata": {
                "reasoning_gym": {"name": name, "seed": seed, "index": number, "entry": plain}
            },
        }


def names() -> list[str]:
    """Names of all families."""
    from reasoning_gym.factory import DATASETS

    _library()
    return sorted(DATASETS)


def extracted(text: str) -> str:
    """The extracted answer for the scorer."""
    tagged = _TAGS.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


@lru_cache(maxsize=256)
def _scorer(name: str) -> Any:
    _known(name)
    return _library().create_dataset(name, size=1, seed=0)


def _known(name: str) -> None:
    if name not in names():
        raise UsageError(
            f"reasoning-gym has no tasks {name!r}{did_you_mean(name, names())}",
            hint="see them all: python -c 'from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))'",
        )


def _library() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UsageError(
            "the reasoning_gym verifier needs the package reasoning-gym",
            hint="pip install 'rollforge[reasoning-gym]'",
        ) from error
    return reasoning_gym


def _plain(value: Any) -> Any:
    """A value as JSON data: numpy numbers and arrays as numbers and lists, other types as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
