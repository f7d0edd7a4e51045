"""Ops that combine elements along axes: sum, mean, product, extremes, all and any.

Rules of this file: axes are a host input (None in the public functions means all); float16 and bfloat16 are
summed in float32; an empty axis gives the operation's identity element (0, 1, -inf; NaN for a mean, 0 for an
integer one); reducing along no axes returns each element unchanged, even -0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.batching_rules import on_axes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Ref
from flowrt.graph.op_def import (
    LINEAR,
    OpDef,
    PartialValue,
    Sample,
    Samples,
    ShapeContext,
    SimplifyContext,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.op_facets import Kernel, Traits
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.array.scans import cumprod
from flowrt.graph.ops.array.slicing import strided_slice_op
from flowrt.graph.ops.base.axes import whole_reduced
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.kernel_output import accumulator, copied, delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, rank, reshape, shape, size, transpose
from flowrt.graph.ops.elementwise.arithmetic import conjugated, maximum, multiply
from flowrt.graph.ops.elementwise.comparison import equal, greater
from flowrt.graph.ops.elementwise.division import floor_div, realdiv
from flowrt.graph.shapes import Shape, is_static, normalize_axis, num_elements
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike

__all__ = ["reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum"]

# --- axes


def reduced_shape(s: ShapeContext) -> Sequence[Shape]:
    """The shape rule of a reduction of input 0 along the axes in input 1."""
    dims, axes, keep = s.shapes[0], s.value(1), s.attrs["keep_dims"]
    if dims is None:
        return [None]
    if s.shapes[1] == (0,):  # no axes: nothing is reduced
        return [dims]
    if axes is None:
        return [(None,) * len(dims) if keep else None]
    dropped = _normalized(axes, len(dims))
    if len(set(dropped)) != len(dropped):
        raise InvalidArgumentError(f"expected each axis once; got {list(dropped)}")
    if keep:
        return [tuple(1 if i in dropped else d for i, d in enumerate(dims))]
    return [tuple(d for i, d in enumerate(dims) if i not in dropped)]


def _axes(op: Operation) -> tuple[int, ...] | None:
    """The reduced axes in ascending order, counted from the front; None when they or the rank are unknown."""
    dims, axes = op.inputs[0].spec.shape, static_value(op.inputs[1])
    if dims is None or axes is None:
        return None
    return tuple(sorted(_normalized(axes, len(dims))))


def _normalized(axes: Any, rank: int) -> list[int]:
    return [normalize_axis(axis, rank) for axis in (axes if isinstance(axes, tuple) else (axes,))]


def with_kept_dims(op: Operation, reduced: Tensor) -> Tensor:
    """``reduced``, of the shape of op's output, with the reduced dimensions put back as ones."""
    axes, dims = _axes(op), op.inputs[0].spec.shape
    if op.get_attr("keep_dims"):
        return reduced
    if axes is None or dims is None:
        return reshape(reduced, shape(op.op_def(op.inputs[0], op.inputs[1], keep_dims=True)))
    if is_static(dims):
        return reshape(reduced, [1 if i in axes else d for i, d in enumerate(dims)])
    for axis in axes:
        reduced = expand_dims(reduced, axis)
    return reduced


def _spread(op: Operation, reduced: Tensor) -> Tensor:
    """``reduced``, of the shape of op's output, repeated along the reduced axes to the input's shape."""
    return broadcast_to(with_kept_dims(op, reduced), shape(op.inputs[0]))


# --- kernels


def _summing(method: str) -> Kernel:
    def kernel(xp: Any, input: Any, reduction_indices: Any, keep_dims: bool, out: Any = None) -> Any:
        if reduction_indices == ():  # NumPy would add 0
            return copied(xp, input, out)
        dtype = accumulator(input)
        if dtype is input.dtype:
            return getattr(input, method)(axis=reduction_indices, dtype=dtype, out=out, keepdims=keep_dims)
        wide = getattr(input, method)(axis=reduction_indices, dtype=dtype, keepdims=keep_dims)
        return delivered(xp, wide, input.dtype, out)

    return kernel


