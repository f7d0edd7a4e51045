"""Jacobians of tensors: `jacobian` and `hessians`.

A Jacobian is computed by columns, one forward sweep per element of the xs (`columns`), or by rows, one
reverse sweep per element of the ys (`rows`). All sweeps of a kind are one sweep over a batch of unit tensors
(`_over_units`), so the number of operations does not depend on the number of elements. Intermediate values
from xs to ys are computed once.

A user's reverse rule, of `custom_gradient` for instance, need not be linear: one may clip what it is given.
Only reverse sweeps do then what TensorFlow does, so a graph with such a rule gets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.dtypes import DType
from flowrt.errors import DTypeError
from flowrt.functions.vectorization import loop, vectorize
from flowrt.graph.construction.build import constant_tensor, convert_to_tensor
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.forward_mode import ForwardSweep, value_spec
from flowrt.graph.derivatives.gradients import as_tensors, gradients
from flowrt.graph.derivatives.jvp import jvp_rule
from flowrt.graph.op_def import BY_VJP
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.ops.linalg.matrix_parts import eye
from flowrt.graph.ops.state.variable_ops import read_variable_op
from flowrt.graph.shapes import is_static, num_elements
from flowrt.graph.source import misuse

Blocks = list[list[Tensor]]
"""``blocks[i][j]`` is dy_i/dx_j, of shape ``[*y_i, *x_j]``; zeros where y_i does not depend on x_j."""


def jacobian(ys: Structure, xs: Structure, name: str = "jacobian") -> Structure:
    """All first derivatives: for a y of shape ``[*a]`` and an x (a tensor or variable) of shape ``[*b]`` a
    tensor of shape ``[*a, *b]``. For structures: a structure like ``ys`` of structures like ``xs``.

    Uses n forward sweeps for xs of n elements in total, or m reverse sweeps for ys of m elements: the smaller
    number; forward ones if equal, since those keep no intermediate values; the known one if only one of the
    numbers is known. In a graph with `custom_gradient` they are reverse sweeps, if m is known.

    Raises `InvalidArgumentError` if neither is known and for a y that depends on no x, `DTypeError` for a y
    or x that is not floating, and the errors of `gradients` and `forward_gradients`.
    """
    y_tensors, x_tensors = as_tensors(flatten(ys)), as_tensors(flatten(xs))
    check_floating("jacobian", [*y_tensors, *x_tensors])
    if not y_tensors or not x_tensors:
        raise misuse("jacobian: expected at least one y and one x")
    n, m = _count(x_tensors), _count(y_tensors)
    if n is None and m is None:
        raise misuse(f"jacobian: expected ys or xs of static shape; got {y_tensors} and {x_tensors}")
    for y in ForwardSweep(y_tensors, x_tensors).unmoved():
        raise misuse(f"jacobian: {y!r} depends on none of the xs")
    graph = y_tensors[0].graph
    with graph, graph.name_scope(name):
        by_columns = m is None or (n is not None and n <= m and not _has_reverse_rules(graph))
        return pack_blocks(ys, xs, (columns if by_columns else rows)(y_tensors, x_tensors))


def hessians(
    ys: Any,
    xs: Any,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: Any = False,
    aggregation_method: Any = None,
) -> list[Tensor]:
    """The second derivatives of ``sum(ys)``: for an x of shape ``[*s]`` a tensor of shape ``[*s, *s]``.

    One reverse sweep, then one forward sweep over it for each element of x; in a graph with `custom_gradient`
    reverse sweeps. Raises `InvalidArgumentError` for an x without a static shape, and if the ys do not depend
    on it.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> (h,) = tf.hessians(tf.reduce_sum(x ** 3), x)
        >>> h.eval()
        array([[ 6.,  0.],
               [ 0., 12.]], dtype=float32)
    """
    xs, beside = as_tensors(xs), colocate_gradients_with_ops
    found = []
    for x, gradient in zip(xs, gradients(ys, xs, colocate_gradients_with_ops=beside), strict=True):
        if gradient is None:
            raise misuse(f"hessians: the ys do not depend on {x!r}")
        with x.graph, x.graph.name_scope(name):
            slope = convert_to_tensor(gradient)
            blocks = rows([slope], [x]) if _has_reverse_rules(x.graph) else columns([slope], [x], beside)
            found.append(blocks[0][0])
    return found


def _has_reverse_rules(graph: Graph) -> bool:
    """Whether an operation of ``graph`` has a reverse rule of the user's."""
    overridden = [op for op in graph.get_operations() if "_gradient_op_type" in op.node.attrs]
    return any(jvp_rule(op) is BY_VJP for op in overridden)


