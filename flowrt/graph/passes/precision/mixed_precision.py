"""Mixed precision: products compute in a narrower dtype than the script's, with casts around them.

    x = _Feed()                                   x = _Feed(),  x/bfloat16 = Cast(x)
    w = ReadVariableOp(handle)                    w = ReadVariableOp(handle),  w/bfloat16 = Cast(w)
    h = MatMul(x, w)                      ->      h = MatMul(x/bfloat16, w/bfloat16)
    y = Relu(h)                                   y = Relu(h)                               in bfloat16
    z = MatMul(y, v)                              z = MatMul(y, v/bfloat16),  z/float32 = Cast(z)
    loss = Mean(z)                                loss = Mean(z/float32)

The classes of `flowrt.graph.passes.precision.precision_class` decide:

  1. A product is narrowed if it depends on a variable with a `flowrt.graph.precision.Precision`.
  2. An operation that follows is narrowed *between* products: one of its inputs is narrow, and a product or
     another narrow operation reads its result. Its other inputs are cast if they are scalars, do not depend
     on these variables, or are their values. Another wide input, such as the sum of a residual network,
     keeps it wide.
  3. What reaches the update of a variable through operations that follow is wide. So a gradient is cast where
     the last product gave it, before it is unscaled, clipped, or added to a momentum.
  4. A view of a wide tensor is narrowed if only narrow operations read it: then the cast is right behind the
     variable.
  5. Scalars, results of the step, and parameters and results of functions keep their dtype. Functions of
     loops and branches are rewritten inside; casts of loop invariants move in front of the loop by
     `flowrt.graph.passes.optimise.nested`.

A tensor is cast once for all its readers. Where ``reduce`` is narrower than ``keep``, a result is cast to
``reduce``, and from there by a Cast with the attribute ``SUMS_FIRST``: sums over devices are made before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

from flowrt.dtypes import DType
from flowrt.graph.effects import is_stateful
from flowrt.graph.layouts.derived_rules import arguments_of
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.passes.precision.precision_class import PrecisionClass, precision_class, type_of_elements
from flowrt.graph.precision import COMPUTE, SUMS_FIRST, Precision, precision_in


def mixed_precision(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, with inferred shapes, in the precision of its variables; the same object if they have
    none. Raises `UnimplementedError` if they have several.
    """
    precision = precision_in(subgraph)
    return subgraph if precision is None else _Rewriting(subgraph, precision, (), ()).run()