def _mean(xp: Any, input: Any, reduction_indices: Any, keep_dims: bool, out: Any = None) -> Any:
    if reduction_indices == ():
        return copied(xp, input, out)
    total = input.sum(axis=reduction_indices, dtype=accumulator(input), keepdims=keep_dims)
    count = input.size // max(total.size, 1)
    if input.dtype.kind not in "iu":
        return delivered(xp, xp.true_divide(total, count), input.dtype, out)
    quotient = xp.abs(total) // max(count, 1)  # towards zero, as C divides; of nothing 0
    return delivered(xp, quotient * xp.sign(total), input.dtype, out)


def _extreme(method: str) -> Kernel:
    def kernel(xp: Any, input: Any, reduction_indices: Any, keep_dims: bool, out: Any = None) -> Any:
        if input.size and (method == "max" or xp is np):
            return getattr(input, method)(axis=reduction_indices, out=out, keepdims=keep_dims)
        if input.size:  # CuPy's ``min`` takes ``out`` for the dtype (seen in 14.2)
            least = input.min(axis=reduction_indices, keepdims=keep_dims)
            return delivered(xp, least, input.dtype, out)
        result = xp.zeros(input.shape, bool).any(axis=reduction_indices, keepdims=keep_dims)
        sign = -1 if method == "max" else 1
        limits = np.iinfo(input.dtype) if input.dtype.kind in "iu" else None
        empty = sign * np.inf if limits is None else limits.min if sign < 0 else limits.max
        return delivered(xp, xp.full(result.shape, empty, input.dtype), input.dtype, out)

    return kernel


# --- ops


def reduction_samples(low: float = -2, dtype: Any = np.int32) -> Samples:
    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        def draw(*shape: int) -> Any:
            return rng.uniform(low, 2, shape)

        yield sample(draw(2, 3), np.array(1, np.int32))
        yield sample(draw(2, 3, 2), np.array([0, -1], np.int32), keep_dims=True)
        yield sample(draw(2, 3, 2), np.array([2, 0], np.int64))
        yield sample(draw(2, 2), np.zeros(0, np.int32))
        yield sample(draw(), np.zeros(0, np.int32))
        yield sample(draw(0, 3), np.array(0, np.int32))
        yield sample(draw(3, 0), np.array(0, np.int32))
        yield sample(draw(3).astype(np.float32), np.array([0], np.int32))
        yield sample(draw(3, 2).astype(np.float16), np.array([0], np.int32))
        yield sample(draw(3, 2).astype(dtypes.bfloat16.np), np.array([1], np.int32))
        if dtype is not None:
            yield sample(rng.integers(0, 9, (2, 3)).astype(dtype), np.array([0, 1], np.int32))

    return samples


def _simplify(c: SimplifyContext) -> Sequence[Ref] | None:
    axes = c.constant(c.node.inputs[1])
    return c.node.inputs[:1] if axes is not None and not axes.size else None


def reduction_op(
    name: str, kernel: Kernel, types: str, samples: Samples, *, reduction: str | None = None, **rules: Any
) -> OpDef[Tensor]:
    return define_op(
        name,
        f"input: T in {types}, reduction_indices: host Tidx in INDEX -> T",
        attrs="keep_dims: bool = False",
        shape=reduced_shape,
        kernel=kernel,
        samples=samples,
        traits=Traits(reduction=reduction),
        simplify=_simplify if reduction else None,
        batch=on_axes(),
        **rules,
    )


def _folded(function: Callable[[Sequence[int]], int]) -> Callable[[ShapeContext], PartialValue]:
    """The ``value`` rule of a reduction of a vector of integers to a scalar."""

    def rule(s: ShapeContext) -> PartialValue:
        value = s.value(0)
        if not s.dtypes[0].is_integer or s.attrs["keep_dims"] or s.value(1) not in (0, -1, (0,), (-1,)):
            return None
        if not isinstance(value, tuple) or None in value or any(isinstance(v, tuple) for v in value):
            return None
        return function(value)

    return rule


def _product(values: Sequence[int]) -> int:
    return int(np.prod(values, dtype=object))


def _count(op: Operation) -> Any:
    """Number of elements reduced into each output element, as a scalar of the output's dtype."""
    x, dtype = op.inputs[0], op.outputs[0].dtype
    axes, dims = _axes(op), x.spec.shape
    count = None if axes is None or dims is None else num_elements(tuple(dims[axis] for axis in axes))
    if count is not None:
        return constant(np.array(count, dtype.np))
    return cast(floor_div(size(x), maximum(size(op.outputs[0]), 1)), dtype)


