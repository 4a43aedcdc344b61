"""Config files, `key.path=value` settings, durations, and NeMo Gym's `+key=value` words.

An unknown key is an error with a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields, JsonObject
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
    "model": "--model",
    "policy_base_url": "--base-url",
    "agent_name": "--agent-name",
}
"""NeMo Gym key → the flag with the same meaning."""

GYM_SAMPLING = ("temperature", "top_p", "max_output_tokens", "seed")
"""Sampling keys that some recipes write without the prefix `responses_create_params.`."""

GYM_WITHOUT_MEANING = (
    "resume_from_cache",
    "config_paths",
    "policy_api_key",
    "disable_aggregation",
    "num_repeats_add_seed",
    "interleave_repeats",
    "disable_health_check",
    "health_check_workers",
    "health_check_ignored_checks",
    "split",
    "benchmark",
)
"""Keys of NeMo Gym command lines without effect here: resuming is the default, and data is named by its file."""

GYM_COMMAND_FLAGS = {
    "--agent": "agent_name",
    "-a": "agent_name",
    "--input": "input_jsonl_fpath",
    "-i": "input_jsonl_fpath",
    "--output": "output_jsonl_fpath",
    "-o": "output_jsonl_fpath",
    "--limit": "limit",
    "--split": "split",
    "--num-repeats": "num_repeats",
    "--prompt-config": "prompt_config",
    "--concurrency": "num_samples_in_parallel",
    "--model": "model",
    "-m": "model",
    "--model-url": "policy_base_url",
    "--model-api-key": "policy_api_key",
    "--benchmark": "benchmark",
    "--config": "config_paths",
    "-c": "config_paths",
    **{f"--{name.replace('_', '-')}": name for name in GYM_SAMPLING[:3]},
}
"""Flags of `gym eval run` that take a value, and the keys they stand for."""

GYM_COMMAND_SWITCHES = (
    "--no-serve",
    "--resume",
    "--interleave-repeats",
    "--disable-aggregation",
    "--no-health-check",
)


_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?")
"""Numbers that users write but JSON forbids, such as `.5` and `1.`."""


def is_gym_command(words: Sequence[str]) -> bool:
    """Whether the words are one of NeMo Gym's own commands: `gym eval run …`, or `eval run --no-serve …`."""
    return list(words[:3]) == ["gym", "eval", "run"] or (
        list(words[:2]) == ["eval", "run"] and "--no-serve" in words
    )


def translate_gym_command(words: Sequence[str]) -> list[str]:
    """Translate the words of `gym eval run` to `collect` with `+key=value` words."""
    rest = list(words[words.index("run") + 1 :])
    if "--no-serve" not in rest:
        raise UsageError(
            "`gym eval run` starts servers, which rollforge does not",
            hint="start them with `gym env start`, then add --no-serve and --gym-head http://localhost:11000",
        )
    translated = ["collect"]
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag in GYM_COMMAND_SWITCHES:
            continue
        if flag in GYM_COMMAND_FLAGS:
            if not equals and not rest:
                raise UsageError(f"{flag} has no value", hint=f"write {flag} VALUE")
            translated.append(f"+{GYM_COMMAND_FLAGS[flag]}={value if equals else rest.pop(0)}")
        else:
            translated.append(flag + equals + value)
    return translated


def translate_gym_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Translate `+key=value` words to flags; return notes on the words without effect."""
    flags: list[str] = []
    notes: list[str] = []
    agent = next(
        (word.partition("=")[2] for word in words if word.lstrip("+").startswith("agent_name=")), None
    )
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if not word.startswith("+") or not equals:
            flags.append(word)
        elif value in ("null", "None", ""):
            continue  # as if the word were not there
        elif key == "h":
            flags.append("--help")
        elif key == "num_repeats":
            flags += ["--samples", _repeats(value, agent)]
        elif key in GYM_WORDS:
            flags += [GYM_WORDS[key], value]
        elif key == "agent_map":
            for name, target in _mapping(word, value).items():
                flags += (
                    ["--agent-name", str(target)]
                    if name == "_default"
                    else ["--agent-map", f"{name}={target}"]
                )
        elif key == "fan_out":
            for name, agents in _mapping(word, value).items():
                flags += [
                    "--fan-out",
                    f"{name}={','.join(map(str, agents)) if isinstance(agents, list) else agents}",
                ]
        elif key == "responses_create_params":
            for name, setting in _mapping(word, value).items():
                flags += ["--set", f"{name}={msgspec.json.encode(setting).decode()}"]
        elif key.startswith("responses_create_params.") or key in GYM_SAMPLING:
            flags += ["--set", f"{key.removeprefix('responses_create_params.')}={value}"]
        elif key in GYM_WITHOUT_MEANING:
            remedy = "; name its task file with --input" if key == "benchmark" else ""
            notes.append(f"+{key} has no meaning here and was left out{remedy}")
        else:
            gym_keys = [*GYM_WORDS, *GYM_SAMPLING, *GYM_WITHOUT_MEANING, "responses_create_params.…"]
            raise UsageError(
                f"+{key} is not understood{did_you_mean(key, gym_keys)}", hint="see rollforge collect --help"
            )
    return flags, notes


def _mapping(word: str, text: str) -> dict[str, object]:
    """Parse a Hydra dict such as `{temperature: 1.0, max_output_tokens: 16384}`, which is YAML."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{word} is not understood", hint="write {key: value, key: value} in quotes")
    return value


