"""The shape rules of collectives, see `flowrt.graph.ops.collective.collectives`. For values of two ranks
that do not fit
they raise `InvalidArgumentError`, which shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowrt.dtypes import COMPLEX
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.collectives.schedule import offset
from flowrt.graph.op_def import ShapeContext
from flowrt.graph.shapes import Shape, format_shape, merge, normalize_axis

REDUCTIONS = ("sum", "mean", "prod", "min", "max")


def _common_shape(s: ShapeContext) -> Shape:
    """The shape that all values have. Raises `InvalidArgumentError`, showing both, for two that differ."""
    common: Shape = None
    for rank, dims in zip(s.attrs["ranks"], s.shapes, strict=False):
        try:
            common = merge(common, dims)
        except InvalidArgumentError:
            first = next(i for i, d in enumerate(s.shapes) if d is not None)
            raise InvalidArgumentError(
                f"expected values of the same shape; rank {s.attrs['ranks'][first]} has "
                f"{format_shape(s.shapes[first])}, rank {rank} has {format_shape(dims)}"
            ) from None
    return common


def _check(s: ShapeContext) -> None:
    """Raises `InvalidArgumentError` for attributes that make no group, and `DTypeError` for complex numbers
    without the order that their reduction needs.
    """
    size, ranks = s.attrs["group_size"], s.attrs["ranks"]
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < size for rank in ranks) or not ranks:
        raise InvalidArgumentError(f"ranks: expected different ones in [0, {size}); got {list(ranks)}")
    if (reduction := s.attrs.get("reduction", "sum")) not in REDUCTIONS:
        expected = ", ".join(REDUCTIONS)
        raise InvalidArgumentError(f"reduction: expected one of {expected}; got {reduction!r}")
    if reduction in ("min", "max") and s.dtypes[0] in COMPLEX:
        raise DTypeError(
            f"reduction {reduction}: expected real numbers, which have an order; got {s.dtypes[0].name}"
        )
    if not 0 <= s.attrs.get("root", 0) < size:
        raise InvalidArgumentError(f"root: expected a rank in [0, {size}); got {s.attrs['root']}")


def _axis_of(s: ShapeContext, dims: Shape) -> int:
    if dims == ():
        raise InvalidArgumentError("expected values of at least one dimension; got a scalar")
    axis: int = s.attrs["axis"]
    return axis if dims is None else normalize_axis(axis, len(dims))


def resized(dims: Shape, axis: int, size: int | None) -> Shape:
    return None if dims is None else (*dims[:axis], size, *dims[axis + 1 :])


def same_for_all(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [_common_shape(s)] * len(s.shapes)


def at_root(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [_or_nothing(s, _common_shape(s))]


def _or_nothing(s: ShapeContext, dims: Shape) -> Shape:
    """``dims`` for the root's graph; for another one those of nothing."""
    return dims if s.attrs["root"] in s.attrs["ranks"] else (0,)


def from_root(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [_root_shape(s)] * s.attrs["N"]


def _root_shape(s: ShapeContext) -> Shape:
    return s.shapes[0] if s.attrs["root"] in s.attrs["ranks"] else s.attrs["shape"]


def _rest_shape(s: ShapeContext, axis: int) -> Shape:
    """The common shape of all values, which may differ along ``axis``. Raises `InvalidArgumentError`."""
    rest: Shape = None
    for rank, dims in zip(s.attrs["ranks"], s.shapes, strict=True):
        try:
            rest = merge(rest, resized(dims, axis, None))
        except InvalidArgumentError:
            first, known = next(p for p in zip(s.attrs["ranks"], s.shapes, strict=True) if p[1] is not None)
            raise InvalidArgumentError(
                f"expected values that differ along axis {axis} only; rank {first} has "
                f"{format_shape(known)}, rank {rank} has {format_shape(dims)}"
            ) from None
    return rest


def _joined_shape(s: ShapeContext) -> Shape:
    """Shape of all ranks' values concatenated."""
    axis = _axis_of(s, next((dims for dims in s.shapes if dims is not None), None))
    known = [size for size in _sizes(s, axis) if size is not None]
    total = sum(known) if len(known) == s.attrs["group_size"] else None
    return resized(_rest_shape(s, axis), axis, total)


def _sizes(s: ShapeContext, axis: int) -> list[int | None]:
    """Sizes along the axis of all ranks' values; those of other graphs equal this graph's."""
    sizes = [None if dims is None else dims[axis] for dims in s.shapes]
    if len(sizes) == s.attrs["group_size"]:
        return sizes
    common = _common_shape(s)
    return [None if common is None else common[axis]] * s.attrs["group_size"]


def gathered(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [_joined_shape(s)] * len(s.shapes)


def gathered_at_root(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return [_or_nothing(s, _joined_shape(s))]


def _part(size: int, count: int, number: int) -> int:
    """The size of part ``number`` of ``count``."""
    return offset(number + 1, size, count) - offset(number, size, count)


def _parts(s: ShapeContext, dims: Shape) -> list[Shape]:
    """The part of each rank of this graph, of ``dims`` cut along the axis."""
    axis, p = _axis_of(s, dims), s.attrs["group_size"]
    whole = None if dims is None else dims[axis]
    sizes = [None if whole is None else _part(whole, p, rank) for rank in s.attrs["ranks"]]
    return [resized(dims, axis, size) for size in sizes]


def reduced_parts(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return _parts(s, _common_shape(s))


def scattered(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return _parts(s, _root_shape(s))


def exchanged(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    axis = _axis_of(s, next((dims for dims in s.shapes if dims is not None), None))
    rest, p = _rest_shape(s, axis), s.attrs["group_size"]
    known = [size for size in _sizes(s, axis) if size is not None]
    if len(known) < p:
        return [rest] * len(s.shapes)
    totals = [sum([_part(size, p, rank) for size in known]) for rank in s.attrs["ranks"]]
    return [resized(rest, axis, total) for total in totals]


def coalesced_gathered(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return _resized_by(s, lambda length: length * s.attrs["group_size"])


def coalesced_scattered(s: ShapeContext) -> Sequence[Shape]:
    _check(s)
    return _resized_by(s, lambda length: length // s.attrs["group_size"])


def _resized_by(s: ShapeContext, change: Callable[[int], int]) -> list[Shape]:
    """The shapes of the tensors of each rank, of which an axis each is of another length."""
    axes = s.attrs["axes"] * len(s.attrs["ranks"])
    return [
        dims if dims is None or dims[axis] is None else resized(dims, axis, change(dims[axis]))
        for dims, axis in zip(s.shapes, axes, strict=True)
    ]
