"""Bodies of loops that are nothing but calls of compiled loops: all their iterations are machine code.

So a step that computes little costs what it computes, and what it keeps for a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flowrt.device.call_sequence import Call, Table, repeated
from flowrt.device.device import Device
from flowrt.device.host_call import LoopCall
from flowrt.device.loops import DTYPES
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.arguments import Operand
from flowrt.executor.copies import compiled_form
from flowrt.executor.indexed_rows import AddedRows, ReadRows, SetRows
from flowrt.executor.list_rows import PushedRows, RowList, TakenRows
from flowrt.executor.open_lists import OpenList
from flowrt.executor.pace import Pace
from flowrt.executor.places import nbytes_of
from flowrt.executor.program import Segment, segment_of
from flowrt.executor.small_calls import may_be_small, run_checked
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.shapes import is_static

MAX_ROW_BYTES = 1 << 17
"""Of an element of a list: to copy it takes 5 us."""

FIRST_NS = 1e5
"""Estimated time of the first call."""


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
    node = opened.node
    (_, element) = ROW_LISTS[node.op.name]
    spec = body.spec(element(node))
    return is_static(spec.shape) and spec.dtype.name in DTYPES and 0 < nbytes_of(spec) <= MAX_ROW_BYTES


ROW_LISTS: Mapping[str, tuple[Callable[[OpenList, Device], RowList], Callable[[Node], Ref]]] = {
    "TensorListPushBack": (PushedRows, lambda node: node.inputs[1]),
    "TensorListPopBack": (TakenRows, lambda node: (node.name, 1)),
    "TensorListGetItem": (ReadRows, lambda node: (node.name, 0)),
    "TensorListSetItem": (SetRows, lambda node: node.inputs[2]),
    "TensorListAddAt": (AddedRows, lambda node: node.inputs[2]),
}
"""By the operation that reads or changes a list: how, and which tensor is an element."""


def row_list(opened: OpenList, device: Device) -> RowList:
    """The list, to be bound as ``opened`` would be."""
    make, _ = ROW_LISTS[opened.node.op.name]
    return make(opened, device)


def calls_of(segments: Sequence[Segment], predicate: Operand) -> list[Call] | None:
    """The compiled calls of which a body in ``segments`` is made; None if something is more than that."""
    if len(segments) != 1 or segments[0].control is not None or predicate.slot is not None:
        return None
    stretch = segments[0].stretch
    calls = [compiled_form(arguments[:2] if f is run_checked else (f, arguments)) for f, arguments in stretch]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def compiled_body(
    node: Node, body: Segment, calls: Sequence[Call], predicate: Operand, lists: Sequence[RowList]
) -> Segment:
    """A segment that makes iterations of the ``body`` of ``node``, which is ``calls``: as many as go without
    a pause, while ``predicate`` holds.
    """
    function, table = repeated(calls, predicate.value)
    iterate = _along_rows(function, table, lists) if lists else _iterating(function, table)
    instructions = zip(body.nodes, body.stretch, strict=True)
    checks = [(n, arguments[2]) for n, (f, arguments) in instructions if f is run_checked]
    if checks:
        iterate = _checking(iterate, checks)
    first = max(1, int(FIRST_NS / table.nanoseconds))
    return segment_of([(Pace(iterate, predicate.value.item, first), ())], [node])


def _checking(
    iterate: Callable[[int], int], checks: Sequence[tuple[Node, Callable[[], None]]]
) -> Callable[[int], int]:
    """``iterate``, then ``checks`` of what nodes of the body have refused meanwhile. A body has no effect but
    on the loop's variables, so it does not matter that it went on.
    """

    def iterate_and_check(count: int) -> int:
        made = iterate(count)
        for node, check in checks:
            try:
                check()
            except OpError as error:
                raise located(node, error) from None
        return made

    return iterate_and_check


def _iterating(function: LoopCall, table: Table) -> Callable[[int], int]:
    """``function`` on ``table``, for so many iterations, which it returns."""

    def iterate(count: int) -> int:
        function(table, 0, count)
        return count

    return iterate


def _along_rows(function: LoopCall, table: Table, lists: Sequence[RowList]) -> Callable[[int], int]:
    """As `_iterating`, with rows for as many iterations as there can be, but not for more.

    Raises `InvalidArgumentError` where an element is to be taken from an empty list.
    """

    def iterate(count: int) -> int:
        count = min([rows.room(count) for rows in lists])
        if not count:
            raise InvalidArgumentError("expected a list with elements; got an empty one")
        for rows in lists:
            rows.begin(count)
        function(table, 0, count)
        for rows in lists:
            rows.end()
        return count

    return iterate