def columns(ys: Sequence[Tensor], xs: Sequence[Tensor], colocate: bool = False) -> Blocks:
    """The Jacobian by one forward sweep per element of ``xs``. Raises `InvalidArgumentError` for an x without
    a static shape.
    """
    sweep = ForwardSweep(ys, xs, colocate=colocate)

    def of(position: int) -> list[Tensor]:
        x = xs[position]
        moved = _over_units(x, lambda unit: sweep([unit if i == position else None for i in range(len(xs))]))
        return [_block(y, x, moves, y.dtype, True) for y, moves in zip(ys, moved, strict=True)]

    return [list(row) for row in zip(*map(of, range(len(xs))), strict=True)]


def rows(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> Blocks:
    """The Jacobian by one reverse sweep per element of ``ys``. Raises `InvalidArgumentError` for a y without
    a static shape.
    """

    def of(y: Tensor) -> list[Tensor]:
        found = _over_units(y, lambda unit: gradients(y, xs, unit))
        pairs = zip(xs, found, strict=True)
        return [_block(y, x, shares, value_spec(x).dtype, False) for x, shares in pairs]

    return [of(y) for y in ys]


def pack_blocks(ys: Structure, xs: Structure, blocks: Blocks) -> Structure:
    """A structure like ``ys`` of structures like ``xs``."""
    return pack_as(ys, [pack_as(xs, row) for row in blocks])


def check_floating(what: str, tensors: Sequence[Tensor]) -> None:
    """Raise `DTypeError` for a tensor, or the variable of a handle, that is not floating."""
    for tensor in tensors:
        if not value_spec(tensor).dtype.is_floating:
            raise misuse(f"{what}: expected tensors of floating dtype; got {tensor!r}", DTypeError)


def _count(tensors: Sequence[Tensor]) -> int | None:
    """The number of elements of all; None if it is not known."""
    counts = [num_elements(value_spec(tensor).shape) for tensor in tensors]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _over_units(like: Tensor, sweep: Callable[[Tensor], list[Any]]) -> list[Tensor | None]:
    """The values of each result of ``sweep`` at every unit tensor like ``like``, stacked along a new first
    axis; None if it has none.
    """
    dtype, static = value_spec(like)
    if not is_static(static):
        raise misuse(f"jacobian: expected a static shape; got {like!r}")
    count = math.prod(static)
    units = reshape(eye(count, dtype=dtype), [count, *static])
    return vectorize(sweep, [units], count, loop)


def _block(y: Tensor, x: Tensor, values: Tensor | None, dtype: DType, by_columns: bool) -> Tensor:
    """dy/dx, from its columns ``[elements of x, *y]`` or its rows ``[elements of y, *x]``; None is zero."""
    dims = concat([_shape(y), _shape(x)], 0)
    if values is None:
        return zeros(dims, dtype)
    if by_columns:
        counts = [num_elements(value_spec(x).shape), reduce_prod(_shape(y))]
        values = transpose(reshape(values, counts))
    return reshape(values, dims)


def _shape(x: Tensor) -> Tensor:
    dtype, static = value_spec(x)
    if is_static(static):
        return constant_tensor(np.array(static, np.int32))
    return shape(read_variable_op(x, dtype=dtype) if x.dtype.name == "resource" else x)
