"""The HTML page of a graph in a frame of a notebook: self-contained, and apart from what is around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from typing import Any, final

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.defaults import default_sessions
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.viz.compile_request import CompileRequest
from flowrt.viz.export import RADIUS, check_view, picture
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.sources import compared


@final
class Inline:
    """A page that a notebook shows where a cell ends with it. ``page`` is its HTML."""

    def __init__(self, title: str, page: str, height: int) -> None:
        self.title, self.page, self.height = title, page, height

    def _repr_html_(self) -> str:
        # An origin of its own: its script reaches nothing of the notebook, and styles of the notebook not it.
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts allow-downloads" '
            f'srcdoc="{escape(self.page)}" width="100%" height="{self.height}" '
            'style="box-sizing:border-box;border:1px solid rgba(128,128,128,.4);border-radius:6px"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<the page of {self.title}, for a notebook; flowrt.viz.export writes it to a file>"


def show(
    what: BaseSession | Graph | CompileRequest | None = None,
    *,
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    view: str = "logical",
    height: int = 600,
    against: BaseSession | Graph | str | os.PathLike[str] | None = None,
) -> Inline:
    """The page that `export` writes, to be shown by a notebook: the last value of a cell, or ``display`` it.

    ``what`` is a session or a graph, by default the default session or else the default graph; ``fetches``
    and ``feed_dict`` choose a step. ``view`` is the stage at which it opens, ``height`` in pixels. With
    ``against``, another graph or its GraphDef's path, the page shows what was added, removed and changed from
    that one. The page loads nothing. Raises as `export`, and `InvalidArgumentError` for a height below 100.
    """
    if isinstance(height, bool) or not isinstance(height, int):
        raise DTypeError(f"show: expected the height as an integer; got {height!r}")
    if height < 100:
        raise InvalidArgumentError(f"show: expected a height of 100 pixels or more; got {height}")
    if what is None:
        what = default_sessions()[-1] if default_sessions() else get_default_graph()
    check_view(view)
    html = FORMATS["html"]
    html.check()
    drawn = picture(compared(what, against, fetches, feed_dict), view, html, None, None, RADIUS)
    return Inline(drawn.title, html.encode(drawn).decode(), height)
