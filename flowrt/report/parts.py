"""The parts that sections are made of: headings, tables, legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowrt.base.markup import Child, Markup, element
from flowrt.report import charts


def section(title: str, *parts: Child) -> Markup:
    """A part of the page under a heading, at ``#step-time`` for "Step time"."""
    return element("section", element("h2", title), *parts, id=title.lower().replace(" ", "-"))


def missing(title: str, what: str, how: str) -> Markup:
    """A section on what the run does not have, and how to record it."""
    return section(title, element("p", f"The run has {what}. {how}", class_="missing"))


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Markup]], number_from: int = 99, kind: str | None = None
) -> Markup:
    """A table; heads from ``number_from`` on are above columns of numbers."""
    top = [
        element("th", head, scope="col", class_="number" if i >= number_from else None)
        for i, head in enumerate(heads)
    ]
    body = element("tbody", [element("tr", row) for row in rows])
    return element("table", element("thead", element("tr", top)), body, class_=kind)


def legend(names: Sequence[str], classes: Sequence[str] | None = None) -> Markup:
    """The legend of the colours; empty for a single one."""
    if len(names) < 2:
        return Markup("")
    kinds = classes or [f"c{i % charts.NUM_COLOURS}" for i in range(len(names))]
    entries = [
        element("li", element("i", class_=f"bar {kind}"), name)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return element("ul", entries, class_="legend")
