"""Sets in the rows of sparse tensors, along their last axis: places ``[n, rank]``, values and a shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import Shape

Keys = np.ndarray[Any, np.dtype[np.int64]]
"""Elements of all rows as numbers: the row times the number of different values, plus the value's rank."""

_OPERATIONS: Mapping[str, Callable[[Keys, Keys], Keys]] = {
    "a-b": np.setdiff1d,
    "b-a": lambda a, b: np.setdiff1d(b, a),
    "intersection": np.intersect1d,
    "union": np.union1d,
}

_DTYPES = "INTEGER - uint32 - uint64 | string"


def _host(xp: Any, x: Any) -> Any:
    return x if isinstance(x, np.ndarray) or xp is np else xp.asnumpy(x)


def _rows(name: str, places: Any, sizes: Any, validate_indices: bool) -> Keys:
    """The row of each place, counted in row-major order."""
    shape = tuple(sizes.tolist())
    inside = bool(((places >= 0) & (places < sizes)).all())
    if not inside:
        raise InvalidArgumentError(f"{name}_indices: expected places within {list(shape)}; got one outside")
    *leading, last = places.T  # not all in one number: widths may be 2**62
    rows = np.zeros_like(last)
    if math.prod(shape[:-1]) >= 2**63:
        raise InvalidArgumentError(f"{name}_shape: expected fewer than 2**63 rows; got {list(shape)}")
    if leading and len(places):
        rows = np.ravel_multi_index(tuple(leading), shape[:-1])
    steps = np.diff(rows)
    if validate_indices and ((steps < 0) | ((steps == 0) & (np.diff(last) <= 0))).any():
        raise InvalidArgumentError(f"{name}_indices: expected places in ascending order, each once")
    return np.asarray(rows, np.int64)


def _keys(rows: Any, count: int, ranks: Any) -> Keys:
    last = int(rows.max(initial=0))
    if (last + 1) * count >= 2**63:
        raise InvalidArgumentError(f"expected rows times values below 2**63; got row {last}, {count} values")
    return np.asarray(rows * count + ranks, np.int64)


def _operate(
    xp: Any, set1_indices: Any, set1_values: Any, set1_shape: Any, set2_indices: Any, set2_values: Any,
    set2_shape: Any, set_operation: str, validate_indices: bool,
) -> list[Any]:  # fmt: skip
    given = [(set1_indices, set1_values, set1_shape), (set2_indices, set2_values, set2_shape)]
    sets = [[_host(xp, part) for part in each] for each in given]
    outer = sets[0][2][:-1]
    if not np.array_equal(outer, sets[1][2][:-1]):
        shapes = " and ".join(str(sizes.tolist()) for _, _, sizes in sets)
        raise InvalidArgumentError(f"expected sets of shapes that differ in the last size only; got {shapes}")
    different, ranks = np.unique(np.concatenate([values for _, values, _ in sets]), return_inverse=True)
    count, split = max(len(different), 1), len(sets[0][1])
    keys = [
        _keys(_rows(f"set{i}", places, sizes, validate_indices), count, rank)
        for i, ((places, _, sizes), rank) in enumerate(
            zip(sets, (ranks.ravel()[:split], ranks.ravel()[split:]), strict=True), 1
        )
    ]
    found = _OPERATIONS[set_operation](*keys)
    rows, ranked = np.divmod(found, count)
    starts = np.searchsorted(rows, rows)  # where each element's row begins
    position = np.arange(len(found)) - starts
    leading = np.unravel_index(rows, tuple(outer.tolist())) if len(outer) else ()
    places = np.stack([*leading, position], 1).astype(np.int64)
    sizes = np.append(outer, position.max(initial=-1) + 1)
    return [xp.asarray(places), xp.asarray(different[ranked]), xp.asarray(sizes.astype(np.int64))]


def _operate_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.attrs["set_operation"] not in _OPERATIONS:
        known = ", ".join(_OPERATIONS)
        raise InvalidArgumentError(
            f"set_operation: expected one of {known}; got {s.attrs['set_operation']!r}"
        )
    rank = next((shape[1] for shape in (s.shapes[0], s.shapes[3]) if shape is not None), None)
    return [(None, rank), (None,), (rank,)]


_LEFT = (np.array([[0, 0], [0, 2], [2, 1]]), np.array([3, 1, 3]), np.array([3, 4]))
_RIGHT = (np.array([[0, 0], [0, 1], [1, 0]]), np.array([3, 9, 4]), np.array([3, 2]))

set_operation_op: OpDef[list[Tensor]] = define_op(
    "SparseToSparseSetOperation",
    f"set1_indices: int64, set1_values: T in {_DTYPES}, set1_shape: int64, set2_indices: int64, "
    "set2_values: T, set2_shape: int64 -> result_indices: int64, result_values: T, result_shape: int64",
    attrs="set_operation: string, validate_indices: bool = True",
    shape=_operate_shape,
    kernel=_operate,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(*_LEFT, *_RIGHT, set_operation=name) for name in _OPERATIONS],
    doc="The rows' sets in ascending order: their difference, intersection or union.",
)


def _count(
    xp: Any, set_indices: Any, set_values: Any, set_shape: Any, validate_indices: bool, out: Any = None
) -> Any:
    places, values, sizes = (_host(xp, part) for part in (set_indices, set_values, set_shape))
    _, ranks = np.unique(values, return_inverse=True)
    width = max(len(values), 1)
    keys = np.unique(_keys(_rows("set", places, sizes, validate_indices), width, ranks.ravel()))
    outer = sizes[:-1].tolist()
    counts = np.bincount(keys // width, minlength=int(np.prod(outer))).reshape(outer)
    return delivered(xp, xp.asarray(counts), np.int32, out)


def _count_shape(s: ShapeContext) -> Sequence[Shape]:
    sizes = s.value(2)
    return [None if sizes is None else tuple(sizes[:-1])]


set_size_op: OpDef[Tensor] = define_op(
    "SetSize",
    f"set_indices: int64, set_values: T in {_DTYPES}, set_shape: int64 -> size: int32",
    attrs="validate_indices: bool = True",
    shape=_count_shape,
    kernel=_count,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(*_LEFT), sample(_LEFT[0], np.array([5, 5, 5]), _LEFT[2])],
    doc="The number of different values in each row.",
)
