"""Converters of the parser: from the words of a flag to the value that a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from rollforge.config import parse_duration, parse_settings

if TYPE_CHECKING:
    from cyclopts import Token

Flag = Annotated[bool, Parameter(negative=())]
"""A switch without a `--no-` form."""


def within(lowest: float | None = None, highest: float | None = None) -> Parameter:
    """Bound a number; the parser refuses others and names the flag."""
    return Parameter(validator=validators.Number(gte=lowest, lte=highest))


PORT = within(0, 65_535)


def _to_seconds(_: Any, tokens: Sequence[Token]) -> float:
    return parse_duration(tokens[0].value)


def _to_settings(_: Any, tokens: Sequence[Token]) -> dict[str, object]:
    return parse_settings([token.value for token in tokens])


def _duration_text(seconds: float | None) -> str | None:
    """Write a default as people type it: 600 seconds is `10m`."""
    if seconds is None:
        return None
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0 and seconds != 60:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"


SECONDS = Parameter(converter=_to_seconds, n_tokens=1, metavar="TIME", show_default=_duration_text)
"""A length of time: `90`, `90s`, `15m`, `2h`, `1.5d`."""

SETTINGS = Parameter(
    converter=_to_settings,
    n_tokens=-1,
    accepts_keys=False,
    metavar="KEY=VALUE",
    show_default=False,
)
"""`key.path=value`, repeatable; all of them make one nested object."""
