"""Detection of lists of lists that can be stacks of rows (`flowrt.executor.lists.nested_rows`): those used
only inside a nest of loops, and changed only at their ends.

In a loop's body it looks for two uses of an inner list without other readers:

    pushed      it begins empty, a loop in the body pushes onto it, and it is pushed itself
    taken       it is popped, and a loop in the body pops from it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from flowrt import dtypes
from flowrt.executor.lists.open_lists import OpenList, changed_lists, is_unlimited_push, open_lists
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_facets import ListUse


class NestedLists(NamedTuple):
    """Nested lists of a loop's body. ``changed``: lists of lists, by the operation that changes them.
    ``empty``: the initial empty values of the inner ones, by name. ``inner``: lists and lists of lists among
    the variables of a loop in the body, by that loop.
    """

    changed: Mapping[str, OpenList]
    empty: Mapping[str, Node]
    inner: Mapping[str, _Lists]


_Lists: TypeAlias = tuple[Mapping[str, OpenList], NestedLists]

NO_LISTS = NestedLists({}, {}, {})


def nested_lists(loop: Node, slots: Mapping[int, int]) -> NestedLists:
    """Nested lists in the body of ``loop``. ``slots`` are the registers of its variables, by position."""
    body: Subgraph = loop.attrs["body"]
    readers = body.consumers()
    changed: dict[str, OpenList] = {}
    inner: dict[str, _Lists] = {}
    empty: dict[str, Node] = {}
    for slot, node in changed_lists(body, slots):
        use = _inner_use(body, readers, node)
        if use is None:
            continue
        name, number = use
        if name not in inner:
            inner[name] = _lists_in(body.nodes[name])
        if _changes_alike(inner[name], number, node):
            changed[node.name] = OpenList(node, slot)
            source, _ = body.nodes[name].inputs[1 + number]
            if body.nodes[source].op.uses_list(ListUse.EMPTY):
                empty[source] = body.nodes[source]
    return NestedLists(changed, empty, inner)


def _lists_in(loop: Node) -> _Lists:
    """Lists among all variables of ``loop``, with positions in place of registers, not assigned yet."""
    slots = {k: k for k in range(len(loop.outputs))}
    return open_lists(loop, slots), nested_lists(loop, slots)


def _changes_alike(found: _Lists, number: int, outer: Node) -> bool:
    """Whether of the lists that were ``found`` in a loop one is the variable of that ``number``, and changes
    as ``outer`` changes the list that it is an element of.
    """
    lists, nested = found
    several = [*lists.values(), *nested.changed.values()]
    return any(opened.slot == number and opened.node.op is outer.op for opened in several)


def _inner_use(body: Subgraph, readers: Mapping[str, Sequence[str]], node: Node) -> tuple[str, int] | None:
    """The loop in ``body``, and its variable's index, for the list that ``node`` pushes or pops; or None."""
    if is_unlimited_push(node):
        name, number = node.inputs[1]
        is_begun = body.nodes[name].op.name == "_Loop" and _begins_empty(body, name, number)
        is_read_once = _uses(body, readers, (name, number)) == [(node.name, 0)]
        return (name, number) if is_begun and is_read_once else None
    if not node.op.uses_list(ListUse.POPPED) or node.outputs[1].dtype is not dtypes.variant:
        return None
    uses = _uses(body, readers, (node.name, 1))
    name, number = uses[0] if len(uses) == 1 else ("", 0)
    if name not in body.nodes or body.nodes[name].op.name != "_Loop":
        return None
    is_variable = 0 <= number < len(body.nodes[name].outputs)
    return (name, number) if is_variable and not _uses(body, readers, (name, number)) else None


def _begins_empty(body: Subgraph, loop: str, number: int) -> bool:
    source, _ = body.nodes[loop].inputs[1 + number]
    return body.nodes[source].op.uses_list(ListUse.EMPTY)


def _uses(body: Subgraph, readers: Mapping[str, Sequence[str]], ref: Ref) -> list[tuple[str, int]]:
    """Readers of ``ref``, including function results (""), with the index of the input after the first."""
    inside = [
        (name, position - 1)
        for name in readers[ref[0]]
        for position, read in enumerate(body.nodes[name].inputs)
        if read == ref
    ]
    return inside + [("", position) for position, fetched in enumerate(body.fetches) if fetched == ref]
