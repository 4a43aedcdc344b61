"""The HTML document: head, table of contents, sections. One self-contained file without scripts and network access."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from msgspec import Struct

from rollforge.charts import chart_style, to_svg
from rollforge.statistics.counts import count_of
from rollforge.steps.report.figures import Figure
from rollforge.text_safety.markup import Html, join, raw, table, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
"""Content security policy, a second defence behind escaping: injected markup can run no script and load nothing."""


class Section(Struct, frozen=True):
    """One section of the page, with its entry in the table of contents."""

    name: str
    heading: str
    body: Html


def document(title: str, top: Html, sections: Sequence[Section]) -> bytes:
    """The complete HTML file."""
    head = join(
        [
            raw('<meta charset="utf-8">'),
            raw(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            raw('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            raw('<meta name="referrer" content="no-referrer">'),
            tag("title", title),
            raw(f"<style>{_style()}</style>"),
        ]
    )
    links = [tag("a", section.heading, href=f"#{section.name}") for section in sections]
    contents = tag("nav", *links, aria_label="contents")
    parts = [tag("section", tag("h2", one.heading), one.body, id=one.name) for one in sections]
    body = tag("body", tag("main", tag("header", top, css="top"), contents, *parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n'.encode()


@cache
def _style() -> str:
    return chart_style() + resources.files("rollforge.steps.report").joinpath("style.css").read_text("utf-8")


def figure(one: Figure) -> Html:
    """A chart with its caption and the numbers behind it."""
    numbers = tag(
        "details",
        tag("summary", f"the numbers ({count_of(len(one.rows), 'row')})"),
        table(one.headers, one.rows),
    )
    chart = tag(
        "div",
        raw(to_svg(one.scene, one.name)),
        css="chart",
        tabindex="0",
        role="group",
        aria_label=one.heading,
    )
    return tag(
        "figure",
        tag("h3", one.heading),
        chart,
        tag("figcaption", one.caption),
        numbers,
        id=f"figure-{one.name}",
    )


def figures(many: Sequence[Figure | None]) -> Html:
    """Charts side by side, if the page is wide enough."""
    return tag("div", *(figure(one) for one in many if one is not None), css="figures")


def tiles(facts: Sequence[tuple[str, str]]) -> Html:
    """Key numbers as tiles: (value, label)."""
    return tag(
        "div",
        *(tag("div", tag("b", value), tag("span", words), css="tile") for value, words in facts),
        css="tiles",
    )


def command(line: str) -> Html:
    """A command to paste; lines do not break inside its options."""
    words = (tag("span", word) if word.startswith("-") else word for word in re.split(r"(?<= )|(?= )", line))
    return tag("code", *words)
