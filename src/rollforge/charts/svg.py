"""A scene as inline SVG.

All text is escaped here and only here, since a scene may contain hostile text. Coordinates are rounded to a tenth, so the same
scene always gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import resources

from rollforge.charts.scene import Dot, Line, Mark, Path, Rect, Scene, TextMark
from rollforge.text_safety.markup import Html, tag
from rollforge.text_safety.visible import visible


@cache
def chart_style() -> str:
    """The style sheet of charts: palette for light and dark, and the classes that marks carry."""
    return resources.files("rollforge.charts").joinpath("charts.css").read_text("utf-8")


def to_svg(scene: Scene, name: str) -> str:
    """The SVG element; `name` makes the ids of its title and description unique in the page."""
    head = (
        f'<svg role="img" viewBox="0 0 {_number(scene.width)} {_number(scene.height)}" '
        f'aria-labelledby="{escape(name)}-t {escape(name)}-d">'
        f'<title id="{escape(name)}-t">{_text(scene.title)}</title>'
        f'<desc id="{escape(name)}-d">{_text(scene.description)}</desc>'
    )
    return head + "".join(_mark(mark) for mark in scene.marks) + "</svg>"


def to_data_uri(scene: Scene) -> str:
    """The chart as an image with embedded styles, for foreign pages: its styles and the page's do not affect each other."""
    from base64 import b64encode

    drawn = to_svg(scene, "chart").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, _, rest = drawn.partition(">")
    data = f"{head}><style>{chart_style()}</style>{rest}".encode()
    return "data:image/svg+xml;base64," + b64encode(data).decode()


def to_image(scene: Scene) -> Html:
    """An `img` element, isolated from the styles of the page around it."""
    return tag("img", src=to_data_uri(scene), alt=scene.description, style="max-width: 640px; width: 100%")


def _mark(mark: Mark) -> str:
    match mark:
        case Rect():
            shape = {"x": mark.x, "y": mark.y, "width": mark.width, "height": mark.height}
            return _element("rect", shape, mark.css, mark.title)
        case Line():
            return _element(
                "line", {"x1": mark.x1, "y1": mark.y1, "x2": mark.x2, "y2": mark.y2}, mark.css, mark.title
            )
        case Dot():
            return _element("circle", {"cx": mark.x, "cy": mark.y, "r": mark.radius}, mark.css, mark.title)
        case Path():
            return _wrapped("path", f' d="{escape(mark.d)}"{_class(mark.css)}', mark.title)
        case TextMark():
            anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else ""
            xy = f' x="{_number(mark.x)}" y="{_number(mark.y)}"'
            return f"<text{xy}{anchor}{_class(mark.css)}>{_text(mark.text)}</text>"


def _element(tag: str, numbers: dict[str, float], css: str, title: str) -> str:
    attributes = "".join(f' {name}="{_number(value)}"' for name, value in numbers.items())
    return _wrapped(tag, attributes + _class(css), title)


def _wrapped(tag: str, attributes: str, title: str) -> str:
    return f"<{tag}{attributes}><title>{_text(title)}</title></{tag}>" if title else f"<{tag}{attributes}/>"


def _class(css: str) -> str:
    return f' class="{escape(css)}"' if css else ""


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    return escape(visible(text), quote=False)
