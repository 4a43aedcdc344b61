"""Runs the Python lines of the cards below the folder given, as printed but for the model and the length of training.

The model is a tiny one whose chat template has no generation markers, as SmolLM2's. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import tiny

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHORT = (
    "max_steps=1, report_to=[], use_cpu=True, save_strategy='no', disable_tqdm=True, gradient_checkpointing=False, "
    "bf16=False, logging_steps=1, "
)


def save_models(folder: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    for kind in ("causal", "score"):
        tiny.model(kind).save_pretrained(folder / kind)
        tokenizer.save_pretrained(folder / kind)


def main(folder: Path) -> None:
    models = Path(tempfile.mkdtemp())
    os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
    save_models(models)
    found = {}
    for place in sorted(path.parent for path in folder.glob("*/manifest.json")):
        recipe = place.name.partition("-")[0]
        os.chdir(place)
        card = (place / "README.md").read_text(encoding="utf-8")
        lines = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
        sampling = "num_generations=2, max_completion_length=4, " if recipe in ("ppo", "grpo") else ""
        batch = "per_device_train_batch_size=2, "
        lines = lines.replace("YOUR_MODEL", str(models / ("score" if recipe == "rm" else "causal")))
        lines = lines.replace('output_dir="out"', f'output_dir="out", {SHORT}{batch}{sampling}'.rstrip(", "))
        names: dict = {}
        try:
            exec(lines, names)
            trainer = names["trainer"]
            found[place.name] = {"steps": trainer.state.global_step, "trained": trained(trainer, recipe)}
        except Exception as error:  # noqa: BLE001  (whatever the card does wrong is the finding)
            found[place.name] = {"error": f"{type(error).__name__}: {error}"}
    print("RESULT " + json.dumps(found))


def trained(trainer, recipe: str) -> list[str]:
    """The texts that the loss of an SFT trainer is over."""
    if recipe != "sft":
        return []
    batch = next(iter(trainer.get_train_dataloader()))
    return [
        trainer.processing_class.decode([token for token in labels.tolist() if token != -100])
        for labels in batch["labels"]
    ]


main(Path(sys.argv[1]))
