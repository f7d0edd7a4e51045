"""Bodies of loops that are nothing but calls of compiled loops: all their iterations are machine code.

So a step that computes little costs what it computes, and what it keeps for a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flowrt.device.call_sequence import Call, repeated
from flowrt.device.loops import DTYPES
from flowrt.errors import InvalidArgumentError
from flowrt.executor.arguments import Operand
from flowrt.executor.copies import compiled_form
from flowrt.executor.list_rows import RowList
from flowrt.executor.open_lists import OpenList
from flowrt.executor.places import nbytes_of
from flowrt.executor.program import Segment, segment_of
from flowrt.executor.small_calls import may_be_small
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.shapes import is_static

MAX_ROW_BYTES = 32768
"""Of an element of a list: to copy it takes 1 us."""

COMPILED_NS = 2e6
"""Estimated time between two pauses."""


def may_be_compiled(body: Subgraph, lists: Mapping[str, OpenList]) -> bool:
    """Whether a loop's body, whose open ``lists`` go by the names of who changes them, may be machine code
    alone: by what is known before it is bound.
    """
    are_calls = all(node.name in lists or _may_be_call(body, node) for node in body)
    return are_calls and all(_has_rows(body, opened) for opened in lists.values())


def _may_be_call(body: Subgraph, node: Node) -> bool:
    if "group" in node.attrs:
        return not node.attrs["group"].is_checked
    return node.op.name in ("_Feed", "Const") or node.op.alias or may_be_small(body, node)


def _has_rows(body: Subgraph, opened: OpenList) -> bool:
    """Whether the elements are of a shape that is known, small, and can be copied by loops."""
    spec = body.spec(opened.node.inputs[1]) if opened.is_pushed else opened.node.outputs[1]
    return is_static(spec.shape) and spec.dtype.name in DTYPES and 0 < nbytes_of(spec) <= MAX_ROW_BYTES


def compiled_body(
    node: Node, segments: Sequence[Segment], predicate: Operand, lists: Sequence[RowList]
) -> Segment | None:
    """A segment that makes iterations of the body of ``node``, as many as go without a pause, while
    ``predicate`` holds; None if something in the body is not machine code.
    """
    if len(segments) != 1 or segments[0].control is not None or predicate.slot is not None:
        return None
    calls = [compiled_form(call) for call in segments[0].stretch]
    if not calls or None in calls:
        return None
    call = repeated([c for c in calls if c is not None], predicate.value, COMPILED_NS)
    if lists:
        call = _with_rows(call, lists), ()
    return segment_of([call], [node])


def _with_rows(call: Call, lists: Sequence[RowList]) -> Callable[[], None]:
    """``call``, which makes iterations from its begin to its end, with rows for as many as there can be.

    Raises `InvalidArgumentError` where an element is to be taken from an empty list.
    """
    function, (table, begin, end) = call

    def run() -> None:
        count = min([rows.room(end - begin) for rows in lists])
        if not count:
            raise InvalidArgumentError("expected a list with elements; got an empty one")
        for rows in lists:
            rows.begin(count)
        function(table, begin, begin + count)
        for rows in lists:
            rows.end()

    return run
