"""Softmax, the cross-entropies and in-top-k with classes that are cut: vocabulary parallelism (Shoeybi et al.
2019).

Each function is the ``sharded`` form of an op, its kernel's formula in ops that can be computed on parts: see
`flowrt.graph.passes.layouts.sharded_forms`. An extreme or a total of the classes becomes a collective of a
number a row; totals that are needed at the same time travel together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowrt.dtypes import float32, int64
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import static_shape
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.parts import checked_op, positions
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import multiply, subtract
from flowrt.graph.ops.elementwise.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    logical_and,
    logical_not,
    where_v2,
)
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import exp, is_finite, log, number


def _wide(x: Tensor) -> Tensor:
    return cast(x, float32) if x.dtype.size == 2 else x


def _shifted(x: Tensor) -> Tensor:
    """``x`` less the maximum of each row."""
    wide = _wide(x)
    return subtract(wide, reduce_max(wide, -1, keepdims=True))


def _totals(*rows: Tensor) -> list[Tensor]:
    """The sum of each row of several tensors ``[n, c]``, as ``[n]``.

    What several ops read is reduced before them, here all sums at once.
    """
    together = stack([reduce_sum(x, -1) for x in rows])
    return [getitem(together, i) for i in range(len(rows))]


def softmax(op: Operation) -> Sequence[Tensor]:
    powers = exp(_shifted(op.inputs[0]))
    return [cast(realdiv(powers, reduce_sum(powers, -1, keepdims=True)), op.outputs[0].dtype)]


def log_softmax(op: Operation) -> Sequence[Tensor]:
    exponents = _shifted(op.inputs[0])
    total = log(reduce_sum(exp(exponents), -1, keepdims=True))
    return [cast(subtract(exponents, total), op.outputs[0].dtype)]


# --- the cross-entropies


def sparse_cross_entropy(op: Operation) -> Sequence[Tensor]:
    features, labels = op.inputs
    _, classes = static_shape(features.spec)
    wanted = checked_op(cast(labels, int64), limit=classes, what="labels")
    is_class = logical_and(
        greater_equal(wanted, number(0, wanted)), less(wanted, number(classes, wanted))
    )  # where indices are not checked
    exponents = _shifted(features)
    powers = exp(exponents)
    chosen = equal(positions(features, 1), expand_dims(wanted, 1))
    total, picked = _totals(powers, where_v2(chosen, exponents, number(0, exponents)))
    total = where_v2(is_class, total, number(math.nan, total))
    backprop = subtract(realdiv(powers, expand_dims(total, 1)), cast(chosen, powers.dtype))
    return [cast(x, features.dtype) for x in (subtract(log(total), picked), backprop)]


def _cut_as(features: Tensor, labels: Tensor) -> Tensor:
    """``labels`` in the parts of ``features``: all that reads them takes these, so they can be made there."""
    classes = positions(features, 1)
    return where_v2(greater_equal(classes, number(0, classes)), labels, number(0, labels))


def dense_cross_entropy(op: Operation) -> Sequence[Tensor]:
    shape = static_shape(op.outputs[1].spec)
    both = [x if x.spec.shape == shape else broadcast_to(x, list(shape)) for x in op.inputs]
    exponents, labels = _shifted(both[0]), _cut_as(op.inputs[0], _wide(both[1]))
    powers = exp(exponents)
    total, weight, picked = _totals(powers, labels, multiply(labels, exponents))
    loss = subtract(multiply(weight, log(total)), picked)
    backprop = subtract(realdiv(powers, expand_dims(total, 1)), labels)
    return [cast(x, op.outputs[0].dtype) for x in (loss, backprop)]


# --- accuracy


def in_top_k(op: Operation) -> Sequence[Tensor]:
    predictions, targets, k = op.inputs
    _, classes = static_shape(predictions.spec)
    wanted = cast(targets, int64)
    is_class = logical_and(greater_equal(wanted, number(0, wanted)), less(wanted, number(classes, wanted)))
    chosen = equal(positions(predictions, 1), expand_dims(wanted, 1))
    value = reduce_sum(where_v2(chosen, predictions, number(0, predictions)), -1, keepdims=True)
    is_wrong = logical_not(is_finite(predictions))
    above, wrong = _totals(cast(greater(predictions, value), int64), cast(is_wrong, int64))
    is_in = logical_and(less(above, cast(k, int64)), equal(wrong, number(0, wrong)))
    return [logical_and(is_class, is_in)]
