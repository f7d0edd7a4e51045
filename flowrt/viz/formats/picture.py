"""`Picture`: what a format is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowrt.viz.from_parts import Parts
from flowrt.viz.stages import Stage
from flowrt.viz.view import GraphView


class Picture(NamedTuple):
    """``view`` shows ``parts``, or what of them is in focus, folded where that was asked for; ``view_name``
    is the one of `flowrt.viz.sources.VIEWS` that was asked for. ``stages()`` are those of the compile, for a
    format that shows them all.
    """

    title: str
    view_name: str
    parts: Parts
    view: GraphView
    stages: Callable[[], Sequence[Stage]]
