"""Limits of checks are part of the JSON and decide exit codes: a changed one is a change that users notice."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rollforge.checks import MEMBERS
from rollforge.registry import load_target
from tests.checks.on_record import at_their_limits, at_their_sizes


def recorded(name: str, made: object) -> object:
    """The record; `ROLLFORGE_GOLDEN=1` writes it anew, and the difference is reviewed like code."""
    path = Path(__file__).parent / f"{name}.json"
    if os.environ.get("ROLLFORGE_GOLDEN"):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return msgspec.json.decode(path.read_bytes())


def test_the_default_limits_are_those_on_record() -> None:
    limits = {name: dict(load_target(target).options) for name, target in MEMBERS.items()}
    assert limits == recorded("limits", limits)


def test_a_check_at_its_very_limit_is_on_the_side_on_record() -> None:
    made = at_their_limits()
    assert made == recorded("at_their_limits", made)


def test_findings_begin_and_end_at_the_sizes_on_record() -> None:
    made = at_their_sizes()
    assert made == recorded("at_their_sizes", made)
