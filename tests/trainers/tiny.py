"""A tokenizer trained here and a model with random weights: small enough for two optimiser steps in a second."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

torch.set_num_threads(1)
torch.manual_seed(0)


def template(name: str) -> str:
    """A real chat template, as TRL ships it."""
    return (
        Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    ).read_text()


def tokenizer(template_name: str = "qwen3") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made.train_from_iterator(
        ["user assistant question answer tool"],
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=100_000
    )
    fast.chat_template = template(template_name)
    return fast


def model(kind: str = "causal") -> torch.nn.Module:
    """A transformer of one layer."""
    config = Qwen2Config(
        vocab_size=400, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0, eos_token_id=2, num_labels=1,
    )  # fmt: skip
    return Qwen2ForCausalLM(config) if kind == "causal" else Qwen2ForSequenceClassification(config)


def rows(path: Path) -> list[dict]:
    """The rows as they stand in the file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_nulls(value: object) -> object:
    """The value without keys that are null: what uniform keys add and mean nothing by."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
