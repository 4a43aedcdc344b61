"""OpenRLHF's own remote reward path with the file that `rollforge rewards --write openrlhf` prints. Prints JSON.

The executor is OpenRLHF's; the engine behind it answers with the collected texts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import tiny
from openrlhf.utils.agent import SingleTurnAgentExecutor


class Engine:
    """An engine that gives the next of the answers."""

    def __init__(self, answers: list[list[int]]) -> None:
        self._answers = iter(answers)

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        made = SimpleNamespace(token_ids=next(self._answers), finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[made])


async def rewards(file: Path, place: Path, answers: dict[str, list[str]]) -> list[dict]:
    tokenizer = tiny.tokenizer()
    executor = SingleTurnAgentExecutor(str(file))
    found = []
    sampling = SimpleNamespace(max_tokens=64, logprobs=None)
    for row in tiny.rows(place / "train.jsonl"):
        prompt = tokenizer.apply_chat_template(row["input"], tokenize=False, add_generation_prompt=True)
        texts = answers[row["task_id"]]
        ended = [tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in texts]
        engine = Engine(ended)
        for _ in texts:
            made = await executor.execute(prompt, row["label"], sampling, 100_000, tokenizer, engine)
            found.append({key: made[key] for key in ("reward", "scores", "extra_logs")})
    return found


def main(folder: Path) -> None:
    answers = json.loads((folder / "answers.json").read_text())
    place = folder / "ppo-openrlhf"
    found = {"rewards": asyncio.run(rewards(place / "reward.py", place, answers))}
    try:
        found["stopped"] = asyncio.run(rewards(folder / "silent.py", place, answers))
    except BaseException as error:  # noqa: BLE001  (what ends the job is the finding)
        found["stopped"] = f"{type(error).__name__}: {error}"
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]))