def _repeats(text: str, agent: str | None) -> str:
    """A single number of samples. Numbers per agent are accepted if they are equal, or if the agent is named."""
    if not text.startswith("{"):
        return text
    counts = _mapping(f"+num_repeats={text}", text)
    named = counts.get(agent, counts.get("_default")) if agent is not None else None
    chosen = {named} if named is not None else set(counts.values())
    if len(chosen) != 1:
        raise UsageError(
            f"+num_repeats={text}: the number of samples differs by agent",
            hint="collect each agent's rows on their own: +agent_name=NAME +num_repeats=N",
        )
    return str(chosen.pop())


def parse_settings(words: Sequence[str], flag: str = "-S") -> JsonObject:
    """Make one nested object from `key.path=value` words; a value is parsed as JSON, or kept as text if it is not JSON."""
    settings: JsonObject = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path or any(not part for part in path.split(".")):
            raise UsageError(
                f"{flag} {word!r} is not understood", hint=f"write {flag} key=value or {flag} key.path=value"
            )
        target = settings
        *parents, last = path.removeprefix("responses_create_params.").split(".")
        for part in parents:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise UsageError(
                    f"-S {word!r}: {part!r} was already given a plain value",
                    hint="give the key once: as a plain value, or with fields below it",
                )
        target[last] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return float(text) if _NUMBER.fullmatch(text) else text


def settings_words(settings: JsonFields, path: str = "") -> list[str]:
    """Write a nested object as `key.path=value` words: the inverse of `parse_settings`."""
    words: list[str] = []
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            words += settings_words(value, f"{path}{key}.")
        else:
            words.append(f"{path}{key}={msgspec.json.encode(value).decode()}")
    return words


def read_config(path: str, *, tables: list[str], options: Collection[str] = ()) -> JsonFields:
    """Read a config file: TOML, YAML or JSON by its suffix, with one table per command.

    A resolved config as `--dry-run` prints it has no tables: it is returned as the table of the empty name.

    Args:
        options: options of the command that reads the file.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(
            f"{path}: no such file",
            hint="--config takes a TOML, YAML or JSON file; --dry-run --json prints one",
        )
    value = _decode(file)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a table of settings", hint="for example: [collect]\\nsamples = 8")
    if value.keys() == {"config", "plan"} and isinstance(value["config"], dict):
        value = value["config"]
    if value and not value.keys() & set(tables) and value.keys() <= set(options):
        return {"": value}
    for name in value:
        if name not in tables:
            raise UsageError(
                f"{path}: there is no command {name!r}{did_you_mean(str(name), tables)}",
                hint="a table of settings has the name of its command, such as [collect]",
            )
    return value


def _decode(file: Path) -> object:
    data = file.read_bytes()
    try:
        match file.suffix:
            case ".toml":
                import tomllib

                return tomllib.loads(data.decode())
            case ".json":
                return msgspec.json.decode(data)
            case ".yaml" | ".yml":
                return _decode_yaml(data)
    except (*UNREADABLE, ValueError) as error:
        what = " ".join(str(error).split())
        raise UsageError(
            f"{file}: cannot be read as {file.suffix[1:]}: {what}",
            hint="mend the file, or --dry-run --json prints one",
        ) from error
    raise UsageError(f"{file}: what kind of file is this?", hint="a config ends in .toml, .yaml or .json")


def _decode_yaml(data: bytes) -> object:
    import yaml  # only a YAML config pays for loading it

    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def parse_duration(text: str, *, flag: str | None = None) -> float:
    """Parse `90`, `90s`, `15m`, `2h` or `1.5d` as seconds; errors name the flag, if one is given."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        setting = f"{flag} {text!r}" if flag else repr(text)
        example = f"{flag} 90" if flag else "90"
        raise UsageError(f"{setting} is no length of time", hint=f"write {example}, 90s, 15m, 2h or 1d")
    return seconds


def numbers_between(flag: str, text: str, separator: str) -> tuple[float, ...]:
    """Parse `0.98/0.02` or `0.1-0.9` as two numbers."""
    try:
        return tuple(float(part) for part in text.split(separator))
    except ValueError as error:
        example = "0.98/0.02" if separator == "/" else "0.1-0.9"
        raise UsageError(
            f"{flag} {text}: expected numbers between {separator!r}", hint=f"{flag} {example}"
        ) from error
