"""Objects that notebooks show as cards: HTML, made by `flowrt.viz.notebook.cards` when first asked for."""

from __future__ import annotations

from collections.abc import Callable

CARD: list[Callable[[object], str]] = []
"""The function that draws; set by `flowrt`, for classes below the one that can draw them."""


class InNotebook:
    """An object that notebooks show as a card instead of its ``repr``."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return CARD[0](self)
