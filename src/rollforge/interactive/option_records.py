"""Maps keyword arguments of the Python API to the steps' option records, with aliases and errors for typos.

A table per function lists the records that its keywords come from, and aliases. `keywords.py` is generated from these tables, and
a test compares them with the flags of the commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

from rollforge.assembly.evaluations import EvalSettings
from rollforge.assembly.monitoring import MonitorChoice, SinkChoice
from rollforge.errors import UsageError
from rollforge.interactive.keyword_values import accepts_none, fitted
from rollforge.records import JsonObject
from rollforge.registry import refuse_unknown
from rollforge.steps.check import CheckOptions
from rollforge.steps.collect import ScaleOptions
from rollforge.steps.collect.collect_options import CollectOptions, DatasetOptions
from rollforge.steps.experiences import ExperienceOptions
from rollforge.steps.metrics import MetricsOptions
from rollforge.steps.prepare.settings import Settings
from rollforge.steps.probe import ProbeOptions
from rollforge.steps.profile import ProfileOptions
from rollforge.steps.show import ShowOptions
from rollforge.steps.verify.verify_options import VerifyOptions

T = TypeVar("T", SinkChoice, MonitorChoice, ScaleOptions, DatasetOptions)

SAMPLING: dict[str, Any] = {"temperature": float, "top_p": float, "max_output_tokens": int}
"""Request parameters with a dedicated keyword, as on the command line."""
SETS_OF_VERIFIER: dict[str, Any] = {"fast": bool, "sandbox": Literal["auto", "require", "off"]}
"""Keywords that set options of the verifier."""


class Keywords(NamedTuple):
    """Sources of a function's keywords."""

    records: tuple[type, ...]
    """Records whose fields are keywords."""
    aliases: Mapping[str, str] = {}
    """Alias → field."""
    hidden: tuple[str, ...] = ()
    """Fields that are not keywords: parameters of the function, or fields available only under an alias."""
    extra: Mapping[str, Any] = {}
    """Keywords that are no fields → their type."""
    parameters: tuple[str, ...] = ()
    """Parameters that the function itself names; a misspelt one arrives among the keywords."""


_ASKED = ("input", "out", "model", "base_urls", "verifier", "samples", "limit", "step", "fresh")

KEYWORDS = {
    "collect": Keywords(
        (CollectOptions, MonitorChoice, ScaleOptions),
        {
            "set": "overrides",
            "verifier_set": "verifier_options",
            "cache": "verify_cache",
            "config": "hub_config",
        },
        ("input", "out", "model", "base_urls", "verifier", "samples", "limit", "tasksets"),
        {
            "k": int,
            "num_repeats": int,
            "group_size": int,
            "n": int,
            "gym_files": bool,
            **SAMPLING,
            **SETS_OF_VERIFIER,
        },
        ("tasks", "out", "model", "base_url", "verifier", "samples", "limit", "progress", "strict"),
    ),
    "verify": Keywords(
        (VerifyOptions,),
        {
            "failed_only": "is_failed_only",
            "follow": "is_following",
            "fresh": "is_fresh",
            "set": "options",
            "verifier_set": "options",
            "verifier_options": "options",
            "verify_workers": "workers",
            "verify_timeout": "timeout",
            "verify_memory": "memory_mb",
            "verifier_output": "output",
        },
        ("run", "verifier", "is_failed_only", "is_following", "is_fresh", "workers"),
        {"on": str | None, "workers": int | None, **SETS_OF_VERIFIER},
        ("run", "verifier", "progress", "strict"),
    ),
    "probe": Keywords(
        (ProbeOptions,),
        {
            "set": "options",
            "verifier_set": "options",
            "verifier_options": "options",
            "verify_workers": "workers",
            "verify_timeout": "timeout",
            "verify_memory": "memory_mb",
            "n": "limit",
        },
        ("run", "verifier", "workers"),
        parameters=("verifier",),
    ),
    "metrics": Keywords((MetricsOptions,), parameters=("verifier",)),
    "profile": Keywords((ProfileOptions,), parameters=("verifier",)),
    "check": Keywords(
        (CheckOptions,), {"set": "settings", "check": "more_checks"}, ("recipe",), parameters=("recipe",)
    ),
    "prepare": Keywords(
        (Settings,),
        extra={"force": bool, "ignore": tuple[str, ...], "dry_run": bool, "push": str | None, "public": bool},
        parameters=("recipe", "to", "out"),
    ),
    "show": Keywords(
        (ShowOptions,),
        {"task": "tasks"},
        (),
        {"best": bool, "worst": bool, "suspicious": bool},
        ("verifier",),
    ),
    "experiences": Keywords((ExperienceOptions,), {"sink": "sinks", "metric_names": "profile"}, ("run",)),
    "evaluate": Keywords(
        (EvalSettings, DatasetOptions, SinkChoice),
        {"k": "samples", "num_repeats": "samples", "n": "limit", "config": "hub_config"},
        ("verifier",),
        {**SAMPLING},
        ("tasks", "model", "out", "base_url", "verifier", "step", "fresh", "progress", "strict"),
    ),
}
"""API function → its keywords. `bench` has those of `evaluate`, and `write_profile` those of `profile`."""
PARAMETERS = {
    "bench": (
        *("tasks", "models", "out", "base_url", "verifier", "metric", "require"),
        *("fresh", "progress", "strict"),
    ),
    "write_profile": ("out", "verifier", "rollout_infos", "parquet", "gym_files"),
}
"""Parameters of the functions that share the keywords of another one."""

