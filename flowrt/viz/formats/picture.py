"""`Picture`: what a format is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.viz.from_parts import Parts
from flowrt.viz.op_facts import Code
from flowrt.viz.stages import Stage
from flowrt.viz.view import GraphView


class Picture(NamedTuple):
    """``view`` shows ``parts``, or what of them is in focus, folded where that was asked for; ``view_name``
    is the one of `flowrt.viz.sources.VIEWS` that was asked for. For a format that shows them ``stages()`` are
    those of the compile, ``code()`` the texts that run each operation, or why there are none, and
    ``step_stats`` traced steps, of which some may be of others.
    """

    title: str
    view_name: str
    parts: Parts
    view: GraphView
    stages: Callable[[], Sequence[Stage]]
    code: Callable[[], tuple[Code, str]] = lambda: ({}, "")
    step_stats: Sequence[Any] = ()
