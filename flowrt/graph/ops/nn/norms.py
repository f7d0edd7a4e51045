"""Norms of tensors, and clipping tensors or whole lists of gradients by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import expand_dims, size, squeeze, transpose
from flowrt.graph.ops.elementwise.arithmetic import (
    add_v2,
    conjugated,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
)
from flowrt.graph.ops.elementwise.comparison import greater, select_v2
from flowrt.graph.ops.elementwise.complex_parts import abs
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import rsqrt, sqrt
from flowrt.graph.ops.linalg.spectral import svd
from flowrt.graph.ops.nn.losses import l2_loss
from flowrt.graph.shapes import normalize_axis
from flowrt.graph.typing import NumericLike

__all__ = ["clip_by_average_norm", "clip_by_global_norm", "clip_by_norm", "global_norm", "norm"]

# --- norms


def norm(
    tensor: NumericLike,
    ord: Any = "euclidean",
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The norm of the vectors along ``axis``, of the matrices in a pair of axes, or of all elements together.

    ``ord``: 'euclidean' (of matrices also 'fro', the Frobenius norm), 1, 2 (the largest singular value of a
    matrix), inf, and for vectors any positive number. Of a complex tensor the Euclidean norm is complex,
    as in TensorFlow, the others are real. Raises `InvalidArgumentError` for another ``ord`` or ``axis``.

    Example:
        >>> tf.norm([3.0, 4.0]).eval()
        np.float32(5.0)
    """
    axes = _norm_axes(ord, axis)
    keep = bool(keep_dims if keepdims is None else keepdims)
    with get_default_graph().name_scope(name or "norm"):
        x = convert_to_tensor(tensor)
        if axes is not None and len(axes) == 2 and ord == 2:
            return _spectral_norm(x, axes, keep)
        if ord in ("euclidean", "fro", 2):
            total = reduce_sum(multiply(x, conjugated(x)), axes, keep)
            return sqrt(total)
        return _absolute_norm(abs(x), ord, axes, keep)


def _norm_axes(ord: Any, axis: Any) -> tuple[int, ...] | None:
    if isinstance(axis, (tuple, list)) and len(axis) == 2 and axis[0] != axis[1]:
        if ord not in ("euclidean", "fro", 1, 2, np.inf):
            raise InvalidArgumentError(
                f"norm: expected ord 'euclidean', 'fro', 1, 2 or inf for matrices; got {ord!r}"
            )
        return tuple(axis)
    if axis is not None and not isinstance(axis, int):
        raise InvalidArgumentError(
            f"norm: expected axis to be None, an int or two different ints; got {axis!r}"
        )
    if ord != "euclidean" and not (isinstance(ord, (int, float, np.number)) and ord > 0):
        raise InvalidArgumentError(
            f"norm: expected ord 'euclidean' or a positive number for vectors; got {ord!r}"
        )
    return None if axis is None else (axis,)


def _absolute_norm(size: Tensor, ord: Any, axes: tuple[int, ...] | None, keep: bool) -> Tensor:
    """The norms made of absolute values: of a matrix the largest column (1) or row (inf) sum."""
    if axes is not None and len(axes) == 2:
        summed, largest = axes if ord == 1 else axes[::-1]
        result = reduce_max(reduce_sum(size, [summed], True), [largest], True)
        return result if keep else squeeze(result, axes)
    if ord == np.inf:
        return reduce_max(size, axes, keep)
    if ord == 1:
        return reduce_sum(size, axes, keep)
    return pow(reduce_sum(pow(size, float(ord)), axes, keep), 1.0 / ord)