def _extreme_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """Elements that tie for the extreme share the gradient equally."""
    x, axes = op.inputs
    chosen = cast(equal(x, with_kept_dims(op, op.outputs[0])), x.dtype)
    ties = sum_op(chosen, axes, keep_dims=True)
    return [multiply(chosen, realdiv(with_kept_dims(op, dy), ties)), None]


def _prod_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """The factor of each element is the product of those before and after it, correct even for zeros."""
    x, axes = op.inputs[0], _axes(op)
    dims = x.spec.shape
    if axes is None or dims is None:
        raise op.error(
            UnimplementedError,
            "its gradient: expected axes and a rank that are known when the graph is built",
        )
    if len(axes) == 1:
        return [multiply(_spread(op, dy), conjugated(_product_of_others(x, axes[0]))), None]
    perm = [*axes, *(i for i in range(len(dims)) if i not in axes)]
    front = transpose(x, perm)
    flat = reshape(front, _joined(shape(front), len(axes)))
    others = transpose(reshape(_product_of_others(flat, 0), shape(front)), np.argsort(perm).astype(np.int32))
    return [multiply(_spread(op, dy), conjugated(others)), None]


def _joined(dims: Tensor, count: int) -> Any:
    """The shape ``dims`` with its first ``count`` dimensions made one."""
    known = static_value(dims)
    if known is not None and None not in known:
        return np.array([_product(known[:count]), *known[count:]], np.int32)
    last = strided_slice_op(dims, [count], [0], [1], end_mask=1)
    first = strided_slice_op(dims, [0], [count], [1])
    return concat_op([prod_op(first, [0], keep_dims=True), last], 0)


def _product_of_others(x: Tensor, axis: int) -> Tensor:
    before = cumprod(x, axis, exclusive=True)
    return multiply(before, cumprod(x, axis, exclusive=True, reverse=True))


sum_op = reduction_op(
    "Sum",
    _summing("sum"),
    "NUMERIC",
    reduction_samples(dtype=np.int8),
    vjp=lambda op, dy: [_spread(op, dy), None],
    jvp=LINEAR,
    value=_folded(sum),
    reduction="sum",
    doc="The sum along axes.",
)


mean_op = reduction_op(
    "Mean",
    _mean,
    "NUMERIC",
    reduction_samples(),
    vjp=lambda op, dy: [_spread(op, realdiv(dy, _count(op))), None],
    jvp=LINEAR,
    reduction="mean",
    doc="The mean along axes; integer means are cut towards zero.",
)


prod_op = reduction_op(
    "Prod",
    _summing("prod"),
    "NUMERIC",
    reduction_samples(0.5),
    vjp=_prod_vjp,
    value=_folded(_product),
    reduction="prod",
    doc="The product along axes.",
)


def _extreme_op(name: str, doc: str) -> OpDef[Tensor]:
    reduction = name.lower()
    return reduction_op(
        name, _extreme(reduction), "REAL", reduction_samples(), vjp=_extreme_vjp, reduction=reduction, doc=doc
    )


max_op = _extreme_op("Max", "The largest element along axes.")
min_op = _extreme_op("Min", "The smallest element along axes.")


def _sharded_bool(op: Operation, extreme: OpDef[Tensor]) -> Sequence[Tensor]:
    """A reduction along axes that are cut: of numbers, as bools have no collectives."""
    numbers = cast(op.inputs[0], dtypes.int32)
    found = extreme(numbers, op.inputs[1], keep_dims=op.get_attr("keep_dims"))
    return [greater(found, np.array(0, np.int32))]


def _bool_reduction(name: str, method: str, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        "input: bool, reduction_indices: host Tidx in INDEX -> bool",
        attrs="keep_dims: bool = False",
        shape=reduced_shape,
        kernel=lambda xp, input, reduction_indices, keep_dims, out=None: getattr(input, method)(
            axis=reduction_indices, out=out, keepdims=keep_dims
        ),
        simplify=_simplify,
        samples=lambda rng: (
            sample(np.array([[True, False], [True, True]]), np.array([1], np.int32)),
            sample(np.zeros((0, 2), bool), np.array(0, np.int64), keep_dims=True),
        ),
        batch=on_axes(),
        axes=whole_reduced,
        sharded=lambda op: _sharded_bool(op, min_op if method == "all" else max_op),
        doc=doc,
    )


all_op = _bool_reduction("All", "all", "Whether all elements along axes hold.")


any_op = _bool_reduction("Any", "any", "Whether an element along axes holds.")


