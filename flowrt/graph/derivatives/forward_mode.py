"""Forward-mode differentiation: `forward_gradients` adds the operations that compute tangents to the graph.

The algorithm is tangent propagation (Wengert 1964; Griewank and Walther, *Evaluating Derivatives*, chapter
3): visit the operations between xs and ys, producers first, and pass the tangents of their inputs to their
``jvp`` rules. The rules build graph, so tangents can be differentiated again, in either direction. Work and
new operations are linear in the operations between xs and ys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.derivatives.gradients import UnconnectedGradients, ancestors, as_list, as_tensors, zeros_of
from flowrt.graph.derivatives.jvp import apply_jvp, jvp_rule
from flowrt.graph.node import Ref, TensorSpec
from flowrt.graph.op_def import NONDIFFERENTIABLE
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import add_n_op
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import compatible, format_shape
from flowrt.graph.source import misuse


def forward_gradients(
    ys: Any,
    xs: Any,
    tangents: Any,
    name: str = "forward_gradients",
    colocate_gradients_with_ops: bool = False,
    stop_gradients: Any = None,
    unconnected_gradients: str = UnconnectedGradients.NONE,
) -> list[Any]:
    """Directional derivative of ``ys`` along ``tangents``: the sum over xs of dy/dx times the tangent of x.

    The counterpart of `gradients`: a list with, for each y, a tensor of its shape, an `IndexedSlices` where y
    is one, or None if it depends on no x with a tangent (zeros, with ``unconnected_gradients``). ``tangents``
    has one item per x, of its dtype and shape; None is zero. The tangent of a variable applies to every read
    of it. ``stop_gradients`` are tensors treated as constants.

    Raises `DTypeError` for a y that is not floating or complex and for a tangent of such an x,
    `InvalidArgumentError` for tangents that do not match the xs and for another graph's tensors,
    `UnimplementedError` if an op on the path has no rule. Operations added before an error remain, unused.
    """
    ys = as_list(ys)
    if not ys:
        return []
    if unconnected_gradients not in (UnconnectedGradients.NONE, UnconnectedGradients.ZERO):
        expected = "forward_gradients: expected unconnected_gradients 'none' or 'zero'"
        raise misuse(f"{expected}; got {unconnected_gradients!r}")
    values = as_tensors([y.values if isinstance(y, IndexedSlices) else y for y in ys])
    stopped = [] if stop_gradients is None else as_tensors(stop_gradients)
    sweep = ForwardSweep(values, as_tensors(xs), stopped, colocate_gradients_with_ops)
    graph = values[0].graph
    with graph, graph.name_scope(name):
        moved = sweep(as_list(tangents))
        if unconnected_gradients == UnconnectedGradients.ZERO:
            moved = [zeros_of(v) if dv is None else dv for v, dv in zip(values, moved, strict=True)]
    return [
        IndexedSlices(dy, y.indices, y.dense_shape) if isinstance(y, IndexedSlices) and dy is not None else dy
        for y, dy in zip(ys, moved, strict=True)
    ]


@final
class ForwardSweep:
    """The operations between ``xs`` and ``ys``, over which each call propagates tangents.

    They are found once and reused by all calls. Raises as `forward_gradients` does for ys and xs.
    """

    def __init__(
        self, ys: Sequence[Tensor], xs: Sequence[Tensor], stops: Sequence[Tensor] = (), colocate: bool = False
    ) -> None:
        for y in ys:
            if _is_discrete(y.dtype) or y.dtype.name == "resource":
                message = f"forward_gradients: expected ys of floating or complex dtype; got {y!r}"
                raise misuse(message, DTypeError)
        self._graph = ys[0].graph
        self._ys, self._xs, stops = ([self._graph.as_graph_element(t) for t in ts] for ts in (ys, xs, stops))
        self._stops = {t.ref for t in stops}
        self._colocate = colocate
        self._operations = self._between()

    def __call__(self, tangents: Sequence[Any]) -> list[Tensor | None]:
        """The tangents of the ys from those of the xs (None is zero); None if a y depends on no x with a
        tangent.

        Raises as `forward_gradients` does for tangents.
        """
        if len(tangents) != len(self._xs):
            expected = f"forward_gradients: expected one tangent for each of {len(self._xs)} xs"
            raise misuse(f"{expected}; got {len(tangents)}")
        shares: dict[Ref, list[Tensor]] = {}
        for x, tangent in zip(self._xs, tangents, strict=True):
            if tangent is not None:
                shares.setdefault(x.ref, []).append(_seed(x, tangent))
        seeds = {ref: _sum(parts) for ref, parts in shares.items()}
        moved = self._propagate(seeds)
        return [moved.get(y.ref) for y in self._ys]

    def unmoved(self) -> list[Tensor]:
        """The ys that depend on none of the xs."""
        moved = {x.ref for x in self._xs} | {y.ref for op in self._operations for y in op.outputs}
        return [y for y in self._ys if y.ref not in moved]

    def _propagate(self, seeds: Mapping[Ref, Tensor]) -> dict[Ref, Tensor]:
        """The tangents of all tensors with a nonzero tangent, given ``seeds``."""
        moved = dict(seeds)
        for op in self._operations:
            given = [moved.get(t.ref) for t in op.inputs]
            if all(t is None for t in given):
                continue
            with self._scope(op):
                for y, dy in zip(op.outputs, apply_jvp(op, given), strict=True):
                    if dy is not None and y.ref not in self._stops:
                        _check_tangent(op, y, dy)
                        moved[y.ref] = _sum([seeds[y.ref], dy]) if y.ref in seeds else dy
        return moved

    @contextlib.contextmanager
    def _scope(self, op: Operation) -> Iterator[None]:
        """Scope for the operations of ``op``'s tangents."""
        with self._graph.name_scope(f"{op.name.rpartition('/')[2] or op.name}_jvp"):
            with self._graph.colocate_with(op) if self._colocate else contextlib.nullcontext():
                yield

    def _between(self) -> list[Operation]:
        """The operations on paths from an x to a y, producers first."""
        sources, stops = {x.ref for x in self._xs}, self._stops
        moving: dict[Operation, None] = {}
        for op in ancestors([y.op for y in self._ys], stops):
            through = any(t.ref in sources or (t.op in moving and t.ref not in stops) for t in op.inputs)
            if through and jvp_rule(op) is not NONDIFFERENTIABLE:
                moving[op] = None
        needed = {y.op for y in self._ys}
        for op in reversed(moving):
            if op in needed:
                needed.update(t.op for t in op.inputs if t.ref not in stops)
        return [op for op in moving if op in needed]


