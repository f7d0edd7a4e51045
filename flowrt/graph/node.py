"""A graph as data: `Node` and `Subgraph`, the immutable form that the compiler's passes read and write.

Rules of this file:
  1. Nothing here changes after creation. A pass creates nodes with `Node.replace` and shares all others.
  2. Edges are names: an input is ``(producer's name, output index)``. A node can be replaced by another
     of the same name without touching its consumers.
  3. ``Subgraph.nodes`` is in topological order, and otherwise in the order of creation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from flowrt.dtypes import DType
from flowrt.errors import InternalError
from flowrt.graph.shapes import Shape, format_shape, is_static

if TYPE_CHECKING:
    from flowrt.graph.op_def import OpDef
    from flowrt.graph.source import Source

Ref: TypeAlias = tuple[str, int]
"""One output of a node: the node's name and the output's index."""


COLOCATION = "_class"
"""Attr that names, as GraphDef's ``loc:@name``, the operations a node must be colocated with."""

SET_SHAPE = "_set_shape"
"""Attr with the indices of the outputs with shapes that a user has set."""

SITE = "_site"
"""Attr of the parts of a partitioned loop: the loop's name, equal on all devices."""

LENT = "_lent"
"""Attr of a send: the variable that it sends is not written before all readers elsewhere have ended."""


class TensorSpec(NamedTuple):
    """Static dtype and shape of a tensor."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype.name}{format_shape(self.shape)}"


def static_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a tensor; it must be fully known."""
    if not is_static(spec.shape):
        raise InternalError(f"expected a static shape; got {spec}")
    return spec.shape


_NAME: Callable[[Ref], str] = itemgetter(0)


def set_outputs(node: Node) -> tuple[int, ...]:
    """The indices of the outputs of ``node`` with shapes that a user has set."""
    found = node.attrs.get(SET_SHAPE, ())
    return tuple([i for i in range(len(node.outputs)) if i in found]) if isinstance(found, tuple) else ()