@final
class _Rewriting:
    """Rewrites one subgraph, a step or a function. Of a function's parameters ``dependent`` are those that
    depend on variables with the precision, or are such variables, and ``values`` those that are their values.
    """

    def __init__(
        self, subgraph: Subgraph, precision: Precision, dependent: Collection[Ref], values: Collection[Ref]
    ) -> None:
        self._subgraph, self._precision = subgraph, precision
        self._dependent, self._values = set(dependent), set(values)
        self._readers: dict[str, list[Node]] = {name: [] for name in subgraph.nodes}
        self._narrow: set[str] = set()
        """The names of the nodes to be narrowed."""
        self._nodes: dict[str, Node] = {}
        """The nodes so far."""
        self._casts: dict[tuple[Ref, DType], Ref] = {}

    def run(self) -> Subgraph:
        self._find_readers()
        self._find_dependent()
        self._find_narrow()
        for node in self._subgraph:
            self._rewrite(node)
        if all(old is new for old, new in zip(self._subgraph, self._nodes.values(), strict=False)):
            return self._subgraph  # without a change there is no cast
        fetches = tuple([self._wide(ref) for ref in self._subgraph.fetches])
        return self._subgraph.replace(nodes=self._nodes, fetches=fetches)

    # --- facts

    def _find_readers(self) -> None:
        for node in self._subgraph:
            for name in {name for name, _ in node.inputs}:
                self._readers[name].append(node)

    def _find_dependent(self) -> None:
        for node in self._subgraph:
            is_variable = node.op.effect is Effect.HANDLE and COMPUTE in node.attrs
            if is_variable or not self._dependent.isdisjoint(node.inputs):
                outputs = [(node.name, index) for index in range(len(node.outputs))]
                self._dependent.update(outputs)
                if node.op.effect is Effect.READ or self._is_view_of_value(node):
                    self._values.update(outputs)

    def _is_view_of_value(self, node: Node) -> bool:
        return node.op.alias and node.op.is_pure and node.inputs[node.op.aliased] in self._values

    def _is_product(self, node: Node) -> bool:
        """Whether ``node`` is a product to be narrowed."""
        return (
            precision_class(node.op) is PrecisionClass.PRODUCT
            and self._has_dtype(node)
            and not self._dependent.isdisjoint(node.inputs)
        )

    def _may_follow(self, node: Node) -> bool:
        return (
            precision_class(node.op) is PrecisionClass.FOLLOW
            and self._has_dtype(node)
            and any(spec.shape != () for spec in node.outputs)
        )

    def _has_dtype(self, node: Node) -> bool:
        """Whether ``node`` has the dtype of the script, and its op also has the narrow one."""
        variable = type_of_elements(node.op)
        assert variable is not None
        is_kept = node.attrs[variable] is self._precision.keep
        return is_kept and self._precision.compute in node.op.types[variable]

    def _adapts(self, ref: Ref) -> bool:
        """Whether the wide tensor ``ref`` is cast for an operation that is narrow otherwise."""
        return ref not in self._dependent or ref in self._values or self._subgraph.spec(ref).shape == ()

    def _elements(self, node: Node) -> list[Ref]:
        """The inputs of ``node`` that have the dtype of its elements."""
        variable, arguments = type_of_elements(node.op), arguments_of(node.op, node.attrs)
        pairs = zip(node.inputs, arguments, strict=True)
        return [ref for ref, argument in pairs if argument.type_attr == variable]

    # --- decisions

    def _find_narrow(self) -> None:
        nodes = list(self._subgraph)
        updating = self._leading_to_updates(nodes)
        self._narrow.update(node.name for node in nodes if self._is_product(node))
        for node in nodes:
            if node.name not in updating and self._may_follow(node) and self._follows(node):
                self._narrow.add(node.name)
        fetched = {name for name, _ in self._subgraph.fetches}
        for node in reversed(nodes):
            readers = [reader.name in self._narrow for reader in self._readers[node.name]]
            if not any(readers):
                self._narrow -= set() if self._is_product(node) else {node.name}
            elif all(readers) and node.op.alias and self._may_follow(node) and node.name not in fetched:
                self._narrow.add(node.name)

    def _leading_to_updates(self, nodes: Sequence[Node]) -> set[str]:
        """The names of the nodes that an update reads, directly or through operations that follow."""
        found: set[str] = set()
        for node in reversed(nodes):
            for reader in self._readers[node.name]:
                if is_stateful(reader) or (reader.name in found and self._may_follow(reader)):
                    found.add(node.name)
        return found

    def _follows(self, node: Node) -> bool:
        """Whether an input of ``node`` is narrow, and all others adapt."""
        inputs = self._elements(node)
        is_narrow = [ref[0] in self._narrow for ref in inputs]
        return any(is_narrow) and all(
            narrow or self._adapts(ref) for narrow, ref in zip(is_narrow, inputs, strict=True)
        )

    # --- rewriting

    def _rewrite(self, node: Node) -> None:
        if node.name in self._narrow:
            node = self._narrowed(node)
        else:
            node = node.redirected({ref: self._wide(ref) for ref in node.inputs if ref[0] in self._narrow})
            if node.op.effect is Effect.NESTED:
                node = self._with_functions(node)
        self._nodes[node.name] = node

    def _narrowed(self, node: Node) -> Node:
        compute, keep = self._precision.compute, self._precision.keep
        variable = type_of_elements(node.op)
        assert variable is not None
        outputs = [s._replace(dtype=compute) if s.dtype is keep else s for s in node.outputs]
        return node.redirected({ref: self._cast(ref, compute) for ref in self._elements(node)}).replace(
            attrs={**node.attrs, variable: compute}, outputs=tuple(outputs)
        )

    def _with_functions(self, node: Node) -> Node:
        """``node`` with its functions rewritten; their parameters are its last inputs."""
        given = self._subgraph.nodes[node.name].inputs

        def rewritten(function: Subgraph) -> Subgraph:
            arguments = given[len(given) - len(function.feeds) :]
            parameters = [(name, 0) for name in function.feeds]
            pairs = list(zip(parameters, arguments, strict=True))
            dependent = {parameter for parameter, ref in pairs if ref in self._dependent}
            values = {parameter for parameter, ref in pairs if ref in self._values}
            if node.op.name == "_Loop" and dependent:
                carried = parameters[: len(node.attrs["T"])]
                dependent.update(carried)
                values.difference_update(carried)
            return _Rewriting(function, self._precision, dependent, values).run()

        return with_functions(node, rewritten)

    # --- casts

    def _wide(self, ref: Ref) -> Ref:
        """``ref`` in the dtype of the script."""
        if self._nodes[ref[0]].outputs[ref[1]].dtype is self._subgraph.spec(ref).dtype:
            return ref
        summed = self._cast(ref, self._precision.reduce)
        return self._cast(summed, self._precision.keep, {SUMS_FIRST: True})

    def _cast(self, ref: Ref, dtype: DType, attrs: Mapping[str, Any] = {}) -> Ref:
        """``ref`` as ``dtype``, by a Cast behind it that all readers share."""
        producer = self._nodes[ref[0]]
        spec = producer.outputs[ref[1]]
        if spec.dtype is dtype:
            return ref
        if (ref, dtype) not in self._casts:
            name = self._unused(f"{ref[0]}/{dtype.name}" + (f"_{ref[1]}" if ref[1] else ""))
            kinds = {"SrcT": spec.dtype, "DstT": dtype, "Truncate": False}
            self._nodes[name] = producer.beside(
                name, cast_op, (ref,), (), {**kinds, **attrs}, (TensorSpec(dtype, spec.shape),)
            )
            self._casts[ref, dtype] = name, 0
        return self._casts[ref, dtype]

    def _unused(self, name: str) -> str:
        unused, count = name, 0
        while unused in self._subgraph.nodes or unused in self._nodes:
            count += 1
            unused = f"{name}_{count}"
        return unused
