"""Losses: the cross-entropies, the squared norm, Poisson; and top-k accuracy.

The two softmax cross-entropies are ops that output the loss and its gradient together, as in TensorFlow: the
forward pass computes most of it. Both outputs are differentiable, so second order is right. float16 and
bfloat16 logits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched, merged, rank_of
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Loop, LoopPattern
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.slicing import strided_slice
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.indexing import is_within
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater_equal, less_equal, logical_and, where_v2
from flowrt.graph.ops.elementwise.math import exp, log, log1p, neg, number, square
from flowrt.graph.ops.nn import sharded_softmax
from flowrt.graph.ops.nn.activations import softplus
from flowrt.graph.ops.nn.softmax import log_softmax, shifted, softmax, softmax_derivative
from flowrt.graph.shapes import Shape, broadcast, format_shape, merge, normalize_axis
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "in_top_k", "l2_loss", "log_poisson_loss", "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits", "softmax_cross_entropy_with_logits_v2",
    "sparse_softmax_cross_entropy_with_logits", "weighted_cross_entropy_with_logits",
]  # fmt: skip

# --- the fused ops


def _matrix(name: str, shape: Shape) -> tuple[int | None, ...]:
    if shape is not None and len(shape) != 2:
        raise InvalidArgumentError(f"{name}: expected shape [batch, classes]; got {format_shape(shape)}")
    return (None, None) if shape is None else shape


def _dense_shape(s: ShapeContext) -> Sequence[Shape]:
    batch, classes = broadcast(_matrix("features", s.shapes[0]), _matrix("labels", s.shapes[1])) or (
        None,
        None,
    )
    return [(batch,), (batch, classes)]


def _sparse_shape(s: ShapeContext) -> Sequence[Shape]:
    batch, classes = _matrix("features", s.shapes[0])
    if s.shapes[1] is not None and len(s.shapes[1]) != 1:
        raise InvalidArgumentError(
            f"labels: expected a vector of class numbers; got {format_shape(s.shapes[1])}"
        )
    (batch,) = merge((batch,), s.shapes[1]) or (None,)
    return [(batch,), (batch, classes)]


def _outputs(xp: Any, features: Any, shape: tuple[int, int], out: Any) -> tuple[Any, Any]:
    if shape[1] == 0:
        raise InvalidArgumentError(f"features: expected at least one class; got shape {list(shape)}")
    return (xp.empty(shape[0], features.dtype), xp.empty(shape, features.dtype)) if out is None else out


def _dense_cross_entropy(xp: Any, features: Any, labels: Any, out: Any = None) -> Any:
    batch = np.broadcast_shapes(features.shape, labels.shape)
    loss, backprop = _outputs(xp, features, batch, out)
    exponents = shifted(xp, xp.broadcast_to(features, batch))
    powers = xp.exp(exponents)
    total = powers.sum(axis=1, keepdims=True)
    wide = labels.astype(powers.dtype, copy=False)
    loss[...] = (wide * (xp.log(total) - exponents)).sum(axis=1)
    powers /= total
    powers -= wide
    backprop[...] = powers
    return loss, backprop


def _sparse_cross_entropy(xp: Any, features: Any, labels: Any, out: Any = None) -> Any:
    loss, backprop = _outputs(xp, features, features.shape, out)
    rows, classes = features.shape
    if labels.shape != (rows,):
        raise InvalidArgumentError(f"labels: expected shape [{rows}], as logits; got {list(labels.shape)}")
    if not rows:
        return loss, backprop
    exponents = shifted(xp, features, backprop)
    if xp is np:
        _check_classes(labels, classes)
    else:
        known = is_within(labels, classes)
        labels = xp.where(known, labels, 0)
        exponents = xp.where(known[:, None], exponents, exponents.dtype.type(math.nan))
    chosen = xp.arange(rows), labels
    loss[...] = -exponents[chosen]
    shares = xp.exp(exponents, out=exponents)
    total = shares.sum(axis=1)
    loss += xp.log(total).astype(loss.dtype, copy=False)
    xp.true_divide(shares, total[:, None], out=shares)
    shares[chosen] -= shares.dtype.type(1)
    return loss, delivered(xp, shares, backprop.dtype, backprop)


def _check_classes(labels: Any, classes: int) -> None:
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidArgumentError(
            f"labels[{row}]: expected a class number in [0, {classes}); got {int(labels[row])}"
        )


def _dense_loop(b: LoopBuilder, features: LoopValue, labels: LoopValue) -> tuple[LoopValue, LoopValue]:
    exponents = features - b.row_max(features)
    powers = b.exp(exponents)
    total = b.row_sum(powers)
    return b.row_sum(labels * (b.log(total) - exponents)), powers / total - labels


def _sparse_loop(b: LoopBuilder, features: LoopValue, labels: LoopValue) -> tuple[LoopValue, LoopValue]:
    wanted = b.cast(labels, "int64")
    is_class = (wanted >= 0) & (wanted < b.columns())
    b.check(is_class)
    chosen = b.column().equals(wanted)
    exponents = features - b.row_max(features)
    powers = b.exp(exponents)
    total = b.select(is_class, b.row_sum(powers), math.nan)  # unused if labels are checked
    loss = b.log(total) - b.row_sum(b.select(chosen, exponents, 0))
    return loss, powers / total - b.cast(chosen, features.dtype)


def _scaled_rows(dloss: Tensor, rows: Tensor) -> Tensor:
    return multiply(expand_dims(dloss, -1), rows)


def _feature_gradient(op: Operation, dloss: Tensor | None, dbackprop: Tensor | None) -> Tensor | None:
    """Gradient through the loss, with the second output as its derivative, and through that output: softmax
    less the labels.
    """
    first = None if dloss is None else _scaled_rows(dloss, op.outputs[1])
    if dbackprop is None:
        return first
    second = softmax_derivative(softmax(op.inputs[0]), dbackprop)
    return second if first is None else add(first, second)


def _dense_vjp(op: Operation, dloss: Tensor | None, dbackprop: Tensor | None) -> list[Tensor | None]:
    features, labels = op.inputs
    by_features = _feature_gradient(op, dloss, dbackprop)
    by_labels = None if dloss is None else neg(_scaled_rows(dloss, log_softmax(features)))
    if dbackprop is not None:
        by_labels = neg(dbackprop) if by_labels is None else subtract(by_labels, dbackprop)
    return [
        None if by_features is None else unbroadcast(by_features, features, labels),
        None if by_labels is None else unbroadcast(by_labels, labels, features),
    ]


def _distributions(rng: np.random.Generator) -> Iterable[Sample]:
    for rows, columns, dtype in [
        (3, 4, np.float64),
        (2, 3, np.float32),
        (2, 3, np.float16),
        (2, 3, dtypes.bfloat16.np),
    ]:
        yield sample(
            rng.standard_normal((rows, columns)).astype(dtype),
            rng.dirichlet([1.0] * columns, rows).astype(dtype),
        )
    yield sample(rng.standard_normal((3, 4)), rng.dirichlet([1.0] * 4, 1))
    yield sample(np.zeros((0, 3)), np.zeros((0, 3)))


def _class_numbers(rng: np.random.Generator) -> Iterable[Sample]:
    for dtype in (np.float64, np.float32, np.float16, dtypes.bfloat16.np):
        yield sample(rng.standard_normal((3, 4)).astype(dtype), np.array([0, 3, 1], np.int32))
    yield sample(rng.standard_normal((2, 1)), np.array([0, 0], np.int64))
    yield sample(np.zeros((0, 3)), np.zeros(0, np.int64))


dense_cross_entropy_op: OpDef[list[Tensor]] = define_op(
    "SoftmaxCrossEntropyWithLogits",
    "features: T in FLOATING, labels: T -> loss: T, backprop: T",
    shape=_dense_shape,
    kernel=_dense_cross_entropy,
    vjp=_dense_vjp,
    samples=_distributions,
    loop=Loop(_dense_loop, LoopPattern.ALONG_ROWS),
    batch=merged(0, 1),
    axes="n c!, n c! -> n, n c!",
    sharded=sharded_softmax.dense_cross_entropy,
    doc="-sum(labels * log_softmax(features)) per row, and its gradient for labels of sum 1: "
    "softmax(features) - labels.",
)

sparse_cross_entropy_op: OpDef[list[Tensor]] = define_op(
    "SparseSoftmaxCrossEntropyWithLogits",
    "features: T in FLOATING, labels: Tlabels in INDEX -> loss: T, backprop: T",
    shape=_sparse_shape,
    kernel=_sparse_cross_entropy,
    vjp=lambda op, dloss, dbackprop: [_feature_gradient(op, dloss, dbackprop), None],
    samples=_class_numbers,
    loop=Loop(_sparse_loop, LoopPattern.ALONG_ROWS),
    batch=merged(0, 1),
    axes="n c!, n -> n, n c!",
    sharded=sharded_softmax.sparse_cross_entropy,
    doc="-log_softmax(features)[label] per row, and its gradient; on a GPU NaN for an invalid label.",
)


# --- TensorFlow's functions of them


def _check_named(where: str, sentinel: Any, labels: Any, logits: Any) -> None:
    if sentinel is not None:
        raise misuse(f"{where}: expected named arguments (labels=..., logits=...); got one by position")
    if labels is None or logits is None:
        raise misuse(
            f"{where}: expected labels and logits; got {'no labels' if labels is None else 'no logits'}"
        )


def _precise(logits: Tensor) -> Tensor:
    return cast(logits, dtypes.float32) if logits.dtype.size == 2 else logits


def _flattened(x: Tensor) -> Tensor:
    """``x`` as rows of classes."""
    static = x.spec.shape
    if static is not None and len(static) == 2:
        return x
    if static is not None and static[-1]:
        return reshape(x, [-1, static[-1]])
    return reshape(x, concat([[-1], strided_slice(shape(x), [-1], [1], end_mask=1)], 0))


def _leading_shape(x: Tensor) -> Any:
    """The shape of ``x`` without its last dimension."""
    static = x.spec.shape
    if static is not None and None not in static[:-1]:
        return np.array(static[:-1], np.int32)
    return strided_slice(shape(x), [0], [-1])


def _last(x: Tensor, axis: int) -> list[int]:
    """The permutation that moves ``axis`` to the end. Raises `InvalidArgumentError` for an axis out of
    range.
    """
    if x.spec.shape is None:
        raise misuse(f"axis: expected -1 for logits of unknown rank; got {axis}")
    rank = len(x.spec.shape)
    axis = normalize_axis(axis, rank)
    return [*range(axis), *range(axis + 1, rank), axis]


@tf1_names(axis="dim")
def softmax_cross_entropy_with_logits_v2(
    labels: NumericLike, logits: NumericLike, axis: int | None = None, name: str | None = None
) -> Tensor:
    """The cross-entropy of ``labels`` and ``softmax(logits)``; gradients flow into both.

    Args:
        labels: A distribution along ``axis``, of the shape of ``logits``.
        logits: Floats, before any softmax.
        axis: The dimension of the classes, by default the last.

    Returns:
        The losses, of the shape of ``logits`` without ``axis``.

    Raises:
        InvalidArgumentError: The shapes do not fit.

    Example:
        >>> labels, logits = [[0.0, 1.0]], [[1.0, 1.0]]
        >>> tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits).eval()
        array([0.6931472], dtype=float32)
    """
    _check_named("softmax_cross_entropy_with_logits_v2", None, labels, logits)
    with get_default_graph().name_scope(name or "softmax_cross_entropy_with_logits") as scope:
        x = convert_to_tensor(logits)
        target = cast(labels, _precise(x).dtype)
        if axis not in (None, -1):
            perm = _last(x, axis)
            x, target = transpose(x, perm), transpose(target, perm)
        loss = dense_cross_entropy_op(_flattened(_precise(x)), _flattened(target))[0]
        loss = reshape(loss, _leading_shape(x)) if x.shape.rank != 2 else loss
        if x.spec.shape is not None:
            loss.set_shape(x.spec.shape[:-1])
        return cast(loss, x.dtype, name=scope)


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: NumericLike | None = None,
    logits: NumericLike | None = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """The same as `softmax_cross_entropy_with_logits_v2`, but no gradient flows into ``labels``.

    Args:
        labels: A distribution along ``dim``, of the shape of ``logits``.
        logits: Floats, before any softmax.
        dim: The dimension of the classes.

    Returns:
        The losses, of the shape of ``logits`` without ``dim``.

    Example:
        >>> tf.nn.softmax_cross_entropy_with_logits(labels=[[0.5, 0.5]], logits=[[0.0, 0.0]]).eval()
        array([0.6931472], dtype=float32)
    """
    _check_named("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    with get_default_graph().name_scope(name or "softmax_cross_entropy_with_logits_sg") as scope:
        assert logits is not None
        fixed = stop_gradient(labels)
        return softmax_cross_entropy_with_logits_v2(fixed, logits, dim if axis is None else axis, scope)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: NumericLike | None = None,
    logits: NumericLike | None = None,
    name: str | None = None,
) -> Tensor:
    """The cross-entropy of ``softmax(logits)`` and class indices.

    On a GPU a label out of range gives NaN, as loss and as gradient of its row, instead of an error.

    Args:
        labels: Class indices ``[...]``, integers in ``[0, classes)``.
        logits: Floats ``[..., classes]``, before any softmax.

    Returns:
        The losses ``[...]``, one for each label.

    Raises:
        InvalidArgumentError: The shapes do not fit; at run time, a label is out of range.

    Example:
        >>> tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[1], logits=[[0.0, 0.0]]).eval()
        array([0.6931472], dtype=float32)
    """
    where = "sparse_softmax_cross_entropy_with_logits"
    _check_named(where, _sentinel, labels, logits)
    target, x = convert_to_tensor(labels), convert_to_tensor(logits)
    dims, wanted = target.spec.shape, x.spec.shape
    if wanted is not None and (wanted == () or (dims is not None and len(dims) != len(wanted) - 1)):
        raise misuse(
            f"{where}: expected labels of one dimension less than logits; got shapes {format_shape(dims)}"
            f" and {format_shape(wanted)}"
        )
    if wanted is not None and len(wanted) == 2:
        loss: Tensor = sparse_cross_entropy_op(_precise(x), target, name=name)[0]
        return cast(loss, x.dtype)
    with get_default_graph().name_scope(name or "SparseSoftmaxCrossEntropyWithLogits"):
        flat = sparse_cross_entropy_op(_flattened(_precise(x)), reshape(target, [-1]))[0]
        loss = reshape(flat, shape(target))
        loss.set_shape(merge(dims, None if wanted is None else wanted[:-1]))
        return cast(loss, x.dtype)


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: NumericLike | None = None,
    logits: NumericLike | None = None,
    name: str | None = None,
) -> Tensor:
    """The cross-entropy of independent classes, elementwise.

    Args:
        labels: Probabilities, of the shape of ``logits``.
        logits: Floats of any shape, before any sigmoid.

    Returns:
        The losses, of the same shape.

    Raises:
        InvalidArgumentError: The shapes differ.

    Example:
        >>> tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0], logits=[0.0]).eval()
        array([0.6931472], dtype=float32)
    """
    _check_named("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    with get_default_graph().name_scope(name or "logistic_loss") as scope:
        z, x = _of_one_shape("sigmoid_cross_entropy_with_logits", labels, logits)
        # max(x, 0) - x * z + log(1 + exp(-|x|)), with selects in place of max and abs, since their gradients
        # at 0 would give -z, not 0.5 - z
        zero = number(0, x)
        positive = greater_equal(x, zero)
        linear = subtract(where_v2(positive, x, zero), multiply(x, z))
        return add(linear, log1p(exp(where_v2(positive, neg(x), x))), name=scope)


@tf1_names(labels="targets")
def weighted_cross_entropy_with_logits(
    labels: NumericLike | None = None,
    logits: NumericLike | None = None,
    pos_weight: NumericLike | None = None,
    name: str | None = None,
) -> Tensor:
    """`sigmoid_cross_entropy_with_logits` with the part of the positive class times ``pos_weight``."""
    with get_default_graph().name_scope(name or "logistic_loss") as scope:
        z, x = _of_one_shape("weighted_cross_entropy_with_logits", labels, logits)
        one = number(1, x)
        weight = add(one, multiply(subtract(convert_to_tensor(pos_weight, x.dtype), one), z))
        return add(multiply(subtract(one, z), x), multiply(weight, softplus(neg(x))), name=scope)


def _of_one_shape(where: str, labels: Any, logits: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors. Raises `InvalidArgumentError` unless they have one shape."""
    x = convert_to_tensor(logits)
    z = convert_to_tensor(labels, x.dtype)
    try:
        merge(z.spec.shape, x.spec.shape)
    except InvalidArgumentError:
        message = f"{where}: expected labels and logits of the same shape; got {z.shape} and {x.shape}"
        raise misuse(message) from None
    return z, x


