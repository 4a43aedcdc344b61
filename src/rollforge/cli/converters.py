"""Converters of the parser: from the text of a flag to a typed value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from rollforge.config import numbers_between, parse_duration, parse_settings
from rollforge.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import Token

Flag = Annotated[bool, Parameter(negative=())]
"""A switch without a `--no-` form."""


def within(lowest: float | None = None, highest: float | None = None) -> Parameter:
    """A bounded, finite number type; the parser refuses other values and names the flag."""
    return Parameter(validator=(validators.Number(gte=lowest, lte=highest), _refuse_infinite))


def _refuse_infinite(_: object, value: object) -> None:
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("Must be a finite number.")


PORT = within(0, 65_535)


def _to_seconds(_: Any, tokens: Sequence[Token]) -> float:
    return parse_duration(tokens[0].value, flag=tokens[0].keyword)


def _to_settings(_: Any, tokens: Sequence[Token]) -> dict[str, object]:
    return parse_settings([token.value for token in tokens], tokens[0].keyword or "-S")


def _to_names(_: Any, tokens: Sequence[Token]) -> str:
    return ",".join(token.value for token in tokens)


def _duration_text(seconds: float | None) -> str | None:
    """Format a default duration as users type it: 600 seconds is `10m`."""
    if seconds is None:
        return None
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0 and seconds != 60:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"


SECONDS = Parameter(converter=_to_seconds, n_tokens=1, metavar="TIME", show_default=_duration_text)
"""A duration in seconds: `90`, `90s`, `15m`, `2h`, `1.5d`."""

NAMES = Parameter(converter=_to_names, n_tokens=-1, accepts_keys=False, metavar="NAME")
"""A name; repeated flags are joined by commas."""

SETTINGS = Parameter(
    converter=_to_settings,
    n_tokens=-1,
    accepts_keys=False,
    metavar="KEY=VALUE",
    show_default=False,
)
"""`key.path=value`, repeatable; all values merge into one nested object."""


def _to_band(_: Any, tokens: Sequence[Token]) -> tuple[float, ...]:
    band = numbers_between("--band", tokens[0].value, "-")
    if len(band) != 2:
        raise UsageError(f"--band {tokens[0].value}: give two numbers", hint="--band 0.1-0.9")
    return band


BAND = Parameter(converter=_to_band, n_tokens=1, metavar="LOW-HIGH")
"""A range of pass rates: `0.1-0.9`."""
