"""`Picture`: the input of a format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.viz.from_parts import Parts
from flowrt.viz.op_facts import Code
from flowrt.viz.stages import Stage
from flowrt.viz.view import GraphView


class Picture(NamedTuple):
    """``view`` shows ``parts``, or the focused excerpt, folded if requested; ``view_name`` is one of
    `flowrt.viz.sources.VIEWS`. For formats that show them, ``stages()`` are those of the compilation,
    ``code()`` the texts that run each operation, or why there are none, and ``step_stats`` traced steps,
    possibly also of other steps.
    """

    title: str
    view_name: str
    parts: Parts
    view: GraphView
    stages: Callable[[], Sequence[Stage]]
    code: Callable[[], tuple[Code, str]] = lambda: ({}, "")
    step_stats: Sequence[Any] = ()