def log_poisson_loss(
    targets: Any, log_input: NumericLike, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """The negative log-likelihood of counts ``targets`` under a Poisson distribution of log rate
    ``log_input``.

    Without ``compute_full_loss`` less Stirling's approximation of ``log(targets!)``, which has no gradient
    in log_input.
    """
    with get_default_graph().name_scope(name or "log_poisson_loss") as scope:
        z, x = _of_one_shape("log_poisson_loss", targets, log_input)
        if not compute_full_loss:
            return subtract(exp(x), multiply(x, z), name=scope)
        loss = subtract(exp(x), multiply(x, z))
        stirling = add(
            subtract(multiply(z, log(z)), z),
            multiply(number(0.5, z), log(multiply(number(2 * math.pi, z), z))),
        )
        small = logical_and(greater_equal(z, number(0, z)), less_equal(z, number(1, z)))
        return add(loss, where_v2(small, number(0, z), stirling), name=scope)


# --- the squared norm


def _l2_loss(xp: Any, t: Any, out: Any = None) -> Any:
    flat = t.reshape(-1).astype(accumulator(t), copy=False)
    half = xp.asarray(xp.dot(flat, flat) * flat.dtype.type(0.5))
    return delivered(xp, half, t.dtype, out)


def _batch_l2_loss(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    count = rank_of(op.inputs[0])
    if count is None:
        return None
    total = reduce_sum(square(values[0].tensor), list(range(1, count + 1)))
    return batched(multiply(total, np.array(0.5, total.dtype.np)))


l2_loss: OpDef[Tensor] = define_op(
    "L2Loss",
    "t: T in FLOATING -> T",
    shape=lambda s: [()],
    kernel=_l2_loss,
    vjp=lambda op, dy: [multiply(op.inputs[0], dy)],
    samples=lambda rng: [
        sample(rng.standard_normal((2, 3))),
        sample(rng.standard_normal(())),
        sample(np.zeros((0, 2))),
        *(
            sample(rng.standard_normal(4).astype(d.np))
            for d in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
        ),
    ],
    batch=_batch_l2_loss,
    axes="..a -> ",
    doc="""Half the sum of the squares.

    Args:
        t: A tensor of floats.

    Returns:
        A scalar.

    Example:
        >>> tf.nn.l2_loss([3.0, 4.0]).eval()
        np.float32(12.5)
    """,
)


# --- top k


def _in_top_k_shape(s: ShapeContext) -> Sequence[Shape]:
    batch, _ = _matrix("predictions", s.shapes[0])
    return [merge((batch,), s.shapes[1])]


def _in_top_k(xp: Any, predictions: Any, targets: Any, k: int, out: Any = None) -> Any:
    rows, classes = predictions.shape
    known = is_within(targets, classes)
    if not classes:
        return delivered(xp, known, bool, out)
    chosen = predictions[xp.arange(rows), xp.where(known, targets, 0)]
    above = (predictions > chosen[:, None]).sum(axis=1)
    return xp.logical_and(known & xp.isfinite(predictions).all(axis=1), above < k, out=out)


in_top_k_op: OpDef[Tensor] = define_op(
    "InTopKV2",
    "predictions: float32, targets: T in INDEX, k: host T -> precision: bool",
    shape=_in_top_k_shape,
    kernel=_in_top_k,
    samples=lambda rng: [
        sample(
            rng.standard_normal((4, 5)).astype(np.float32),
            np.array([0, 4, 9, 2], np.int32),
            np.array(2, np.int32),
        ),
        sample(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), np.array(1, np.int64)),
    ],
    batch=merged(0, 1),
    axes="n c!, n -> n",
    sharded=sharded_softmax.in_top_k,
    doc="True for rows with fewer than k predictions above the target's; False if one is not finite.",
)


def in_top_k(predictions: NumericLike, targets: Any, k: NumericLike, name: str | None = None) -> Tensor:
    """True if each of ``targets`` ``[n]`` is among the ``k`` largest of its row of ``predictions`` ``[n,
    classes]``.

    Ties count as in; a target out of range and a row with a value that is not finite do not.

    Example:
        >>> tf.nn.in_top_k([[0.1, 0.9], [0.8, 0.2]], [1, 1], k=1).eval()
        array([ True, False])
    """
    with get_default_graph().name_scope(name or "in_top_k") as scope:
        return in_top_k_op(predictions, targets, k, name=scope)
