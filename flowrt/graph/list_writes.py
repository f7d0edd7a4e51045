"""Which ops begin a list, shorten it and write elements to it: what shape inference follows a list by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flowrt.graph.node import Node
from flowrt.graph.ops.tensor_lists import rows_of
from flowrt.graph.shapes import Shape

UNSET = ("EmptyTensorList", "TensorListReserve")
"""The ops that make a list none of whose elements is set."""

SHORTENS = ("TensorListPopBack",)
"""The ops whose first output is their first input, a list, with elements less."""


WRITES: Mapping[str, Callable[[Sequence[Shape]], Shape]] = {
    "TensorListPushBack": lambda shapes: shapes[1],
    "TensorListSetItem": lambda shapes: shapes[2],
    "TensorListAddAt": lambda shapes: shapes[2] if shapes[1] == () else rows_of(shapes[2]),
    "TensorListAdd": lambda shapes: shapes[1],
    "TensorListScatterIntoExistingList": lambda shapes: rows_of(shapes[1]),
}
"""The ops whose output is their first input, a list, with other elements: their shape, by the inputs'."""


def writes_once(node: Node) -> bool:
    """Whether ``node`` gives its first input, a list, one element more, and who reads one that was never set
    gives it no other shape: the front end reads a `TensorArray` by the shape that all its elements have.
    """
    op = node.op.name
    return op == "TensorListPushBack" or (op == "TensorListSetItem" and bool(node.attrs["_write_once"]))
