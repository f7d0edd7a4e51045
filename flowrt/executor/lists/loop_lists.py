"""Detection of the lists that can be opened while a loop runs: nothing else needs their versions.

changed   a variable that one operation of the body reads and updates; or a loop in the body, of which it
          is such a variable in turn
read      an invariant that operations of the body read elements of
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowrt import dtypes
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import RESTORES, STACK, SWAPS


class LoopList(NamedTuple):
    """A list among the inputs of a loop, which ``node`` changes or reads, in the body of ``loop``: that one,
    or one in it.
    """

    node: Node
    loop: Node

    @property
    def use(self) -> ListUse:
        lists = self.node.op.lists
        assert lists is not None
        return lists.use

    @property
    def element(self) -> TensorSpec:
        """The elements that are read or written."""
        lists, body = self.node.op.lists, self.loop.attrs["body"]
        assert lists is not None
        return body.spec(lists.element_of(self.node))


def loop_lists(loop: Node) -> dict[int, LoopList]:
    """The lists that can be opened, by their position among the inputs of ``loop`` that its body has."""
    body: Subgraph = loop.attrs["body"]
    readers, of_inner = body.consumers(), functools.cache(loop_lists)
    found: dict[int, LoopList] = {}
    for position, name in enumerate(body.feeds):
        if body.nodes[name].outputs[0].dtype is not dtypes.variant:
            continue
        is_variable = position < len(loop.outputs)
        one = _changed(loop, position, readers, of_inner) if is_variable else _read(loop, name, readers)
        if one is not None:
            found[position] = one
    return found


def _changed(
    loop: Node,
    position: int,
    readers: Mapping[str, Sequence[str]],
    of_inner: Callable[[Node], Mapping[int, LoopList]],
) -> LoopList | None:
    """The list variable at ``position``, if it is read once, and its next value is used no further.
    ``of_inner``: the lists of a loop in the body.
    """
    body: Subgraph = loop.attrs["body"]
    parameter, results = (body.feeds[position], 0), body.fetches[1:]
    name, index = result = results[position]
    node = body.nodes[name]
    if _uses(body, readers, parameter) != [name] or _uses(body, readers, result) or results.count(result) > 1:
        return None
    if node.op.name == "_Loop":
        is_variable = node.inputs[1 + index] == parameter
        return of_inner(node).get(index) if is_variable else None
    is_updated = node.inputs[0] == parameter and index == 0 and _changes_in_place(body, node)
    return LoopList(node, loop) if is_updated else None


def _read(loop: Node, name: str, readers: Mapping[str, Sequence[str]]) -> LoopList | None:
    """The invariant ``name``, if elements are read, and nothing else of it."""
    body: Subgraph = loop.attrs["body"]
    nodes = [body.nodes[reader] for reader in readers[name]]
    are_reads = all(node.op.uses_list(ListUse.READ) for node in nodes) and (name, 0) not in body.fetches
    are_alike = len({node.outputs[0] for node in nodes}) == 1
    return LoopList(nodes[0], loop) if are_reads and are_alike else None


def _uses(body: Subgraph, readers: Mapping[str, Sequence[str]], ref: Ref) -> list[str]:
    """The operations that read ``ref``, each as often as it does."""
    return [name for name in readers[ref[0]] for read in body.nodes[name].inputs if read == ref]


def _changes_in_place(body: Subgraph, node: Node) -> bool:
    """Whether the change is one of a single element, with room for it."""
    match node.op.lists and node.op.lists.use:
        case ListUse.PUSHED:  # of a gradient: onto a list without a maximum length, or of popped elements
            marks = (STACK, RESTORES, SWAPS)
            is_of_list = body.spec(node.inputs[1]).dtype is dtypes.variant
            return not is_of_list and not node.attrs.keys().isdisjoint(marks)
        case ListUse.POPPED:
            return node.outputs[1].dtype is not dtypes.variant
        case ListUse.ADDED:
            return body.spec(node.inputs[1]).shape == ()
        case ListUse.SET:
            return not node.attrs["resize_if_index_out_of_bounds"]
    return False
