"""Constant folding: evaluates nodes with constant results at compile time.

A pure node becomes a Const of the same name when

* all its inputs are constants: its kernel runs here, on NumPy; or
* its ``value`` rule returns the whole result, independent of the inputs' elements (the Shape of a tensor of
  static shape).

Not folded are nodes with a kernel that raises (the error belongs to run time), nodes that are given a layout,
results above `MAX_BYTES`, and results above `SMALL_BYTES` that are more than `MAX_GROWTH` times as large as
the inputs (a Fill or Tile is cheaper than its result).

Folding preserves effects: if an input of a folded node depends on a node that writes a resource or has other
side effects, the constant gets a control edge from that input's producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import OpError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.layouts.attributes import LAYOUT
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, PartialValue, Rule, ShapeContext
from flowrt.graph.partial_value import MAX_ELEMENTS, as_host_value
from flowrt.graph.passes.prepare.order_effects import effectful_nodes
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.shapes import compatible, num_elements

MAX_BYTES = 10 << 20
"""The limit of TensorFlow's pass."""

SMALL_BYTES = 1024

MAX_GROWTH = 4

_OBJECTS = (dtypes.variant, dtypes.resource)
"""Dtypes without array values."""

_Array = np.ndarray[Any, Any]


def fold_constants(subgraph: Subgraph) -> Subgraph:
    """Replace nodes with known results by constants, and prune."""
    folder = _Folder(subgraph)
    if not folder.run():
        return subgraph
    redirected = folder.redirected
    fetches = tuple([redirected.get(ref, ref) for ref in subgraph.fetches])
    return prune(subgraph.replace(nodes=folder.nodes, fetches=fetches))


