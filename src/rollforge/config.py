"""This module assembles options: defaults < config file < environment < flags, and NeMo Gym's `+key=value` words.

An unknown key is an error with a suggestion. It reads files and variables; it does not run anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rollforge.errors import UsageError
from rollforge.records import JsonObject
from rollforge.registry import did_you_mean
from rollforge.store.reading import UNREADABLE

GYM_WORDS = {
    "input_jsonl_fpath": "--input",
    "output_jsonl_fpath": "--out",
    "limit": "--limit",
    "num_repeats": "--samples",
    "num_samples_in_parallel": "--concurrency",
    "prompt_config": "--prompt-template",
    "policy_model_name": "--model",
    "policy_base_url": "--base-url",
}
"""NeMo Gym's keys and the flags that mean the same."""

GYM_WITHOUT_MEANING = (
    "agent_name",
    "resume_from_cache",
    "config_paths",
    "policy_api_key",
    "disable_aggregation",
)
"""Keys that a NeMo Gym command line carries and that ask for nothing here: resuming is the default, agents need no server."""


_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?")
"""Numbers as people write them and JSON does not: .5 and 1."""


def translate_gym_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags for the `+key=value` words, and notes on the words that have no meaning here."""
    flags: list[str] = []
    notes: list[str] = []
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if not word.startswith("+") or not equals:
            flags.append(word)
        elif key in GYM_WORDS:
            flags += [GYM_WORDS[key], value]
        elif key.startswith("responses_create_params."):
            flags += ["--set", f"{key.removeprefix('responses_create_params.')}={value}"]
        elif key in GYM_WITHOUT_MEANING:
            notes.append(f"+{key} has no meaning here and was left out")
        else:
            known = [*GYM_WORDS, *GYM_WITHOUT_MEANING, "responses_create_params.…"]
            raise UsageError(
                f"+{key} is not understood{did_you_mean(key, known)}", hint="see rollforge collect --help"
            )
    return flags, notes


def parse_settings(words: Sequence[str]) -> JsonObject:
    """`key.path=value` words as one nested object; a value is JSON where it can be, else text."""
    settings: JsonObject = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path or any(not part for part in path.split(".")):
            raise UsageError(f"-S {word!r} is not understood", hint="write -S key=value or -S key.path=value")
        place = settings
        *parents, last = path.removeprefix("responses_create_params.").split(".")
        for part in parents:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"-S {word!r}: {part!r} was already given a plain value")
        place[last] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return float(text) if _NUMBER.fullmatch(text) else text


def read_config(path: str, *, tables: list[str]) -> JsonObject:
    """A config file: TOML, YAML or JSON by its ending; it may have these tables and nothing else."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{path}: no such file", hint="check --config")
    data = file.read_bytes()
    try:
        match file.suffix:
            case ".toml":
                import tomllib

                value: Any = tomllib.loads(data.decode())
            case ".json":
                value = msgspec.json.decode(data)
            case ".yaml" | ".yml":
                value = yaml.safe_load(data)
            case _:
                raise UsageError(
                    f"{path}: what kind of file is this?", hint="a config ends in .toml, .yaml or .json"
                )
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a table of settings", hint="for example: [collect]\\nsamples = 8")
    for name in value:
        if name not in tables:
            raise UsageError(
                f"{path}: there is no command {name!r}{did_you_mean(str(name), tables)}",
                hint="a table of settings has the name of the command that it is for",
            )
    return value


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `15m`, `2h`, `1.5d`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{text!r} is no length of time", hint="write 90, 90s, 15m, 2h or 1d")
    return seconds