# --- the public reductions


def reduce(op: OpDef[Tensor], x: Any, axis: Any, keepdims: bool | None, name: str | None) -> Tensor:
    """One reduction under TensorFlow's arguments."""
    keep = bool(keepdims)
    tensor = convert_to_tensor(x)
    reduced: Tensor = op(tensor, all_axes(tensor) if axis is None else axis, keep_dims=keep, name=name)
    if axis is None and not keep:
        reduced.set_shape(())
    return reduced


def all_axes(tensor: Tensor) -> Any:
    """The axes of ``tensor``, known when the graph is built if the rank is."""
    dims = tensor.spec.shape
    return op_def("Range")(0, rank(tensor), 1) if dims is None else np.arange(len(dims), dtype=np.int32)


def _define_reduction(name: str, op: OpDef[Tensor], doc: str) -> Callable[..., Tensor]:
    """The function ``name`` of TensorFlow, which adds the reduction ``op``."""

    def function(
        input_tensor: NumericLike,
        axis: NumericLike | None = None,
        keepdims: bool | None = None,
        name: str | None = None,
    ) -> Tensor:
        return reduce(op, input_tensor, axis, keepdims, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return takes_composites(tf1_names(axis="reduction_indices", keepdims="keep_dims")(function))


reduce_sum = _define_reduction(
    "reduce_sum",
    sum_op,
    """The sum along ``axis``.

    Args:
        input_tensor: A tensor of numbers.
        axis: A dimension or a list of them, negative from the last; None for all.
        keepdims: Whether the dimensions of ``axis`` are kept, with size 1.

    Returns:
        A tensor of the input's dtype, without the dimensions of ``axis``.

    Raises:
        InvalidArgumentError: An axis is out of range or named twice.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> tf.reduce_sum(x).eval(), tf.reduce_sum(x, axis=0).eval()
        (np.float32(10.0), array([4., 6.], dtype=float32))
    """,
)
reduce_mean = _define_reduction(
    "reduce_mean",
    mean_op,
    """The mean along ``axis``; of integers cut towards zero, of nothing NaN (0).

    Args:
        input_tensor: A tensor of numbers.
        axis: A dimension or a list of them, negative from the last; None for all.
        keepdims: Whether the dimensions of ``axis`` are kept, with size 1.

    Returns:
        A tensor of the input's dtype, without the dimensions of ``axis``.

    Raises:
        InvalidArgumentError: An axis is out of range or named twice.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> tf.reduce_mean(x, axis=1, keepdims=True).eval()
        array([[1.5],
               [3.5]], dtype=float32)
    """,
)
reduce_prod = _define_reduction(
    "reduce_prod",
    prod_op,
    """The product along ``axis``.

Example:
    >>> tf.reduce_prod([2, 3, 4]).eval()
    np.int32(24)
""",
)
reduce_max = _define_reduction(
    "reduce_max",
    max_op,
    """The largest element along ``axis``; of nothing -inf or the dtype's least. Ties share the gradient.

    Args:
        input_tensor: A tensor of real numbers.
        axis: A dimension or a list of them, negative from the last; None for all.
        keepdims: Whether the dimensions of ``axis`` are kept, with size 1.

    Returns:
        A tensor of the input's dtype, without the dimensions of ``axis``.

    Raises:
        InvalidArgumentError: An axis is out of range or named twice.

    Example:
        >>> tf.reduce_max([[1.0, 5.0], [3.0, 4.0]], axis=1).eval()
        array([5., 4.], dtype=float32)
    """,
)
reduce_min = _define_reduction(
    "reduce_min",
    min_op,
    """The smallest element along ``axis``; of nothing inf or the dtype's largest. Ties share the gradient.

    Example:
        >>> tf.reduce_min([[1.0, 5.0], [3.0, 4.0]], axis=0).eval()
        array([1., 4.], dtype=float32)
    """,
)
reduce_all = _define_reduction(
    "reduce_all",
    all_op,
    """True if all elements along ``axis`` are true.

Example:
    >>> tf.reduce_all([[True, False], [True, True]], axis=1).eval()
    array([False,  True])
""",
)
reduce_any = _define_reduction(
    "reduce_any",
    any_op,
    """True if any element along ``axis`` is true.

Example:
    >>> tf.reduce_any([[True, False], [False, False]], axis=1).eval()
    array([ True, False])
""",
)
