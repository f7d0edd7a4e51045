"""Batching: a graph built for one element, rewritten for a batch of elements.

The algorithm is that of JAX's ``vmap``, on a graph. Some tensors of the graph built for one element, the
*template*, are *batched*: another tensor, with an extra first axis, holds their values for all elements. The
others are equal for all elements. `Batching` visits the template's operations, producers first, and applies
the ``batch`` rule of each op to create operations that do the same to a batch.

Rules of this file:
  1. The batch axis comes first.
  2. An operation without batched inputs stays unchanged, unless it draws random numbers or has side effects:
     those run once per element.
  3. Operations without a rule are copied into a loop over the batch: one operation, or the whole template if
     it has lists of tensors, which cannot be batched.
  4. The template stays in its graph. It is unused, so no step runs it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from flowrt import dtypes
from flowrt.dtypes import INEXACT, DType
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.batching_rules import Value, broadcasting, leading
from flowrt.graph.construction.build import convert_to_tensor, output_dtypes
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.derivatives.gradients import apply_vjp
from flowrt.graph.effects import is_stateful
from flowrt.graph.node import COLOCATION, Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect, OpDef
from flowrt.graph.ops.array import batch_axis as axes
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import identity_n
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.comparison import broadcast_shape

Each: TypeAlias = Callable[
    [Sequence[Operation], Callable[[list[Tensor]], list[Tensor]], list[Tensor], list[DType]], list[Tensor]
]
"""``each(ops, fn, batches, dtypes)``: a loop that applies ``fn``, which copies ``ops``, to each element of
``batches`` and stacks the results.
"""


class _Rewriting(ABC):
    """Rewrites the operations ``made``, in the default graph; ``values`` replace tensors that they read."""

    def __init__(self, values: Mapping[Tensor, Value], made: Collection[Operation]) -> None:
        self.graph = get_default_graph()
        self._values, self._made = dict(values), made
        self._spans: dict[Operation, tuple[int, int]] = {}
        """Range of positions in the graph of the operations created for each rewritten one."""
        self._awaited: Collection[Operation] = ()
        """Operations that the whole rewritten part already waits for."""

    def __call__(self, outputs: Sequence[Tensor], targets: Sequence[Operation] = ()) -> list[Value]:
        """The replacements of ``outputs``; ``targets`` are rewritten too."""
        order = self._order([*targets, *[t.op for t in outputs]])
        self._rewrite([op for op in order if op not in self._spans], outputs)
        operations = self.graph.get_operations()
        for op, (first, last) in self._spans.items():
            for new in operations[first:last]:  # so errors name the user's line, not that of the whole
                new.mutate(source=op.node.source)
        return [self._value(t) for t in outputs]

    def _rewrite(self, ops: Sequence[Operation], outputs: Sequence[Tensor]) -> None:
        for op in ops:
            if self._changes(op):
                self._visit(op)

    def _order(self, roots: Sequence[Operation]) -> list[Operation]:
        """The operations in ``made`` that ``roots`` need, producers first."""
        order: dict[Operation, None] = {}
        stack = [(op, False) for op in reversed(roots)]
        while stack:
            op, is_ready = stack.pop()
            if is_ready:
                order[op] = None
            elif op in self._made and op not in order:
                stack.append((op, True))
                stack += [(before, False) for before in (*op.control_inputs, *[t.op for t in op.inputs])]
        return list(order)

    def _value(self, tensor: Tensor) -> Value:
        return self._values.get(tensor) or Value(tensor, False)

    def _visit(self, op: Operation) -> None:
        values = [self._value(t) for t in op.inputs]
        first = self.graph.version
        with self._place(op):
            results = self._rewritten(op, values)
            if "_gradient_op_type" in op.node.attrs:
                results = self._with_gradient(op, results, values)
        for tensor, result in zip(op.outputs, results, strict=True):
            self._refine(tensor, result)
            self._values[tensor] = result
        self._spans[op] = first, self.graph.version

    @contextmanager
    def _place(self, op: Operation) -> Iterator[None]:
        """Scopes and control inputs of the operations created for ``op``."""
        graph = self.graph
        waits: list[Operation] = []
        for before in op.control_inputs:
            if before in self._spans:
                first, last = self._spans[before]
                waits += graph.get_operations()[first:last]
            elif before not in self._awaited:
                waits.append(before)
        local = op.name.rpartition("/")[2]
        with graph.name_scope(local), graph.device(None), graph.device(op.device):
            with graph.control_dependencies(waits):
                yield

    # --- what kinds of rewriting differ in

    @abstractmethod
    def _changes(self, op: Operation) -> bool: ...

    @abstractmethod
    def _rewritten(self, op: Operation, values: Sequence[Value]) -> list[Value]: ...

    @abstractmethod
    def _refine(self, tensor: Tensor, result: Value) -> None: ...

    @abstractmethod
    def whole(self, value: Value) -> Tensor: ...

    # --- building

    def copy(self, op: Operation, inputs: Sequence[Tensor], **attrs: Any) -> list[Tensor]:
        """The outputs of an operation like ``op`` with other ``inputs`` and other ``attrs``."""
        left_out = (COLOCATION, "_gradient_op_type")
        attrs = {**{k: v for k, v in op.node.attrs.items() if k not in left_out}, **attrs}
        graph = self.graph
        tensors = [graph.as_graph_element(t) for t in inputs]
        name = graph.operation_name(op.type.lstrip("_"))
        return list(graph.add(op.op_def, name, tensors, attrs, output_dtypes(op.op_def, attrs)).outputs)

    def _with_gradient(self, op: Operation, ys: list[Value], values: Sequence[Value]) -> list[Value]:
        """``ys`` with the gradient rule that overrides ``op``'s: see `custom_gradient`.

        The rule may read tensors of the template, so its result is rewritten too.
        """
        xs = [v for v in values if v.tensor.dtype in INEXACT]
        is_batched = any(v.is_batched for v in (*ys, *xs))
        whole = [self.whole(v) if is_batched else v.tensor for v in (*ys, *xs)]

        def gradient(_: Operation, *dys: Tensor | None) -> list[Tensor | None]:
            dxs = self._gradient(op, dys[: len(ys)], is_batched)
            return [None] * len(ys) + [dx for x, dx in zip(op.inputs, dxs, strict=True) if x.dtype in INEXACT]

        functions = self.graph.gradient_functions
        name = f"custom_gradient_{len(functions)}"
        functions[name] = gradient
        outputs = identity_n(whole, _gradient_op_type=name)
        return [Value(y, is_batched) for y in outputs[: len(ys)]]

    def _gradient(self, op: Operation, dys: Sequence[Tensor | None], is_batched: bool) -> list[Tensor | None]:
        graph = get_default_graph()
        if graph is not self.graph:
            raise op.error(UnimplementedError, "has a custom gradient, in a batch inside a function")
        first = graph.version
        seeds = [
            None if dy is None else placeholder(y.dtype, y.spec.shape)
            for y, dy in zip(op.outputs, dys, strict=True)
        ]
        dxs = [None if dx is None else convert_to_tensor(dx) for dx in apply_vjp(op, seeds)]
        pairs = zip(seeds, dys, strict=True)
        known = {s: Value(dy, is_batched) for s, dy in pairs if s is not None and dy is not None}
        rewriting = copy.copy(self)
        rewriting._values, rewriting._spans = {**self._values, **known}, dict(self._spans)
        rewriting._made = {*self._made, *graph.get_operations()[first:]}
        found = iter(rewriting([dx for dx in dxs if dx is not None]))
        whole = rewriting.whole if is_batched else lambda value: value.tensor
        return [None if dx is None else whole(next(found)) for dx in dxs]


@final
class _Copying(_Rewriting):
    """Copies operations unchanged; no value is batched."""

    def _changes(self, op: Operation) -> bool:
        return True

    def _rewritten(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        return [Value(t, False) for t in self.copy(op, [v.tensor for v in values])]

    def _refine(self, tensor: Tensor, result: Value) -> None:
        result.tensor.set_shape(tensor.shape)

    def whole(self, value: Value) -> Tensor:
        return value.tensor


@final
class Batching(_Rewriting):
    """Batches the operations in ``made`` where they depend on batched ``values``.

    ``size`` is the number of elements: an int, or an int32 scalar. ``each`` makes loops.
    """

    def __init__(
        self, size: Any, values: Mapping[Tensor, Value], made: Collection[Operation], each: Each
    ) -> None:
        super().__init__(values, made)
        self.size, self._each = size, each

    def _rewrite(self, ops: Sequence[Operation], outputs: Sequence[Tensor]) -> None:
        if self._has_lists(ops):
            wanted = [t for t in dict.fromkeys(outputs) if t.op in self._made]
            self._values.update(zip(wanted, self._loop(ops, wanted), strict=True))
        else:
            super()._rewrite(ops, outputs)

    def _has_lists(self, ops: Sequence[Operation]) -> bool:
        """Whether a list of tensors depends on a batched tensor."""
        reached = {t for t, value in self._values.items() if value.is_batched}
        for op in ops:
            is_size = all(argument.on_host for argument in op.op_def.outputs)
            if not is_size and (_acts(op.node) or any(t in reached for t in op.inputs)):
                if any(t.dtype is dtypes.variant for t in (*op.inputs, *op.outputs)):
                    return True
                reached.update(op.outputs)
        return False

    def _changes(self, op: Operation) -> bool:
        return (
            any(t in self._values for t in op.inputs)
            or any(before in self._spans for before in op.control_inputs)
            or _acts(op.node)
            or op.graph is not self.graph
        )

    def _refine(self, tensor: Tensor, result: Value) -> None:
        dims = tensor.spec.shape
        if dims is not None:
            size = self.size if isinstance(self.size, int) else None
            result.tensor.set_shape((size, *dims) if result.is_batched else dims)

    def _rewritten(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        if not any(v.is_batched for v in values) and not _acts(op.node):
            return [Value(t, False) for t in self.copy(op, [v.tensor for v in values])]
        found = None if self._reads_batched_on_host(op, values) else self._by_rule(op, values)
        return self._loop([op], list(op.outputs)) if found is None else list(found)

    def _by_rule(self, op: Operation, values: Sequence[Value]) -> Sequence[Value] | None:
        """The result of the op's rule; None if there is no rule or it does not apply."""
        rule = op.op_def.batch
        if rule is None and op.op_def.elementwise:
            rule = broadcasting if op.op_def.shape is broadcast_shape else leading
        return None if rule is None else rule(self, op, values)

    @staticmethod
    def _reads_batched_on_host(op: Operation, values: Sequence[Value]) -> bool:
        """Whether host inputs (axes or shapes) differ between elements."""
        arguments = [a for a in op.op_def.inputs for _ in range(a.length(op.node.attrs))]
        return any(a.on_host and v.is_batched for a, v in zip(arguments, values, strict=True))

    # --- what rules build with

    behind = staticmethod(axes.behind)
    merged_axes = staticmethod(axes.merged_axes)
    moved_axes = staticmethod(axes.moved_axes)
    split_axis = staticmethod(axes.split_axis)
    with_inner_axes = staticmethod(axes.with_inner_axes)
    with_last_axes = staticmethod(axes.with_last_axes)

    def apply(self, op: Operation, inputs: Sequence[Tensor], **attrs: Any) -> list[Value]:
        """The batched outputs of an operation like ``op`` with other ``inputs`` and other ``attrs``."""
        return [Value(t, True) for t in self.copy(op, inputs, **attrs)]

    def whole(self, value: Value) -> Tensor:
        """``value`` as a batched tensor: repeated if it is equal for all elements."""
        if value.is_batched:
            return value.tensor
        size = (self.size,) if isinstance(self.size, int) else reshape(self.size, [1])
        return broadcast_to(value.tensor, axes.joined(size, axes.dims_of(value.tensor)))

    def call(self, function: Subgraph, values: Sequence[Value]) -> list[Value]:
        """The results of ``function`` for arguments ``values``: its operations, rewritten."""
        template = FuncGraph.of(function, self.graph, "a function in a batch")
        arguments = dict(zip(template.parameters, values, strict=True))
        made = {op for op in template.get_operations() if op.type != "_Feed"}
        inlined = Batching(self.size, arguments, made, self._each)
        targets = [template.operations[name] for name in function.targets]
        return inlined([template.tensor(ref) for ref in function.fetches], targets)

    # --- loops

    def _loop(self, ops: Sequence[Operation], outputs: Sequence[Tensor]) -> list[Value]:
        """The replacements of ``outputs`` if ``ops`` run element by element."""
        read = dict.fromkeys(t for op in ops for t in op.inputs if self._value(t).is_batched)
        batches = [self._value(t).tensor for t in read] or [range_(self.size)]
        same = {t: value for t, value in self._values.items() if not value.is_batched}

        def element(rows: list[Tensor]) -> list[Tensor]:
            values = {**same, **{t: Value(row, False) for t, row in zip(read, rows, strict=False)}}
            copying = _Copying(values, set(ops))
            copying._awaited = self._spans
            if outputs:
                return [value.tensor for value in copying(outputs)]
            copying((), ops)
            copied = copying.graph.get_operations()
            done = [o for first, last in copying._spans.values() for o in copied[first:last]]
            with copying.graph.control_dependencies(done):
                return [constant(True)]

        kinds = [t.dtype for t in outputs] or [dtypes.bool_]
        found = self._each(ops, element, batches, kinds)
        return [Value(t, True) for t in found[: len(outputs)]]


def has_rule(op: OpDef) -> bool:
    """Whether it can be batched without a loop, if its inputs allow it."""
    return op.elementwise or op.batch is not None


def _acts(node: Node) -> bool:
    """Whether it must run once per element: it is random, writes a variable, or has side effects."""
    if node.op.effect is Effect.RANDOM or is_stateful(node):
        return True
    return any(_acts(inner) for function in owned_subgraphs(node.attrs) for inner in function)
