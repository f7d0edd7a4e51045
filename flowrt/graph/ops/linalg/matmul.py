"""Matrix products: matmul with transposes and batches, tensordot, cross.

Rules of this file: transposes are views, which BLAS reads without a copy; float16 and bfloat16 products are
computed in float32 and rounded once; products in a gradient are matmuls again, so every order of derivative
is BLAS work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched, broadcasting, leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.array.slicing import strided_slice
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, squeeze, transpose
from flowrt.graph.ops.elementwise.arithmetic import add_v2, conjugated, multiply
from flowrt.graph.ops.elementwise.complex_parts import conj
from flowrt.graph.shapes import Shape, broadcast, format_shape, merge, normalize_axis
from flowrt.graph.typing import NumericLike

_LOW_PRECISION = (dtypes.float16.np, dtypes.bfloat16.np)


def product(xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    """``xp.matmul``, on the host by way of float32 for dtypes that BLAS does not have; cuBLAS has them."""
    if a.dtype not in _LOW_PRECISION or xp is not np:
        return xp.matmul(a, b, out=out)
    return delivered(xp, xp.matmul(a.astype(np.float32), b.astype(np.float32)), a.dtype, out)


def _cost(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> float:
    """``2 * batch * m * k * n``, where ``k`` follows from the sizes: mk * kn * mn = (mkn) ** 2."""
    a, b, c = ([d or 1 for d in spec.shape or (1, 1)] for spec in (*inputs, *outputs))
    return 2 * math.prod(c[:-2]) * math.sqrt(math.prod(a[-2:]) * math.prod(b[-2:]) * math.prod(c[-2:]))


def _product_shape(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Shape:
    """The shape of the product of two (batches of) matrices."""
    if a is None or b is None:
        return None
    if len(a) < 2 or len(b) < 2:
        raise InvalidArgumentError("expected two matrices or batches of them; got a vector or scalar")
    m, k = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if transpose_b else (b[-2], b[-1])
    if k is not None and k2 is not None and k != k2:
        asked = (
            f" with transpose_a={transpose_a}, transpose_b={transpose_b}"
            if transpose_a or transpose_b
            else ""
        )
        hint = ". Transpose one?" if m == k2 or n == k else ""
        raise InvalidArgumentError(
            f"expected a [m, k] and b [k, n]{asked}; got {format_shape(a)}, {format_shape(b)}{hint}"
        )
    batch = broadcast(a[:-2], b[:-2])
    assert batch is not None
    return (*batch, m, n)


# --- one matrix by one matrix


def _matmul_shape(s: ShapeContext) -> Sequence[Shape]:
    for name, dims in zip("ab", s.shapes, strict=True):
        if dims is not None and len(dims) != 2:
            raise InvalidArgumentError(f"{name}: expected a matrix; got shape {format_shape(dims)}")
    a, b = (merge(dims, (None, None)) for dims in s.shapes)
    return [_product_shape(a, b, s.attrs["transpose_a"], s.attrs["transpose_b"])]


def _factor_gradients(op: Operation, factors: Iterable[Tensor], dy: Tensor) -> list[Tensor]:
    """The gradients of the two ``factors``, which the op's two flags may transpose, as products."""
    a, b = factors
    turns_a, turns_b = (op.get_attr(flag) for flag in op.op_def.positional_attrs())
    times = op.op_def
    return [
        times(b, dy, turns_b, True) if turns_a else times(dy, b, False, not turns_b),
        times(dy, a, True, turns_a) if turns_b else times(a, dy, not turns_a, False),
    ]


def _bilinear_jvp(op: Operation, dx: Tensor | None, dy: Tensor | None) -> list[Tensor]:
    """The product rule: op(dx, y) + op(x, dy)."""
    x, y = op.inputs
    attrs = {key: op.node.attrs[key] for key in op.op_def.attrs}
    pairs = [(dx, y)] if dy is None else [(x, dy)] if dx is None else [(dx, y), (x, dy)]
    terms = [op.op_def(p, q, **attrs) for p, q in pairs]
    return [terms[0] if len(terms) == 1 else add_v2(*terms)]


