"""Runs the cards of OpenRLHF, Axolotl and LLaMA-Factory up to the first batch: the trainer's own parser, config and loader.

Given a folder of prepared datasets, named RECIPE-EXPORTER. The lines are used as printed; what a card leaves to the reader (the model,
the template) is filled in with a tiny model. Prints the rows that each trainer is about to train on, as JSON.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

os.environ |= {
    "DISABLE_VERSION_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "AXOLOTL_DO_NOT_TRACK": "1",
}
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()

import tiny

ABSENT = (
    "deepspeed",
    "flash_attn",
    "vllm",
    "torchaudio",
    "bitsandbytes",
    "liger_kernel",
    "ring_flash_attn",
    "aiohttp",
    "torchdata",
    "posthog",
    "numba",
)
"""Packages that need a GPU or do not concern text; the trainers import them before they read data."""


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.partition(".")[0] in ABSENT
            else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> MagicMock:
        made = MagicMock(name=spec.name)
        made.__spec__, made.__path__, made.__version__ = spec, [], "99.0"
        return made

    def exec_module(self, module: object) -> None:
        pass


class Loaded(Exception):
    """The data is loaded: training would begin."""

    def __init__(self, data: object) -> None:
        self.data = data


def block(place: Path, language: str) -> str:
    """The card's block of a language, as printed."""
    return re.search(
        rf"```{language}\n(.*?)```", (place / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )[1]


def run_openrlhf(place: Path) -> int:
    """The command of the card under OpenRLHF's own parser; its model and its processes are left out."""
    import openrlhf.datasets
    import openrlhf.models
    import openrlhf.utils

    line = next(line for line in block(place, "sh").splitlines() if line.startswith("python -m openrlhf"))
    _, _, module, *words = shlex.split(line)
    tokenizer = tiny.tokenizer("qwen2_5")
    openrlhf.models.Actor = openrlhf.models.get_llm_for_sequence_regression = MagicMock()
    openrlhf.utils.get_tokenizer = lambda *_, **__: tokenizer
    openrlhf.utils.get_strategy = Strategy
    ray = sys.modules.get("ray") or __import__("ray")
    ray.is_initialized = lambda: True  # no cluster for the sake of a parser
    for name in ("SFTDataset", "RewardDataset"):
        kind = getattr(openrlhf.datasets, name)
        if not hasattr(kind, "is_watched"):
            setattr(
                openrlhf.datasets, name, type(name, (kind,), {"__init__": _watched(kind), "is_watched": True})
            )
    sys.argv = [
        module,
        *words,
        "--actor.model_name_or_path" if "ppo" in module else "--model.model_name_or_path",
        "tiny",
    ]
    try:
        runpy.run_module(module, run_name="__main__")
    except Loaded as loaded:
        return len(loaded.data)
    raise AssertionError("it ended before it had loaded data")


def _watched(kind: type):
    def __init__(self, *words: object, **options: object) -> None:
        kind.__init__(self, *words, **options | {"num_processors": None})
        self[0]
        raise Loaded(self)

    return __init__


class Strategy:
    """What the commands ask of a training strategy before they train."""

    def __init__(self, args: object) -> None:
        self.args = args
        if hasattr(args.data, "prompt_dataset"):
            from openrlhf.datasets import PromptDataset
            from openrlhf.datasets.utils import blending_datasets

            rows = blending_datasets(  # as `prepare_datasets` of the PPO trainer, which runs inside Ray
                args.data.prompt_dataset, args.data.prompt_probs, self, args.train.seed,
                max_count=args.data.max_samples, dataset_split=args.data.prompt_split,
            )  # fmt: skip
            template = args.data.input_template
            raise Loaded(PromptDataset(rows, tiny.tokenizer("qwen2_5"), self, input_template=template))

    def is_rank_0(self) -> bool:
        return True

    def print(self, *words: object) -> None:
        pass

    def setup_distributed(self) -> None:
        pass

    def get_ds_train_config(self, *_: object, **__: object) -> None:
        pass

    get_ds_eval_config = get_ds_train_config


def save_model() -> str:
    folder = tempfile.mkdtemp()
    tiny.model().save_pretrained(folder)
    tiny.tokenizer("qwen3").save_pretrained(folder)
    return folder


def run_axolotl(place: Path) -> int:
    """The config of the card, and a model: what `axolotl train` loads."""
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets, load_preference_datasets

    config = block(place, "yaml")
    more = {
        "base_model": save_model(), "micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "learning_rate": 1e-4,
        "sequence_len": 4096, "chat_template": "tokenizer_default", "dataset_prepared_path": tempfile.mkdtemp(),
        "output_dir": tempfile.mkdtemp(), "val_set_size": 0, "dataset_num_proc": 1,
    }  # fmt: skip
    path = place / "config.yaml"
    path.write_text(config + "".join(f"{key}: {value}\n" for key, value in more.items()))
    cfg = load_cfg(str(path))
    load = load_preference_datasets if cfg.rl else load_datasets
    return len(load(cfg=cfg, cli_args=TrainerCliArgs()).train_dataset)


def run_llama_factory(place: Path) -> int:
    """The config of the card, and a model: what `llamafactory-cli train` loads."""
    import yaml
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from transformers import AutoTokenizer

    config = yaml.safe_load(block(place, "yaml").replace("YOUR_TEMPLATE", "qwen"))
    model, data, training, finetuning, _ = get_train_args(
        config
        | {
            "model_name_or_path": save_model(),
            "output_dir": tempfile.mkdtemp(),
            "do_train": True,
            "report_to": "none",
        }
    )
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path)
    template = get_template_and_fix_tokenizer(tokenizer, data)
    stage = {"dpo": "rm"}.get(finetuning.stage, finetuning.stage)
    return len(
        get_dataset(template, model, data, training, stage=stage, tokenizer=tokenizer)["train_dataset"]
    )


RUNS = {"openrlhf": run_openrlhf, "axolotl": run_axolotl, "llama-factory": run_llama_factory}


def main(folder: Path, exporter: str) -> None:
    sys.meta_path.append(_Absent())
    found: dict[str, object] = {}
    for place in sorted(folder.glob(f"*-{exporter}")):
        os.chdir(place)
        try:
            found[place.name] = RUNS[exporter](place)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the card does wrong is the finding)
            found[place.name] = f"{type(error).__name__}: {error}"[:600]
    print("RESULT " + json.dumps(found))


main(Path(sys.argv[1]), sys.argv[2])
