"""HTML that is safe by construction: everything is escaped except markup made here.

`tag` escapes every plain string among its children and attributes; only `Html` passes as markup. No other code of reports and
notebook results writes angle brackets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from rollforge.text_safety.visible import visible


class Html(str):
    """Markup made by `tag`, `raw` or `join`."""

    __slots__ = ()


Child = str | Html | None


def tag(name: str, *children: Child, **attributes: str | None) -> Html:
    """An element; `css` is its class, `_` in attribute names becomes `-`, and attributes with value None are omitted."""
    words = "".join(
        f' {"class" if key == "css" else key.replace("_", "-")}="{escape(visible(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Concatenate children; plain strings are escaped."""
    return Html("".join(_written(child) for child in children if child is not None))


def _written(child: str) -> str:
    return child if isinstance(child, Html) else escape(visible(child), quote=False)


def raw(markup: str) -> Html:
    """Trusted markup: CSS, SVG from `charts`, the document's head. Never pass data."""
    return Html(markup)


def table(headers: Iterable[str], rows: Iterable[Iterable[str]], *, numeric: bool = True) -> Html:
    """A table; by default the first column is text, and the others are aligned as numbers."""
    head = tag("tr", *(tag("th", header, scope="col") for header in headers))
    css = "num" if numeric else None
    body = [
        tag("tr", *(tag("td", cell, css=css if column else None) for column, cell in enumerate(row)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), css="scroll", tabindex="0")


def result(title: str, *parts: Child) -> str:
    """HTML of a result in a notebook: a heading and its parts."""
    return str(tag("div", tag("p", tag("strong", title)), *parts))


def decimal(value: float | None, digits: int = 4) -> str:
    """Format a number; a dash for None."""
    return "–" if value is None else f"{value:.{digits}g}"


def interval(ci: Sequence[float] | None) -> str:
    """Format a 95 % interval; a dash for None."""
    return "–" if ci is None else f"{ci[0]:.4g} … {ci[1]:.4g}"