def _matmul_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            a, b = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
            flags = dict(transpose_a=transpose_a, transpose_b=transpose_b)
            yield sample(a.T.copy() if transpose_a else a, b.T.copy() if transpose_b else b, **flags)
    for dtype in (np.float16, dtypes.bfloat16.np, np.float32, np.int32, np.complex64):
        yield sample(rng.integers(-3, 3, (2, 3)).astype(dtype), rng.integers(-3, 3, (3, 2)).astype(dtype))
    yield sample(np.zeros((2, 0)), np.zeros((0, 3)))
    yield sample(np.zeros((0, 2), np.float32), np.zeros((2, 3), np.float32))


def _product_of_batches(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """A right factor shared by all: the rows of all left factors become one matrix, since one large product
    is faster than many small ones.
    """
    x, y = values
    turned = [op.get_attr("transpose_a"), op.get_attr("transpose_b")]
    if not y.is_batched and not turned[0]:
        product = matmul(b.merged_axes(x.tensor), y.tensor, transpose_b=turned[1])
        return batched(b.split_axis(product, x.tensor))
    pairs = zip(values, turned, strict=True)
    factors = [conj(v.tensor) if is_turned else v.tensor for v, is_turned in pairs]  # adjoint, not transposed
    return batched(batch_matmul(*factors, adj_x=turned[0], adj_y=turned[1]))


matmul_op = define_op(
    "MatMul",
    "a: T in NUMERIC, b: T -> product: T",
    attrs="transpose_a: bool = False, transpose_b: bool = False",
    shape=_matmul_shape,
    kernel=lambda xp, a, b, transpose_a, transpose_b, out=None: product(
        xp, a.T if transpose_a else a, b.T if transpose_b else b, out
    ),
    vjp=lambda op, dy: _factor_gradients(op, map(conjugated, op.inputs), dy),
    jvp=_bilinear_jvp,
    samples=_matmul_samples,
    cost=_cost,
    traits=Traits(
        joined=lambda attrs: (0 if attrs["transpose_a"] else 1, 1 if attrs["transpose_b"] else 0),
        total=True,
        linear_in=(0, 1),
    ),
    batch=_product_of_batches,
    axes=lambda s: (
        f"{'k i' if s.attrs['transpose_a'] else 'i k'}, {'j k' if s.attrs['transpose_b'] else 'k j'} -> i j"
    ),
    doc="The product of two matrices, each optionally transposed first.",
)


# --- batches of matrices


def _batch_matmul_shape(s: ShapeContext) -> Sequence[Shape]:
    a, b = s.shapes
    return [_product_shape(a, b, s.attrs["adj_x"], s.attrs["adj_y"])]


def conjugate_transposed(xp: Any, x: Any) -> Any:
    """The adjoints of matrices, as views if these are real."""
    swapped = xp.swapaxes(x, -1, -2)
    return swapped.conj() if x.dtype.kind == "c" else swapped


def _batch_matmul_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    gradients = _factor_gradients(op, op.inputs, dz)
    return [unbroadcast(gradient, x) for gradient, x in zip(gradients, op.inputs, strict=True)]


def _batch_samples(rng: np.random.Generator) -> Iterable[Sample]:
    draw = rng.standard_normal
    yield sample(draw((2, 2, 3)), draw((2, 3, 2)))
    yield sample(draw((3, 2)), draw((2, 3, 2)), adj_x=True)
    yield sample(draw((2, 1, 2, 3)), draw((3, 2, 3)), adj_y=True)
    yield sample(draw((1, 3, 2)), draw((2, 2, 3)), adj_x=True, adj_y=True)
    yield sample(draw((2, 3)), draw((3, 2)))
    yield sample(draw((2, 3, 2)) * (1 + 2j), draw((2, 3, 2)) * (2 - 1j), adj_x=True)
    yield sample(draw((2, 2, 2)).astype(np.float16), draw((2, 2, 2)).astype(np.float16))
    yield sample(np.zeros((0, 2, 3), np.int32), np.zeros((3, 2), np.int32))


batch_matmul = define_op(
    "BatchMatMulV2",
    "x: T in NUMERIC, y: T -> T",
    attrs="adj_x: bool = False, adj_y: bool = False",
    shape=_batch_matmul_shape,
    kernel=lambda xp, x, y, adj_x, adj_y, out=None: product(
        xp, conjugate_transposed(xp, x) if adj_x else x, conjugate_transposed(xp, y) if adj_y else y, out
    ),
    vjp=_batch_matmul_vjp,
    jvp=_bilinear_jvp,
    samples=_batch_samples,
    cost=_cost,
    traits=Traits(linear_in=(0, 1)),
    batch=broadcasting,
    axes=lambda s: (
        f"... {'k i' if s.attrs['adj_x'] else 'i k'}, ... {'j k' if s.attrs['adj_y'] else 'k j'} -> ... i j"
    ),
    doc="Products of matrices in the last two dimensions, each optionally adjoint; the others broadcast.",
)


@takes_composites
def matmul(
    a: NumericLike,
    b: NumericLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of matrices; leading dimensions broadcast.

    Args:
        a: A tensor ``[..., m, k]``.
        b: A tensor ``[..., k, n]``.
        transpose_a: Whether ``a`` is ``[..., k, m]``, and transposed first.
        transpose_b: Whether ``b`` is ``[..., n, k]``, and transposed first.
        adjoint_a: The same as ``transpose_a``, with complex conjugates.
        adjoint_b: The same as ``transpose_b``, with complex conjugates.
        a_is_sparse: A hint, which changes nothing.
        b_is_sparse: A hint, which changes nothing.

    Returns:
        A tensor ``[..., m, n]``.

    Raises:
        InvalidArgumentError: The shapes do not fit, a rank is below 2, or an input is to be both transposed
            and adjoint.

    Example:
        >>> tf.matmul([[1.0, 2.0]], [[3.0], [4.0]]).eval()
        array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError("matmul: expected transpose or adjoint of an input; got both")
    with get_default_graph().name_scope(name or "MatMul") as scope:
        a = convert_to_tensor(a, name="a")
        b = convert_to_tensor(b, a.dtype, name="b")
        if _is_matrix(a) and _is_matrix(b):
            a, b = conjugated(a) if adjoint_a else a, conjugated(b) if adjoint_b else b
            flags = dict(transpose_a=transpose_a or adjoint_a, transpose_b=transpose_b or adjoint_b)
            result: Tensor = matmul_op(a, b, name=scope, **flags)
        else:
            a, b = conjugated(a) if transpose_a else a, conjugated(b) if transpose_b else b
            flags = dict(adj_x=transpose_a or adjoint_a, adj_y=transpose_b or adjoint_b)
            result = batch_matmul(a, b, name=scope, **flags)
        return result


def _is_matrix(x: Tensor) -> bool:
    return x.spec.shape is not None and len(x.spec.shape) <= 2


def matvec(
    a: NumericLike,
    b: NumericLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of matrices ``[..., m, k]`` and vectors ``[..., k]``: ``[..., m]``. See `matmul`."""
    with get_default_graph().name_scope(name or "MatVec"):
        a = convert_to_tensor(a, name="a")
        column = expand_dims(convert_to_tensor(b, a.dtype, name="b"), -1)
        return squeeze(
            matmul(a, column, transpose_a, False, adjoint_a, False, a_is_sparse, b_is_sparse), [-1]
        )


# --- tensor products


def tensordot(a: NumericLike, b: NumericLike, axes: NumericLike, name: str | None = None) -> Tensor:
    """The sum of products over ``axes``: an int n for the last n of ``a`` and the first n of ``b``, or two
    lists.

    The result has ``a``'s other dimensions and then ``b``'s. Raises `InvalidArgumentError` for axes that do
    not fit and for inputs of unknown rank.

    Example:
        >>> tf.tensordot([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0], axes=1).eval()
        array([3., 7.], dtype=float32)
    """
    with get_default_graph().name_scope(name or "Tensordot") as scope:
        a = convert_to_tensor(a, name="a")
        b = convert_to_tensor(b, a.dtype, name="b")
        a_axes, b_axes = _contracted_axes(a, b, axes)
        left, rows = _as_matrix(a, a_axes, contracted_first=False)
        right, columns = _as_matrix(b, b_axes, contracted_first=True)
        dims = [*_sizes(a, rows), *_sizes(b, columns)]
        return reshape(matmul(left, right), dims or np.zeros(0, np.int32), name=scope)


def _contracted_axes(a: Tensor, b: Tensor, axes: Any) -> tuple[list[int], list[int]]:
    ranks = []
    for x in (a, b):
        if x.spec.shape is None:
            raise InvalidArgumentError(f"tensordot: expected inputs of known rank; got {x!r}")
        ranks.append(len(x.spec.shape))
    if isinstance(axes, int):
        if not 0 <= axes <= min(ranks):
            raise InvalidArgumentError(f"tensordot: expected axes from 0 to {min(ranks)}; got {axes}")
        return list(range(ranks[0] - axes, ranks[0])), list(range(axes))
    try:
        pair = [[int(i) for i in np.reshape(np.array(side), -1)] for side in axes]
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"tensordot: expected an int or two lists of axes; got {axes!r}") from None
    if len(pair) != 2 or len(pair[0]) != len(pair[1]):
        raise InvalidArgumentError(f"tensordot: expected two lists of axes of one length; got {axes!r}")
    left, right = ([normalize_axis(i, rank) for i in side] for side, rank in zip(pair, ranks, strict=True))
    return left, right


def _as_matrix(x: Tensor, contracted: list[int], *, contracted_first: bool) -> tuple[Tensor, list[int]]:
    """``x`` with its contracted axes as one dimension and its free ones as the other; and which the free ones
    are.
    """
    free = [i for i in range(len(x.spec.shape or ())) if i not in contracted]
    order = contracted + free if contracted_first else free + contracted
    if order != sorted(order):
        x, moved = transpose(x, order), [order.index(i) for i in free]
    else:
        moved = free
    inner = [i for i in range(len(order)) if i not in moved]
    sizes = [_size(x, axes) for axes in ((inner, moved) if contracted_first else (moved, inner))]
    return reshape(x, sizes), free


def _sizes(x: Tensor, axes: Iterable[int]) -> list[Any]:
    """The sizes of ``x`` along ``axes``: ints where known, otherwise int32 scalars."""
    dims = x.spec.shape
    assert dims is not None
    known = {i: dims[i] for i in axes}
    return [
        strided_slice(shape(x), [i], [i + 1], shrink_axis_mask=1) if dim is None else dim
        for i, dim in known.items()
    ]


def _size(x: Tensor, axes: Iterable[int]) -> Any:
    """The product of the sizes along ``axes``."""
    total: Any = 1
    for size in _sizes(x, axes):
        known = isinstance(total, int) and isinstance(size, int)
        total = total * size if known else multiply(total, size)
    return total


def _cross_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = merge(*s.shapes)
    if dims is not None and (not dims or dims[-1] not in (None, 3)):
        raise InvalidArgumentError(
            f"expected vectors of 3 elements in the last dimension; got {format_shape(dims)}"
        )
    return [dims]


def _cross(xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    out = xp.empty(a.shape, a.dtype) if out is None else out
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        xp.subtract(a[..., j] * b[..., k], a[..., k] * b[..., j], out[..., i])
    return out


cross: OpDef[Tensor] = define_op(
    "Cross",
    "a: T in REAL, b: T -> product: T",
    shape=_cross_shape,
    kernel=_cross,
    vjp=lambda op, dy: [cross(op.inputs[1], dy), cross(dy, op.inputs[0])],
    jvp=_bilinear_jvp,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), rng.standard_normal((2, 3))),
        sample(np.array([1, 2, 3], np.int32), np.array([0, 1, 0], np.int32)),
        sample(np.ones((0, 3), np.float16), np.ones((0, 3), np.float16)),
        sample(np.ones(3, dtypes.bfloat16.np), np.arange(3).astype(dtypes.bfloat16.np)),
    ),
    batch=leading,
    axes="..a c!, ..a c! -> ..a c!",
    doc="The cross products of vectors of 3 elements in the last dimension.",
)