def _spectral_norm(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.spec.shape is None:
        raise InvalidArgumentError(f"norm: expected a tensor of known rank for a matrix norm; got {x!r}")
    rank = len(x.spec.shape)
    rows, columns = (normalize_axis(i, rank) for i in axes)
    rest = [i for i in range(rank) if i not in (rows, columns)]
    singular_values = svd(transpose(x, [*rest, rows, columns]), compute_uv=False)
    largest = reduce_max(singular_values, [-1])
    for axis in sorted((rows, columns)) if keep else ():
        largest = expand_dims(largest, axis)
    return largest


# --- clipping


def _values(t: Any) -> Tensor:
    return convert_to_tensor(t.values if isinstance(t, IndexedSlices) else t, name="t")


def _like(t: Any, values: Tensor) -> Any:
    """``values`` in the form that ``t`` has."""
    return IndexedSlices(values, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else values


def clip_by_norm(
    t: NumericLike, clip_norm: NumericLike, axes: NumericLike | None = None, name: str | None = None
) -> Any:
    """``t`` scaled down so that its L2 norm (along ``axes``, by default of all elements) is at most
    ``clip_norm``.

    Example:
        >>> tf.clip_by_norm([3.0, 4.0], 1.0).eval()
        array([0.6, 0.8], dtype=float32)
    """
    with get_default_graph().name_scope(name or "clip_by_norm") as scope:
        values = _values(t)
        squares = reduce_sum(multiply(values, values), axes, keepdims=True)
        # the root's derivative is infinite at 0, and 0 * inf is NaN: so no root of 0 is taken
        positive = greater(squares, np.zeros((), values.dtype.np))
        root = sqrt(select_v2(positive, squares, ones_like(squares)))
        norm = select_v2(positive, root, squares)
        clipped = realdiv(multiply(values, clip_norm), maximum(norm, clip_norm))
        return _like(t, identity(clipped, name=scope))


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The L2 norm of all elements of all tensors (or `IndexedSlices`) of the list; None entries are left out.

    Raises `DTypeError` unless ``t_list`` is a list or tuple, and `InvalidArgumentError` if it has only None.

    Example:
        >>> tf.global_norm([tf.constant([3.0]), tf.constant([4.0])]).eval()
        np.float32(5.0)
    """
    _check_list("global_norm", t_list)
    with get_default_graph().name_scope(name or "global_norm"):
        halves = [l2_loss(_values(t)) for t in t_list if t is not None]
        if not halves:
            raise InvalidArgumentError(f"global_norm: expected at least one tensor; got {list(t_list)}")
        total = multiply(reduce_sum(stack(halves)), 2.0)
        return sqrt(total, name="global_norm")


def _check_list(what: str, t_list: Any) -> None:
    if not isinstance(t_list, (list, tuple)):
        raise DTypeError(f"{what}: expected a list of tensors; got {t_list!r}")


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: NumericLike, use_norm: Any = None, name: str | None = None
) -> tuple[Any, Tensor]:  # a list; scripts put it where a tuple was
    """Tensors, all scaled down by ``clip_norm / max(global_norm, clip_norm)``. An infinite or NaN norm makes
    every element NaN.

    Args:
        t_list: Tensors, `IndexedSlices`, which stay sparse, or None, which stays None.
        clip_norm: The largest norm, a scalar.
        use_norm: The global norm, if already computed.

    Returns:
        (the list of scaled tensors, the global norm).

    Raises:
        DTypeError: ``t_list`` is no list or tuple.
        InvalidArgumentError: It has only None.

    Example:
        >>> clipped, norm = tf.clip_by_global_norm([tf.constant([3.0]), tf.constant([4.0])], 1.0)
        >>> norm.eval(), clipped[0].eval()
        (np.float32(5.0), array([0.6], dtype=float32))
    """
    _check_list("clip_by_global_norm", t_list)
    norm = global_norm(t_list) if use_norm is None else convert_to_tensor(use_norm)
    with get_default_graph().name_scope(name or "clip_by_global_norm") as scope:
        limit = convert_to_tensor(clip_norm, norm.dtype)
        one = np.ones((), norm.dtype.np)
        scale = multiply(limit, minimum(realdiv(one, norm), realdiv(one, limit)))
        scale = add_v2(scale, subtract(norm, norm))  # 0, but NaN for a norm that is not finite
        clipped = [
            None if t is None else _like(t, identity(multiply(_values(t), scale), name=f"{scope}_{i}"))
            for i, t in enumerate(t_list)
        ]
        return clipped, norm


def clip_by_average_norm(t: NumericLike, clip_norm: NumericLike, name: str | None = None) -> Tensor:
    """``t`` scaled down so that its L2 norm divided by its number of elements is at most ``clip_norm``."""
    with get_default_graph().name_scope(name or "clip_by_average_norm") as scope:
        values = convert_to_tensor(t, name="t")
        count = cast(size(values), values.dtype)
        average = rsqrt(reduce_sum(multiply(values, values)))
        limit = realdiv(np.ones((), values.dtype.np), clip_norm)
        scale = minimum(multiply(average, count), limit)
        return multiply(multiply(values, clip_norm), scale, name=scope)
