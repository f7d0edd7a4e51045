"""Products and solutions of tridiagonal matrices.

A matrix is given by three diagonals of its length: the one above the main one, of which the last element is
not read, the main one, and the one below, of which the first element is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, matrix_transpose, squeeze
from flowrt.graph.ops.elementwise.arithmetic import conjugated, multiply
from flowrt.graph.ops.elementwise.math import neg
from flowrt.graph.ops.linalg.decompositions import INVERTIBLE
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag_part, matrix_shape
from flowrt.graph.shapes import Shape, format_shape, merge
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike


def _before(x: Tensor) -> Tensor:
    """Element i of the last axis in place i + 1, a zero in the first."""
    return concat([zeros_like(x[..., :1]), x[..., :-1]], -1)


def _behind(x: Tensor) -> Tensor:
    """Element i + 1 of the last axis in place i, a zero in the last."""
    return concat([x[..., 1:], zeros_like(x[..., :1])], -1)


# --- solutions


def _shape(s: ShapeContext) -> Sequence[Shape]:
    diagonals, rhs = (matrix_shape(dims) for dims in s.shapes)
    if diagonals is None or rhs is None:
        return [rhs]
    if diagonals[-2] not in (3, None):
        raise InvalidArgumentError(f"diagonals: expected 3 of them; got shape {format_shape(diagonals)}")
    return [merge(rhs, (*diagonals[:-2], diagonals[-1], None))]


def _solve(xp: Any, diagonals: Any, rhs: Any, partial_pivoting: bool, out: Any = None) -> Any:
    """Gaussian elimination of row after row. A row has its elements on the diagonal and on the two places
    behind it, the second by exchanges of rows, and its right sides.
    """
    *batch, size, width = rhs.shape
    count = math.prod(batch)
    above, main, below = xp.moveaxis(diagonals.reshape((count, 3, size)), (1, 2), (0, 1))[..., None]
    sides = xp.moveaxis(rhs.reshape((count, size, width)), 1, 0)
    nothing = xp.zeros((count, 1), rhs.dtype)
    rows = []
    for k in range(size):
        behind = above[k] if k + 1 < size else nothing
        if not k:
            row = xp.concatenate([main[k], behind, nothing, sides[k]], axis=1)
            continue
        following = xp.concatenate([below[k], main[k], behind, sides[k]], axis=1)
        if partial_pivoting:
            is_larger = xp.abs(following[:, :1]) > xp.abs(row[:, :1])
            row, following = xp.where(is_larger, following, row), xp.where(is_larger, row, following)
        rows.append(row)
        _check_pivot(xp, row)
        following = following - following[:, :1] / row[:, :1] * row
        row = xp.concatenate([following[:, 1:3], nothing, following[:, 3:]], axis=1)
    if size:
        rows.append(row)
        _check_pivot(xp, row)
    found = xp.zeros((size + 2, count, width), rhs.dtype)
    for k in reversed(range(size)):
        known = rows[k][:, 1:2] * found[k + 1] + rows[k][:, 2:3] * found[k + 2]
        found[k] = (rows[k][:, 3:] - known) / rows[k][:, :1]
    return delivered(xp, xp.moveaxis(found[:size], 0, 1).reshape(rhs.shape), rhs.dtype, out)


def _check_pivot(xp: Any, row: Any) -> None:
    if xp is np and not row[:, 0].all():  # elsewhere a check would wait for the device
        raise InvalidArgumentError(f"expected {INVERTIBLE}")


def _solve_vjp(op: Operation, dx: Tensor) -> list[Tensor]:
    above, main, below = _parts(conjugated(op.inputs[0]))
    turned = stack([_behind(below), main, _before(above)], -2)
    db = tridiagonal_solve_op(turned, dx, partial_pivoting=op.get_attr("partial_pivoting"))
    x, slope = matrix_transpose(conjugated(op.outputs[0])), matrix_transpose(db)
    each = [reduce_sum(multiply(slope, moved), -2) for moved in (_behind(x), x, _before(x))]
    return [neg(stack(each, -2)), db]


def _parts(diagonals: Tensor) -> list[Tensor]:
    return [diagonals[..., i, :] for i in range(3)]


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    draw = rng.standard_normal
    yield sample(draw((3, 4)) + [[0], [3], [0]], draw((4, 2)))
    yield sample(draw((2, 3, 3)) + 2 * np.eye(3)[1], draw((2, 3, 1)))
    yield sample(draw((3, 3)) * (1 + 1j) + [[0], [3], [0]], draw((3, 2)) * (1 - 1j), partial_pivoting=False)
    yield sample((draw((3, 2)) + [[0], [3], [0]]).astype(np.float32), draw((2, 0)).astype(np.float32))


tridiagonal_solve_op: OpDef[Tensor] = define_op(
    "TridiagonalSolve",
    "diagonals: T in LAPACK, rhs: T -> output: T",
    attrs="partial_pivoting: bool = True",
    shape=_shape,
    kernel=_solve,
    vjp=_solve_vjp,
    samples=_samples,
    axes="..a t! m!, ..a n! k -> ..a n k",
    batch=leading,
    doc="The X of ``matrix X = rhs`` for matrices of three diagonals ``[..., 3, n]``.",
)


def tridiagonal_solve(
    diagonals: Any,
    rhs: NumericLike,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    name: str | None = None,
    partial_pivoting: bool = True,
) -> Tensor:
    """The X of ``matrix X = rhs`` for tridiagonal matrices.

    Args:
        diagonals: The diagonals above, at and below the main one, as ``diagonals_format`` says.
        rhs: The right sides ``[..., n, k]``, or ``[..., n]``.
        diagonals_format: "compact" for a tensor ``[..., 3, n]``; "sequence" for three ``[..., n]``, of which
            those above and below may be one shorter; "matrix" for ``[..., n, n]``, of which only the
            diagonals are read.
        transpose_rhs: Whether ``rhs`` is ``[..., k, n]``, and the result, too.
        conjugate_rhs: Whether ``rhs`` is conjugated first.
        partial_pivoting: Whether rows are exchanged, which is more exact; matrices with a dominant diagonal,
            and positive definite ones, do not need it.

    Returns:
        A tensor of the shape of ``rhs``.

    Raises:
        InvalidArgumentError: Shapes do not fit, or another format; when run, a pivot is zero.

    Example:
        >>> tf.linalg.tridiagonal_solve([[1.0, 0.0], [2.0, 2.0], [0.0, 1.0]], [3.0, 3.0]).eval()
        array([1., 1.], dtype=float32)
    """
    with get_default_graph().name_scope(name or "tridiagonal_solve"):
        parts = _as_parts("tridiagonal_solve", diagonals, diagonals_format)
        compact = stack(parts, -2)
        sides = convert_to_tensor(rhs, compact.dtype)
        ranks = compact.shape.ndims, sides.shape.ndims
        if ranks[0] is None or ranks[1] not in (ranks[0], ranks[0] - 1):
            raise misuse(
                "tridiagonal_solve: expected rhs of as many dimensions as the matrices, or one less; got"
                f" shape {sides.shape} for diagonals {parts[1].shape}"
            )
        sides = conjugated(sides) if conjugate_rhs else sides
        is_vector, is_turned = ranks[0] != ranks[1], transpose_rhs and ranks[0] == ranks[1]
        if is_vector:
            sides = expand_dims(sides, -1)
        found = tridiagonal_solve_op(
            compact, matrix_transpose(sides) if is_turned else sides, partial_pivoting=partial_pivoting
        )
        return squeeze(found, [-1]) if is_vector else matrix_transpose(found) if is_turned else found


def tridiagonal_matmul(
    diagonals: Any, rhs: NumericLike, diagonals_format: str = "compact", name: str | None = None
) -> Tensor:
    """The products of tridiagonal matrices and ``rhs`` ``[..., n, k]``: see `tridiagonal_solve`.

    Example:
        >>> tf.linalg.tridiagonal_matmul([[1.0, 0.0], [2.0, 2.0], [0.0, 1.0]], [[1.0], [1.0]]).eval()
        array([[3.],
               [3.]], dtype=float32)
    """
    with get_default_graph().name_scope(name or "tridiagonal_matmul"):
        above, main, below = _as_parts("tridiagonal_matmul", diagonals, diagonals_format)
        columns = matrix_transpose(convert_to_tensor(rhs, main.dtype))
        above, main, below = (expand_dims(part, -2) for part in (above, main, below))
        total = main * columns
        total += concat([above[..., :-1] * columns[..., 1:], zeros_like(total[..., :1])], -1)
        total += concat([zeros_like(total[..., :1]), below[..., 1:] * columns[..., :-1]], -1)
        return matrix_transpose(total)


def _as_parts(what: str, diagonals: Any, diagonals_format: str) -> list[Tensor]:
    """The three diagonals, each ``[..., n]``."""
    if diagonals_format == "sequence":
        if not isinstance(diagonals, (tuple, list)) or len(diagonals) != 3:
            raise misuse(f"{what}: expected a sequence of three diagonals; got {diagonals!r}")
        main = convert_to_tensor(diagonals[1])
        above, below = (convert_to_tensor(part, main.dtype) for part in diagonals[::2])
        padding = zeros_like(main[..., :1])
        if _is_shorter(above, main):
            above = concat([above, padding], -1)
        if _is_shorter(below, main):
            below = concat([padding, below], -1)
        return [above, main, below]
    given = convert_to_tensor(diagonals)
    if diagonals_format == "compact":
        rank = given.shape.ndims
        if rank is not None and (rank < 2 or given.shape[-2].value not in (3, None)):
            raise misuse(f"{what}: expected diagonals [..., 3, n]; got shape {given.shape}")
        return _parts(given)
    if diagonals_format == "matrix":
        main, padding = matrix_diag_part(given), zeros_like(given[..., 0, :1])
        above, below = matrix_diag_part(given[..., 1:]), matrix_diag_part(given[..., 1:, :])
        return [concat([above, padding], -1), main, concat([padding, below], -1)]
    raise misuse(f"{what}: expected diagonals_format compact, sequence or matrix; got {diagonals_format!r}")


def _is_shorter(diagonal: Tensor, main: Tensor) -> bool:
    length, whole = (d.shape[-1].value if d.shape.ndims else None for d in (diagonal, main))
    if length is None or whole is None or length == whole:
        return False
    if length != whole - 1:
        raise misuse(f"expected {whole} or {whole - 1} elements beside the diagonal; got {length}")
    return True
