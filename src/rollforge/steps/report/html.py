"""HTML that is safe by construction: text is escaped unless it was made here.

`tag` escapes every plain string among its children and attributes; only `Html` passes as markup. No other module of the
report writes an angle bracket.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rollforge.visible import visible


class Html(str):
    """Markup made by `tag`, `raw` or `join`."""

    __slots__ = ()


Child = str | Html | None


def tag(name: str, *children: Child, **attributes: str | None) -> Html:
    """An element; `css` is its class, `_` in attribute names becomes `-`, an attribute of None is left out."""
    words = "".join(
        f' {"class" if key == "css" else key.replace("_", "-")}="{escape(visible(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after another, plain strings escaped."""
    return Html("".join(_written(child) for child in children if child is not None))


def _written(child: str) -> str:
    return child if isinstance(child, Html) else escape(visible(child), quote=False)


def raw(markup: str) -> Html:
    """Markup that is ours: CSS, SVG from `charts`, the document's head. Never pass data here."""
    return Html(markup)


def table(headers: Iterable[str], rows: Iterable[Iterable[str]], *, numeric: bool = True) -> Html:
    """A table; the first column is text, the others are aligned as numbers unless told otherwise."""
    head = tag("tr", *(tag("th", header, scope="col") for header in headers))
    css = "num" if numeric else None
    body = [
        tag("tr", *(tag("td", cell, css=css if place else None) for place, cell in enumerate(row)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), css="scroll", tabindex="0")
