"""Limits of checks are part of the JSON and decide exit codes: a changed one is a change that users notice."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollforge.checks import MEMBERS
from rollforge.registry import load_target


def test_the_default_limits_are_those_on_record() -> None:
    known = msgspec.json.decode((Path(__file__).parent / "limits.json").read_bytes())
    assert {name: dict(load_target(target).options) for name, target in MEMBERS.items()} == known