def value_spec(x: Tensor) -> TensorSpec:
    """The dtype and shape of a tensor, or of a handle's variable."""
    if x.dtype.name != "resource":
        return x.spec
    known = partial_value(x.graph.node, x.ref)
    return x.spec if known is None else TensorSpec(*known)


def _is_discrete(dtype: DType) -> bool:
    return dtype.is_integer or dtype.is_bool or dtype.name == "string"


def _seed(x: Tensor, tangent: Any) -> Tensor:
    """``tangent`` as a tensor like ``x``, or like its variable."""
    dtype, shape = value_spec(x)
    if _is_discrete(dtype):
        message = f"forward_gradients: expected None as the tangent of {x!r}, which is not differentiable"
        raise misuse(f"{message}; got {tangent!r}", DTypeError)
    tensor: Tensor = x.graph.as_graph_element(convert_to_tensor(tangent, dtype, name="tangent"))
    if not compatible(tensor.spec.shape, shape):
        message = f"forward_gradients: expected a tangent of shape {format_shape(shape)} for {x!r}"
        raise misuse(f"{message}; got {tensor.shape}")
    return tensor


def _check_tangent(op: Operation, y: Tensor, dy: Tensor) -> None:
    if dy.dtype is not y.dtype or not compatible(dy.spec.shape, y.spec.shape):
        message = f"tangent of {y.name!r}: expected {y.spec}; got {dy.spec}"
        raise op.error(InvalidArgumentError, message)


def _sum(tangents: list[Tensor]) -> Tensor:
    return add_n_op(tangents) if len(tangents) > 1 else tangents[0]
