"""Parts of matrices: diagonals, bands, identity matrices, traces.

Rules of this file: a matrix is the last two dimensions of a tensor, the others are a batch; all ops are
linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import batched, leading, rank_of
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import CONSTANT_LIMIT, ones, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import copied, delivered
from flowrt.graph.ops.base.shape_manipulation import matrix_transpose, shape
from flowrt.graph.ops.elementwise.arithmetic import minimum
from flowrt.graph.shapes import Shape, format_shape, merge, num_elements
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = [
    "diag", "diag_part", "eye", "matrix_band_part", "matrix_diag", "matrix_diag_part", "matrix_set_diag",
    "trace",
]  # fmt: skip


def _samples(*shapes: tuple[int, ...]) -> Any:
    """Samples of one input of each of ``shapes``, and of a few dtypes in the first."""

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        for dims in shapes:
            yield sample(rng.standard_normal(dims))
        for dtype in (np.int32, np.float16, dtypes.bfloat16.np, np.complex64, np.bool_):
            yield sample(rng.integers(0, 5, shapes[0]).astype(dtype))

    return samples


def matrix_shape(dims: Shape, *, square: bool = False) -> Shape:
    """``dims``, which must be of rank 2 or more. Raises `InvalidArgumentError`."""
    if dims is None:
        return None
    if len(dims) < 2:
        raise InvalidArgumentError(f"expected a matrix or a batch of them; got shape {format_shape(dims)}")
    if square and dims[-1] != dims[-2] and None not in dims[-2:]:
        raise InvalidArgumentError(f"expected square matrices; got shape {format_shape(dims)}")
    return dims


def diagonal_length(dims: tuple[int | None, ...]) -> int | None:
    rows, columns = dims[-2:]
    return None if rows is None or columns is None else min(rows, columns)


# --- the main diagonal


def _write_diagonal(xp: Any, matrices: Any, diagonal: Any) -> Any:
    """Write into ``matrices``, which must be contiguous: element i of the diagonal is i * (columns + 1)
    further.
    """
    rows, columns = matrices.shape[-2:]
    if rows and columns:
        flat = matrices.reshape((*matrices.shape[:-2], rows * columns))
        flat[..., : min(rows, columns) * columns : columns + 1] = diagonal
    return matrices


def _matrix_diag(xp: Any, diagonal: Any, out: Any = None) -> Any:
    size = diagonal.shape[-1]
    made = xp.zeros((*diagonal.shape, size), diagonal.dtype)
    return delivered(xp, _write_diagonal(xp, made, diagonal), made.dtype, out)


def _matrix_diag_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = s.shapes[0]
    if dims == ():
        raise InvalidArgumentError("expected a diagonal or a batch of them; got a scalar")
    return [None if dims is None else (*dims, dims[-1])]


matrix_diag_op = define_op(
    "MatrixDiag",
    "diagonal: T in NUMERIC | bool -> T",
    shape=_matrix_diag_shape,
    kernel=_matrix_diag,
    vjp=lambda op, dy: [matrix_diag_part(dy)],
    jvp=LINEAR,
    samples=_samples((2, 3), (2,), (2, 0)),
    batch=leading,
    axes="..a n! -> ..a p q",
    doc="Square matrices with the given diagonals and zeros elsewhere.",
)


def matrix_diag(diagonal: NumericLike, name: str = "diag") -> Tensor:
    """Square matrices ``[..., n, n]`` with the diagonals ``[..., n]``."""
    return matrix_diag_op(diagonal, name=name)


def _matrix_diag_part_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0])
    return [None if dims is None else (*dims[:-2], diagonal_length(dims))]


matrix_diag_part_op: OpDef[Tensor] = define_op(
    "MatrixDiagPart",
    "input: T in NUMERIC | bool -> diagonal: T",
    shape=_matrix_diag_part_shape,
    kernel=lambda xp, input, out=None: copied(xp, xp.diagonal(input, axis1=-2, axis2=-1), out),
    vjp=lambda op, dy: [matrix_set_diag(zeros_like(op.inputs[0]), dy)],
    jvp=LINEAR,
    samples=_samples((2, 3, 2), (3, 3), (0, 2), (2, 3)),
    batch=leading,
    axes="..a m! n! -> ..a k",
    doc="The main diagonals of matrices.",
)


def matrix_diag_part(
    input: NumericLike, name: str = "diag_part", k: int | Sequence[int] = 0, padding_value: NumericLike = 0
) -> Tensor:
    """The diagonals ``k`` of matrices ``[..., m, n]``: 0 is the main one, those above it are positive.

    One is ``[..., length]``. Those from ``k[1]`` down to ``k[0]`` are ``[..., k[1] - k[0] + 1, longest]``,
    the shorter ones with ``padding_value`` at their end, as in TensorFlow 1.15.

    Raises `InvalidArgumentError` for ``k`` in another order, matrices without such a diagonal or, unless
    ``k`` is 0, of unknown rank.

    Example:
        >>> tf.linalg.diag_part([[1, 2], [3, 4]], k=(-1, 0)).eval()
        array([[1, 4],
               [3, 0]], dtype=int32)
    """
    low, high = (k[0], k[-1]) if isinstance(k, Sequence) else (k, k)
    if low == high == 0:
        return matrix_diag_part_op(input, name=name)
    with get_default_graph().name_scope(name):
        matrix = convert_to_tensor(input)
        if matrix.shape.ndims is None or matrix.shape.ndims < 2:
            raise misuse(f"diag_part: expected matrices of a known rank; got shape {matrix.shape}")
        rows, columns = (size.value for size in matrix.shape[-2:])
        if low > high or (rows is not None and low <= -rows) or (columns is not None and high >= columns):
            raise misuse(f"diag_part: expected k as (low, high) in shape {matrix.shape}; got {k}")
        sizes = shape(matrix)
        longest: Any = minimum(sizes[-2] + min(high, 0), sizes[-1] + min(-low, 0))
        if rows is not None and columns is not None:
            longest = min(rows + min(high, 0), columns + min(-low, 0))
        ends = [[0, 0]] * (matrix.shape.ndims - 2) + [[0, max(-low, 0)], [0, max(high, 0)]]
        whole = pad(matrix, ends, constant_values=cast(padding_value, matrix.dtype))
        starts = [(max(-place, 0), max(place, 0)) for place in range(high, low - 1, -1)]
        found = [matrix_diag_part_op(whole[..., y : y + longest, x : x + longest]) for y, x in starts]
        return found[0] if len(found) == 1 else stack(found, axis=-2)


def _matrix_set_diag(xp: Any, input: Any, diagonal: Any, out: Any = None) -> Any:
    if out is None or not out.flags.c_contiguous:
        made = _write_diagonal(xp, xp.array(input, order="C"), diagonal)
        return delivered(xp, made, input.dtype, out)
    out[...] = input
    return _write_diagonal(xp, out, diagonal)


def _matrix_set_diag_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, diagonal = matrix_shape(s.shapes[0]), s.shapes[1]
    if dims is None or diagonal is None:
        return [dims]
    batch = merge(dims[:-2], diagonal[:-1])
    merge((diagonal_length(dims),), diagonal[-1:])
    assert batch is not None
    return [(*batch, *dims[-2:])]


matrix_set_diag_op: OpDef[Tensor] = define_op(
    "MatrixSetDiag",
    "input: T in NUMERIC | bool, diagonal: T -> T",
    shape=_matrix_set_diag_shape,
    kernel=_matrix_set_diag,
    vjp=lambda op, dy: [matrix_set_diag(dy, zeros_like(op.inputs[1])), matrix_diag_part(dy)],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 2))),
        sample(rng.standard_normal((3, 2)), rng.standard_normal(2)),
        sample(np.zeros((0, 2), np.float32), np.zeros(0, np.float32)),
        sample(np.ones((2, 2), np.int64), np.zeros(2, np.int64)),
    ),
    batch=leading,
    axes="..a m! n!, ..a k! -> ..a m n",
    doc="The input with other main diagonals.",
)


def matrix_set_diag(input: NumericLike, diagonal: NumericLike, name: str = "set_diag") -> Tensor:
    """Matrices ``[..., m, n]`` with their main diagonals replaced by ``diagonal``, ``[..., min(m, n)]``."""
    return matrix_set_diag_op(input, diagonal, name=name)


# --- bands


def _band_part(xp: Any, input: Any, num_lower: int, num_upper: int, out: Any = None) -> Any:
    rows, columns = input.shape[-2:]
    distance = xp.arange(rows)[:, None] - xp.arange(columns)[None, :]
    below = distance <= (rows if num_lower < 0 else num_lower)
    above = -distance <= (columns if num_upper < 0 else num_upper)
    if out is None:
        return xp.where(below & above, input, xp.zeros((), input.dtype))
    out[...] = 0
    xp.copyto(out, input, where=below & above)
    return out


def _band_part_shape(s: ShapeContext) -> Sequence[Shape]:
    s.check_scalars(1, 2)
    return [matrix_shape(s.shapes[0])]


matrix_band_part: OpDef[Tensor] = define_op(
    "MatrixBandPart",
    "input: T in NUMERIC | bool, num_lower: host Tindex in INDEX, num_upper: host Tindex -> band: T",
    shape=_band_part_shape,
    kernel=_band_part,
    vjp=lambda op, dy: [matrix_band_part(dy, *op.inputs[1:]), None, None],
    jvp=LINEAR,
    samples=lambda rng: [
        sample(rng.standard_normal((2, 3, 4)).astype(dtype), np.array(low, index), np.array(high, index))
        for dtype, low, high, index in (
            (np.float64, -1, 0, np.int32),
            (np.float64, 0, -1, np.int64),
            (np.float32, 1, 1, np.int32),
            (np.complex64, 0, 0, np.int32),
            (dtypes.bfloat16.np, 9, 9, np.int32),
            (np.bool_, -1, -1, np.int32),
        )
    ],
    batch=leading,
    axes="... m! n! -> ... m! n!",
    traits=Traits(narrows=True),
    doc="""Matrices with zeros but on num_lower diagonals below and num_upper above the main one (-1: all).

    Example:
        >>> tf.matrix_band_part([[1, 2], [3, 4]], 0, -1).eval()
        array([[1, 2],
               [0, 4]], dtype=int32)
    """,
)


# --- diagonals of tensors, identity, trace


def _diag_part_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = s.shapes[0]
    if dims is None:
        return [None]
    if len(dims) % 2 or not dims:
        raise InvalidArgumentError(f"expected an even rank of 2 or more; got shape {format_shape(dims)}")
    half = len(dims) // 2
    return [merge(dims[:half], dims[half:])]


def _diag_part(xp: Any, input: Any, out: Any = None) -> Any:
    dims = input.shape[: input.ndim // 2]
    size = math.prod(dims)
    return copied(xp, xp.diagonal(input.reshape(size, size)).reshape(dims), out)


def _diag(xp: Any, diagonal: Any, out: Any = None) -> Any:
    made = xp.diag(diagonal.reshape(-1)).reshape(diagonal.shape * 2)
    return delivered(xp, made, diagonal.dtype, out)


diag = define_op(
    "Diag",
    "diagonal: T in NUMERIC | bool -> T",
    shape=lambda s: [None if s.shapes[0] is None else s.shapes[0] * 2],
    kernel=_diag,
    vjp=lambda op, dy: [diag_part(dy)],
    jvp=LINEAR,
    samples=_samples((2, 3), (3,), (0,)),
    batch=lambda b, op, values: (
        batched(matrix_diag(values[0].tensor)) if rank_of(op.inputs[0]) == 1 else None
    ),
    doc="""The tensor ``[*s, *s]`` with the input ``[*s]`` where both indices are equal, and zeros elsewhere.

    Example:
        >>> tf.diag([1, 2]).eval()
        array([[1, 0],
               [0, 2]], dtype=int32)
    """,
)


diag_part: OpDef[Tensor] = define_op(
    "DiagPart",
    "input: T in NUMERIC | bool -> diagonal: T",
    shape=_diag_part_shape,
    kernel=_diag_part,
    vjp=lambda op, dy: [diag(dy)],
    jvp=LINEAR,
    samples=_samples((2, 3, 2, 3), (3, 3), (0, 0)),
    batch=lambda b, op, values: (
        batched(matrix_diag_part(values[0].tensor)) if rank_of(op.inputs[0]) == 2 else None
    ),
    doc="The elements of ``input``, of shape ``[*s, *s]``, at which both indices are equal: shape ``[*s]``.",
)


def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Identity matrices ``batch_shape + [num_rows, num_columns]``; square by default.

    Example:
        >>> tf.eye(2).eval()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    dtype = as_dtype(dtype)
    columns = num_rows if num_columns is None else num_columns
    with get_default_graph().name_scope(name or "eye") as scope:
        parts = [
            num_rows,
            columns,
            *(
                batch_shape
                if isinstance(batch_shape, (list, tuple))
                else [0 if batch_shape is None else batch_shape]
            ),
        ]
        if all(isinstance(part, (int, np.integer)) for part in parts):
            dims = (*(batch_shape or ()), int(num_rows), int(columns))
            if (num_elements(dims) or 0) <= CONSTANT_LIMIT:
                return convert_to_tensor(
                    np.broadcast_to(np.eye(*dims[-2:], dtype=dtype.np), dims), name=scope
                )
        smaller = minimum(num_rows, columns)
        batch = np.zeros(0, np.int32) if batch_shape is None else convert_to_tensor(batch_shape, dtypes.int32)
        diagonal = ones(concat([batch, stack([smaller])], 0), dtype)
        return matrix_set_diag(
            zeros(concat([batch, stack([num_rows, columns])], 0), dtype), diagonal, name=scope
        )


@takes_composites
def trace(x: NumericLike, name: str | None = None) -> Tensor:
    """The sums ``[...]`` of the main diagonals of matrices ``[..., m, n]``."""
    with get_default_graph().name_scope(name or "Trace"):
        return reduce_sum(matrix_diag_part(convert_to_tensor(x)), [-1])


@takes_composites
def adjoint(matrix: NumericLike, name: str | None = None) -> Tensor:
    """The last two axes exchanged, conjugated."""
    return matrix_transpose(matrix, name=name or "adjoint", conjugate=True)