EVALUATE_PASSES_ON = ("server", "pace", "cost")
"""Groups of `collect` keywords that `evaluate` and `bench` pass on."""


@cache
def field_types(record: type) -> dict[str, Any]:
    """The fields of an options record, dataclass or Struct, with their types."""
    names = (
        [field.name for field in dataclasses.fields(record)]
        if dataclasses.is_dataclass(record)
        else list(record.__struct_fields__)  # type: ignore[attr-defined]
    )
    hints = get_type_hints(record)
    return {name: hints[name] for name in names}


@cache
def keyword_fields(command: str) -> dict[str, Any]:
    """Field → type, for all fields that keywords of the command can set."""
    fields = {
        name: kind for record in KEYWORDS[command].records for name, kind in field_types(record).items()
    }
    if command == "evaluate":
        own = field_types(CollectOptions)
        passed = [
            name for base in CollectOptions.__mro__ if _is_passed_on(base) for name in field_types(base)
        ]
        fields |= {name: own[name] for name in passed if name not in fields and name not in _ASKED}
    return fields


def _is_passed_on(base: type) -> bool:
    return base.__name__.removesuffix("Options").lower() in EVALUATE_PASSES_ON


@cache
def keyword_aliases(command: str) -> dict[str, str]:
    """Alias → field, for the command's fields; for example `deadline` is `deadline_s`, as on the command line."""
    aliases = {name.removesuffix("_s"): name for name in keyword_fields(command) if name.endswith("_s")}
    aliases |= KEYWORDS[command].aliases
    if command == "evaluate":
        aliases["set"] = "overrides"
    return {name: target for name, target in aliases.items() if target in keyword_fields(command)}


@cache
def keyword_names(command: str) -> dict[str, Any]:
    """All keywords of a command with their types."""
    table, fields = KEYWORDS[command], keyword_fields(command)
    names = {name: kind for name, kind in fields.items() if name not in table.hidden}
    names |= {name: fields[target] for name, target in keyword_aliases(command).items()}
    return dict(sorted({**names, **table.extra}.items()))


def resolve(command: str, keywords: Mapping[str, Any], *, function: str | None = None) -> JsonObject:
    """The keywords as fields of the command's records; raises for a typo, a value of another type, and one thing said twice.

    Args:
        function: The function that was called, where it shares the keywords of another one.
    """
    names = keyword_names(command)
    parameters = KEYWORDS[command].parameters if function is None else PARAMETERS[function]
    refuse_unknown(keywords, sorted({*names, *parameters}), function or command)
    fields, aliases = keyword_fields(command), keyword_aliases(command)
    resolved: JsonObject = {}
    said_as: dict[str, str] = {}
    for name, value in keywords.items():
        target = aliases.get(name, name)
        kind = fields.get(target, names[name])
        if value is None and not accepts_none(kind):
            continue
        if target in said_as:
            raise UsageError(
                f"{command}: {said_as[target]} and {name} say the same thing", hint="give one of them"
            )
        said_as[target] = name
        resolved[target] = fitted(value, kind, name=name, field=target, command=command)
    return resolved


def take_sampling(keywords: JsonObject) -> None:
    """Move temperature and other sampling keywords into the request parameters."""
    chosen = {name: value for name in SAMPLING if (value := keywords.pop(name, None)) is not None}
    settings = dict(keywords.get("overrides") or {})
    for name in chosen.keys() & settings.keys():
        if chosen[name] != settings[name]:
            raise UsageError(
                f"{name} is given twice: {chosen[name]} by its keyword, {settings[name]} in set=…",
                hint="give one of them",
            )
    if chosen:
        keywords["overrides"] = chosen | settings


def take_verifier_settings(keywords: JsonObject, *, options: str, mode: str) -> None:
    """Move `fast` and `sandbox` into the verifier's options."""
    if keywords.pop("fast", False):
        keywords[mode] = "fast"
    if (sandbox := keywords.pop("sandbox", None)) is not None:
        keywords[options] = dict(keywords.get(options) or {}) | {"sandbox": sandbox}


def take_record(keywords: JsonObject, record: type[T]) -> T:
    """Build the record from the keywords that are its fields, and remove them from `keywords`."""
    record_type: type = record
    return record(**{name: keywords.pop(name) for name in field_types(record_type) if name in keywords})


def take_counts(keywords: JsonObject, *, samples: int, limit: int | None) -> tuple[int, int | None]:
    """Samples and limit, under any of their names."""
    for name in ("k", "num_repeats", "group_size"):
        if (value := keywords.pop(name, None)) is not None:
            if samples not in (1, value):
                raise UsageError(f"collect: samples and {name} say the same thing", hint="give one of them")
            samples = value
    if (value := keywords.pop("n", None)) is not None:
        if limit not in (None, value):
            raise UsageError("collect: limit and n say the same thing", hint="give one of them")
        limit = value
    return samples, limit
