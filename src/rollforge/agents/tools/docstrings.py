"""This module reads a docstring: what a function does, and what each parameter means.

It knows the three usual styles (numpy, Google, reST). What it does not recognise stays part of the description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

_SECTIONS = (
    *("args", "arguments", "parameters", "params", "returns", "return", "yields", "raises", "examples"),
    *("example", "notes", "note", "see also", "other parameters", "warnings"),
)
_OF_PARAMETERS = ("args", "arguments", "parameters", "params", "other parameters")
_REST_FIELD = re.compile(
    r":(?P<field>param|parameter|arg|returns?|rtype|type|raises)\b(?P<rest>[^:]*):\s*(?P<text>.*)"
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


class Docstring(NamedTuple):
    """A docstring, read."""

    description: str
    parameters: dict[str, str]
    """What is said about each parameter, on one line."""


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """The description and the parameters' texts; both empty when there is no docstring."""
    lines = (inspect.getdoc(function) or "").splitlines()
    head: list[str] = []
    texts: dict[str, list[str]] = {}
    section = ""
    place = 0
    while place < len(lines):
        found = _section_at(lines, place)
        if found is not None:
            section, width = found
            place += width
            continue
        field = _REST_FIELD.match(lines[place].strip())
        if field:
            section = "field"
            if field["field"] in ("param", "parameter", "arg") and field["rest"].split():
                texts[field["rest"].split()[-1]] = [field["text"]]
                section = "rest-param"
        elif section == "":
            head.append(lines[place])
        elif section == "rest-param":
            texts[next(reversed(texts))].append(lines[place].strip())
        elif section in _OF_PARAMETERS:
            place = _read_entries(lines, place, texts)
            continue
        place += 1
    joined = {name: " ".join(" ".join(parts).split()) for name, parts in texts.items()}
    return Docstring("\n".join(head).strip(), {name: text for name, text in joined.items() if text})


def _section_at(lines: list[str], place: int) -> tuple[str, int] | None:
    """The section that begins on this line, and how many lines its heading takes."""
    word = lines[place].strip()
    underline = lines[place + 1].strip() if place + 1 < len(lines) else ""
    if underline and set(underline) <= {"-", "="} and word.lower() in _SECTIONS:
        return word.lower(), 2
    if word.endswith(":") and word[:-1].lower() in _SECTIONS and lines[place][:1].strip():
        return word[:-1].lower(), 1
    return None


def _read_entries(lines: list[str], place: int, texts: dict[str, list[str]]) -> int:
    """Read the entries of a parameter section; returns where it ends."""
    margin: int | None = None
    names: list[str] = []
    while place < len(lines) and _section_at(lines, place) is None:
        line, stripped = lines[place], lines[place].strip()
        place += 1
        if not stripped:
            continue
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        if indent > margin:
            for name in names:
                texts[name].append(stripped)
            continue
        pattern = _GOOGLE_ENTRY if margin else _NUMPY_ENTRY
        entry = pattern.match(stripped)
        if entry is None:
            names = []
            continue
        names = [
            name.strip().lstrip("*") for name in (entry["name"] if margin else entry["names"]).split(",")
        ]
        for name in names:
            texts[name] = [entry["text"]] if margin else []
    return place
