"""HTML and SVG as values: anything not created here is text and is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | float | Markup | Iterable[Child]"


def element(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """``<name attributes>children</name>``. An attribute ``class_`` becomes ``class``, ``text_anchor``
    becomes ``text-anchor``; None values are left out. Numbers have at most two decimals.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{shown}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """One after the other."""
    return Markup("".join(map(_markup, children)))


def _markup(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | float | int):
        return escape(_text(child))
    return joined(child)


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