class _Folder:
    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self.nodes: dict[str, Node] = {}
        self.redirected: dict[Ref, Ref] = {}
        """Map from outputs of folded multi-output nodes to their constants."""
        self._arrays: dict[Ref, _Array] = {}
        self._values: dict[Ref, PartialValue] = {}
        """Known parts of integer and bool tensors."""
        self._effectful = cache(partial(effectful_nodes, subgraph))
        self._reads: set[Ref] | None = None

    def run(self) -> bool:
        """Visit all nodes; returns whether anything was folded."""
        arrays, pure = self._arrays, Effect.PURE
        changed = False
        for node in self._subgraph:
            op = node.op
            if op is const:
                arrays[node.name, 0] = node.attrs["value"]
            elif op.effect is pure and node.outputs and LAYOUT not in node.attrs:
                folded = None
                for ref in node.inputs:
                    if ref not in arrays:
                        break
                else:
                    folded = self._by_kernel(node)
                if folded is None and op.value is not None:
                    folded = self._by_value(node)
                if folded is not None and self._replace(node, folded):
                    changed = True
                    continue
            self._keep(node)
        return changed

    def _keep(self, node: Node) -> None:
        self.nodes[node.name] = node.redirected(self.redirected) if self.redirected else node

    def _replace(self, node: Node, arrays: Sequence[_Array]) -> bool:
        """Put constants in place of ``node``; returns whether any of its outputs are read."""
        if len(node.outputs) == 1:
            self._add_constant(node, node.name, 0, arrays[0])
            return True
        read = [(node.name, i) for i in range(len(arrays)) if (node.name, i) in self._read_refs()]
        for ref in read:
            name = self._unique_name(f"{node.name}/folded_{ref[1]}")
            self._add_constant(node, name, ref[1], arrays[ref[1]])
            self.redirected[ref] = (name, 0)
            self._arrays[ref] = arrays[ref[1]]
        self._keep(node)  # for its control dependents; pruned otherwise
        return bool(read)

    def _add_constant(self, node: Node, name: str, index: int, array: _Array) -> None:
        waits = [self._current(ref)[0] for ref in node.inputs if self._must_precede(ref)]
        controls = tuple(dict.fromkeys([*node.controls, *waits]))
        attrs: dict[str, Any] = {"value": array, "dtype": node.outputs[index].dtype}
        if COLOCATION in node.attrs:
            attrs[COLOCATION] = node.attrs[COLOCATION]
        spec = TensorSpec(node.outputs[index].dtype, array.shape)
        self._arrays[name, 0] = array
        self._keep(Node(name, const, (), controls, attrs, node.device, node.source, (spec,)))

    def _must_precede(self, ref: Ref) -> bool:
        """Whether a node that no longer reads ``ref`` needs a control edge from it instead."""
        producer = self.nodes[self._current(ref)[0]]
        return ref[0] in self._effectful() or (bool(producer.controls) and producer.op.name == "Const")

    def _by_kernel(self, node: Node) -> Sequence[_Array] | None:
        """The outputs, if the kernel can be run at compile time."""
        op = node.op
        if isinstance(op.kernel, Rule) or op.state is not None:
            return None
        if any(spec.dtype in _OBJECTS for spec in node.outputs):
            return None
        inputs = [self._arrays[ref] for ref in node.inputs]
        allowed = min(MAX_BYTES, max(SMALL_BYTES, MAX_GROWTH * sum([a.nbytes for a in inputs])))
        if sum([(num_elements(s.shape) or 0) * s.dtype.size for s in node.outputs]) > allowed:
            return None
        try:
            arrays = [np.asarray(value, order="C") for value in evaluate_node(node, inputs)]
        except OpError:
            return None
        if sum([a.nbytes for a in arrays]) > allowed or not all(map(_fits, arrays, node.outputs)):
            return None
        return arrays

    def _by_value(self, node: Node) -> Sequence[_Array] | None:
        """The output, if it consists of integers or bools that the ``value`` rule determines."""
        dtype, shape = node.outputs[0]
        if not (dtype.is_integer or dtype.is_bool) or len(node.outputs) != 1:
            return None
        value = self._partial_value(node, dtype)
        if value is None:
            return None
        self._values[node.name, 0] = value
        if not _is_known(value):
            return None
        array = np.array(value, dtype.np)
        return [array] if compatible(array.shape, shape) else None

    def _partial_value(self, node: Node, dtype: DType) -> PartialValue:
        assert node.op.value is not None
        inputs = node.inputs
        specs = [self.nodes[name].outputs[i] for name, i in map(self._current, inputs)]
        shapes, kinds = [s[1] for s in specs], [s[0] for s in specs]
        context = ShapeContext(node.op, node.attrs, shapes, kinds, lambda i: self._known(inputs[i]))
        try:
            value = node.op.value(context)
        except (ArithmeticError, ValueError, TypeError, IndexError):
            return None
        # A kernel wraps around at the dtype's limits, Python's ints do not.
        return value if _in_range(value, *_limits(dtype)) else None

    def _known(self, ref: Ref) -> PartialValue:
        if ref not in self._values and ref in self._arrays:
            array = self._arrays[ref]
            usable = array.dtype.kind in "iub" and array.size <= MAX_ELEMENTS
            self._values[ref] = as_host_value(array) if usable else None
        return self._values.get(ref)

    def _current(self, ref: Ref) -> Ref:
        return self.redirected.get(ref, ref)

    def _read_refs(self) -> set[Ref]:
        if self._reads is None:
            self._reads = {ref for node in self._subgraph for ref in node.inputs} | set(
                self._subgraph.fetches
            )
        return self._reads

    def _unique_name(self, name: str) -> str:
        unique, count = name, 0
        while unique in self._subgraph.nodes or unique in self.nodes:
            count += 1
            unique = f"{name}_{count}"
        return unique


def _fits(array: _Array, spec: TensorSpec) -> bool:
    return array.dtype == spec.dtype.np and compatible(array.shape, spec.shape)


def _is_known(value: PartialValue) -> bool:
    return all(map(_is_known, value)) if isinstance(value, tuple) else value is not None


def _in_range(value: PartialValue, low: int, high: int) -> bool:
    if isinstance(value, tuple):
        return all(_in_range(v, low, high) for v in value)
    return value is None or low <= value <= high


@lru_cache(maxsize=64)
def _limits(dtype: DType) -> tuple[int, int]:
    return (0, 1) if dtype.is_bool else (int(dtype.min), int(dtype.max))