@final
class Node:
    """One operation of a graph.

    ``op`` is its definition, ``inputs`` the tensors it reads, ``controls`` the names of nodes that must run
    first, ``attrs`` plain Python values, ``device`` a (partial) device name or ``""``, ``source`` the user's
    line or None, ``outputs`` one `TensorSpec` per output.
    """

    __slots__ = ("attrs", "controls", "device", "inputs", "name", "op", "outputs", "source")

    def __init__(
        self,
        name: str,
        op: OpDef,
        inputs: tuple[Ref, ...],
        controls: tuple[str, ...],
        attrs: Mapping[str, Any],
        device: str,
        source: Source | None,
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.controls = controls
        self.attrs = attrs
        self.device = device
        self.source = source
        self.outputs = outputs

    @property
    def predecessors(self) -> list[str]:
        """The names of the nodes that it reads or waits for."""
        names = list(map(_NAME, self.inputs))
        if self.controls:
            names += self.controls
        return names

    def replace(self, **changes: Any) -> Node:
        """A copy with some fields changed."""
        # Spelled out: passes copy most nodes, and a loop over the slots costs 4 us.
        copy = Node(
            self.name, self.op, self.inputs, self.controls, self.attrs, self.device, self.source, self.outputs
        )
        for field, value in changes.items():
            setattr(copy, field, value)
        return copy

    def redirected(self, refs: Mapping[Ref, Ref], names: Mapping[str, Iterable[str]] = {}) -> Node:
        """A copy that reads other tensors in place of those in ``refs``, and waits for other nodes in place
        of those in ``names``; the same object if nothing changes.
        """
        inputs, controls = tuple([refs.get(ref, ref) for ref in self.inputs]), self.controls
        if controls and names:
            controls = tuple(dict.fromkeys([name for c in controls for name in names.get(c, (c,))]))
        if inputs == self.inputs and controls == self.controls:
            return self
        return self.replace(inputs=inputs, controls=controls)

    def beside(
        self,
        name: str,
        op: OpDef,
        inputs: tuple[Ref, ...] = (),
        controls: tuple[str, ...] = (),
        attrs: Mapping[str, Any] = {},
        outputs: tuple[TensorSpec, ...] = (),
    ) -> Node:
        """Another node, on this one's device and for the same line of the user."""
        return Node(name, op, inputs, controls, attrs, self.device, self.source, outputs)

    def __repr__(self) -> str:
        return f"<Node {self.name!r} {self.op.name}>"


@final
class Subgraph:
    """The nodes of a step (or of one device's partition of it, or of a loop body) and its interface.

    ``feeds`` are the names of the ``_Feed`` nodes in the order in which the caller passes the values;
    ``fetches`` the tensors returned to the caller; ``targets`` the nodes that run without returning a result.
    """

    __slots__ = ("feeds", "fetches", "nodes", "targets")

    def __init__(
        self,
        nodes: Mapping[str, Node],
        feeds: tuple[str, ...] = (),
        fetches: tuple[Ref, ...] = (),
        targets: tuple[str, ...] = (),
    ) -> None:
        self.nodes, self.feeds, self.fetches, self.targets = nodes, feeds, fetches, targets

    def replace(self, **changes: Any) -> Subgraph:
        fields = {slot: changes.get(slot, getattr(self, slot)) for slot in self.__slots__}
        return Subgraph(**fields)

    def with_nodes(self, nodes: Iterable[Node]) -> Subgraph:
        """A copy with other nodes (in topological order) and the same feeds, fetches and targets."""
        return Subgraph({n.name: n for n in nodes}, self.feeds, self.fetches, self.targets)

    def mapped(self, change: Callable[[Node], Node]) -> Subgraph:
        """A copy with each node changed, in order; the same object if none is."""
        nodes = [change(node) for node in self]
        if all(map(is_, nodes, self)):
            return self
        return self.with_nodes(nodes)

    def spec(self, ref: Ref) -> TensorSpec:
        return self.nodes[ref[0]].outputs[ref[1]]

    def roots(self) -> Iterator[str]:
        """The names of the nodes that must not be pruned: feeds, fetched nodes and targets."""
        yield from self.feeds
        for name, _ in self.fetches:
            yield name
        yield from self.targets

    def consumers(self) -> dict[str, list[str]]:
        """Map from each node's name to its consumers, which read an output or have a control edge from it."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in dict.fromkeys(node.predecessors):
                found[name].append(node.name)
        return found

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)


# --- functions that a node owns


def owned_subgraphs(attrs: Mapping[str, Any]) -> list[Subgraph]:
    """The functions among an operation's attrs."""
    found: list[Subgraph] = []
    for value in attrs.values():
        if isinstance(value, Subgraph):
            found.append(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Subgraph):
            found += value
    return found


def devices_in(node: Node) -> set[str]:
    """The devices of ``node`` and of what is in its functions."""
    inner = [devices_in(each) for function in owned_subgraphs(node.attrs) for each in function]
    return {node.device}.union(*inner)


def with_functions(node: Node, change: Callable[[Subgraph], Subgraph]) -> Node:
    """``node`` with ``change`` applied to each function that it owns; the same object if nothing changed."""
    changed: dict[str, Any] = {}
    for key, value in node.attrs.items():
        if isinstance(value, Subgraph):
            after: Any = change(value)
            if after is not value:
                changed[key] = after
        elif isinstance(value, tuple) and value and isinstance(value[0], Subgraph):
            after = tuple(map(change, value))
            if any(a is not b for a, b in zip(after, value, strict=True)):
                changed[key] = after
    return node.replace(attrs={**node.attrs, **changed}) if changed else node


def site_of(node: Node) -> str:
    """The common name of the parts of a loop partitioned across devices; other nodes return their own."""
    return str(node.attrs.get(SITE, node.name))


def parts_by_name(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """The names of all parts of a loop or branch partitioned across devices, by the name of each part. They
    exchange tensors, so whatever depends on one of them depends on all.
    """
    sites: dict[str, list[str]] = {}
    for node in nodes:
        if SITE in node.attrs:
            sites.setdefault(node.attrs[SITE], []).append(node.name)
    return {name: names for names in sites.values() for name in names}
